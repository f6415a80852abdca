/* SPDX-License-Identifier: Apache-2.0 */

/* engine_answer: the answers without a generation, in the shape of vLLM 0.32 (key for key, in its
 * order). Every function appends to a buf. Pure. */
#ifndef TESTS_SIM_ENGINE_ENGINE_ANSWER_H
#define TESTS_SIM_ENGINE_ENGINE_ANSWER_H

#include <stdbool.h>
#include <stdint.h>

#include "backends/runtime/buf.h"
#include "tests/sim_engine/engine_request.h"

/* Names the version that is imitated. */
#define ENGINE_VERSION "0.32.0"

/* is_anthropic: to a request of /v1/messages. What the schema refuses has the one form everywhere.
 */
void answer_put_error(struct buf *buf, const struct engine_fault *fault, bool is_anthropic);

void answer_put_models(struct buf *buf, const struct engine_model *model, uint64_t created_s);

/* /tokenize, /detokenize and /v1/messages/count_tokens. */
void answer_put_tokens(struct buf *buf, const struct engine_model *model,
                       const struct token_list *ids);
void answer_put_detokenized(struct buf *buf, const struct token_list *ids);
void answer_put_count(struct buf *buf, const struct token_list *ids);

#endif
