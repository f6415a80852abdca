/* SPDX-License-Identifier: Apache-2.0 */

#include "router/request_record.h"

#include <assert.h>
#include <math.h>

#include "backends/runtime/log.h"
#include "router/relay.h"

void request_record_copy(char *field, size_t size, struct slice slice)
{
    size_t len = slice.len < size - 1 ? slice.len : size - 1;

    if (len > 0)
        memcpy(field, slice.ptr, len);
    field[len] = '\0';
}

void request_record_set_path(struct request_record *record, struct slice target)
{
    const char *query = target.len > 0 ? memchr(target.ptr, '?', target.len) : NULL;

    if (query != NULL)
        target.len = (size_t)(query - target.ptr);
    request_record_copy(record->path, sizeof record->path, target);
}

static double ms_between(uint64_t from_us, uint64_t to_us)
{
    return from_us > 0 && to_us > from_us ? (double)(to_us - from_us) / 1000 : 0;
}

static void count_usage(const struct request_record *record, struct router_stats *stats)
{
    if (!record->has_usage)
        return;
    stats->prompt_tokens_total += record->prompt_tokens;
    if (!record->has_cached || record->prompt_block_count == 0) /* nothing was predicted */
        return;
    stats->reported_cached_tokens_total += record->cached_tokens;
    stats->predicted_cached_tokens_total += (uint64_t)record->predicted_cached_tokens;
    histogram_observe(&stats->prediction_error_tokens,
                      fabs(record->predicted_cached_tokens - (double)record->cached_tokens));
}

static void count(const struct request_record *record, struct router_stats *stats, uint64_t now_us)
{
    double total_s = ms_between(record->begun_us, now_us) / 1000;

    stats->requests_total[record->api][status_class_of(record->status)][record->end]++;
    histogram_observe(&stats->request_duration_seconds, total_s);
    if (record->end == END_CLIENT_ABORT)
        stats->client_aborts_total[record->phase]++;
    if (record->end == END_UPSTREAM_TRUNCATED)
        stats->truncated_streams_total++;
    if (!record->is_relayed)
        return;
    stats->streams_without_done_total += record->is_done_missing;
    if (record->token_us > 0)
        histogram_observe(&stats->ttft_seconds,
                          ms_between(record->begun_us, record->token_us) / 1000);
    if (record->sent_us > 0)
        histogram_observe(&stats->queue_seconds,
                          ms_between(record->parsed_us, record->sent_us) / 1000);
    if (record->end == END_OK)
        histogram_observe(&stats->overhead_seconds, (double)record->overhead_us / 1e6);
    count_usage(record, stats);
}

static void write_line(const struct request_record *record, uint64_t now_us)
{
    bool is_relayed = record->is_relayed;
    bool is_chosen = record->worker != NULL;
    bool has_usage = record->has_usage;
    bool is_aborted = record->end != END_OK;
    double guessed = record->predicted_cached_tokens - record->claimed_tokens;
    double far = record->cpu_tokens + record->ssd_tokens;
    bool is_moved = far > 0;
    double near = record->predicted_cached_tokens > far ? record->predicted_cached_tokens - far : 0;
    const struct log_field fields[] = {
        log_text("request_id", record->request_id),
        log_text(is_chosen ? "attempt_id" : NULL, record->attempt_id),
        log_text("api", api_name(record->api)),
        log_text("method", http_method_name(record->method)),
        /* of no endpoint of ours, a path may hold anything, a key too */
        log_text(record->path[0] != '\0' ? "path" : NULL, record->path),
        log_i64("status", record->status),
        log_text("end", end_reason_name(record->end)),
        log_text(record->error != NULL ? "error" : NULL,
                 record->error != NULL ? record->error : ""),
        log_text(is_aborted ? "phase" : NULL, abort_phase_name(record->phase)),
        log_text(record->model[0] != '\0' ? "model" : NULL, record->model),
        log_text(is_chosen ? "worker" : NULL, is_chosen ? record->worker : ""),
        log_text(is_chosen ? "policy" : NULL, is_chosen ? record->policy : ""),
        log_text(is_chosen ? "rung" : NULL, route_rung_name(record->rung)),
        log_u64(is_relayed ? "attempts" : NULL, record->attempt_count),
        log_u64(is_relayed ? "prompt_blocks" : NULL, record->prompt_block_count),
        log_u64(is_chosen ? "matched_blocks" : NULL, record->matched_block_count),
        log_u64(record->claimed_block_count > 0 ? "claimed_blocks" : NULL,
                record->claimed_block_count),
        log_u64(is_chosen ? "predicted_cached_tokens" : NULL,
                (uint64_t)record->predicted_cached_tokens),
        log_u64(record->claimed_tokens > 0 ? "claimed_tokens" : NULL,
                (uint64_t)record->claimed_tokens),
        log_u64(guessed >= 1 ? "guessed_tokens" : NULL, (uint64_t)guessed),
        log_u64(is_moved ? "matched_hbm_tokens" : NULL, (uint64_t)near),
        log_u64(is_moved ? "matched_cpu_tokens" : NULL, (uint64_t)record->cpu_tokens),
        log_u64(is_moved ? "matched_ssd_tokens" : NULL, (uint64_t)record->ssd_tokens),
        log_decimal(is_moved ? "move_ms" : NULL, record->move_ms),
        log_decimal(record->prefill_ms > 0 ? "prefill_ms" : NULL, record->prefill_ms),
        log_u64(record->has_cached ? "cached_tokens" : NULL, record->cached_tokens),
        log_u64(has_usage ? "prompt_tokens" : NULL, record->prompt_tokens),
        log_u64(has_usage ? "completion_tokens" : NULL, record->completion_tokens),
        log_text(record->anchor != NULL ? "anchor" : NULL,
                 record->anchor != NULL ? record->anchor : ""),
        log_decimal(is_chosen ? "predicted_ttft_ms" : NULL, record->predicted_ttft_ms),
        log_decimal(is_chosen ? "queue_ms" : NULL, ms_between(record->parsed_us, record->sent_us)),
        log_decimal(is_chosen ? "connect_ms" : NULL, (double)record->connect_us / 1000),
        log_decimal(record->token_us > 0 ? "ttft_ms" : NULL,
                    ms_between(record->begun_us, record->token_us)),
        log_decimal("total_ms", ms_between(record->begun_us, now_us)),
        log_u64(is_relayed ? "overhead_us" : NULL, record->overhead_us),
        log_u64("bytes_in", record->bytes_in),
        log_u64("bytes_out", record->bytes_out),
        log_u64(record->event_count > 0 ? "events" : NULL, record->event_count),
        log_bool(record->is_done_missing ? "done_missing" : NULL, true),
    };

    log_write(LOG_INFO, "request", fields, array_count(fields));
}

void request_record_finish(struct request_record *record, struct relay *relay, uint64_t now_us)
{
    assert(record->begun_us > 0);

    count(record, &relay->stats, now_us);
    if (log_is_on(LOG_INFO))
        write_line(record, now_us);
    record->begun_us = 0;
}
