/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/note_feed.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/redis/residency_wire.h"
#include "backends/redis/stream_entry.h"
#include "backends/runtime/log.h"
#include "backends/runtime/must_check.h"

/*
 * DESIGN
 *
 *   READY -> XREVRANGE of each stream -> XREAD BLOCK of all -> entries -> [pause] -> XREAD ...
 *                 ^-------------- every CHECK_MS -----------------'
 *
 * A stream's ids are the server's clock. Where a stream was lost (a Redis that restarts empty,
 * FLUSHALL) and the clock has gone back meanwhile, all new ids are below the last one seen, and
 * XREAD would wait for ever without an error. So from time to time, and at each connection, the
 * last id of each stream is looked at: one that is below what was read already is a stream that
 * began anew.
 *
 * What was written while nobody read is read first: entries are idempotent, and after a restart of
 * the agent they join with what the engine replays.
 */

enum {
    BLOCK_MS = 1000,      /* a server waits so long for an entry */
    COMMAND_MS = 3000,    /* and so long at most for anything */
    PAUSE_MS = 5,         /* from one XREAD to the next, at least: entries gather meanwhile */
    CHECK_MS = 5000,      /* between two looks at the last ids */
    ENTRY_COUNT_MAX = 64, /* of each stream in one reply */
    ID_BYTES = 44,        /* two numbers of 64 bits and a dash */
};

struct stream {
    char key[RESIDENCY_KEY_BYTES_MAX];
    size_t key_len;
    uint64_t ms, sequence; /* of the last entry read; 0-0: none */
};

struct note_feed {
    const struct note_feed_callbacks *callbacks;
    void *ctx;
    uv_loop_t *loop;
    struct redis_link *link;
    uv_timer_t timer;
    uint64_t read_ms;  /* when the last XREAD was sent */
    uint64_t check_ms; /* when the ids were looked at last */
    size_t unchecked;  /* replies that the look still waits for */
    uint64_t entry_count, rewind_count;
    size_t stream_count;
    struct stream streams[NOTE_FEED_STREAM_COUNT_MAX];
};

static void go_on(struct note_feed *feed);

static void on_timer(uv_timer_t *timer)
{
    go_on(timer->data);
}

/* ---- ids ---- */

/* "<ms>-<sequence>". */
static bool read_id(struct slice text, uint64_t *ms, uint64_t *sequence)
{
    char copy[ID_BYTES];

    if (text.len == 0 || text.len >= sizeof copy)
        return false;
    memcpy(copy, text.ptr, text.len);
    copy[text.len] = '\0';
    return sscanf(copy, "%" SCNu64 "-%" SCNu64, ms, sequence) == 2;
}

/* ---- entries ---- */

static void take_entry(struct note_feed *feed, size_t index, const struct redis_reply *reply)
{
    struct stream *stream = &feed->streams[index];
    struct stream_entry entry;
    uint64_t ms, sequence;

    if (!stream_entry_read(reply, &entry) || !read_id(entry.id, &ms, &sequence))
        return;
    stream->ms = ms;
    stream->sequence = sequence;
    feed->entry_count++;
    if (entry.has_bytes)
        feed->callbacks->on_entry(feed->ctx, index, entry.bytes);
}

/* [key, [entry, ...]] */
static void take_stream(struct note_feed *feed, const struct redis_reply *reply)
{
    struct slice key;
    const struct redis_reply *entries;

    if (redis_reply_count(reply) != 2)
        return;
    key = redis_reply_text(redis_reply_at(reply, 0));
    entries = redis_reply_at(reply, 1);
    for (size_t i = 0; i < feed->stream_count; i++) {
        if (!slice_eq(key, slice_of(feed->streams[i].key, feed->streams[i].key_len)))
            continue;
        for (size_t entry = 0; entry < redis_reply_count(entries); entry++)
            take_entry(feed, i, redis_reply_at(entries, entry));
    }
}

static void on_read(void *ctx, int error, const struct redis_reply *reply)
{
    struct note_feed *feed = ctx;
    uint64_t since_ms;

    if (error < 0 && reply == NULL)
        return; /* the connection is gone; on_ready begins again */
    for (size_t i = 0; error == 0 && i < redis_reply_count(reply); i++)
        take_stream(feed, redis_reply_at(reply, i));
    /* A refusal (a key of another type, an ACL) comes again: no faster than an answer would. */
    since_ms = error < 0 ? 0 : uv_now(feed->loop) - feed->read_ms;
    uv_timer_start(&feed->timer, on_timer,
                   error < 0             ? BLOCK_MS
                   : since_ms < PAUSE_MS ? PAUSE_MS - since_ms
                                         : 0,
                   0);
}

static void read_streams(struct note_feed *feed)
{
    struct slice words[6 + 2 * NOTE_FEED_STREAM_COUNT_MAX];
    char ids[NOTE_FEED_STREAM_COUNT_MAX][ID_BYTES];
    char count[16], block[16];
    size_t n = 0;

    snprintf(count, sizeof count, "%d", ENTRY_COUNT_MAX);
    snprintf(block, sizeof block, "%d", BLOCK_MS);
    words[n++] = SLICE("XREAD");
    words[n++] = SLICE("COUNT");
    words[n++] = slice_of_string(count);
    words[n++] = SLICE("BLOCK");
    words[n++] = slice_of_string(block);
    words[n++] = SLICE("STREAMS");
    for (size_t i = 0; i < feed->stream_count; i++)
        words[n++] = slice_of(feed->streams[i].key, feed->streams[i].key_len);
    for (size_t i = 0; i < feed->stream_count; i++) {
        snprintf(ids[i], sizeof ids[i], "%" PRIu64 "-%" PRIu64, feed->streams[i].ms,
                 feed->streams[i].sequence);
        words[n++] = slice_of_string(ids[i]);
    }
    feed->read_ms = uv_now(feed->loop);
    (void)!redis_link_send(feed->link, words, n, on_read, feed);
}

/* ---- streams that began anew ---- */

static void rewind_if_new(struct note_feed *feed, struct stream *stream,
                          const struct redis_reply *entries)
{
    uint64_t ms = 0, sequence = 0;

    if (redis_reply_count(entries) > 0 &&
        !read_id(redis_reply_text(redis_reply_at(redis_reply_at(entries, 0), 0)), &ms, &sequence))
        return;
    if (ms > stream->ms || (ms == stream->ms && sequence >= stream->sequence))
        return;
    stream->ms = stream->sequence = 0;
    feed->rewind_count++;
}

/* Replies come in the order of the streams. */
static void on_last_entry(void *ctx, int error, const struct redis_reply *reply)
{
    struct note_feed *feed = ctx;

    if (error < 0 && reply == NULL)
        return;
    assert(feed->unchecked > 0);
    if (error == 0)
        rewind_if_new(feed, &feed->streams[feed->stream_count - feed->unchecked], reply);
    if (--feed->unchecked == 0)
        uv_timer_start(&feed->timer, on_timer, 0, 0);
}

static void check_ids(struct note_feed *feed)
{
    feed->check_ms = uv_now(feed->loop);
    feed->unchecked = feed->stream_count;
    for (size_t i = 0; i < feed->stream_count; i++) {
        const struct slice words[] = {
            SLICE("XREVRANGE"), slice_of(feed->streams[i].key, feed->streams[i].key_len),
            SLICE("+"),         SLICE("-"),
            SLICE("COUNT"),     SLICE("1")};

        /* Where one is not taken the link is away, and all begins again when it is back. */
        if (redis_link_send(feed->link, words, array_count(words), on_last_entry, feed) < 0)
            return;
    }
}

static void go_on(struct note_feed *feed)
{
    if (redis_link_state(feed->link) != REDIS_LINK_READY)
        return;
    if (uv_now(feed->loop) - feed->check_ms >= CHECK_MS)
        check_ids(feed);
    else
        read_streams(feed);
}

/* ---- the link ---- */

static void on_ready(void *ctx)
{
    struct note_feed *feed = ctx;

    if (feed->callbacks->on_ready != NULL)
        feed->callbacks->on_ready(feed->ctx);
    check_ids(feed);
}

static void on_away(void *ctx, int error, const char *why)
{
    struct note_feed *feed = ctx;

    uv_timer_stop(&feed->timer);
    if (feed->callbacks->on_away != NULL)
        feed->callbacks->on_away(feed->ctx, error, why);
}

int note_feed_create(uv_loop_t *loop, struct note_feed_config config,
                     const struct note_feed_callbacks *callbacks, void *ctx,
                     struct note_feed **created)
{
    struct note_feed *feed = calloc(1, sizeof *feed);
    int status;

    assert(config.worker_count > 0 && config.worker_count <= NOTE_FEED_STREAM_COUNT_MAX);

    *created = NULL;
    if (feed == NULL)
        return -ENOMEM;
    feed->callbacks = callbacks;
    feed->ctx = ctx;
    feed->loop = loop;
    feed->stream_count = config.worker_count;
    for (size_t i = 0; i < config.worker_count; i++)
        feed->streams[i].key_len =
            residency_key(feed->streams[i].key, config.workers[i], RESIDENCY_KEY_IN);
    config.link.command_ms = COMMAND_MS;
    config.link.pending_max = NOTE_FEED_STREAM_COUNT_MAX + 1;
    status = redis_link_open(loop, config.link, (struct redis_link_callbacks){on_ready, on_away},
                             feed, &feed->link);
    if (status < 0) {
        free(feed);
        return status;
    }
    uv_timer_init(loop, &feed->timer);
    feed->timer.data = feed;
    *created = feed;
    return 0;
}

struct note_feed_stats note_feed_stats(const struct note_feed *feed)
{
    return (struct note_feed_stats){
        .entry_count = feed->entry_count,
        .rewind_count = feed->rewind_count,
        .link = redis_link_stats(feed->link),
    };
}

static void on_timer_closed(uv_handle_t *timer)
{
    free(timer->data);
}

static void on_link_closed(void *ctx)
{
    struct note_feed *feed = ctx;

    uv_close((uv_handle_t *)&feed->timer, on_timer_closed);
}

void note_feed_close(struct note_feed **closed)
{
    struct note_feed *feed = *closed;

    *closed = NULL;
    if (feed == NULL)
        return;
    uv_timer_stop(&feed->timer);
    redis_link_close(&feed->link, on_link_closed, feed);
}
