/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/engine_probes.h"

#include <stdlib.h>
#include <string.h>

#include "backends/dns_source.h"
#include "backends/health.h"
#include "backends/resolver.h"
#include "backends/runtime/clock.h"
#include "backends/runtime/log.h"

/*
 * DESIGN
 *
 * The same health that the router has, over a set of the workers of this node. An engine that is
 * busy may be late with its answers; nothing here takes away what it holds, because the connection
 * that its events come by knows better whether its process lives.
 */

enum {
    PROBE_TIMEOUT_MS = 5000,
    PROBE_FAIL_COUNT = 2,
    PROBE_PASS_COUNT = 1,
    MODELS_INTERVAL_MS = 60000,
    LOOKUP_INTERVAL_MS = 5000,
};

/* A worker, and the looking up of its name. */
struct engine_probe {
    struct engine_probes *probes;
    const struct engine_spec *spec;
    struct dns_source *dns; /* NULL: the host is an address */
    bool has_failed;        /* the last lookup */
};

struct engine_probes {
    struct io_loop *io;
    struct worker_set *set;
    struct health *health;
    const struct engine_probes_callbacks *callbacks;
    void *ctx;
    size_t count;
    bool is_closing;
    struct engine_probe probes[ENGINE_WORKER_COUNT_MAX];
};

static const char *model_of(const struct worker_set *set, const struct worker *worker)
{
    for (size_t i = 0; i < worker_set_model_count(set); i++)
        if (worker_serves_model(worker, worker_set_model_at(set, i)))
            return worker_set_model_at(set, i)->id;
    return "";
}

static void tell(struct engine_probes *probes, const struct worker *worker)
{
    for (size_t i = 0; i < probes->count && !probes->is_closing; i++)
        if (strcmp(probes->probes[i].spec->name, worker->name) == 0)
            probes->callbacks->on_report(probes->ctx, i, worker, model_of(probes->set, worker));
}

static void on_change(void *ctx, struct worker *worker)
{
    struct engine_probes *probes = ctx;

    if (probes->is_closing)
        return;
    LOG(worker->state == WORKER_DOWN ? LOG_WARN : LOG_INFO, "engine_state",
        log_text("worker", worker->name), log_text("state", worker_state_name(worker->state)),
        log_text("probe", probe_result_name(worker->probe_result)),
        log_text("engine", engine_kind_name(worker->engine)));
    tell(probes, worker);
}

static void on_report(void *ctx, struct worker *worker)
{
    tell(ctx, worker);
}

static const struct health_callbacks health_callbacks = {NULL, on_report};

static void on_come(void *ctx, const struct sockaddr_storage *address)
{
    struct engine_probe *probe = ctx;
    struct engine_probes *probes = probe->probes;
    struct worker_place place = {
        .address = *address,
        .rank = probe->spec->rank,
        .rank_count = probe->spec->url.rank_count,
    };
    struct worker *worker;

    memcpy(place.name, probe->spec->name, sizeof place.name);
    memcpy(place.authority, probe->spec->url.authority, sizeof place.authority);
    if (worker_set_add(probes->set, &place, clock_now_ms(), &worker) == 0) /* else it is there */
        health_add(probes->health, worker);
}

static void on_leave(void *ctx, const struct sockaddr_storage *address)
{
    (void)ctx;
    (void)address; /* it is kept: one address is enough */
}

static void on_lookup(void *ctx, int error)
{
    struct engine_probe *probe = ctx;

    if ((error < 0) == probe->has_failed)
        return;
    probe->has_failed = error < 0;
    if (error < 0)
        LOG(LOG_WARN, "lookup_failed", log_text("worker", probe->spec->name),
            log_text("host", probe->spec->url.host), log_text("why", uv_strerror(error)));
}

static const struct dns_source_callbacks dns_callbacks = {on_come, on_leave, on_lookup};

static void start(struct engine_probes *probes, const struct engine_spec *spec)
{
    struct engine_probe *probe = &probes->probes[probes->count++];
    struct sockaddr_storage address;

    *probe = (struct engine_probe){.probes = probes, .spec = spec};
    if (worker_url_address(&spec->url, &address)) {
        on_come(probe, &address);
        return;
    }
    probe->dns = dns_source_create(&probes->io->loop,
                                   (struct dns_source_config){
                                       .resolver = &resolver_system,
                                       .resolver_ctx = &probes->io->loop,
                                       .host = spec->url.host,
                                       .port = spec->url.port,
                                       .interval_ms = LOOKUP_INTERVAL_MS,
                                       .is_single = true,
                                   },
                                   &dns_callbacks, probe);
}

struct engine_probes *engine_probes_create(struct io_loop *io, const struct engine_spec *specs,
                                           size_t count, struct engine_probes_config config,
                                           const struct engine_probes_callbacks *callbacks,
                                           void *ctx)
{
    struct engine_probes *probes = calloc(1, sizeof *probes);
    struct worker_lists *lists;

    if (probes == NULL)
        abort(); /* boot */
    probes->io = io;
    probes->callbacks = callbacks;
    probes->ctx = ctx;
    probes->set = worker_set_create();
    if (probes->set == NULL)
        abort();
    lists = worker_set_lists(probes->set);
    lists->on_change = on_change;
    lists->ctx = probes;
    probes->health = health_create(&io->loop, probes->set,
                                   (struct health_config){
                                       .probe_interval_ms = config.interval_ms,
                                       .probe_timeout_ms = PROBE_TIMEOUT_MS,
                                       .fail_count = PROBE_FAIL_COUNT,
                                       .pass_count = PROBE_PASS_COUNT,
                                       .models_interval_ms = MODELS_INTERVAL_MS,
                                       .authorization = config.authorization,
                                   },
                                   &health_callbacks, probes);
    for (size_t i = 0; i < count; i++)
        start(probes, &specs[i]);
    return probes;
}

static void on_closed(void *ctx)
{
    struct engine_probes *probes = ctx;

    worker_set_destroy(probes->set);
    free(probes);
}

void engine_probes_close(struct engine_probes **closed)
{
    struct engine_probes *probes = *closed;

    *closed = NULL;
    if (probes == NULL)
        return;
    probes->is_closing = true;
    for (size_t i = 0; i < probes->count; i++)
        if (probes->probes[i].dns != NULL)
            dns_source_close(probes->probes[i].dns);
    health_close(probes->health, on_closed, probes);
}
