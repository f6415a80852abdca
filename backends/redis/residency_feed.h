/* SPDX-License-Identifier: Apache-2.0 */

/*
 * residency_feed: reads from Redis what agents say (residency_wire.h): which workers there are,
 * who speaks for them, and of each one pages and changes, as they are asked for. It neither keeps
 * records nor knows what is exact: that is whoever asks. No request waits for it, and nothing
 * queues in it while Redis is away: what was under way has failed then, and is asked for again.
 * Loop thread only.
 *
 *   one link     SMEMBERS of the workers, MGET of all leases, HGETALL of a meta, GETs of pages,
 *                XRANGE; never a command that blocks
 *   followers    links of their own for XREAD BLOCK, of 64 streams each
 */
#ifndef BACKENDS_REDIS_RESIDENCY_FEED_H
#define BACKENDS_REDIS_RESIDENCY_FEED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "backends/redis/redis_link.h"
#include "backends/redis/residency_wire.h"
#include "backends/runtime/must_check.h"
#include "backends/runtime/slice.h"

struct residency_feed;

enum { RESIDENCY_SOURCE_COUNT_MAX = 2048 };

struct residency_feed_config {
    struct redis_url url;
    const char *password; /* NULL: none; copied */
    uint64_t fingerprint; /* whose workers */
};

/*
 * A source is a worker that is listed, or watched, by a number below RESIDENCY_SOURCE_COUNT_MAX.
 * Each of these may call residency_feed_*() but close.
 */
struct residency_feed_callbacks {
    /* Redis serves us (again), or no longer: why, for logs; "" where it does. */
    void (*on_reach)(void *ctx, bool is_reached, const char *why);
    /* A worker is listed that was no source yet. */
    void (*on_source)(void *ctx, uint32_t source);
    /* Redis has said who has a lease; on_lease for sources follows. */
    void (*on_polled)(void *ctx);
    /* lease: NULL: there is none, or none that can be read. */
    void (*on_lease)(void *ctx, uint32_t source, const struct residency_lease *lease);
    void (*on_meta)(void *ctx, uint32_t source, const struct residency_meta *meta);
    /* Of what was asked for. change: NULL: there is none. bytes: empty: there is none. */
    void (*on_last)(void *ctx, uint32_t source, uint64_t sequence,
                    const struct residency_change *change);
    void (*on_page)(void *ctx, uint32_t source, uint32_t page, struct slice bytes);
    void (*on_change)(void *ctx, uint32_t source, uint64_t sequence,
                      const struct residency_change *change);
    void (*on_no_more)(void *ctx, uint32_t source); /* behind on_change of residency_feed_changes */
    /* It did not come: Redis was lost or refused, or (is_unreadable) what is there is none. */
    void (*on_broken)(void *ctx, uint32_t source, bool is_unreadable);
};

/* Starts to connect. -EINVAL: url; -ENOMEM. */
MUST_CHECK int residency_feed_open(uv_loop_t *loop, struct residency_feed_config config,
                                   const struct residency_feed_callbacks *callbacks, void *ctx,
                                   struct residency_feed **feed);

/* worker is a source from now on, listed or not. -ENOSPC: too many; -EINVAL: no name of a worker.
 * The same number where it is one already. */
MUST_CHECK int residency_feed_watch(struct residency_feed *feed, const char *worker,
                                    uint32_t *source);

/* No source any more; one that is still listed becomes one again, with on_source. */
void residency_feed_drop(struct residency_feed *feed, uint32_t source);

const char *residency_feed_name(const struct residency_feed *feed, uint32_t source);
bool residency_feed_is_listed(const struct residency_feed *feed, uint32_t source);

/*
 * What to read of a source. One thing at a time: each ends what was under way, of which nothing
 * more is told. -ENOTCONN and the like: Redis is away; nothing is under way then. Following goes on
 * by itself when Redis comes back, from where it was.
 */
MUST_CHECK int residency_feed_last(struct residency_feed *feed, uint32_t source,
                                   struct residency_life life);
MUST_CHECK int residency_feed_pages(struct residency_feed *feed, uint32_t source,
                                    struct residency_life life, uint32_t page, uint32_t count);
MUST_CHECK int residency_feed_changes(struct residency_feed *feed, uint32_t source,
                                      struct residency_life life, uint64_t sequence);
MUST_CHECK int residency_feed_follow(struct residency_feed *feed, uint32_t source,
                                     struct residency_life life, uint64_t sequence);
void residency_feed_stop(struct residency_feed *feed, uint32_t source);

struct residency_feed_stats {
    bool is_reached;
    uint64_t connect_total;
    uint64_t failure_total; /* connections lost or not made */
    uint64_t timeout_total; /* commands */
    uint64_t bad_total;     /* leases, metas, changes that are none; names that are none */
    uint64_t refused_total; /* names beyond RESIDENCY_SOURCE_COUNT_MAX */
    uint32_t source_count;
    uint32_t listed_count;
    uint32_t followed_count;
};

struct residency_feed_stats residency_feed_stats(const struct residency_feed *feed);

/* NULLs *feed; nothing is told any more. Its memory goes when the loop has closed its handles. */
void residency_feed_close(struct residency_feed **feed);

#endif
