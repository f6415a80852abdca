/* SPDX-License-Identifier: Apache-2.0 */

/* answer_registry: which family an endpoint belongs to. Pure. */
#ifndef TESTS_SIM_ENGINE_ANSWER_REGISTRY_H
#define TESTS_SIM_ENGINE_ANSWER_REGISTRY_H

#include "tests/sim_engine/answer_family.h"

/* api: one that generates, or embeds. */
const struct answer_family *answer_family_of(enum engine_api api);

/* What the ids of its answers begin with. */
const char *answer_id_prefix(enum engine_api api);

#endif
