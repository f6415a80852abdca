/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/redis/residency_report_parts.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/*
 * DESIGN
 *
 * One thing at a time is asked, and what comes back decides, with the state, what is asked next:
 * each reply ends in report_step(). A reply that belongs to a generation that is over is read for
 * nothing but whether Redis is there.
 */

/* What a flush leaves of the link's room: for what it says beside its places, and a heartbeat. */
enum { ROOM_KEPT = 16 };

static void on_flush_timer(uv_timer_t *timer)
{
    struct residency_report *report = timer->data;

    report->is_flush_due = true;
    report_step(report);
}

/* The link is full of what others have asked. */
static void wait_for_room(struct residency_report *report)
{
    (void)uv_timer_start(&report->flush_timer, on_flush_timer, report->config.flush_ms, 0);
}

/* Whether count commands can be sent; if not, what is to happen instead has been seen to. */
static bool has_room(struct residency_report *report, uint32_t count)
{
    if (redis_link_state(report->link) != REDIS_LINK_READY)
        report_set_state(report, RESIDENCY_REPORT_LOST);
    else if (redis_link_room(report->link) < count)
        wait_for_room(report);
    else
        return true;
    return false;
}

/* Something was asked on the main lane, or could not be. */
static void note_asked(struct residency_report *report, int status)
{
    if (status == 0) {
        report->is_busy = true;
        report->lane_generation = report->life.generation;
        report->open_count++;
    } else if (status == -ENOTCONN) {
        report_set_state(report, RESIDENCY_REPORT_LOST);
    } else {
        wait_for_room(report);
    }
}

/* False also for what belongs to a generation that is over: it says nothing of this one. */
static bool is_answered_on_lane(struct residency_report *report, int error,
                                const struct redis_reply *reply)
{
    report->is_busy = false;
    return report_is_answered(report, error, reply) &&
           report->lane_generation == report->life.generation;
}

/* ---- pages ---- */

static void on_page(void *ctx, int error, const struct redis_reply *reply)
{
    struct residency_report *report = ctx;

    if (!report_is_open(report))
        return;
    if (is_answered_on_lane(report, error, reply))
        report->page_count++;
    else if (report->state == RESIDENCY_REPORT_PAGING && report->is_held)
        report_begin_anew(report); /* that page counts as said already */
    report_step(report);
}

static void send_page(struct residency_report *report)
{
    const struct residency_target target = report_target(report);
    const uint8_t *bytes;
    uint32_t page;
    int status;

    if (!has_room(report, 1))
        return;
    bytes = residency_pages_take_page(report->pages, &page);
    if (bytes == NULL) {
        report_set_state(report, RESIDENCY_REPORT_PAGED);
        return;
    }
    status = residency_send_page(&target, page, bytes, on_page, report);
    note_asked(report, status);
    if (status < 0)
        report_begin_anew(report); /* it counts as said */
}

/* ---- opening ---- */

static void on_opened(void *ctx, int error, const struct redis_reply *reply)
{
    struct residency_report *report = ctx;
    const struct redis_reply *last;

    if (!report_is_open(report))
        return;
    if (is_answered_on_lane(report, error, reply) && report->state == RESIDENCY_REPORT_OPENING) {
        last = exec_element(reply, (uint32_t)redis_reply_count(reply) - 1);
        flight_land(report);
        report->stats.anew_total++;
        if (report_is_others_lease(report, last)) {
            report_give_way(report);
        } else {
            report_set_state(report, RESIDENCY_REPORT_OPENED);
            report->stats.is_rivalled = false;
            report->is_flush_due = residency_pages_stats(report->pages).unsaid_count > 0;
        }
    }
    report_step(report);
}

/* The first change says nothing but what the pages have. */
static void send_opening(struct residency_report *report)
{
    const struct residency_target target = report_target(report);
    struct residency_transaction transaction;

    if (!report->has_meta)
        return; /* residency_report_set_meta() comes back here */
    if (report->flight.sequence == 0)
        (void)flight_fill(report, 0);
    report->flight.page_end = report->page_count;
    transaction = residency_transaction_begin(&target);
    flight_add_change(report, &transaction);
    residency_transaction_renew_out(&transaction);
    residency_transaction_set_meta(&transaction, &report->meta);
    report_add_lease(report, &transaction, report->flight.sequence, report->page_count);
    note_asked(report, residency_transaction_end(&transaction, on_opened, report));
    if (report->is_busy)
        report->is_meta_unsaid = false;
}

/* ---- flushing ---- */

static void on_flushed(void *ctx, int error, const struct redis_reply *reply)
{
    struct residency_report *report = ctx;

    if (!report_is_open(report))
        return;
    if (is_answered_on_lane(report, error, reply) && report->flight.sequence > 0) {
        const bool is_live = report->state == RESIDENCY_REPORT_LIVE;

        if (flight_is_true(report, reply)) {
            const struct redis_reply *lease = flight_lease(report, reply);

            flight_land(report);
            if (is_live && report_is_others_lease(report, lease))
                report_give_way(report);
        } else if (is_live) {
            report_begin_anew(report);
        } else {
            report->is_over = true; /* whoever looks finds that out */
        }
    }
    report_step(report);
}

static void send_flush(struct residency_report *report)
{
    const struct residency_target target = report_target(report);
    struct residency_transaction transaction;

    if (!has_room(report, ROOM_KEPT + 1))
        return;
    if (report->flight.sequence == 0) {
        report->is_flush_due = false;
        if (!flight_fill(report, redis_link_room(report->link) - ROOM_KEPT))
            return;
    }
    report->flushed_ms = uv_now(report->loop);
    transaction = residency_transaction_begin(&target);
    flight_add_places(report, &transaction);
    flight_add_change(report, &transaction);
    if (report->flight.page_end > report->page_count)
        report_add_lease(report, &transaction, report->flight.sequence, report->flight.page_end);
    note_asked(report, residency_transaction_end(&transaction, on_flushed, report));
    if (residency_pages_stats(report->pages).unsaid_count > 0)
        report->is_flush_due = true; /* more than one flush takes */
}

/* ---- looking ---- */

/* The sequence of the last entry; 0: none. */
static uint64_t last_sequence(const struct redis_reply *entries)
{
    const struct redis_reply *entry = entries != NULL ? exec_element(entries, 0) : NULL;
    const struct redis_reply *id = entry != NULL ? exec_element(entry, 0) : NULL;
    char text[32] = "";

    if (id == NULL || redis_reply_text(id).len >= sizeof text)
        return 0;
    memcpy(text, redis_reply_text(id).ptr, redis_reply_text(id).len);
    return strtoull(text, NULL, 10);
}

static void judge(struct residency_report *report, const struct redis_reply *lease,
                  const struct redis_reply *entries)
{
    const uint64_t last = last_sequence(entries);

    if (report_is_others_lease(report, lease)) {
        report_give_way(report);
        return;
    }
    report_note_former(report, lease);
    report->stats.is_rivalled = false;
    if (report->flight.sequence > 0 && last == report->flight.sequence)
        flight_land(report); /* it was done */
    if (report->is_over || last == 0 || last != report->sequence || report_is_too_old(report)) {
        report_begin_anew(report);
        return;
    }
    report_set_state(report, RESIDENCY_REPORT_OURS);
    report->is_meta_unsaid = true; /* a rival that is gone may have said its own */
    report->is_flush_due = true;
}

static void on_looked(void *ctx, int error, const struct redis_reply *reply)
{
    struct residency_report *report = ctx;

    if (!report_is_open(report))
        return;
    if (is_answered_on_lane(report, error, reply) && report->state == RESIDENCY_REPORT_LOOKING)
        judge(report, exec_element(reply, 0), exec_element(reply, 1));
    if (report->state == RESIDENCY_REPORT_LIVE)
        report_send_beat(report); /* the lease may have run out meanwhile */
    report_step(report);
}

static void send_look(struct residency_report *report)
{
    const struct residency_target target = report_target(report);
    struct residency_transaction transaction = residency_transaction_begin(&target);

    residency_transaction_look(&transaction);
    note_asked(report, residency_transaction_end(&transaction, on_looked, report));
}

/* ---- what is next ---- */

void report_step(struct residency_report *report)
{
    const enum residency_report_state before = report->state;

    if (report->is_busy || report->is_held)
        return;
    switch (report->state) {
    case RESIDENCY_REPORT_LOOKING:
        send_look(report);
        break;
    case RESIDENCY_REPORT_PAGING:
        send_page(report);
        break;
    case RESIDENCY_REPORT_OPENING:
        send_opening(report);
        break;
    case RESIDENCY_REPORT_LIVE:
        if (report->flight.sequence > 0 || report->is_flush_due)
            send_flush(report);
        break;
    default:
        return; /* AWAY, RIVALLED: somebody else comes first */
    }
    if (report->state != before && report->state == RESIDENCY_REPORT_OPENING)
        report_step(report); /* no page was left to say */
}

/* What comes after a quiet time goes out with the rest of its turn. */
void report_flush_soon(struct residency_report *report)
{
    const uint64_t due_ms = report->flushed_ms + report->config.flush_ms;
    const uint64_t now_ms = uv_now(report->loop);

    if (!uv_is_active((const uv_handle_t *)&report->flush_timer))
        (void)uv_timer_start(&report->flush_timer, on_flush_timer,
                             due_ms > now_ms ? due_ms - now_ms : 1, 0);
}
