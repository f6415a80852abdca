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
#include "backends/runtime/slice.h"
#include "tests/sim_engine/prefix_cache.h"
#include "tests/sim_engine/token_list.h"

struct connector_ops;
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
    SEQUENCE_LOADING, /* for blocks from beneath the cache, into those it holds */
    SEQUENCE_RUNNING,
    SEQUENCE_STATE_COUNT,
};

/* One prompt and one answer to it. The caller's storage; add and end bound the time it is lent. */
struct sequence {
    struct list_node in_state; /* in the scheduler's list of its state */
    enum sequence_state state;
    struct slice id;          /* what the engine calls it; borrowed for its life */
    struct token_list tokens; /* the prompt, then the whole answer, which is known beforehand */
    size_t prompt_count;
    size_t answer_count;   /* tokens to make; >= 1 */
    size_t answered_count; /* made so far */
    size_t computed_count; /* tokens whose keys and values are in blocks */
    size_t step_count;     /* tokens that the step in flight computes */
    size_t cached_count;   /* prompt tokens that it needed not compute when it first ran */
    size_t loaded_count;   /* of them, those that came from beneath the cache */
    bool was_admitted;     /* cached_count is known */
    bool has_wrong_page;   /* what it goes on from is not what it must be: so is its answer */
    uint64_t ask_us;       /* the connector is not asked before */
    struct cache_sequence cache;
    void *connected; /* the connector's */
    void *ctx;       /* the caller's */
};

struct scheduler_stats {
    uint64_t prompt_tokens;     /* of admitted sequences, cached ones included */
    uint64_t cached_tokens;     /* of these, found in the cache or beneath it */
    uint64_t loaded_tokens;     /* of these, beneath it */
    uint64_t asked_tokens;      /* of admitted sequences, beyond those in the cache itself */
    uint64_t generation_tokens; /* made */
    uint64_t preemption_count;
    uint64_t step_count;
};

/* Borrows cache. */
struct scheduler *scheduler_create(struct scheduler_config config, struct prefix_cache *cache,
                                   sequence_token_fn *on_token, void *ctx);
void scheduler_destroy(struct scheduler *scheduler);

/* Before the first sequence: what lies beneath the cache. Borrows both. */
void scheduler_connect(struct scheduler *scheduler, const struct connector_ops *ops, void *ctx);

/* A sequence with nothing in it. root: see cache_sequence. */
void sequence_init(struct sequence *sequence, uint64_t root);

/* Queues it. Its last token must fit into an empty cache. */
void scheduler_add(struct scheduler *scheduler, struct sequence *sequence);

/* Takes it out, whatever it was doing; no more tokens come. Fine for an idle one. */
void scheduler_cancel(struct scheduler *scheduler, struct sequence *sequence);

/* What a loading sequence waits for is over: the first block_count blocks of what was to be loaded
 * are there. Not from within connector_ops, but for save(). */
void scheduler_loaded(struct scheduler *scheduler, struct sequence *sequence, size_t block_count);

/*
 * Ends the step in flight if its time has come (tokens are reported now) and begins the next one.
 * Returns when to call again, in microseconds; 0: nothing to do until scheduler_add(),
 * scheduler_loaded(), or blocks come back to the cache. A call that comes late loses no time: the
 * next step began when the last one ended, and the connector had been waited for.
 */
uint64_t scheduler_step(struct scheduler *scheduler, uint64_t now_us);

size_t scheduler_running_count(const struct scheduler *scheduler);
size_t scheduler_waiting_count(const struct scheduler *scheduler); /* loading ones too */
size_t scheduler_loading_count(const struct scheduler *scheduler);
struct scheduler_stats scheduler_stats(const struct scheduler *scheduler);

/* Frees its tokens; the sequence must be idle. */
void sequence_release(struct sequence *sequence);

#endif
