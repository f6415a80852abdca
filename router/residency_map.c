/* SPDX-License-Identifier: Apache-2.0 */

#include "router/residency_map.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/runtime/log.h"
#include "router/fleet.h"
#include "router/relay.h"

/*
 * DESIGN
 *
 *   Redis --> residency_feed --lease, page, change--> here --> residency_sync --> index
 *                  ^                                    |
 *                  `---- what the replica wishes next --'
 *
 * A source is a name in Redis, a worker is one of the fleet; each knows the other here while both
 * are there. A worker of the urls is watched, so that an agent that speaks for it is found whether
 * or not it is listed. A listed one becomes a worker when it has a lease of our fingerprint and a
 * meta that fits its name; then it is one like any other, and its engine is probed like any other.
 *
 * It leaves when its agent and its engine are both gone. An agent that dies takes no worker out of
 * service: it serves on, one rung lower. And while Redis is away nobody's lease is missing.
 */

enum { TICK_MS = 100, LONELY_MS = 10000 };

static const uint32_t NONE = UINT32_MAX;

struct map_source {
    uint32_t worker; /* its index; NONE: it is none, or not yet */
    uint32_t ticket; /* of the wish that is under way for it */
    bool is_found;   /* the fleet has it by our word */
    bool has_lease;
    bool is_stranger_told;
    struct residency_lease lease; /* the last */
    uint64_t lost_ms; /* since when there is no lease; 0: there is, or it never had one */
};

struct map_worker {
    uint32_t source;           /* NONE: none */
    enum residency_doubt told; /* to the log */
};

struct residency_map {
    struct relay *relay;
    struct residency_feed *feed;
    struct fleet_observer observer;
    uv_timer_t timer;
    uint64_t leave_ms;
    uint64_t reached_ms; /* since when; 0: Redis is away */
    bool is_away_told;
    bool is_lonely_told;
    struct map_source sources[RESIDENCY_SOURCE_COUNT_MAX];
    struct map_worker workers[WORKER_COUNT_MAX];
};

static uint64_t now_ms_of(const struct residency_map *map)
{
    return io_loop_now_ms(map->relay->io);
}

/* ---- reading what the replica wishes ---- */

static int grant(struct residency_map *map, uint32_t source, const struct residency_wish *wish)
{
    switch (wish->kind) {
    case RESIDENCY_WISH_LAST:
        return residency_feed_last(map->feed, source, wish->life);
    case RESIDENCY_WISH_PAGE:
        return residency_feed_pages(map->feed, source, wish->life, wish->page, wish->page_count);
    case RESIDENCY_WISH_CHANGES:
        return residency_feed_changes(map->feed, source, wish->life, wish->sequence);
    case RESIDENCY_WISH_FOLLOW:
        return residency_feed_follow(map->feed, source, wish->life, wish->sequence);
    case RESIDENCY_WISH_NOTHING:
        break;
    }
    residency_feed_stop(map->feed, source);
    return 0;
}

/* Until what is under way is what is wished. A wish that cannot be granted now breaks off into a
 * back-off, which wishes nothing. */
static void pursue(struct residency_map *map, uint32_t source)
{
    struct map_source *of = &map->sources[source];

    while (of->worker != NONE) {
        struct residency_wish wish = residency_sync_wish(map->relay->sync, of->worker);

        if (wish.ticket == of->ticket)
            break;
        of->ticket = wish.ticket;
        if (grant(map, source, &wish) < 0)
            residency_sync_broken(map->relay->sync, of->worker, RESIDENCY_BREAK_FAILED,
                                  now_ms_of(map));
    }
}

/* ---- workers and sources ---- */

static void on_come(void *ctx, struct worker *worker)
{
    struct residency_map *map = ctx;
    struct map_source *of;
    uint32_t source;

    if (residency_feed_watch(map->feed, worker->name, &source) < 0)
        return; /* counted; it is guessed about, as without a map */
    of = &map->sources[source];
    if (of->worker == worker->index)
        return;
    assert(of->worker == NONE);
    of->worker = worker->index;
    of->ticket = 0;
    map->workers[worker->index] = (struct map_worker){source, RESIDENCY_DOUBT_NO_AGENT};
    if (of->has_lease) /* heard of before it came */
        residency_sync_lease(map->relay->sync, worker->index, &of->lease, now_ms_of(map));
    pursue(map, source);
}

static void init_source(struct residency_map *map, uint32_t source)
{
    map->sources[source] = (struct map_source){.worker = NONE};
}

static void on_gone(void *ctx, struct worker *worker)
{
    struct residency_map *map = ctx;
    uint32_t source = map->workers[worker->index].source;

    if (source == NONE)
        return;
    residency_sync_forget(map->relay->sync, worker->index);
    map->workers[worker->index].source = NONE;
    residency_feed_drop(map->feed, source);
    init_source(map, source);
}

/* A worker that an agent names: of the fleet, where it is not already. */
static void find_worker(struct residency_map *map, uint32_t source,
                        const struct residency_meta *meta)
{
    struct map_source *of = &map->sources[source];
    const char *name = residency_feed_name(map->feed, source);
    char why[WORKER_URL_WHY_BYTES];

    if (of->is_found || !of->has_lease || !residency_feed_is_listed(map->feed, source) ||
        meta->fingerprint != map->relay->fingerprint ||
        of->lease.fingerprint != map->relay->fingerprint)
        return;
    of->is_found = true; /* asked once, whatever comes of it */
    if (strcmp(meta->url, name) != 0)
        LOG(LOG_WARN, "agent_refused", log_text("worker", name), log_text("url", meta->url),
            log_text("why", "it advertises another url than it is listed by"));
    else if (fleet_join(map->relay->fleet, name, why) < 0)
        LOG(LOG_WARN, "agent_refused", log_text("worker", name), log_text("why", why));
}

/* ---- what Redis says ---- */

static void on_reach(void *ctx, bool is_reached, const char *why)
{
    struct residency_map *map = ctx;

    map->reached_ms = is_reached ? now_ms_of(map) : 0;
    if (is_reached)
        LOG(LOG_INFO, "map_reached");
    else /* each time that it is lost, not each time that it is sought in vain */
        LOG(map->is_away_told ? LOG_DEBUG : LOG_WARN, "map_away", log_text("why", why),
            log_text("effect",
                     "what agents said is believed for 3 s more, and then it is a guess"));
    map->is_away_told = !is_reached;
}

static void on_source(void *ctx, uint32_t source)
{
    init_source(ctx, source);
}

static void on_polled(void *ctx)
{
    struct residency_map *map = ctx;

    residency_sync_polled(map->relay->sync, now_ms_of(map));
}

/* Loudly, once: who sees this has two secrets in one cluster, and half of its cache for nothing. */
static void tell_stranger(struct residency_map *map, uint32_t source)
{
    struct map_source *of = &map->sources[source];
    char theirs[17], ours[17];

    if (of->is_stranger_told)
        return;
    of->is_stranger_told = true;
    snprintf(theirs, sizeof theirs, "%016" PRIx64, of->lease.fingerprint);
    snprintf(ours, sizeof ours, "%016" PRIx64, map->relay->fingerprint);
    LOG(LOG_ERROR, "agent_of_other_fingerprint",
        log_text("worker", residency_feed_name(map->feed, source)), log_text("theirs", theirs),
        log_text("ours", ours),
        log_text("why", "its agent has another secret-file, or another version cuts prompts "
                        "otherwise: nothing that it says is used"));
}

static void on_lease(void *ctx, uint32_t source, const struct residency_lease *lease)
{
    struct residency_map *map = ctx;
    struct map_source *of = &map->sources[source];
    uint64_t now_ms = now_ms_of(map);

    if (lease == NULL && of->has_lease)
        of->lost_ms = now_ms;
    of->has_lease = lease != NULL;
    if (lease != NULL) {
        of->lost_ms = 0;
        of->lease = *lease;
        if (lease->fingerprint != map->relay->fingerprint)
            tell_stranger(map, source);
        else
            of->is_stranger_told = false;
    }
    if (of->worker == NONE)
        return;
    residency_sync_lease(map->relay->sync, of->worker, lease, now_ms);
    pursue(map, source);
}

static void on_meta(void *ctx, uint32_t source, const struct residency_meta *meta)
{
    struct residency_map *map = ctx;
    struct map_source *of = &map->sources[source];

    find_worker(map, source, meta);
    if (of->worker == NONE)
        return;
    residency_sync_meta(map->relay->sync, of->worker, meta, now_ms_of(map));
    pursue(map, source);
}

static void on_last(void *ctx, uint32_t source, uint64_t sequence,
                    const struct residency_change *change)
{
    struct residency_map *map = ctx;

    residency_sync_last(map->relay->sync, map->sources[source].worker, sequence, change,
                        now_ms_of(map));
    pursue(map, source);
}

static void on_page(void *ctx, uint32_t source, uint32_t page, struct slice bytes)
{
    struct residency_map *map = ctx;

    residency_sync_page(map->relay->sync, map->sources[source].worker, page, bytes, now_ms_of(map));
    pursue(map, source);
}

/* What an agent has once claimed is no guess any more: when it is evicted, it is nowhere. The time
 * at which all that was told is left to the map may be long after that. */
static void leave_to_map(struct residency_map *map, uint32_t worker, struct slice records)
{
    const uint8_t *bytes = (const void *)records.ptr;

    for (size_t at = 0; at + RESIDENCY_RECORD_BYTES <= records.len; at += RESIDENCY_RECORD_BYTES) {
        struct residency_record record = residency_record_read(bytes + at);

        if (record.tiers != 0)
            residency_guess_forget(map->relay->guess, worker, record.hash);
    }
}

static void on_change(void *ctx, uint32_t source, uint64_t sequence,
                      const struct residency_change *change)
{
    struct residency_map *map = ctx;
    uint32_t worker = map->sources[source].worker;

    residency_sync_change(map->relay->sync, worker, sequence, change, now_ms_of(map));
    leave_to_map(map, worker, change->records);
    pursue(map, source);
}

static void on_no_more(void *ctx, uint32_t source)
{
    struct residency_map *map = ctx;

    residency_sync_no_more(map->relay->sync, map->sources[source].worker, now_ms_of(map));
    pursue(map, source);
}

static void on_broken(void *ctx, uint32_t source, bool is_unreadable)
{
    struct residency_map *map = ctx;

    residency_sync_broken(map->relay->sync, map->sources[source].worker,
                          is_unreadable ? RESIDENCY_BREAK_UNREADABLE : RESIDENCY_BREAK_FAILED,
                          now_ms_of(map));
    pursue(map, source);
}

static const struct residency_feed_callbacks feed_callbacks = {
    .on_reach = on_reach,
    .on_source = on_source,
    .on_polled = on_polled,
    .on_lease = on_lease,
    .on_meta = on_meta,
    .on_last = on_last,
    .on_page = on_page,
    .on_change = on_change,
    .on_no_more = on_no_more,
    .on_broken = on_broken,
};

/* ---- from time to time ---- */

/* Who is believed now, and who no longer, and why: once each time that it changes. That Redis is
 * away is told once for all of them. */
static void tell_doubt(struct residency_map *map, uint32_t worker, uint64_t now_ms)
{
    struct map_worker *of = &map->workers[worker];
    struct residency_sync_view view;

    if (!residency_sync_view(map->relay->sync, worker, now_ms, &view) || view.doubt == of->told ||
        view.doubt == RESIDENCY_DOUBT_NO_MAP)
        return;
    of->told = view.doubt;
    LOG(view.doubt == RESIDENCY_DOUBT_NONE || view.doubt == RESIDENCY_DOUBT_NOT_READ ? LOG_INFO
                                                                                     : LOG_WARN,
        view.doubt == RESIDENCY_DOUBT_NONE ? "agent_believed" : "agent_doubted",
        log_text("worker", residency_feed_name(map->feed, of->source)),
        log_text("why", residency_doubt_name(view.doubt)),
        log_text(view.break_count > 0 ? "last_break" : NULL, residency_break_name(view.last_break)),
        log_u64("records", view.record_count), log_u64("sequence", view.sequence));
}

/* Its agent and its engine have both been gone for long. */
static bool is_to_leave(const struct residency_map *map, const struct map_source *of,
                        uint64_t now_ms)
{
    const struct worker *worker =
        of->worker != NONE ? worker_set_at(map->relay->workers, of->worker) : NULL;

    if (!of->is_found || of->has_lease || of->lost_ms == 0 || map->reached_ms == 0)
        return false;
    if (now_ms - of->lost_ms < map->leave_ms || now_ms - map->reached_ms < map->leave_ms)
        return false;
    return worker == NULL || !worker_is_reachable(worker);
}

/* With nothing but the map to know workers from, an empty one is most likely another one. */
static void tell_lonely(struct residency_map *map, uint64_t now_ms)
{
    if (map->is_lonely_told || map->reached_ms == 0 || now_ms - map->reached_ms < LONELY_MS ||
        residency_feed_stats(map->feed).listed_count > 0)
        return;
    map->is_lonely_told = true;
    LOG(LOG_WARN, "map_empty",
        log_text("why", "no agent has named a worker under our fingerprint: is one running, with "
                        "this redis and the same secret-file?"));
}

static void on_tick(uv_timer_t *timer)
{
    struct residency_map *map = timer->data;
    uint64_t now_ms = now_ms_of(map);

    residency_sync_tick(map->relay->sync, now_ms);
    for (uint32_t i = 0; i < WORKER_COUNT_MAX; i++) {
        uint32_t source = map->workers[i].source;

        if (source == NONE)
            continue;
        pursue(map, source);
        tell_doubt(map, i, now_ms);
        if (!is_to_leave(map, &map->sources[source], now_ms))
            continue;
        map->sources[source].is_found = false;
        fleet_leave(map->relay->fleet, residency_feed_name(map->feed, source));
    }
    tell_lonely(map, now_ms);
}

/* ---- life ---- */

int residency_map_open(struct relay *relay, struct residency_map_config config,
                       struct residency_map **opened)
{
    struct residency_map *map = calloc(1, sizeof *map);
    int status;

    *opened = NULL;
    if (map == NULL)
        return -ENOMEM;
    map->relay = relay;
    map->leave_ms = config.leave_ms;
    for (uint32_t i = 0; i < RESIDENCY_SOURCE_COUNT_MAX; i++)
        init_source(map, i);
    for (uint32_t i = 0; i < WORKER_COUNT_MAX; i++)
        map->workers[i].source = NONE;
    status = residency_feed_open(&relay->io->loop, config.feed, &feed_callbacks, map, &map->feed);
    if (status < 0) {
        free(map);
        return status;
    }
    uv_timer_init(&relay->io->loop, &map->timer);
    map->timer.data = map;
    uv_timer_start(&map->timer, on_tick, TICK_MS, TICK_MS);
    map->observer = (struct fleet_observer){on_come, on_gone, map};
    fleet_set_observer(relay->fleet, &map->observer);
    *opened = map;
    return 0;
}

void residency_map_set_leave_ms(struct residency_map *map, uint64_t leave_ms)
{
    map->leave_ms = leave_ms;
}

struct residency_feed_stats residency_map_stats(const struct residency_map *map)
{
    return residency_feed_stats(map->feed);
}

static void on_timer_closed(uv_handle_t *handle)
{
    free(handle->data);
}

void residency_map_close(struct residency_map **closed)
{
    struct residency_map *map = *closed;

    *closed = NULL;
    fleet_set_observer(map->relay->fleet, NULL);
    residency_feed_close(&map->feed);
    uv_close((uv_handle_t *)&map->timer, on_timer_closed);
}
