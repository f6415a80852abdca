/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/redis/residency_feed_parts.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * DESIGN
 *
 * XREAD BLOCK waits for many streams at once, and holds up its connection meanwhile: so it has
 * connections of its own. One waits for at most 64 streams, because Redis looks at each of them
 * when it is woken by one.
 *
 * It is asked again at once when it has answered, but no sooner than 5 ms after the last time: what
 * agents flush every 10 ms comes in pieces of that size, and not one by one. It blocks only
 * briefly, because who is new has to wait for the end of it.
 *
 * Where Redis goes away nothing is lost here: the next XREAD begins behind the last change that was
 * told. If that one was trimmed meanwhile, whoever follows sees the gap.
 */

enum {
    BLOCK_MS = 200,
    AGAIN_MS = 5,
    AFTER_ERROR_MS = 100,
    CHANGE_COUNT = 8, /* of one stream: 80 ms of flushes */
    ID_BYTES = 32,
    WORD_COUNT_FIXED = 6, /* XREAD COUNT n BLOCK ms STREAMS */
};

static void ask(struct feed_follower *follower);

/* ---- what came ---- */

static struct feed_source *source_of(const struct feed_follower *follower, uint32_t at)
{
    struct feed_source *source = follower->feed->sources[follower->asked[at]];

    return source != NULL && source->ticket == follower->tickets[at] ? source : NULL;
}

static void broken(struct feed_source *source, bool is_unreadable)
{
    struct residency_feed *feed = source->feed;

    residency_feed_stop(feed, source->number);
    feed->callbacks->on_broken(feed->ctx, source->number, is_unreadable);
}

/* The entries of one stream. */
static void take_stream(struct feed_follower *follower, uint32_t at,
                        const struct redis_reply *entries)
{
    struct residency_feed *feed = follower->feed;

    for (size_t i = 0; i < redis_reply_count(entries); i++) {
        struct feed_source *source = source_of(follower, at); /* as long as it is followed */
        struct residency_change change;
        uint64_t sequence;

        if (source == NULL)
            return;
        if (feed_read_entry(feed, redis_reply_at(entries, i), &sequence, &change) < 0) {
            broken(source, true);
            return;
        }
        source->follow_sequence = sequence + 1;
        feed->callbacks->on_change(feed->ctx, source->number, sequence, &change);
    }
}

/* Streams come in the order in which they were asked for, those without news left out. */
static void take_streams(struct feed_follower *follower, const struct redis_reply *reply)
{
    uint32_t at = 0;

    for (size_t i = 0; i < redis_reply_count(reply); i++) {
        const struct redis_reply *stream = redis_reply_at(reply, i);

        if (redis_reply_count(stream) != 2)
            continue;
        while (at < follower->asked_count && !slice_eq(slice_of_string(follower->keys[at]),
                                                       redis_reply_text(redis_reply_at(stream, 0))))
            at++;
        if (at < follower->asked_count)
            take_stream(follower, at, redis_reply_at(stream, 1));
    }
}

/* One of them may be what no stream is, and nobody says which: all are read on their own again, and
 * the one that cannot be read does not come back. */
static void break_all(struct feed_follower *follower)
{
    for (uint32_t at = 0; at < follower->asked_count; at++) {
        struct feed_source *source = source_of(follower, at);

        if (source != NULL)
            broken(source, false);
    }
}

static void on_streams(void *ctx, int error, const struct redis_reply *reply)
{
    struct feed_follower *follower = ctx;

    follower->is_asking = false;
    if (follower->feed->is_closing)
        return;
    if (error == 0)
        take_streams(follower, reply); /* NIL, when its time was over, has none */
    else if (reply != NULL && error != -EBUSY)
        break_all(follower);
    follower->again_ms = follower->asked_ms + (error == 0 ? AGAIN_MS : AFTER_ERROR_MS);
    ask(follower);
}

/* ---- asking ---- */

static void on_again(uv_timer_t *timer)
{
    ask(timer->data);
}

static void send_xread(struct feed_follower *follower)
{
    static const struct slice head[WORD_COUNT_FIXED] = {
        SLICE("XREAD"), SLICE("COUNT"), SLICE("8"), SLICE("BLOCK"), SLICE("200"), SLICE("STREAMS")};
    static_assert(CHANGE_COUNT == 8 && BLOCK_MS == 200, "as in the words");
    struct slice words[WORD_COUNT_FIXED + 2 * FEED_FOLLOWER_STREAM_COUNT];
    char ids[FEED_FOLLOWER_STREAM_COUNT][ID_BYTES];
    uint32_t count = follower->count;

    memcpy(words, head, sizeof head);
    for (uint32_t at = 0; at < count; at++) {
        const struct feed_source *source = follower->feed->sources[follower->sources[at]];
        size_t len = residency_key_out(follower->keys[at], source->name, source->life);

        /* Behind "<sequence - 1>-1", whatever an id ends with. */
        snprintf(ids[at], sizeof ids[at], "%" PRIu64 "-1", source->follow_sequence - 1);
        follower->asked[at] = source->number;
        follower->tickets[at] = source->ticket;
        words[WORD_COUNT_FIXED + at] = slice_of(follower->keys[at], len);
        words[WORD_COUNT_FIXED + count + at] = slice_of_string(ids[at]);
    }
    follower->asked_count = count;
    follower->asked_ms = uv_now(follower->feed->loop);
    follower->is_asking = redis_link_send(follower->link, words, WORD_COUNT_FIXED + 2 * count,
                                          on_streams, follower) == 0;
}

/* Now, or when it may be; nothing where it waits already, or there is nothing to wait for. */
static void ask(struct feed_follower *follower)
{
    uint64_t now_ms = uv_now(follower->feed->loop);

    if (follower->is_asking || follower->count == 0 ||
        uv_is_active((uv_handle_t *)&follower->again))
        return;
    if (redis_link_state(follower->link) != REDIS_LINK_READY)
        return; /* on_ready asks */
    if (now_ms < follower->again_ms)
        uv_timer_start(&follower->again, on_again, follower->again_ms - now_ms, 0);
    else
        send_xread(follower);
}

/* ---- followers ---- */

static void on_ready(void *ctx)
{
    ask(ctx);
}

static void on_away(void *ctx, int error, const char *why)
{
    (void)ctx, (void)error, (void)why; /* the feed's own link tells */
}

static struct feed_follower *create_follower(struct residency_feed *feed)
{
    static const struct redis_link_callbacks callbacks = {on_ready, on_away};
    struct feed_follower *follower = calloc(1, sizeof *follower);

    if (follower == NULL)
        return NULL;
    follower->feed = feed;
    if (feed_open_link(feed, "samovar-router-changes", BLOCK_MS, callbacks, follower,
                       &follower->link) < 0) {
        free(follower);
        return NULL;
    }
    uv_timer_init(feed->loop, &follower->again);
    follower->again.data = follower;
    feed->handle_count++;
    return follower;
}

static void on_again_closed(uv_handle_t *handle)
{
    struct feed_follower *follower = handle->data;
    struct residency_feed *feed = follower->feed;

    free(follower);
    feed_handle_closed(feed);
}

void feed_follower_close(struct feed_follower *follower)
{
    redis_link_close(&follower->link, feed_handle_closed, follower->feed);
    uv_close((uv_handle_t *)&follower->again, on_again_closed);
}

/* One with room; -ENOMEM: none, and none can be made. */
static int find_follower(struct residency_feed *feed, uint32_t *found)
{
    for (uint32_t i = 0; i < FEED_FOLLOWER_COUNT_MAX; i++) {
        if (feed->followers[i] == NULL)
            feed->followers[i] = create_follower(feed);
        if (feed->followers[i] == NULL)
            return -ENOMEM;
        if (feed->followers[i]->count < FEED_FOLLOWER_STREAM_COUNT) {
            *found = i;
            return 0;
        }
    }
    return -ENOMEM;
}

void feed_follow_end(struct feed_source *source)
{
    struct feed_follower *follower;
    uint32_t at = 0;

    if (!source->is_followed)
        return;
    source->is_followed = false;
    follower = source->feed->followers[source->follower];
    while (follower->sources[at] != source->number)
        at++;
    follower->sources[at] = follower->sources[--follower->count];
}

int residency_feed_follow(struct residency_feed *feed, uint32_t source, struct residency_life life,
                          uint64_t sequence)
{
    struct feed_source *of;
    uint32_t at = 0;
    int status;

    assert(sequence > 0);

    residency_feed_stop(feed, source);
    status = find_follower(feed, &at);
    if (status < 0)
        return status;
    of = feed->sources[source];
    of->life = life;
    of->follower = at;
    of->is_followed = true;
    of->follow_sequence = sequence;
    feed->followers[at]->sources[feed->followers[at]->count++] = source;
    ask(feed->followers[at]);
    return 0;
}
