/* SPDX-License-Identifier: Apache-2.0 */

/*
 * attempt_notes: what a worker's agent is told of one attempt: the text it was sent beyond what the
 * map says is known there, how many tokens that became, and what was answered. Lives on when its
 * exchange has ended, until what it asked for has come or not. Loop thread only.
 */
#ifndef ROUTER_JOIN_ATTEMPT_NOTES_H
#define ROUTER_JOIN_ATTEMPT_NOTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/buf.h"
#include "hashing/block_chain.h"
#include "router/prompt/anchor_plan.h"
#include "router/prompt/token_anchor.h"

struct attempt_notes;
struct join;
struct worker;

/* An attempt whose worker has read its prompt, or (where the engine itself says how many tokens it
 * has) is about to. Borrowed for the call but for body. */
struct attempt_begun {
    const struct worker *worker;
    const char *attempt_id; /* as the engine was told it */
    const char *model_id;
    const struct anchor_plan *plan;
    const struct block *blocks; /* of the prompt, end node included */
    size_t block_count;
    size_t closed_count;         /* without it: what an answer goes on from */
    size_t exact_count;          /* of the first blocks: the map says that the worker has them */
    struct tool_layout layout;   /* of the prompt's tools; where they stand late: */
    size_t before_tools_count;   /* of the first blocks: in front of them */
    uint64_t before_tools_bytes; /* of the stream, likewise */
    double predicted_ttft_ms;
    struct buf *body; /* of the request; taken where it is needed. NULL: there is none */
    size_t splice_at; /* just behind its first '{' */
    bool has_echo;    /* the answer is to say the prompt's ids: nobody is asked */
};

/* The answer may as well say the prompt's ids: it is to be told, and its worker has no endpoint
 * that could be asked about it. */
bool attempt_notes_want_echo(const struct join *join, const struct attempt_begun *begun);

/* How the worker's agent names such a prompt's tokens; it is there, and says anchors not itself. */
struct token_naming attempt_notes_naming(const struct join *join,
                                         const struct attempt_begun *begun);

/* The worker's engine says anchors itself: the text is to be told when the request is sent. */
bool attempt_notes_are_due_at_send(const struct join *join, const struct worker *worker);

/* NULL: nothing will be told, *why_not says why, and is counted. Else it goes to
 * attempt_notes_end(). */
struct attempt_notes *attempt_notes_begin(struct join *join, const struct attempt_begun *begun,
                                          enum anchor_outcome *why_not);

/* What the answer said of its prompt. cached_tokens UINT32_MAX: not said. */
void attempt_notes_usage(struct attempt_notes *notes, uint64_t prompt_tokens,
                         uint32_t cached_tokens);

/* What the answer has said: instead of asking, once. */
void attempt_notes_echoed(struct attempt_notes *notes, const struct token_anchor *anchor);

/* The answer ended well: its blocks go on from the prompt's closed ones. To be called after usage,
 * without which it is not told. */
void attempt_notes_answer(struct attempt_notes *notes, const struct block *blocks,
                          size_t block_count, uint64_t completion_tokens);

/* What became of its anchor; false: it is still being found out. */
bool attempt_notes_outcome(const struct attempt_notes *notes, enum anchor_outcome *outcome);

/* The attempt is over. NULLs *notes. */
void attempt_notes_end(struct attempt_notes **notes);

#endif
