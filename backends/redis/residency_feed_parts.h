/* SPDX-License-Identifier: Apache-2.0 */

/*
 * residency_feed_parts: what the files of residency_feed share: residency_feed.c polls,
 * residency_feed_read.c reads what was asked for, residency_feed_follow.c waits for changes.
 * Nobody else includes it.
 */
#ifndef BACKENDS_REDIS_RESIDENCY_FEED_PARTS_H
#define BACKENDS_REDIS_RESIDENCY_FEED_PARTS_H

#include "backends/redis/residency_feed.h"
#include "backends/runtime/list.h"
#include "hashing/block_map.h"

enum { FEED_FOLLOWER_STREAM_COUNT = 64 };
enum {
    FEED_FOLLOWER_COUNT_MAX = RESIDENCY_SOURCE_COUNT_MAX / FEED_FOLLOWER_STREAM_COUNT,
};

struct feed_source {
    struct residency_feed *feed;
    uint32_t number;
    char name[RESIDENCY_WORKER_NAME_BYTES_MAX];
    uint64_t name_hash;
    bool is_listed;
    uint64_t meta_due_ms;
    bool is_meta_asked;
    struct residency_life lease_life; /* of the last lease */

    /* What is read of it. */
    uint64_t ticket; /* of what is under way; no two are alike, of all sources */
    struct residency_life life;
    struct list_node in_paging; /* in feed->paging while pages are to be asked for */
    uint32_t page;              /* the next to ask for */
    uint32_t page_end;
    uint32_t pages_in_flight;
    bool is_followed;
    uint32_t follower;        /* that has it, while is_followed */
    uint64_t follow_sequence; /* the next change */
};

/* A link of its own, and the streams it waits for. */
struct feed_follower {
    struct residency_feed *feed;
    struct redis_link *link;
    uv_timer_t again;  /* not at once after the last one */
    uint64_t asked_ms; /* last */
    uint64_t again_ms; /* not before */
    bool is_asking;
    uint32_t sources[FEED_FOLLOWER_STREAM_COUNT]; /* numbers */
    uint32_t count;
    /* Of the XREAD under way: its streams in order. */
    uint32_t asked_count;
    uint32_t asked[FEED_FOLLOWER_STREAM_COUNT];
    uint64_t tickets[FEED_FOLLOWER_STREAM_COUNT];
    char keys[FEED_FOLLOWER_STREAM_COUNT][RESIDENCY_KEY_BYTES_MAX];
};

struct residency_feed {
    uv_loop_t *loop;
    struct residency_feed_config config;
    char *password;
    const struct residency_feed_callbacks *callbacks;
    void *ctx;
    struct redis_link *link;
    uv_timer_t timer; /* polls */
    uint64_t ticks;
    uint32_t polls_pending; /* MGETs without a reply */
    bool is_listing;        /* SMEMBERS without a reply */
    bool is_reached;
    uint64_t ticket;
    struct feed_source *sources[RESIDENCY_SOURCE_COUNT_MAX];
    uint32_t source_end;      /* behind the highest number in use */
    struct block_map by_name; /* hash of a name -> number + 1 */
    struct list paging;
    uint32_t pages_in_flight; /* of all sources */
    struct feed_follower *followers[FEED_FOLLOWER_COUNT_MAX];
    uint32_t handle_count; /* open: the feed is freed when the last one is closed */
    bool is_closing;
    struct residency_feed_stats stats;
};

/* Whatever was under way of source is moot. */
void feed_read_end(struct feed_source *source);

/* An entry of an "out" stream. -EPROTO; counted. */
MUST_CHECK int feed_read_entry(struct residency_feed *feed, const struct redis_reply *reply,
                               uint64_t *sequence, struct residency_change *change);

void feed_follow_end(struct feed_source *source);
void feed_follower_close(struct feed_follower *follower);

/* A link with the feed's address. block_ms: how long its commands may block. */
MUST_CHECK int feed_open_link(struct residency_feed *feed, const char *name, uint32_t block_ms,
                              struct redis_link_callbacks callbacks, void *ctx,
                              struct redis_link **link);

/* The close callback of a handle whose feed is ctx: frees the feed with the last one. */
void feed_handle_closed(void *ctx);

#endif
