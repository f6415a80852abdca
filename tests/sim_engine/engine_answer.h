/* SPDX-License-Identifier: Apache-2.0 */

/*
 * engine_answer: bodies and events in the exact shape of vLLM 0.32 (key for key, in its order).
 * Every function appends to a buf. Pure.
 */
#ifndef TESTS_SIM_ENGINE_ENGINE_ANSWER_H
#define TESTS_SIM_ENGINE_ENGINE_ANSWER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/buf.h"
#include "backends/runtime/slice.h"
#include "tests/sim_engine/answer_plan.h"
#include "tests/sim_engine/engine_request.h"

/* Names the version that is imitated. */
#define ENGINE_VERSION "0.32.0"

struct answer_usage {
    size_t prompt_tokens;     /* of all prompts */
    size_t completion_tokens; /* of all choices so far */
    size_t cached_tokens;     /* of all prompts */
    size_t created_tokens;    /* chat only: newly cached of the prompt */
};

/* What all parts of one answer share. */
struct answer_head {
    const struct engine_request *request;
    struct slice id; /* "chatcmpl-..." */
    uint64_t created_s;
    bool hides_usage; /* fault no_usage */
};

/* One choice as far as it has come. */
struct answer_choice {
    uint32_t index; /* over all prompts */
    const struct token_list *prompt;
    const struct answer_plan *plan;
    size_t answered_count;
    const char *finish_reason; /* NULL: not finished */
};

/* chat: `data: {... "delta":{"role":"assistant","content":""} ...}` */
void answer_put_role_event(struct buf *buf, const struct answer_head *head,
                           const struct answer_choice *choice, const struct answer_usage *usage);

/* The event of the choice's newest token; false and nothing where the token shows nothing. is_last:
 * of the whole stream. */
bool answer_put_token_event(struct buf *buf, const struct answer_head *head,
                            const struct answer_choice *choice, const struct answer_usage *usage,
                            bool is_last);

/* `data: {... "choices":[],"usage":{...}}` */
void answer_put_usage_event(struct buf *buf, const struct answer_head *head,
                            const struct answer_usage *usage);

/* The whole answer at once. */
void answer_put_body(struct buf *buf, const struct answer_head *head,
                     const struct answer_choice *choices, size_t choice_count,
                     const struct answer_usage *usage);

void answer_put_error(struct buf *buf, const struct engine_fault *fault);
void answer_put_models(struct buf *buf, const struct engine_model *model, uint64_t created_s);
void answer_put_tokens(struct buf *buf, const struct engine_model *model,
                       const struct token_list *ids);

#endif
