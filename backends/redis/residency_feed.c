/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/redis/residency_feed_parts.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "hashing/rendezvous.h"

/*
 * DESIGN
 *
 * Who there is and who may be believed is polled, because it is little and has to be known within
 * half a second whatever happens: names once a second, all leases by one MGET twice a second, a
 * meta when its agent is another one, and now and then. What changes fast comes by XREAD BLOCK.
 *
 * A poll that was not answered is not sent again beside itself: a slow Redis has one question at a
 * time to answer, and none is queued while there is no connection.
 *
 * Each reply belongs to a ticket: what is read of a source may end, or the source itself, before
 * its reply comes, and the number may mean another worker by then.
 */

enum {
    TICK_MS = 100,
    LEASE_TICKS = 5, /* every 500 ms */
    LIST_TICKS = 10,
    LEASE_COUNT_MAX = 512, /* of one MGET */
    META_COUNT_PER_TICK = 64,
    META_AGAIN_MS = 10000,
    META_SOON_MS = 1000, /* one that could not be read, or is not complete yet */
    CONNECT_MS = 2000,
    COMMAND_MS = 1500, /* half of what a lease lasts */
    BACK_OFF_MS = 50,
    BACK_OFF_MS_MAX = 1000,
    PENDING_MAX = 4096,
};

/* ---- sources ---- */

static struct feed_source *source_at(const struct residency_feed *feed, uint32_t number)
{
    assert(number < RESIDENCY_SOURCE_COUNT_MAX && feed->sources[number] != NULL);

    return feed->sources[number];
}

static struct feed_source *find_source(const struct residency_feed *feed, struct slice name)
{
    const uint64_t *number = block_map_find(&feed->by_name, rendezvous_id(name.ptr, name.len));
    struct feed_source *source = number != NULL ? feed->sources[*number - 1] : NULL;

    return source != NULL && slice_eq(slice_of_string(source->name), name) ? source : NULL;
}

static bool is_name(struct slice name)
{
    if (name.len == 0 || name.len >= RESIDENCY_WORKER_NAME_BYTES_MAX)
        return false;
    for (size_t i = 0; i < name.len; i++) {
        if (name.ptr[i] <= ' ' || name.ptr[i] > '~' || name.ptr[i] == '{' || name.ptr[i] == '}')
            return false;
    }
    return true;
}

static int add_source(struct residency_feed *feed, struct slice name, struct feed_source **added)
{
    uint32_t number = 0;
    struct feed_source *source;
    uint64_t *place;

    if (!is_name(name)) {
        feed->stats.bad_total++;
        return -EINVAL;
    }
    while (number < RESIDENCY_SOURCE_COUNT_MAX && feed->sources[number] != NULL)
        number++;
    if (number == RESIDENCY_SOURCE_COUNT_MAX) {
        feed->stats.refused_total++;
        return -ENOSPC;
    }
    source = calloc(1, sizeof *source);
    place = block_map_claim(&feed->by_name, rendezvous_id(name.ptr, name.len));
    if (source == NULL || place == NULL)
        abort(); /* bookkeeping, of few */
    *place = number + 1;
    source->feed = feed;
    source->number = number;
    source->name_hash = rendezvous_id(name.ptr, name.len);
    memcpy(source->name, name.ptr, name.len);
    list_node_init(&source->in_paging);
    feed->sources[number] = source;
    feed->source_end = number >= feed->source_end ? number + 1 : feed->source_end;
    feed->stats.source_count++;
    *added = source;
    return 0;
}

int residency_feed_watch(struct residency_feed *feed, const char *worker, uint32_t *source)
{
    struct feed_source *found = find_source(feed, slice_of_string(worker));
    int status = found != NULL ? 0 : add_source(feed, slice_of_string(worker), &found);

    if (status == 0)
        *source = found->number;
    return status;
}

static void remove_source(struct residency_feed *feed, struct feed_source *source)
{
    residency_feed_stop(feed, source->number);
    (void)block_map_remove(&feed->by_name, source->name_hash);
    feed->sources[source->number] = NULL;
    feed->stats.source_count--;
    feed->stats.listed_count -= source->is_listed;
    free(source);
}

void residency_feed_drop(struct residency_feed *feed, uint32_t source)
{
    remove_source(feed, source_at(feed, source));
}

const char *residency_feed_name(const struct residency_feed *feed, uint32_t source)
{
    return source_at(feed, source)->name;
}

bool residency_feed_is_listed(const struct residency_feed *feed, uint32_t source)
{
    return source_at(feed, source)->is_listed;
}

void residency_feed_stop(struct residency_feed *feed, uint32_t source)
{
    struct feed_source *stopped = source_at(feed, source);

    feed_read_end(stopped);
    feed_follow_end(stopped);
}

/* ---- replies ---- */

static bool has_error(struct residency_feed *feed, int error, const struct redis_reply *reply,
                      enum redis_reply_kind kind)
{
    if (error == 0 && redis_reply_kind(reply) != kind)
        feed->stats.bad_total++;
    return error < 0 || redis_reply_kind(reply) != kind;
}

/* ---- metas ---- */

struct meta_ask {
    struct residency_feed *feed;
    uint32_t source;
    uint64_t name_hash;
};

static int read_meta(const struct redis_reply *reply, struct residency_meta *meta)
{
    size_t count = redis_reply_count(reply);
    int status = 0;

    memset(meta, 0, sizeof *meta);
    for (size_t i = 0; status == 0 && i + 1 < count; i += 2)
        status = residency_meta_read_field(meta, redis_reply_text(redis_reply_at(reply, i)),
                                           redis_reply_text(redis_reply_at(reply, i + 1)));
    return status < 0 ? status : residency_meta_check(meta);
}

static void take_meta(struct feed_source *source, const struct redis_reply *reply)
{
    struct residency_feed *feed = source->feed;
    struct residency_meta meta;

    if (redis_reply_count(reply) == 0)
        return; /* not said yet */
    if (read_meta(reply, &meta) < 0) {
        feed->stats.bad_total++;
        return;
    }
    if (meta.block_tokens > 0)
        source->meta_due_ms = uv_now(feed->loop) + META_AGAIN_MS;
    feed->callbacks->on_meta(feed->ctx, source->number, &meta);
}

static void on_meta(void *ctx, int error, const struct redis_reply *reply)
{
    struct meta_ask *ask = ctx;
    struct residency_feed *feed = ask->feed;
    struct feed_source *source = feed->is_closing ? NULL : feed->sources[ask->source];

    if (source != NULL && source->name_hash == ask->name_hash) {
        source->is_meta_asked = false;
        source->meta_due_ms = uv_now(feed->loop) + META_SOON_MS;
        if (!has_error(feed, error, reply, REDIS_REPLY_LIST))
            take_meta(source, reply);
    }
    free(ask);
}

static void ask_meta(struct feed_source *source)
{
    struct meta_ask *ask = malloc(sizeof *ask);
    char key[RESIDENCY_KEY_BYTES_MAX];
    struct slice words[] = {
        SLICE("HGETALL"),
        slice_of(key, residency_key(key, source->name, RESIDENCY_KEY_META)),
    };

    if (ask == NULL)
        return;
    *ask = (struct meta_ask){source->feed, source->number, source->name_hash};
    source->is_meta_asked = redis_link_send(source->feed->link, words, 2, on_meta, ask) == 0;
    if (!source->is_meta_asked)
        free(ask);
}

/* Of those that have an agent: others have nothing to say. */
static void ask_metas(struct residency_feed *feed)
{
    uint64_t now_ms = uv_now(feed->loop);
    uint32_t asked = 0;

    for (uint32_t i = 0; i < feed->source_end && asked < META_COUNT_PER_TICK; i++) {
        struct feed_source *source = feed->sources[i];

        if (source == NULL || source->is_meta_asked || source->lease_life.epoch == 0 ||
            now_ms < source->meta_due_ms)
            continue;
        ask_meta(source);
        asked++;
    }
}

/* ---- leases ---- */

/* One MGET, and whose leases it asks for. */
struct lease_poll {
    struct residency_feed *feed;
    uint32_t count;
    uint32_t sources[LEASE_COUNT_MAX];
    uint64_t name_hashes[LEASE_COUNT_MAX]; /* the number may be another worker's by then */
};

static void take_lease(struct feed_source *source, const struct redis_reply *reply)
{
    struct residency_feed *feed = source->feed;
    struct residency_lease lease;
    struct slice text = redis_reply_text(reply);

    if (redis_reply_kind(reply) != REDIS_REPLY_TEXT || residency_lease_read(text, &lease) < 0) {
        feed->stats.bad_total += redis_reply_kind(reply) != REDIS_REPLY_NIL;
        feed->callbacks->on_lease(feed->ctx, source->number, NULL);
        return;
    }
    if (source->lease_life.epoch != lease.life.epoch)
        source->meta_due_ms = 0; /* another agent's process: another meta */
    source->lease_life = lease.life;
    if (source->meta_due_ms == 0 && !source->is_meta_asked)
        ask_meta(source); /* a worker that is found waits for it */
    feed->callbacks->on_lease(feed->ctx, source->number, &lease);
}

static void on_leases(void *ctx, int error, const struct redis_reply *reply)
{
    struct lease_poll *poll = ctx;
    struct residency_feed *feed = poll->feed;

    feed->polls_pending--;
    if (!feed->is_closing && !has_error(feed, error, reply, REDIS_REPLY_LIST) &&
        redis_reply_count(reply) == poll->count) {
        feed->callbacks->on_polled(feed->ctx);
        for (uint32_t i = 0; i < poll->count; i++) {
            struct feed_source *source = feed->sources[poll->sources[i]];

            if (source != NULL && source->name_hash == poll->name_hashes[i])
                take_lease(source, redis_reply_at(reply, i));
        }
    }
    free(poll);
}

/* Sends poll, whose keys are in words; frees it where it was not sent. */
static void send_poll(struct residency_feed *feed, struct lease_poll *poll,
                      const struct slice *words)
{
    if (poll->count > 0 &&
        redis_link_send(feed->link, words, poll->count + 1, on_leases, poll) == 0)
        feed->polls_pending++;
    else
        free(poll);
}

static uint32_t fill_poll(struct residency_feed *feed, struct lease_poll *poll, uint32_t from,
                          char (*keys)[RESIDENCY_KEY_BYTES_MAX], struct slice *words)
{
    poll->feed = feed;
    words[0] = SLICE("MGET");
    for (; from < feed->source_end && poll->count < LEASE_COUNT_MAX; from++) {
        const struct feed_source *source = feed->sources[from];
        char *key = keys[poll->count];

        if (source == NULL)
            continue;
        words[poll->count + 1] =
            slice_of(key, residency_key(key, source->name, RESIDENCY_KEY_LEASE));
        poll->sources[poll->count] = from;
        poll->name_hashes[poll->count++] = source->name_hash;
    }
    return from;
}

static void ask_leases(struct residency_feed *feed)
{
    struct slice words[LEASE_COUNT_MAX + 1];
    char(*keys)[RESIDENCY_KEY_BYTES_MAX];
    uint32_t from = 0;

    if (feed->polls_pending > 0 || feed->stats.source_count == 0)
        return;
    keys = malloc(LEASE_COUNT_MAX * sizeof *keys);
    while (keys != NULL && from < feed->source_end) {
        struct lease_poll *poll = calloc(1, sizeof *poll);

        if (poll == NULL)
            break; /* the next poll may have the memory */
        from = fill_poll(feed, poll, from, keys, words);
        send_poll(feed, poll, words);
    }
    free(keys);
}

/* ---- names ---- */

static void take_listed(struct residency_feed *feed, struct slice name)
{
    struct feed_source *source = find_source(feed, name);
    bool is_new = source == NULL;

    if (is_new && add_source(feed, name, &source) < 0)
        return;
    feed->stats.listed_count += !source->is_listed;
    source->is_listed = true;
    if (is_new)
        feed->callbacks->on_source(feed->ctx, source->number);
}

static void on_listed(void *ctx, int error, const struct redis_reply *reply)
{
    struct residency_feed *feed = ctx;
    const uint32_t count = feed->stats.source_count;

    feed->is_listing = false;
    if (feed->is_closing || has_error(feed, error, reply, REDIS_REPLY_LIST))
        return;
    for (uint32_t i = 0; i < feed->source_end; i++) {
        if (feed->sources[i] != NULL)
            feed->sources[i]->is_listed = false;
    }
    feed->stats.listed_count = 0;
    for (size_t i = 0; i < redis_reply_count(reply); i++)
        take_listed(feed, redis_reply_text(redis_reply_at(reply, i)));
    if (feed->stats.source_count > count)
        ask_leases(feed);                   /* of who is new, at once */
    else if (feed->stats.source_count == 0) /* then no lease is asked for */
        feed->callbacks->on_polled(feed->ctx);
}

static void ask_list(struct residency_feed *feed)
{
    char key[RESIDENCY_KEY_BYTES_MAX];
    size_t len = residency_key_workers(key, feed->config.fingerprint);
    struct slice words[] = {SLICE("SMEMBERS"), slice_of(key, len)};

    if (!feed->is_listing)
        feed->is_listing = redis_link_send(feed->link, words, 2, on_listed, feed) == 0;
}

/* ---- time ---- */

static void on_tick(uv_timer_t *timer)
{
    struct residency_feed *feed = timer->data;
    uint64_t tick = feed->ticks++;

    if (redis_link_state(feed->link) != REDIS_LINK_READY)
        return;
    if (tick % LIST_TICKS == 0)
        ask_list(feed);
    if (tick % LEASE_TICKS == 0)
        ask_leases(feed);
    ask_metas(feed);
}

/* ---- the link ---- */

static void on_ready(void *ctx)
{
    struct residency_feed *feed = ctx;

    feed->is_reached = true;
    feed->callbacks->on_reach(feed->ctx, true, "");
    ask_list(feed);
    ask_leases(feed);
}

static void on_away(void *ctx, int error, const char *why)
{
    struct residency_feed *feed = ctx;

    (void)error;
    feed->is_reached = false;
    feed->callbacks->on_reach(feed->ctx, false, why);
}

int feed_open_link(struct residency_feed *feed, const char *name, uint32_t block_ms,
                   struct redis_link_callbacks callbacks, void *ctx, struct redis_link **link)
{
    struct redis_link_config config = {
        .url = feed->config.url,
        .password = feed->password,
        .name = name,
        .connect_ms = CONNECT_MS,
        .command_ms = COMMAND_MS + block_ms,
        .back_off_ms = BACK_OFF_MS,
        .back_off_ms_max = BACK_OFF_MS_MAX,
        .pending_max = block_ms > 0 ? 4 : PENDING_MAX,
    };
    int status = redis_link_open(feed->loop, config, callbacks, ctx, link);

    feed->handle_count += status == 0;
    return status;
}

void feed_handle_closed(void *ctx)
{
    struct residency_feed *feed = ctx;

    assert(feed->handle_count > 0);

    if (--feed->handle_count > 0)
        return;
    block_map_release(&feed->by_name);
    free(feed->password);
    free(feed);
}

static void on_timer_closed(uv_handle_t *handle)
{
    feed_handle_closed(handle->data);
}

int residency_feed_open(uv_loop_t *loop, struct residency_feed_config config,
                        const struct residency_feed_callbacks *callbacks, void *ctx,
                        struct residency_feed **opened)
{
    static const struct redis_link_callbacks link_callbacks = {on_ready, on_away};
    struct residency_feed *feed = calloc(1, sizeof *feed);
    int status;

    *opened = NULL;
    if (feed == NULL)
        return -ENOMEM;
    feed->loop = loop;
    feed->config = config;
    feed->callbacks = callbacks;
    feed->ctx = ctx;
    block_map_init(&feed->by_name, SIZE_MAX);
    list_init(&feed->paging);
    if (config.password != NULL && (feed->password = strdup(config.password)) == NULL)
        abort(); /* at boot */
    status = feed_open_link(feed, "samovar-router-map", 0, link_callbacks, feed, &feed->link);
    if (status < 0) {
        free(feed->password);
        free(feed);
        return status;
    }
    uv_timer_init(loop, &feed->timer);
    feed->timer.data = feed;
    feed->handle_count++;
    uv_timer_start(&feed->timer, on_tick, TICK_MS, TICK_MS);
    *opened = feed;
    return 0;
}

static void add_link_stats(struct residency_feed_stats *stats, const struct redis_link *link)
{
    struct redis_link_stats of = redis_link_stats(link);

    stats->connect_total += of.connect_count;
    stats->failure_total += of.failure_count;
    stats->timeout_total += of.timeout_count;
}

struct residency_feed_stats residency_feed_stats(const struct residency_feed *feed)
{
    struct residency_feed_stats stats = feed->stats;

    stats.is_reached = feed->is_reached;
    add_link_stats(&stats, feed->link);
    for (uint32_t i = 0; i < FEED_FOLLOWER_COUNT_MAX; i++) {
        if (feed->followers[i] == NULL)
            continue;
        add_link_stats(&stats, feed->followers[i]->link);
        stats.followed_count += feed->followers[i]->count;
    }
    return stats;
}

void residency_feed_close(struct residency_feed **closed)
{
    struct residency_feed *feed = *closed;

    *closed = NULL;
    feed->is_closing = true;
    for (uint32_t i = 0; i < feed->source_end; i++) {
        if (feed->sources[i] != NULL)
            remove_source(feed, feed->sources[i]);
    }
    for (uint32_t i = 0; i < FEED_FOLLOWER_COUNT_MAX; i++) {
        if (feed->followers[i] != NULL)
            feed_follower_close(feed->followers[i]);
        feed->followers[i] = NULL;
    }
    redis_link_close(&feed->link, feed_handle_closed, feed);
    uv_close((uv_handle_t *)&feed->timer, on_timer_closed);
}
