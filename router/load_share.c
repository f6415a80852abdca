/* SPDX-License-Identifier: Apache-2.0 */

#include "router/load_share.h"

#include "backends/redis/stream_entry.h"
#include "backends/runtime/log.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/*
 * DESIGN
 *
 *   own loads change --> touch --5 ms--> XADD smv:routers --> every router's XREAD BLOCK --> table
 *
 * A message says the whole state, so that one that is lost is made good by the next, and each
 * router says it at least once a second, so that a silent one is gone. The times of two hosts are
 * never compared: a router is as old as its last message to us.
 *
 * Hearing needs a connection of its own, since XREAD blocks it. The first read begins at "$": what
 * was said before is of the past. Reads begin at most every few milliseconds: in a storm one of
 * them brings many messages.
 */
enum {
    GATHER_MS = 5,
    TELL_MS = 1000,
    READ_MS_MIN = 5,
    ID_BYTES_MAX = 48,
};

#define BLOCK_MS           SLICE("1000")
#define READ_COUNT_MAX     SLICE("256")
#define STREAM_ENTRIES_MAX SLICE("1024")

struct load_share {
    struct load_share_config config;
    struct redis_link *watch;
    struct load_table table;
    uv_timer_t gather; /* a change waits for others; else the next full state is due */
    uv_timer_t read;   /* the next XREAD is due */
    uint32_t open_handle_count;
    uint32_t telling_count; /* XADDs without a reply yet */
    bool is_watch_open;
    bool is_closing;
    bool is_touched; /* told within GATHER_MS */
    char last_id[ID_BYTES_MAX];
    uint64_t read_ms; /* when the last read began */
    bool is_refused;  /* by Redis, which was said in the log */
    struct load_share_stats stats;
};

static void free_when_over(struct load_share *share)
{
    if (!share->is_closing || share->open_handle_count > 0 || share->is_watch_open ||
        share->telling_count > 0)
        return;
    load_table_release(&share->table);
    free(share);
}

/* What Redis refuses it goes on refusing until somebody changes that: said once. */
static void note_refusal(struct load_share *share, const char *what, int error,
                         const struct redis_reply *reply)
{
    bool is_refused = error < 0 && reply != NULL;

    if (is_refused && !share->is_refused)
        LOG(LOG_WARN, "loads_refused", log_text("command", what), log_text("why", strerror(-error)),
            log_text(error == -EACCES ? "help" : NULL,
                     "routers must be allowed to XADD and XREAD " RESIDENCY_KEY_ROUTERS));
    share->is_refused |= is_refused;
}

/* ---- telling ---- */

/* A sum of doubles: it may have dust. */
static uint32_t tokens_of(double tokens)
{
    return tokens <= 0 ? 0 : tokens < UINT32_MAX ? (uint32_t)tokens : UINT32_MAX;
}

static size_t own_loads(const struct load_share *share,
                        struct residency_load loads[RESIDENCY_LOAD_COUNT_MAX])
{
    size_t worker_count = worker_set_count(share->config.workers), count = 0;

    for (uint32_t i = 0; i < worker_count && count < RESIDENCY_LOAD_COUNT_MAX; i++) {
        const struct worker *worker = worker_set_at(share->config.workers, i);

        if (worker == NULL || worker->own.in_flight == 0)
            continue;
        loads[count++] = (struct residency_load){
            .worker = worker->name_hash,
            .in_flight = worker->own.in_flight,
            .queued_tokens = tokens_of(worker->own.queued_tokens),
            .decoding = worker->own.decoding,
        };
    }
    return count;
}

static void on_told(void *ctx, int error, const struct redis_reply *reply)
{
    struct load_share *share = ctx;

    note_refusal(share, "XADD", error, reply);
    if (error < 0)
        share->stats.untold_total++;
    else
        share->stats.told_total++;
    share->telling_count--;
    free_when_over(share);
}

static void on_gathered(uv_timer_t *timer);

static void tell(struct load_share *share)
{
    struct residency_load loads[RESIDENCY_LOAD_COUNT_MAX];
    struct buf message;

    buf_init(&message, SIZE_MAX);
    share->is_touched = false;
    uv_timer_start(&share->gather, on_gathered, TELL_MS, 0);
    load_table_expire(&share->table, uv_now(share->config.loop));
    if (residency_loads_write(&message, share->config.router, loads, own_loads(share, loads)) ==
        0) {
        const struct slice words[] = {
            SLICE("XADD"), SLICE(RESIDENCY_KEY_ROUTERS), SLICE("MAXLEN"),
            SLICE("~"),    STREAM_ENTRIES_MAX,           SLICE("*"),
            SLICE("b"),    buf_slice(&message),
        };

        if (redis_link_send(share->config.link, words, array_count(words), on_told, share) == 0)
            share->telling_count++;
        else
            share->stats.untold_total++;
    }
    buf_release(&message);
}

static void on_gathered(uv_timer_t *timer)
{
    tell(timer->data);
}

void load_share_touch(struct load_share *share)
{
    if (share == NULL || share->is_touched)
        return;
    share->is_touched = true;
    uv_timer_start(&share->gather, on_gathered, GATHER_MS, 0);
}

/* ---- hearing ---- */

static void take_entry(struct load_share *share, const struct redis_reply *reply)
{
    struct stream_entry entry;

    if (!stream_entry_read(reply, &entry) || entry.id.len >= sizeof share->last_id)
        return;
    memcpy(share->last_id, entry.id.ptr, entry.id.len);
    share->last_id[entry.id.len] = '\0';
    share->stats.heard_total++;
    if (entry.has_bytes)
        load_table_take(&share->table, entry.bytes, uv_now(share->config.loop));
}

/* [[key, [entry, ...]]], or nothing where nothing came in time. */
static void take_reply(struct load_share *share, const struct redis_reply *reply)
{
    const struct redis_reply *stream, *entries;

    if (redis_reply_count(reply) != 1)
        return;
    stream = redis_reply_at(reply, 0);
    if (redis_reply_count(stream) != 2)
        return;
    entries = redis_reply_at(stream, 1);
    for (size_t i = 0; i < redis_reply_count(entries); i++)
        take_entry(share, redis_reply_at(entries, i));
}

static void on_read_due(uv_timer_t *timer);

static void on_heard(void *ctx, int error, const struct redis_reply *reply)
{
    struct load_share *share = ctx;
    uint64_t now_ms = uv_now(share->config.loop);
    uint64_t due_ms = share->read_ms + (error < 0 ? TELL_MS : READ_MS_MIN);

    if (share->is_closing)
        return;
    note_refusal(share, "XREAD", error, reply);
    if (error == 0)
        take_reply(share, reply);
    load_table_expire(&share->table, now_ms);
    uv_timer_start(&share->read, on_read_due, due_ms > now_ms ? due_ms - now_ms : 0, 0);
}

static void on_read_due(uv_timer_t *timer)
{
    struct load_share *share = timer->data;
    const struct slice words[] = {
        SLICE("XREAD"),
        SLICE("COUNT"),
        READ_COUNT_MAX,
        SLICE("BLOCK"),
        BLOCK_MS,
        SLICE("STREAMS"),
        SLICE(RESIDENCY_KEY_ROUTERS),
        slice_of_string(share->last_id),
    };

    share->read_ms = uv_now(timer->loop);
    /* Where the link is away, on_watching() begins again, which is sooner. */
    if (redis_link_send(share->watch, words, array_count(words), on_heard, share) < 0)
        uv_timer_start(&share->read, on_read_due, TELL_MS, 0);
}

static void on_watching(void *ctx)
{
    struct load_share *share = ctx;

    share->is_refused = false;
    /* Redis may be another one now, whose ids are smaller. */
    memcpy(share->last_id, "$", 2);
    uv_timer_start(&share->read, on_read_due, 0, 0);
}

static void on_watch_away(void *ctx, int error, const char *why)
{
    struct load_share *share = ctx;

    (void)error; /* said in the log by whoever made the link to tell: it is the same server */
    (void)why;
    uv_timer_stop(&share->read);
}

/* ---- life ---- */

static void start_timer(struct load_share *share, uv_timer_t *timer)
{
    int status = uv_timer_init(share->config.loop, timer);

    assert(status == 0);
    timer->data = share;
    share->open_handle_count++;
}

int load_share_create(struct load_share_config config, struct load_share **created)
{
    static const struct redis_link_callbacks callbacks = {on_watching, on_watch_away};
    struct load_share *share = calloc(1, sizeof *share);
    int status;

    assert(config.router != 0);

    *created = NULL;
    if (share == NULL)
        return -ENOMEM;
    share->config = config;
    memcpy(share->last_id, "$", 2);
    status = load_table_init(&share->table, config.router);
    if (status == 0)
        status = redis_link_open(config.loop, config.watch, callbacks, share, &share->watch);
    if (status < 0) {
        load_table_release(&share->table);
        free(share);
        return status;
    }
    share->is_watch_open = true;
    start_timer(share, &share->gather);
    start_timer(share, &share->read);
    uv_timer_start(&share->gather, on_gathered, 0, 0);
    *created = share;
    return 0;
}

struct load_sum load_share_find(const struct load_share *share, uint64_t name_hash)
{
    return share != NULL ? load_table_find(&share->table, name_hash) : (struct load_sum){0};
}

struct load_share_stats load_share_stats(const struct load_share *share)
{
    struct load_share_stats stats = {0};

    if (share == NULL)
        return stats;
    stats = share->stats;
    stats.refused_total = share->table.refused_total;
    stats.router_count = (uint32_t)load_table_router_count(&share->table);
    stats.in_flight = load_table_in_flight(&share->table);
    return stats;
}

static void on_handle_closed(uv_handle_t *handle)
{
    struct load_share *share = handle->data;

    share->open_handle_count--;
    free_when_over(share);
}

static void on_watch_closed(void *ctx)
{
    struct load_share *share = ctx;

    share->is_watch_open = false;
    free_when_over(share);
}

void load_share_close(struct load_share **share_ptr)
{
    struct load_share *share = *share_ptr;

    if (share == NULL)
        return;
    *share_ptr = NULL;
    share->is_closing = true;
    redis_link_close(&share->watch, on_watch_closed, share);
    uv_close((uv_handle_t *)&share->gather, on_handle_closed);
    uv_close((uv_handle_t *)&share->read, on_handle_closed);
}
