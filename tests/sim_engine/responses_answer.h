/* SPDX-License-Identifier: Apache-2.0 */

/* responses_answer: the answers of /v1/responses. Pure. */
#ifndef TESTS_SIM_ENGINE_RESPONSES_ANSWER_H
#define TESTS_SIM_ENGINE_RESPONSES_ANSWER_H

#include "tests/sim_engine/answer_family.h"

extern const struct answer_family responses_family;

#endif
