/* SPDX-License-Identifier: Apache-2.0 */

/* chat_answer: the answers of /v1/chat/completions and /v1/completions. Pure. */
#ifndef TESTS_SIM_ENGINE_CHAT_ANSWER_H
#define TESTS_SIM_ENGINE_CHAT_ANSWER_H

#include "tests/sim_engine/answer_family.h"

extern const struct answer_family chat_family;

#endif
