/* SPDX-License-Identifier: Apache-2.0 */

#include "router/api/admin.h"

#include "backends/http/worker_pool.h"
#include "backends/json/json_write.h"
#include "backends/runtime/log.h"
#include "backends/runtime/metric.h"
#include "backends/runtime/must_check.h"
#include "router/api/admin_residency.h"
#include "router/api/api_error.h"
#include "router/client_conn.h"
#include "router/fleet.h"
#include "router/join/join.h"
#include "router/load_share.h"
#include "router/relay.h"
#include "router/residency_map.h"

enum { BODY_BYTES_MAX = 16 * 1024 * 1024 };

/* Answers with body, or with an error where writing it failed; releases it. */
static void answer_body(struct client_conn *conn, const char *type, struct buf *body, int status)
{
    if (status < 0)
        client_conn_answer_error(
            conn,
            &(struct api_error){503, "overloaded", NULL, "The router has no memory for this."},
            NULL, END_INTERNAL);
    else
        client_conn_answer(
            conn,
            &(struct client_answer){.status = 200, .content_type = type, .body = buf_slice(body)},
            END_OK);
    buf_release(body);
}

static void answer_metrics(struct client_conn *conn, struct slice rest)
{
    const struct relay *relay = conn->relay;
    struct metrics_map map;
    struct metrics_sources sources = {
        .stats = &relay->stats,
        .workers = relay->workers,
        .index = residency_index_stats(relay->guess_index),
        .dns_names_failing = fleet_lookups(relay->fleet).failing_count,
        .dns_lookups_failed_total = fleet_lookups(relay->fleet).failed_total,
        .guess = residency_guess_stats(relay->guess),
        .responses = response_table_stats(relay->responses),
        .log_dropped_count = log_dropped_count(),
        .loads = load_share_stats(relay->loads),
    };
    struct buf body;
    int status;

    (void)rest;
    if (relay->map != NULL) {
        map = (struct metrics_map){
            .index = residency_index_stats(relay->index),
            .sync = residency_sync_stats(relay->sync),
            .feed = residency_map_stats(relay->map),
        };
        sources.map = &map;
    }
    if (relay->join != NULL)
        join_add_sources(relay->join, &sources);
    buf_init(&body, BODY_BYTES_MAX);
    status = metrics_write(&body, &sources);
    answer_body(conn, METRIC_CONTENT_TYPE, &body, status);
}

static int write_models(struct buf *body, const struct worker_set *workers,
                        const struct worker *worker)
{
    bool is_first = true;
    int status = 0;

    for (size_t i = 0; status == 0 && i < worker_set_model_count(workers); i++) {
        const struct model *model = worker_set_model_at(workers, i);

        if (!worker_serves_model(worker, model))
            continue;
        if (!is_first)
            status = buf_append(body, SLICE(","));
        is_first = false;
        if (status == 0)
            status = json_write_string(body, slice_of_string(model->id));
    }
    return status;
}

static int write_report(struct buf *body, const struct worker_report *report)
{
    if (!report->is_known)
        return buf_append(body, SLICE("null"));
    return buf_printf(body,
                      "{\"running\":%u,\"waiting\":%u,\"cache_usage\":%.4f,\"cache_tokens\":%llu,"
                      "\"block_tokens\":%u}",
                      report->running, report->waiting, report->cache_usage,
                      (unsigned long long)report->cache_tokens, report->block_tokens);
}

static unsigned long long left_ms(uint64_t until_ms, uint64_t now_ms)
{
    return until_ms > now_ms ? until_ms - now_ms : 0;
}

static int write_counts(struct buf *body, const struct worker *worker, uint64_t now_ms)
{
    struct worker_pool_stats pool = worker_pool_stats(worker->pool);

    return buf_printf(
        body,
        "\"busy_ms\":%llu,\"eject_ms\":%llu,\"busy_total\":%llu,\"ejections_total\":%llu,"
        "\"in_flight\":%u,\"decoding\":%u,\"queued_tokens\":%.0f,\"connections_idle\":%u,"
        "\"connections_lent\":%u,\"chosen_total\":%llu,\"failures_total\":%llu,"
        "\"restarts_total\":%u,\"prompt_tokens_total\":%llu,\"cached_tokens_total\":%llu,"
        "\"predicted_tokens_total\":%llu,\"prediction_error_tokens_total\":%llu,",
        left_ms(worker->traffic.busy_until_ms, now_ms),
        worker->state == WORKER_EJECTED ? left_ms(worker->traffic.eject_until_ms, now_ms) : 0,
        (unsigned long long)worker->stats.busy_total,
        (unsigned long long)worker->stats.ejected_total, worker->own.in_flight,
        worker->own.decoding, worker->own.queued_tokens, pool.idle_count, pool.lent_count,
        (unsigned long long)worker->stats.chosen_total,
        (unsigned long long)worker->stats.failure_total, worker->restart_count,
        (unsigned long long)worker->stats.prompt_tokens_total,
        (unsigned long long)worker->stats.cached_tokens_total,
        (unsigned long long)worker->stats.predicted_tokens_total,
        (unsigned long long)worker->stats.prediction_error_tokens_total);
}

static int write_worker(struct buf *body, const struct relay *relay, const struct worker *worker)
{
    int status = buf_printf(
        body,
        "{\"url\":\"%s\",\"state\":\"%s\",\"reason\":\"%s\",\"state_ms\":%llu,\"probe\":\"%s\","
        "\"engine\":\"%s\",",
        worker->name, worker_state_name(worker->state), worker_reason_name(worker->reason),
        (unsigned long long)(io_loop_now_ms(relay->io) - worker->changed_ms),
        probe_result_name(worker->probe_result), engine_kind_name(worker->engine));

    if (status == 0)
        status = write_counts(body, worker, io_loop_now_ms(relay->io));
    if (status == 0)
        status = buf_append(body, SLICE("\"models\":["));
    if (status == 0)
        status = write_models(body, relay->workers, worker);
    if (status == 0)
        status = buf_append(body, SLICE("],\"report\":"));
    if (status == 0)
        status = write_report(body, &worker->report);
    return status < 0 ? status : buf_append(body, SLICE("}"));
}

static void answer_workers(struct client_conn *conn, struct slice rest)
{
    const struct relay *relay = conn->relay;
    bool is_first = true;
    struct buf body;
    int status;

    (void)rest;
    buf_init(&body, BODY_BYTES_MAX);
    status = buf_append(&body, SLICE("{\"workers\":["));
    for (uint32_t i = 0; status == 0 && i < worker_set_count(relay->workers); i++) {
        const struct worker *worker = worker_set_at(relay->workers, i);

        if (worker == NULL)
            continue;
        if (!is_first)
            status = buf_append(&body, SLICE(","));
        is_first = false;
        if (status == 0)
            status = write_worker(&body, relay, worker);
    }
    if (status == 0)
        status = buf_append(&body, SLICE("]}\n"));
    answer_body(conn, "application/json", &body, status);
}

static void answer_residency(struct client_conn *conn, struct slice rest)
{
    struct buf body;
    int status;

    (void)rest;
    buf_init(&body, BODY_BYTES_MAX);
    status = admin_write_residency(&body, conn->relay);
    answer_body(conn, "application/json", &body, status);
}

static const struct endpoint endpoints[] = {
    {.path = "/metrics", .method = HTTP_METHOD_GET, .api = API_OTHER, .answer = answer_metrics},
    {.path = "/residency", .method = HTTP_METHOD_GET, .api = API_OTHER, .answer = answer_residency},
    {.path = "/workers", .method = HTTP_METHOD_GET, .api = API_OTHER, .answer = answer_workers},
};

const struct endpoint_table admin_endpoints = {endpoints, array_count(endpoints), true};
