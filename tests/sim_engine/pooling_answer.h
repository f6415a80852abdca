/* SPDX-License-Identifier: Apache-2.0 */

/* pooling_answer: the answers of /v1/embeddings, /rerank and /score. Pure. */
#ifndef TESTS_SIM_ENGINE_POOLING_ANSWER_H
#define TESTS_SIM_ENGINE_POOLING_ANSWER_H

#include "tests/sim_engine/answer_family.h"

extern const struct answer_family pooling_family;

#endif
