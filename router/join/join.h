/* SPDX-License-Identifier: Apache-2.0 */

/*
 * join: what a router does so that agents can join its text with their engines' tokens: it tells
 * them which text each attempt had, how many tokens that became, and what was answered. One for the
 * router; attempt_notes is one attempt's part. Loop thread only.
 */
#ifndef ROUTER_JOIN_JOIN_H
#define ROUTER_JOIN_JOIN_H

#include <stdint.h>
#include <uv.h>

#include "backends/io_loop.h"
#include "backends/json/json_scan.h"
#include "backends/redis/redis_link.h"
#include "backends/runtime/must_check.h"
#include "backends/worker_set.h"
#include "router/join/anchor_trust.h"
#include "router/join/handover.h"
#include "router/join/note_post.h"
#include "router/join/token_asker.h"
#include "router/metrics.h"
#include "router/residency/residency_guess.h"
#include "router/residency/residency_sync.h"

struct join_config {
    struct io_loop *io;
    struct redis_link *link; /* notes go through it; borrowed until join_close() */
    struct thread_pool *threads;
    struct json_scanner *scanner;
    const struct worker_set *workers;
    struct residency_guess *guess;
    struct router_stats *stats;
    const uint8_t *secret;
    uint64_t fingerprint;
    uint64_t router;           /* this router's id, in notes */
    const char *authorization; /* for side calls; NULL: none */
    uint64_t anchor_bytes_min; /* less new text is not asked about */
    uint32_t anchor_rate_max;  /* side calls to a worker in a second */
    /* What is known of a worker's agent now. */
    struct residency_agent (*find_agent)(void *ctx, const struct worker *worker);
    void *ctx;
};

/* Fields are private to router/join but for what functions say. */
struct join {
    struct join_config config;
    struct token_asker *asker;
    struct note_post *post;
    struct handover handover;
    struct anchor_trust trusts[ANCHOR_TARGET_COUNT];
    uv_timer_t hand;            /* runs while something waits to be handed over */
    uint64_t lag_ms;            /* how late the loop was the last two times, at least */
    uint64_t last_lag_ms;       /* the last time */
    uint64_t handed_over_total; /* blocks that the guess left to the map */
    uint64_t kept_total;        /* blocks that it was to leave, but for want of room did not */
};

/* NULL: no memory. */
struct join *join_create(struct join_config config);

/* Other limits from now on. */
void join_configure(struct join *join, uint64_t anchor_bytes_min, uint32_t anchor_rate_max);

/* How late the loop ran a timer: while it is late again and again, nobody is asked anything. */
static inline void join_note_lag(struct join *join, uint64_t lag_ms)
{
    join->lag_ms = lag_ms < join->last_lag_ms ? lag_ms : join->last_lag_ms;
    join->last_lag_ms = lag_ms;
}

/* Private to router/join: takes lot, whose blocks the guess forgets when it is due. */
void join_hand_over(struct join *join, struct handover_lot lot);

/* A note to worker's agent that is of no attempt. As note_post_add(). */
MUST_CHECK int join_post(struct join *join, const struct worker *worker,
                         const struct residency_note *note,
                         const struct residency_note_block *blocks, size_t block_count);

/* Its process is another one, or gone. */
void join_forget_worker(struct join *join, const struct worker *worker);

/* What a scrape reads of it. */
void join_add_sources(const struct join *join, struct metrics_sources *sources);

/* Ends all side calls; every attempt must have ended. Before the threads, the workers' pools and
 * the link are closed. */
void join_close(struct join *join);

/* After the loop has closed all handles. NULL is fine. */
void join_destroy(struct join *join);

#endif
