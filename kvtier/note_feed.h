/* SPDX-License-Identifier: Apache-2.0 */

/*
 * note_feed: reads the streams that routers write their notes to, one for each worker, over a
 * connection of its own that may wait for the next entry. Loop thread only.
 */
#ifndef KVTIER_NOTE_FEED_H
#define KVTIER_NOTE_FEED_H

#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "backends/redis/redis_link.h"
#include "backends/runtime/must_check.h"
#include "backends/runtime/slice.h"

struct note_feed;

enum { NOTE_FEED_STREAM_COUNT_MAX = 64 };

struct note_feed_config {
    struct redis_link_config link; /* command_ms and pending_max are set by note_feed */
    const char *const *workers;    /* their names; borrowed until close */
    size_t worker_count;           /* at most NOTE_FEED_STREAM_COUNT_MAX */
};

/* Not from within note_feed_*(). */
struct note_feed_callbacks {
    /* The field "b" of an entry of workers[index]'s stream; it lives as long as the call. */
    void (*on_entry)(void *ctx, size_t index, struct slice entry);
    void (*on_ready)(void *ctx); /* as redis_link's; both may be NULL */
    void (*on_away)(void *ctx, int error, const char *why);
};

/* Starts to connect, and reads all that the streams still hold, then what comes. -EINVAL: url;
 * -ENOMEM. Borrows callbacks. */
MUST_CHECK int note_feed_create(uv_loop_t *loop, struct note_feed_config config,
                                const struct note_feed_callbacks *callbacks, void *ctx,
                                struct note_feed **feed);

struct note_feed_stats {
    uint64_t entry_count;
    uint64_t rewind_count; /* times that a stream was found to have begun anew */
    struct redis_link_stats link;
};

struct note_feed_stats note_feed_stats(const struct note_feed *feed);

/* NULLs *feed, which may be NULL. No callback comes any more; it is gone when the loop has closed
 * its handles. Not from within a callback. */
void note_feed_close(struct note_feed **feed);

#endif
