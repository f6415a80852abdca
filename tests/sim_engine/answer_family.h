/* SPDX-License-Identifier: Apache-2.0 */

/*
 * answer_family: how an API family tells an answer: as events while it is made, or as one body. One
 * file a family; what is common to all (who was asked what, how far it has come) is here. Pure.
 */
#ifndef TESTS_SIM_ENGINE_ANSWER_FAMILY_H
#define TESTS_SIM_ENGINE_ANSWER_FAMILY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/buf.h"
#include "backends/runtime/slice.h"
#include "tests/sim_engine/answer_plan.h"
#include "tests/sim_engine/engine_request.h"

struct answer_usage {
    size_t prompt_tokens;     /* of all prompts */
    size_t completion_tokens; /* of all choices so far */
    size_t cached_tokens;     /* of all prompts */
    size_t created_tokens;    /* newly cached of the prompt; not of completions */
};

/* What all parts of one answer share. */
struct answer_head {
    const struct engine_request *request;
    struct slice id; /* "chatcmpl-..." */
    uint64_t created_s;
    bool hides_usage; /* fault no_usage */
    bool hides_done;  /* fault no_done: what says that the stream is complete is left out */
    /* Of a stream of one choice, kept by its family. */
    uint64_t event_count;
    uint32_t item_count;              /* finished ones */
    enum answer_piece_kind open_kind; /* of the item that is open; ANSWER_SILENT: none */
};

/* One choice as far as it has come. */
struct answer_choice {
    uint32_t index; /* over all prompts */
    const struct token_list *prompt;
    const struct answer_plan *plan;
    size_t answered_count;
    const char *finish_reason; /* NULL: not finished */
};

/* Each function of a stream appends any number of whole events, each with its empty line. */
struct answer_family {
    /* As soon as the request is accepted. NULL: nothing. */
    void (*put_opening)(struct buf *buf, struct answer_head *head);
    /* When the first token of any choice is there: once for each choice. NULL: nothing. */
    void (*put_beginning)(struct buf *buf, struct answer_head *head,
                          const struct answer_choice *choice, const struct answer_usage *usage);
    /* For each token. is_last: of the whole stream. */
    void (*put_token)(struct buf *buf, struct answer_head *head, const struct answer_choice *choice,
                      const struct answer_usage *usage, bool is_last);
    /* When all choices are finished; choice: the first. */
    void (*put_end)(struct buf *buf, struct answer_head *head, const struct answer_choice *choice,
                    const struct answer_usage *usage);
    /* The whole answer. */
    void (*put_body)(struct buf *buf, const struct answer_head *head,
                     const struct answer_choice *choices, size_t choice_count,
                     const struct answer_usage *usage);
};

/* "chatcmpl-tool-...": the same for the same choice of the same answer. */
void answer_put_call_id(struct buf *buf, const struct answer_head *head, uint32_t choice);

/* prefix and 16 digits: the same for the same number in the same answer. */
void answer_put_item_id(struct buf *buf, const struct answer_head *head, const char *prefix,
                        uint32_t number);

#endif
