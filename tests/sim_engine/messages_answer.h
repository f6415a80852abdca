/* SPDX-License-Identifier: Apache-2.0 */

/* messages_answer: the answers of /v1/messages. Pure. */
#ifndef TESTS_SIM_ENGINE_MESSAGES_ANSWER_H
#define TESTS_SIM_ENGINE_MESSAGES_ANSWER_H

#include "tests/sim_engine/answer_family.h"

extern const struct answer_family messages_family;

#endif
