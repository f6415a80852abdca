/* SPDX-License-Identifier: Apache-2.0 */

/*
 * token_asker: finds out how many tokens a prompt became, by asking the worker that has it: a side
 * call (anchor_plan says where) with the request's own body. Asks no faster than it may, few at a
 * time, and not where it did not work before; what it cannot ask at once waits for a while or is
 * refused with the reason. Prompts of token ids are read here too, without a call. Loop thread
 * only.
 */
#ifndef ROUTER_JOIN_TOKEN_ASKER_H
#define ROUTER_JOIN_TOKEN_ASKER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/io_loop.h"
#include "backends/json/json_scan.h"
#include "backends/runtime/buf.h"
#include "backends/worker_set.h"
#include "router/prompt/anchor_plan.h"
#include "router/prompt/token_anchor.h"

struct thread_pool;
struct token_asker;

struct token_asker_config {
    struct io_loop *io;
    const struct worker_set *workers;
    struct thread_pool *threads;  /* read what is large; NULL: the loop does */
    struct json_scanner *scanner; /* of the loop */
    const char *authorization;    /* for workers that want a key; NULL: none */
    const uint8_t *secret;
    uint32_t rate_max; /* questions to one worker in a second */
};

struct token_question {
    const struct worker *worker;
    const struct anchor_plan *plan;
    struct token_naming naming;
    uint64_t model;   /* a name of it, for the template's tail */
    size_t splice_at; /* in the body: just behind its first '{' */
    struct buf *body; /* taken when asked */
};

struct token_answer {
    enum anchor_outcome outcome; /* ANCHOR_POSTED: the rest is known */
    struct token_anchor anchor;
    uint32_t tail_tokens;
};

/* Once, perhaps from within token_asker_ask(). */
typedef void token_answered_fn(void *ctx, const struct token_answer *answer);

/* NULL: no memory. */
struct token_asker *token_asker_create(struct token_asker_config config);

/* ANCHOR_POSTED: on_answered will come, or has. Else why not: the body stays the caller's. */
enum anchor_outcome token_asker_ask(struct token_asker *asker,
                                    const struct token_question *question,
                                    token_answered_fn *on_answered, void *ctx);

/* worker was found to have no endpoint for the plan's question; it is not asked for a while. */
bool token_asker_is_unable(const struct token_asker *asker, const struct worker *worker,
                           const struct anchor_plan *plan);

void token_asker_set_rate_max(struct token_asker *asker, uint32_t rate_max);

/* Another process answers there now, or none: what was found out about it is void. */
void token_asker_forget_worker(struct token_asker *asker, uint32_t index);

struct token_asker_stats {
    uint64_t call_total;   /* side calls made */
    uint64_t failed_total; /* of them: no answer, or none that makes sense */
    uint32_t call_count;   /* running now */
    uint32_t wait_count;   /* questions that wait for one */
    uint64_t body_bytes;   /* kept for both */
};

struct token_asker_stats token_asker_stats(const struct token_asker *asker);

/* Gives up all questions: each is answered ANCHOR_FAILED before this returns. To be called before
 * the threads and the workers' pools are closed; no more questions then. */
void token_asker_close(struct token_asker *asker);

/* After it was closed. NULL is fine. */
void token_asker_destroy(struct token_asker *asker);

#endif
