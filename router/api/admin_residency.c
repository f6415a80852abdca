/* SPDX-License-Identifier: Apache-2.0 */

#include "router/api/admin_residency.h"

#include <inttypes.h>

#include "backends/json/json_write.h"
#include "router/relay.h"
#include "router/residency_map.h"

static const char *word_of(bool flag)
{
    return flag ? "true" : "false";
}

static int write_map(struct buf *body, const struct relay *relay)
{
    struct residency_feed_stats stats;

    if (relay->map == NULL)
        return buf_append(body, SLICE("null"));
    stats = residency_map_stats(relay->map);
    return buf_printf(body,
                      "{\"reached\":%s,\"sources\":%u,\"listed\":%u,\"followed\":%u,"
                      "\"connects_total\":%" PRIu64 ",\"failures_total\":%" PRIu64
                      ",\"timeouts_total\":%" PRIu64 ",\"unreadable_total\":%" PRIu64
                      ",\"refused_total\":%" PRIu64 "}",
                      word_of(stats.is_reached), stats.source_count, stats.listed_count,
                      stats.followed_count, stats.connect_total, stats.failure_total,
                      stats.timeout_total, stats.bad_total, stats.refused_total);
}

static int write_index(struct buf *body, const char *name, const struct residency_index *index)
{
    struct residency_index_stats stats = {0, 0, 0, 0};

    if (index != NULL)
        stats = residency_index_stats(index);
    return buf_printf(body,
                      "\"%s\":{\"blocks\":%" PRIu64 ",\"holders\":%" PRIu64 ",\"bytes\":%" PRIu64
                      ",\"refused_total\":%" PRIu64 "},",
                      name, stats.block_count, stats.holder_count, stats.bytes,
                      stats.refused_total);
}

/* What its agent says of itself. */
static int write_agent(struct buf *body, const struct residency_meta *meta)
{
    int status;

    if (meta == NULL)
        return buf_append(body, SLICE("null"));
    status = buf_append(body, SLICE("{\"node\":"));
    if (status == 0)
        status = json_write_string(body, slice_of_string(meta->node));
    if (status == 0)
        status = buf_append(body, SLICE(",\"engine\":"));
    if (status == 0)
        status = json_write_string(body, slice_of_string(meta->engine));
    if (status == 0)
        status = buf_append(body, SLICE(",\"version\":"));
    if (status == 0)
        status = json_write_string(body, slice_of_string(meta->version));
    return status < 0
               ? status
               : buf_printf(body,
                            ",\"block_tokens\":%" PRIu32 ",\"cache_tokens\":%" PRIu64
                            ",\"has_anchors\":%s,\"bytes_per_token\":%" PRIu32
                            ",\"cpu_bytes_per_s\":%" PRIu64 ",\"ssd_bytes_per_s\":%" PRIu64
                            ",\"cpu_start_us\":%" PRIu32 ",\"ssd_start_us\":%" PRIu32
                            ",\"prefill_tokens_per_s\":%" PRIu32 "}",
                            meta->block_tokens, meta->cache_tokens, word_of(meta->has_anchors),
                            meta->bytes_per_token, meta->cpu_bytes_per_s, meta->ssd_bytes_per_s,
                            meta->cpu_start_us, meta->ssd_start_us, meta->prefill_tokens_per_s);
}

static int write_replica(struct buf *body, const struct residency_sync_view *view)
{
    return buf_printf(
        body,
        ",\"state\":\"%s\",\"believed\":%s,\"doubt\":\"%s\",\"lease\":%s,\"lease_age_ms\":%" PRIu64
        ",\"whole\":%s,\"life\":\"%016" PRIx64 "-%" PRIu32 "\",\"sequence\":%" PRIu64
        ",\"lag\":%" PRIu64 ",\"records\":%" PRIu64 ",\"hbm\":%" PRIu64 ",\"cpu\":%" PRIu64
        ",\"ssd\":%" PRIu64 ",\"refused\":%" PRIu64 ",\"cpu_queue_ms\":%" PRIu32
        ",\"ssd_queue_ms\":%" PRIu32,
        residency_sync_state_name(view->state), word_of(view->doubt == RESIDENCY_DOUBT_NONE),
        residency_doubt_name(view->doubt), word_of(view->has_lease), view->lease_age_ms,
        word_of(view->lease.is_whole), view->life.epoch, view->life.generation, view->sequence,
        view->lag, view->record_count, view->tier_counts[0], view->tier_counts[1],
        view->tier_counts[2], view->refused_count, view->lease.cpu_queue_ms,
        view->lease.ssd_queue_ms);
}

static int write_history(struct buf *body, const struct residency_sync_view *view)
{
    return buf_printf(body,
                      ",\"breaks_total\":%" PRIu64 ",\"last_break\":\"%s\",\"missing\":%.4f,"
                      "\"quarantine_ms\":%" PRIu64 ",\"quarantines_total\":%" PRIu64 "}",
                      view->break_count,
                      view->break_count > 0 ? residency_break_name(view->last_break) : "",
                      view->missing, view->quarantine_ms, view->quarantine_count);
}

static int write_worker(struct buf *body, const struct relay *relay, const struct worker *worker)
{
    struct residency_sync_view view = {.doubt = RESIDENCY_DOUBT_NO_MAP};
    int status = buf_printf(body, "{\"url\":\"%s\",\"agent\":", worker->name);

    if (relay->sync != NULL)
        (void)residency_sync_view(relay->sync, worker->index, io_loop_now_ms(relay->io), &view);
    if (status == 0)
        status = write_agent(body, view.meta);
    if (status == 0)
        status = write_replica(body, &view);
    return status < 0 ? status : write_history(body, &view);
}

int admin_write_residency(struct buf *body, const struct relay *relay)
{
    bool is_first = true;
    int status = buf_append(body, SLICE("{\"map\":"));

    if (status == 0)
        status = write_map(body, relay);
    if (status == 0)
        status = buf_append(body, SLICE(","));
    if (status == 0)
        status = write_index(body, "exact", relay->index);
    if (status == 0)
        status = write_index(body, "guess", relay->guess_index);
    if (status == 0)
        status = buf_append(body, SLICE("\"workers\":["));
    for (uint32_t i = 0; status == 0 && i < worker_set_count(relay->workers); i++) {
        const struct worker *worker = worker_set_at(relay->workers, i);

        if (worker == NULL)
            continue;
        if (!is_first)
            status = buf_append(body, SLICE(","));
        is_first = false;
        if (status == 0)
            status = write_worker(body, relay, worker);
    }
    return status < 0 ? status : buf_append(body, SLICE("]}\n"));
}
