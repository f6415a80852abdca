/* SPDX-License-Identifier: Apache-2.0 */

#include "router/fleet.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include "backends/dns_source.h"
#include "backends/http/worker_pool.h"
#include "backends/runtime/list.h"
#include "backends/runtime/log.h"
#include "router/join/join.h"
#include "router/join/place_asker.h"
#include "router/relay.h"

/*
 * DESIGN
 *
 *   url --> source --address written------------------> place(s) --> worker(s)
 *              `---name--> dns_source --come/leave--> place(s) --> worker(s)
 *
 * An agent's word is a source like a url, for one place, and outlives the urls' changes.
 *
 * A place is an address, or one of the ranks behind it. Two sources may name the same place (a name
 * and the address behind it): the worker counts who wants it, and leaves when nobody does.
 *
 * Leaving takes time, since answers go on for minutes; and the exchange that ends may still be on
 * the stack when its worker has nothing in flight any more. So what leaves is looked at from a
 * timer, never from within: a worker without attempts is freed there, with its probe, its pool and
 * what was believed of it. If it is wanted again before that, it is taken back.
 */
enum { SWEEP_MS = 50 };

struct source {
    struct list_node in_fleet;
    struct fleet *fleet;
    struct worker_url url;
    struct dns_source *dns; /* NULL: its address is written */
    struct sockaddr_storage address;
    bool has_failed; /* its last lookup: logged once each time that changes */
    bool is_wanted;  /* by the urls being set */
    bool is_found;   /* an agent named it, for one place; no url did */
    bool is_rank;    /* then: of its one place */
    uint32_t rank;
};

/* What the fleet knows of a worker beyond the worker itself; by index. */
struct member {
    uint32_t wanted_count; /* sources that name it; 0: it leaves */
    bool is_leaving;
};

struct fleet {
    struct relay *relay;
    struct fleet_config config;
    struct health *health;
    const struct fleet_observer *observer; /* NULL: none */
    struct list sources;
    uv_timer_t sweep; /* runs while somebody leaves */
    uint32_t leaving_count;
    struct fleet_lookups lookups;
    bool is_ready; /* a worker takes requests: logged once each time it changes */
    bool is_closing;
    struct member members[WORKER_COUNT_MAX];
};

/* ---- what becomes of workers ---- */

static void note_readiness(struct fleet *fleet)
{
    bool is_ready = relay_is_ready(fleet->relay);

    if (is_ready == fleet->is_ready)
        return;
    fleet->is_ready = is_ready;
    if (is_ready)
        LOG(LOG_INFO, "ready", log_u64("models", worker_set_model_count(fleet->relay->workers)));
    else if (!fleet->relay->is_draining)
        LOG(LOG_WARN, "not_ready", log_text("why", "no worker is up"));
}

static void on_change(void *ctx, struct worker *worker)
{
    struct fleet *fleet = ctx;
    struct relay *relay = fleet->relay;
    bool is_lost = worker->state == WORKER_DOWN || worker->state == WORKER_EJECTED;

    LOG(is_lost ? LOG_WARN : LOG_INFO, "worker_state", log_text("worker", worker->name),
        log_text("state", worker_state_name(worker->state)),
        log_text("reason", worker_reason_name(worker->reason)),
        log_text("probe", probe_result_name(worker->probe_result)));
    if (is_lost && worker->pool != NULL)
        worker_pool_drop_idle(worker->pool);
    if (is_lost)
        policy_forget(relay->policy, relay->policy_state, worker->index);
    note_readiness(fleet);
}

/* Whatever was kept under its index: its process is gone. */
static void forget_worker(struct relay *relay, const struct worker *worker)
{
    residency_guess_forget_worker(relay->guess, worker->index);
    response_table_forget_worker(relay->responses, worker->index);
    if (relay->join != NULL)
        join_forget_worker(relay->join, worker);
    if (relay->place_asker != NULL) /* not yet, while the fleet starts */
        place_asker_forget_worker(relay->place_asker, worker);
}

static void on_restart(void *ctx, struct worker *worker)
{
    struct fleet *fleet = ctx;

    LOG(LOG_INFO, "worker_restarted", log_text("worker", worker->name),
        log_text("state", worker_state_name(worker->state)));
    forget_worker(fleet->relay, worker);
    worker->traits = (struct worker_traits){0};
}

static void on_report(void *ctx, struct worker *worker)
{
    struct fleet *fleet = ctx;
    uint64_t tokens = fleet->relay->config.worker_cache_tokens;

    residency_guess_set_capacity(fleet->relay->guess, worker->index,
                                 tokens > 0 ? tokens : worker->report.cache_tokens);
}

static const struct health_callbacks health_callbacks = {on_restart, on_report};

/* ---- in and out ---- */

static void remove_worker(struct fleet *fleet, struct worker *worker)
{
    uint32_t index = worker->index;

    health_remove(fleet->health, worker);
    if (fleet->observer != NULL)
        fleet->observer->on_gone(fleet->observer->ctx, worker);
    forget_worker(fleet->relay, worker);
    worker_pool_close(worker->pool);
    worker->pool = NULL;
    worker_set_remove(fleet->relay->workers, worker, WORKER_REASON_DISCOVERY,
                      io_loop_now_ms(fleet->relay->io));
    fleet->members[index] = (struct member){0};
    fleet->leaving_count--;
}

static void on_sweep(uv_timer_t *timer)
{
    struct fleet *fleet = timer->data;
    struct worker_set *workers = fleet->relay->workers;

    for (uint32_t i = 0; i < worker_set_count(workers); i++) {
        struct worker *worker = worker_set_at(workers, i);

        if (worker != NULL && fleet->members[i].is_leaving && worker->own.in_flight == 0 &&
            worker_pool_stats(worker->pool).lent_count == 0)
            remove_worker(fleet, worker);
    }
    if (fleet->leaving_count == 0)
        uv_timer_stop(timer);
}

static void let_go(struct fleet *fleet, struct worker *worker)
{
    struct member *member = &fleet->members[worker->index];

    assert(member->wanted_count > 0);

    if (--member->wanted_count > 0)
        return;
    member->is_leaving = true;
    fleet->leaving_count++;
    (void)worker_handle(worker, WORKER_EVENT_DRAIN, WORKER_REASON_DISCOVERY,
                        io_loop_now_ms(fleet->relay->io));
    uv_timer_start(&fleet->sweep, on_sweep, SWEEP_MS, SWEEP_MS);
}

/* It is there already: one more wants it, or it is taken back. */
static void want_again(struct fleet *fleet, struct worker *worker)
{
    struct member *member = &fleet->members[worker->index];

    member->wanted_count++;
    if (!member->is_leaving)
        return;
    member->is_leaving = false;
    fleet->leaving_count--;
    (void)worker_handle(worker, WORKER_EVENT_READY, WORKER_REASON_DISCOVERY,
                        io_loop_now_ms(fleet->relay->io));
}

static void add_worker(struct fleet *fleet, const struct source *source,
                       const struct worker_place *place)
{
    struct relay *relay = fleet->relay;
    struct worker *worker = worker_set_find_name(relay->workers, place->name);

    if (worker != NULL) {
        want_again(fleet, worker);
        return;
    }
    if (worker_set_add(relay->workers, place, io_loop_now_ms(relay->io), &worker) < 0) {
        LOG(LOG_WARN, "worker_refused", log_text("worker", place->name),
            log_text("source", source->url.name), log_u64("worker_count_max", WORKER_COUNT_MAX));
        return;
    }
    worker->pool =
        worker_pool_create(worker, (struct worker_pool_config){
                                       .io = relay->io,
                                       .idle = &relay->waits[RELAY_WAIT_WORKER_IDLE],
                                       .conn_count_max = relay->config.worker_conn_count_max,
                                       .answer_head_bytes_max = fleet->config.answer_head_bytes_max,
                                   });
    if (worker->pool == NULL)
        abort(); /* bookkeeping */
    fleet->members[worker->index] = (struct member){.wanted_count = 1};
    residency_guess_set_capacity(relay->guess, worker->index, relay->config.worker_cache_tokens);
    health_add(fleet->health, worker);
    LOG(LOG_INFO, "worker_added", log_text("worker", worker->name),
        log_text("source", source->is_found ? "agent" : source->url.name));
    if (fleet->observer != NULL)
        fleet->observer->on_come(fleet->observer->ctx, worker);
}

/* The i-th place behind source at address: one of its ranks, or the only one. */
static struct worker_place place_of(const struct source *source,
                                    const struct sockaddr_storage *address, uint32_t i)
{
    const struct worker_url *url = &source->url;
    struct worker_place place = {.address = *address, .rank = i, .rank_count = url->rank_count};
    size_t len;

    if (source->is_rank) { /* how many there are, its name does not say */
        place.rank = source->rank;
        place.rank_count = WORKER_RANK_COUNT_MAX;
    }
    if (url->is_dns)
        worker_url_authority(address, place.authority);
    else
        memcpy(place.authority, url->authority, sizeof place.authority);
    /* An authority is at most 238 bytes (worker_url): its rank has room behind it. */
    snprintf(place.name, sizeof place.name, "http://%.240s", place.authority);
    len = strlen(place.name);
    if (place.rank_count > 0)
        snprintf(place.name + len, sizeof place.name - len, "#%u", place.rank);
    return place;
}

static uint32_t place_count(const struct source *source)
{
    return source->url.rank_count > 0 ? source->url.rank_count : 1;
}

static void on_come(void *ctx, const struct sockaddr_storage *address)
{
    struct source *source = ctx;

    for (uint32_t rank = 0; rank < place_count(source); rank++) {
        struct worker_place place = place_of(source, address, rank);

        add_worker(source->fleet, source, &place);
    }
}

static void on_leave(void *ctx, const struct sockaddr_storage *address)
{
    struct source *source = ctx;
    struct worker_set *workers = source->fleet->relay->workers;

    if (source->fleet->is_closing)
        return;
    for (uint32_t rank = 0; rank < place_count(source); rank++) {
        struct worker_place place = place_of(source, address, rank);
        struct worker *worker = worker_set_find_name(workers, place.name);

        if (worker != NULL) /* else there was no room for it */
            let_go(source->fleet, worker);
    }
}

static void on_lookup(void *ctx, int error)
{
    struct source *source = ctx;
    struct fleet_lookups *lookups = &source->fleet->lookups;
    bool has_failed = error < 0;

    lookups->failed_total += has_failed;
    if (has_failed == source->has_failed)
        return;
    source->has_failed = has_failed;
    lookups->failing_count += has_failed ? 1 : UINT32_MAX; /* -1 */
    if (has_failed)
        LOG(LOG_WARN, "lookup_failed", log_text("source", source->url.name),
            log_text("why", uv_strerror(error)));
    else
        LOG(LOG_INFO, "lookup_works", log_text("source", source->url.name));
}

static const struct dns_source_callbacks dns_callbacks = {on_come, on_leave, on_lookup};

/* ---- sources ---- */

static struct source *find_source(const struct fleet *fleet, const struct worker_url *url)
{
    const struct list_node *head = &fleet->sources.head;

    for (struct list_node *node = head->next; node != head; node = node->next) {
        struct source *source = container_of(node, struct source, in_fleet);

        if (!source->is_found && strcmp(source->url.name, url->name) == 0 &&
            source->url.rank_count == url->rank_count)
            return source;
    }
    return NULL;
}

/* The place that an agent named; NULL: none did. */
static struct source *find_found(const struct fleet *fleet, const struct source *wanted)
{
    const struct list_node *head = &fleet->sources.head;

    for (struct list_node *node = head->next; node != head; node = node->next) {
        struct source *source = container_of(node, struct source, in_fleet);

        if (source->is_found && strcmp(source->url.name, wanted->url.name) == 0 &&
            source->is_rank == wanted->is_rank && source->rank == wanted->rank)
            return source;
    }
    return NULL;
}

/* A copy of wanted begins to bring its workers. */
static void add_source(struct fleet *fleet, const struct source *wanted)
{
    struct source *source = malloc(sizeof *source);

    if (source == NULL)
        abort(); /* bookkeeping */
    *source = *wanted;
    source->fleet = fleet;
    list_node_init(&source->in_fleet);
    list_append(&fleet->sources, &source->in_fleet);
    if (!source->url.is_dns && worker_url_address(&source->url, &source->address)) {
        on_come(source, &source->address);
        return;
    }
    source->dns = dns_source_create(&fleet->relay->io->loop,
                                    (struct dns_source_config){
                                        .resolver = fleet->config.resolver,
                                        .resolver_ctx = fleet->config.resolver_ctx,
                                        .host = source->url.host,
                                        .port = source->url.port,
                                        .interval_ms = fleet->config.dns_interval_ms,
                                        .is_single = !source->url.is_dns,
                                    },
                                    &dns_callbacks, source);
}

static void remove_source(struct source *source)
{
    struct fleet *fleet = source->fleet;

    if (source->dns != NULL)
        dns_source_close(source->dns);
    else
        on_leave(source, &source->address);
    fleet->lookups.failing_count -= source->has_failed;
    list_remove(&fleet->sources, &source->in_fleet);
    free(source);
}

/* ---- the configuration's word ---- */

static int parse_urls(const char *const *urls, size_t count, struct worker_url *parsed,
                      char why[WORKER_URL_WHY_BYTES])
{
    size_t known_count = 0; /* of workers, as far as the urls say */
    int status = 0;

    for (size_t i = 0; status == 0 && i < count; i++) {
        status = worker_url_parse(slice_of_string(urls[i]), &parsed[i], why);
        for (size_t other = 0; status == 0 && other < i; other++) {
            if (strcmp(parsed[other].name, parsed[i].name) != 0)
                continue;
            snprintf(why, WORKER_URL_WHY_BYTES, "worker %.150s is there twice", parsed[i].name);
            status = -EINVAL;
        }
        known_count += status == 0 && parsed[i].rank_count > 0 ? parsed[i].rank_count : 1;
    }
    if (status == 0 && known_count > WORKER_COUNT_MAX) {
        snprintf(why, WORKER_URL_WHY_BYTES, "more than %d workers", WORKER_COUNT_MAX);
        status = -EINVAL;
    }
    return status;
}

/* Each list node's source; act may free it. */
static void drop_unwanted(struct fleet *fleet, struct fleet_changes *changes)
{
    struct list_node *next;

    for (struct list_node *node = fleet->sources.head.next; node != &fleet->sources.head;
         node = next) {
        struct source *source = container_of(node, struct source, in_fleet);

        next = node->next;
        if (source->is_wanted || source->is_found)
            continue;
        LOG(LOG_INFO, "source_removed", log_text("source", source->url.name));
        remove_source(source);
        changes->removed++;
    }
}

static void forget_wishes(struct fleet *fleet)
{
    for (struct list_node *node = fleet->sources.head.next; node != &fleet->sources.head;
         node = node->next)
        container_of(node, struct source, in_fleet)->is_wanted = false;
}

int fleet_set_urls(struct fleet *fleet, const char *const *urls, size_t count,
                   struct fleet_changes *changes, char why[WORKER_URL_WHY_BYTES])
{
    struct fleet_changes made = {0, 0, 0};
    struct worker_url *parsed = calloc(count + 1, sizeof *parsed);
    int status;

    assert(!fleet->is_closing);

    if (parsed == NULL)
        abort(); /* bookkeeping */
    status = parse_urls(urls, count, parsed, why);
    if (status < 0)
        goto out;
    forget_wishes(fleet);
    for (size_t i = 0; i < count; i++) {
        struct source *source = find_source(fleet, &parsed[i]);

        if (source == NULL) {
            add_source(fleet, &(struct source){.url = parsed[i], .is_wanted = true});
            made.added++;
        } else {
            source->is_wanted = true;
            made.kept++;
        }
    }
    /* After the new ones came: what both name is not drained in between. */
    drop_unwanted(fleet, &made);
    if (changes != NULL)
        *changes = made;
out:
    free(parsed);
    return status;
}

/* ---- the agents' word ---- */

/* name, taken apart: a url, and perhaps a rank behind it. */
static int parse_name(const char *name, struct source *source, char why[WORKER_URL_WHY_BYTES])
{
    size_t len = strcspn(name, "#");
    char *end = NULL;
    int status;

    *source = (struct source){.is_found = true, .is_rank = name[len] == '#'};
    status = worker_url_parse(slice_of(name, len), &source->url, why);
    if (status < 0)
        return status;
    if (source->is_rank) {
        unsigned long rank = strtoul(name + len + 1, &end, 10);

        if (end == name + len + 1 || *end != '\0' || rank >= WORKER_RANK_COUNT_MAX)
            status = -EINVAL;
        source->rank = (uint32_t)rank;
    }
    /* Its keys are made of the name, so there is only one way to write it. */
    if (source->url.is_dns || strncmp(source->url.name, name, len) != 0 ||
        source->url.name[len] != '\0')
        status = -EINVAL;
    if (status < 0)
        snprintf(why, WORKER_URL_WHY_BYTES, "%.120s is not as a worker is named", name);
    return status;
}

int fleet_join(struct fleet *fleet, const char *name, char why[WORKER_URL_WHY_BYTES])
{
    struct source wanted;
    int status = parse_name(name, &wanted, why);

    if (status == 0 && find_found(fleet, &wanted) == NULL)
        add_source(fleet, &wanted);
    return status;
}

void fleet_leave(struct fleet *fleet, const char *name)
{
    char why[WORKER_URL_WHY_BYTES];
    struct source wanted;
    struct source *found = parse_name(name, &wanted, why) == 0 ? find_found(fleet, &wanted) : NULL;

    if (found != NULL)
        remove_source(found);
}

/* ---- life ---- */

void fleet_set_observer(struct fleet *fleet, const struct fleet_observer *observer)
{
    struct worker_set *workers = fleet->relay->workers;

    fleet->observer = observer;
    for (uint32_t i = 0; observer != NULL && i < worker_set_count(workers); i++) {
        struct worker *worker = worker_set_at(workers, i);

        if (worker != NULL)
            observer->on_come(observer->ctx, worker);
    }
}

struct fleet *fleet_create(struct relay *relay, struct fleet_config config)
{
    struct fleet *fleet = calloc(1, sizeof *fleet);
    struct worker_lists *lists = worker_set_lists(relay->workers);
    int status;

    if (fleet == NULL)
        abort(); /* at boot */
    fleet->relay = relay;
    fleet->config = config;
    list_init(&fleet->sources);
    lists->on_change = on_change;
    lists->ctx = fleet;
    status = uv_timer_init(&relay->io->loop, &fleet->sweep);
    assert(status == 0);
    (void)status;
    fleet->sweep.data = fleet;
    fleet->health =
        health_create(&relay->io->loop, relay->workers, config.health, &health_callbacks, fleet);
    return fleet;
}

void fleet_set_probe_interval(struct fleet *fleet, uint64_t probe_interval_ms)
{
    health_set_probe_interval(fleet->health, probe_interval_ms);
}

struct fleet_lookups fleet_lookups(const struct fleet *fleet)
{
    return fleet->lookups;
}

void fleet_close(struct fleet *fleet)
{
    struct worker_set *workers = fleet->relay->workers;

    fleet->is_closing = true;
    worker_set_lists(workers)->on_change = NULL;
    while (fleet->sources.count > 0)
        remove_source(container_of(fleet->sources.head.next, struct source, in_fleet));
    health_close(fleet->health, NULL, NULL);
    fleet->health = NULL;
    uv_close((uv_handle_t *)&fleet->sweep, NULL);
    for (uint32_t i = 0; i < worker_set_count(workers); i++) {
        struct worker *worker = worker_set_at(workers, i);

        if (worker == NULL)
            continue;
        worker_pool_close(worker->pool);
        worker->pool = NULL;
    }
}

void fleet_destroy(struct fleet *fleet)
{
    free(fleet);
}
