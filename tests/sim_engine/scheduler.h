/* SPDX-License-Identifier: Apache-2.0 */

/*
 * scheduler: when which sequence gets its next token: continuous batching with chunked prefill over
 * a prefix_cache, in steps whose length a time model gives. The caller owns the clock: it calls
 * scheduler_step() when it is time. Pure; one thread at a time.
 */
#ifndef TESTS_SIM_ENGINE_SCHEDULER_H
#define TESTS_SIM_ENGINE_SCHEDULER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/list.h"
#include "tests/sim_engine/prefix_cache.h"
#include "tests/sim_engine/token_list.h"

struct scheduler;
struct sequence;

enum { SCHEDULER_STEP_TOKENS_MAX = 2048 }; /* of prefill and decode together, as vLLM's default */

/* How long a step takes: prefill tokens / rate, and where anything decodes the decode term. */
struct time_model {
    double prefill_tokens_per_s;
    double decode_ms;             /* of a step that decodes */
    double decode_ms_per_request; /* for each sequence that decodes in it */
    double speedup;               /* everything is this much faster; 1 by default */
};

/* The blocks of a step have their names by now; its tokens come next. May not call the scheduler.
 */
typedef void scheduler_step_fn(void *ctx);

struct scheduler_config {
    struct time_model time;
    uint32_t running_count_max;
    scheduler_step_fn *on_step; /* a step is at its end; NULL: nobody cares */
};

/* One token was made. May cancel any sequence, this one too. is_last: the sequence is done, and
 * out of the scheduler. */
typedef void sequence_token_fn(void *ctx, struct sequence *sequence, bool is_last);

enum sequence_state {
    SEQUENCE_IDLE,    /* not in the scheduler: not yet, or not any more */
    SEQUENCE_WAITING, /* for room in the batch or in the cache */
    SEQUENCE_RUNNING,
};

/* One prompt and one answer to it. The caller's storage; add and end bound the time it is lent. */
struct sequence {
    struct list_node in_state; /* in waiting or running of the scheduler */
    enum sequence_state state;
    struct token_list tokens; /* the prompt, then the whole answer, which is known beforehand */
    size_t prompt_count;
    size_t answer_count;   /* tokens to make; >= 1 */
    size_t answered_count; /* made so far */
    size_t computed_count; /* tokens whose keys and values are in blocks */
    size_t step_count;     /* tokens that the step in flight computes */
    size_t cached_count;   /* prompt tokens found in the cache when it first ran */
    bool was_admitted;     /* cached_count is known */
    struct cache_sequence cache;
    void *ctx; /* the caller's */
};

struct scheduler_stats {
    uint64_t prompt_tokens;     /* of admitted sequences, cached ones included */
    uint64_t cached_tokens;     /* of these, found in the cache */
    uint64_t generation_tokens; /* made */
    uint64_t preemption_count;
    uint64_t step_count;
};

/* Borrows cache. */
struct scheduler *scheduler_create(struct scheduler_config config, struct prefix_cache *cache,
                                   sequence_token_fn *on_token, void *ctx);
void scheduler_destroy(struct scheduler *scheduler);

/* A sequence with nothing in it. root: see cache_sequence. */
void sequence_init(struct sequence *sequence, uint64_t root);

/* Queues it. Its last token must fit into an empty cache. */
void scheduler_add(struct scheduler *scheduler, struct sequence *sequence);

/* Takes it out, whatever it was doing; no more tokens come. Fine for an idle one. */
void scheduler_cancel(struct scheduler *scheduler, struct sequence *sequence);

/*
 * Ends the step in flight if its time has come (tokens are reported now) and begins the next one.
 * Returns when to call again, in microseconds; 0: nothing to do until scheduler_add(). A call that
 * comes late loses no time: the next step began when the last one ended.
 */
uint64_t scheduler_step(struct scheduler *scheduler, uint64_t now_us);

size_t scheduler_running_count(const struct scheduler *scheduler);
size_t scheduler_waiting_count(const struct scheduler *scheduler);
struct scheduler_stats scheduler_stats(const struct scheduler *scheduler);

/* Frees its tokens; the sequence must be idle. */
void sequence_release(struct sequence *sequence);

#endif
