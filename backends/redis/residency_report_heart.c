/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/redis/residency_report_parts.h"

#include <errno.h>

/*
 * DESIGN
 *
 * A heartbeat renews the lease, and beside it a few keys of a sweep over all of them, so that each
 * lives on and none is asked for often. The replies show whether the keys are there still; the
 * lease's, whether it is ours.
 *
 * It goes beside the main lane. In Redis it comes after a flush that is under way, and so says the
 * lease as that leaves it.
 */

enum {
    SWEEPS_PER_TTL = 6,        /* each key is renewed so often; half of them may fail */
    SWEEP_KEY_COUNT_MAX = 128, /* of one heartbeat */
    UNLINK_PAGE_COUNT = 16,    /* of one heartbeat */
};

static bool is_sweep_true(const struct report_beat *beat, const struct redis_reply *reply)
{
    for (uint32_t i = 0; i < beat->sweep_end - beat->sweep_from; i++) {
        if (!exec_integer_is(reply, beat->renew_at + i, 1))
            return false;
    }
    return true;
}

static void advance_sweep(struct residency_report *report)
{
    struct report_sweep *sweep = &report->sweep;

    sweep->at = report->beat.sweep_end;
    if (sweep->at <= report->page_count)
        return;
    sweep->at = 0;
    sweep->last_began_ms = sweep->began_ms;
    sweep->began_ms = uv_now(report->loop);
    report->is_meta_unsaid = true; /* it has a time to live too */
}

static void on_beaten(void *ctx, int error, const struct redis_reply *reply)
{
    struct residency_report *report = ctx;
    const struct report_beat *beat = &report->beat;

    if (!report_is_open(report))
        return;
    report->is_beating = false;
    if (error < 0 && beat->has_meta)
        report->is_meta_unsaid = true;
    if (report_is_answered(report, error, reply) && report->state == RESIDENCY_REPORT_LIVE &&
        beat->generation == report->life.generation) {
        const struct redis_reply *lease = exec_element(reply, beat->lease_at);

        if (report_is_others_lease(report, lease))
            report_give_way(report);
        else if (!is_sweep_true(beat, reply))
            report_begin_anew(report);
        else if (lease == NULL || redis_reply_kind(lease) != REDIS_REPLY_TEXT)
            report_set_state(report, RESIDENCY_REPORT_DOUBT);
        else
            advance_sweep(report);
    }
    report_step(report);
}

/* How many keys a heartbeat renews, so that all are renewed SWEEPS_PER_TTL times in their time. */
static uint32_t sweep_key_count(const struct residency_report *report)
{
    const uint64_t beat_ms = report->config.lease_ms / REPORT_BEATS_PER_LEASE;
    const uint64_t sweep_ms = (uint64_t)report->config.page_ttl_s * 1000 / SWEEPS_PER_TTL;
    const uint64_t beats = sweep_ms > beat_ms ? sweep_ms / beat_ms : 1;
    const uint64_t keys = (report->page_count + 1 + beats - 1) / beats;

    return keys < SWEEP_KEY_COUNT_MAX ? (uint32_t)keys : SWEEP_KEY_COUNT_MAX;
}

static void add_sweep(struct residency_report *report, struct residency_transaction *transaction)
{
    struct report_beat *beat = &report->beat;
    const uint32_t end = report->page_count + 1;

    beat->renew_at = transaction->count;
    beat->sweep_from = report->sweep.at;
    beat->sweep_end = beat->sweep_from + sweep_key_count(report);
    if (beat->sweep_end > end)
        beat->sweep_end = end;
    for (uint32_t key = beat->sweep_from; key < beat->sweep_end; key++) {
        if (key == 0)
            residency_transaction_renew_out(transaction);
        else
            residency_transaction_renew_page(transaction, key - 1);
    }
}

static void add_unlink(struct residency_report *report, struct residency_transaction *transaction)
{
    uint32_t end = report->gone_page_at + UNLINK_PAGE_COUNT;

    if (!report->is_gone_due)
        return;
    if (end > report->gone_page_end)
        end = report->gone_page_end;
    residency_transaction_unlink(transaction, report->gone_generation, report->gone_page_at, end);
    report->gone_page_at = end;
    report->is_gone_due = end < report->gone_page_end;
}

void report_send_beat(struct residency_report *report)
{
    const struct residency_target target = report_target(report);
    struct report_beat *beat = &report->beat;
    struct residency_transaction transaction;
    int status;

    if (report->is_beating)
        return;
    *beat = (struct report_beat){report->life.generation, .has_meta = report->is_meta_unsaid};
    transaction = residency_transaction_begin(&target);
    if (beat->has_meta)
        residency_transaction_set_meta(&transaction, &report->meta);
    add_sweep(report, &transaction);
    add_unlink(report, &transaction);
    beat->lease_at = transaction.count;
    /* It is done after a flush that is under way, and must not take back what that says. */
    if (report->is_busy && report->flight.sequence > 0)
        report_add_lease(report, &transaction, report->flight.sequence, report->flight.page_end);
    else
        report_add_lease(report, &transaction, report->sequence, report->page_count);
    status = residency_transaction_end(&transaction, on_beaten, report);
    if (status == 0) {
        report->is_beating = true;
        report->is_meta_unsaid = false;
        report->open_count++;
    } else if (status == -ENOTCONN) {
        report_set_state(report, RESIDENCY_REPORT_LOST);
    }
}
