/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/redis/residency_report.h"

#include "backends/redis/residency_pages.h"
#include "backends/redis/residency_report_state.h"
#include "backends/redis/residency_transaction.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/*
 * DESIGN
 *
 * Two lanes, each with at most one thing under way: the main lane looks, says pages, opens, and
 * flushes; beside it, once live, the heartbeat. So what waits in the link is bounded, whatever
 * Redis does: it is the state that is to be said which grows, and that is a set, not a queue.
 *
 *   main:  look -> page, page, ... -> open -> flush, flush, ...      heart:  beat, beat, ...
 *
 * A generation begins with pages that nobody knows of, then the first change, and last the lease:
 * who sees the lease finds all of it.
 *
 * A flush that begins a page says the lease too, which tells how many there are: so whoever reads
 * the lease misses none that a change before it has begun.
 *
 * A flush keeps what it says until EXEC has come back. If it does not, the last id of "out" tells
 * whether it was done: it is done, or it is said again under the same sequence, word by word. If
 * the last id is another, Redis has forgotten something (restarted, flushed), and everything is
 * published anew. The same where a page has another length than a page has (it vanished, and
 * SETRANGE made it anew), or "out" is not there to be appended to.
 *
 * Two agents for one worker: who finds the other's lease says nothing until that lease has gone.
 * Both can find the other's only when they began within one lease; each then stops, and whoever
 * wrote the lease last finds its own when it looks again, and goes on.
 *
 * When more has changed than half of what can be held (Redis was away for long), pages are said
 * anew: they cost less than so many changes, and then nothing of what changes has to be remembered.
 *
 * Keys of a generation that is over are removed by and by, with the heartbeats; whatever is left
 * has its time to live.
 */

enum {
    FLIGHT_COUNT_MAX = 1024,  /* places of one flush: a few milliseconds of Redis */
    FIXED_COMMAND_COUNT = 16, /* of a flush or a heartbeat, beside its places or keys */
    /* "out" keeps so many records at most: who is further behind reads the pages sooner. */
    KEPT_RECORD_COUNT_MAX = 128 << 10,
    BEATS_PER_LEASE = 3,
    SWEEPS_PER_TTL = 6,        /* each key is renewed so often; half of them may fail */
    SWEEP_KEY_COUNT_MAX = 128, /* of one heartbeat */
    UNLINK_PAGE_COUNT = 16,    /* of one heartbeat */
};

/* What a flush says, until Redis has taken it. */
struct flight {
    uint64_t sequence; /* 0: there is none */
    uint64_t first_kept;
    uint64_t said_count;
    uint64_t said_digest;
    size_t count;
    struct residency_place places[FLIGHT_COUNT_MAX]; /* by slot */
    uint32_t page_end;                               /* pages that are there after it */
    uint32_t run_count; /* SETRANGEs: their replies come behind those of the pages made */
};

/* Entries of "out", as far as they are to be kept. */
struct kept {
    uint64_t first;        /* the oldest one's sequence */
    uint64_t record_count; /* in all of them */
    uint16_t *counts;      /* of each, at sequence % change_count_max */
};

/* Keys are renewed one after the other: 0 is "out", then come the pages. */
struct sweep {
    uint32_t at;
    uint64_t began_ms;      /* this one */
    uint64_t last_began_ms; /* the one before: no key was renewed longer ago */
};

struct beat { /* the one under way */
    uint32_t generation;
    uint32_t sweep_from, sweep_end;
    uint32_t renew_at; /* in EXEC's list: where the replies to the sweep begin */
    uint32_t lease_at;
    bool has_meta;
};

struct residency_report {
    struct residency_report_config config; /* worker is copied below */
    char worker[RESIDENCY_WORKER_NAME_BYTES_MAX + 1];
    uv_loop_t *loop;
    struct redis_link *link;
    enum residency_report_state state;
    struct residency_pages *pages;
    struct residency_life life;
    uint64_t sequence;   /* of the last change that was taken */
    uint32_t page_count; /* of this generation that are there */
    bool is_over;        /* this generation is not to be continued, whatever is there */
    struct flight flight;
    struct kept kept;
    struct sweep sweep;
    struct beat beat;
    uint32_t gone_generation; /* whose keys are being removed */
    uint32_t gone_page_at, gone_page_end;
    bool is_gone_due;
    struct residency_meta meta;
    bool has_meta, is_meta_unsaid;
    struct residency_lease lease; /* what is not filled in when it is said */
    bool is_busy;                 /* main lane */
    bool is_beating;              /* heart */
    bool is_held;                 /* refused: not before the next heartbeat */
    bool is_flush_due;
    uint64_t flushed_ms;      /* when the last flush was sent */
    uint32_t lane_generation; /* of what is under way on the main lane */
    uv_timer_t flush_timer;
    uv_timer_t beat_timer;
    uint32_t open_count; /* handles, and replies to come: freed at 0 */
    struct residency_report_stats stats;
    void (*on_closed)(void *ctx);
    void *closed_ctx;
};

static void step(struct residency_report *report);

static struct residency_target target_of(struct residency_report *report)
{
    return (struct residency_target){report->link, report->worker, report->life,
                                     report->config.page_ttl_s};
}

static void set_state(struct residency_report *report, enum residency_report_event event)
{
    int state = residency_report_state_after(report->state, event);

    assert(state >= 0);

    report->state = (enum residency_report_state)state;
}

static void drop(struct residency_report *report)
{
    void (*on_closed)(void *ctx) = report->on_closed;
    void *ctx = report->closed_ctx;

    if (--report->open_count > 0)
        return;
    assert(report->state == RESIDENCY_REPORT_CLOSED);
    residency_pages_destroy(report->pages);
    free(report->kept.counts);
    free(report);
    if (on_closed != NULL)
        on_closed(ctx);
}

/* ---- what comes back ---- */

/* Each reply comes through here first. False: the report is closed, and perhaps no more. */
static bool is_open(struct residency_report *report)
{
    if (report->state == RESIDENCY_REPORT_CLOSED) {
        drop(report);
        return false;
    }
    report->open_count--;
    return true;
}

static bool is_answered(struct residency_report *report, int error, const struct redis_reply *reply)
{
    report->stats.error = error;
    if (error == 0)
        return true;
    report->stats.failed_total++;
    if (reply == NULL)
        set_state(report, RESIDENCY_REPORT_LOST);
    else
        report->is_held = true; /* refused: it would be again */
    return false;
}

static bool is_answered_on_lane(struct residency_report *report, int error,
                                const struct redis_reply *reply)
{
    report->is_busy = false;
    return is_answered(report, error, reply) && report->lane_generation == report->life.generation;
}

static void on_flush_timer(uv_timer_t *timer);

/* The link is full of what others have asked. */
static void wait_for_room(struct residency_report *report)
{
    (void)uv_timer_start(&report->flush_timer, on_flush_timer, report->config.flush_ms, 0);
}

/* Whether count commands can be sent; if not, what is to happen instead has been seen to. */
static bool has_room(struct residency_report *report, uint32_t count)
{
    if (redis_link_state(report->link) != REDIS_LINK_READY)
        set_state(report, RESIDENCY_REPORT_LOST);
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
        set_state(report, RESIDENCY_REPORT_LOST);
    } else {
        wait_for_room(report);
    }
}

/* Element index of an EXEC's reply. */
static const struct redis_reply *element(const struct redis_reply *reply, uint32_t index)
{
    return index < redis_reply_count(reply) ? redis_reply_at(reply, index) : NULL;
}

static bool is_integer(const struct redis_reply *reply, int64_t value)
{
    return reply != NULL && redis_reply_kind(reply) == REDIS_REPLY_INTEGER &&
           redis_reply_integer(reply) == value;
}

/* What stands in place of a lease: none, or our process's, is nobody else's. */
static bool is_others_lease(const struct residency_report *report, const struct redis_reply *reply)
{
    struct residency_lease lease;

    if (reply == NULL || redis_reply_kind(reply) != REDIS_REPLY_TEXT)
        return false;
    return residency_lease_read(redis_reply_text(reply), &lease) < 0 ||
           lease.life.epoch != report->life.epoch;
}

static void give_way(struct residency_report *report)
{
    set_state(report, RESIDENCY_REPORT_OTHERS);
    report->stats.is_rivalled = true;
}

/* ---- a new generation ---- */

/* What is there is over: all is said anew, under another generation's keys. */
static void begin_anew(struct residency_report *report)
{
    set_state(report, RESIDENCY_REPORT_GONE);
    report->is_gone_due = report->page_count > 0 || report->sequence > 0;
    report->gone_generation = report->life.generation;
    report->gone_page_at = 0;
    report->gone_page_end = report->page_count;
    report->life.generation++;
    report->sequence = 0;
    report->page_count = 0;
    report->is_over = false;
    report->flight.sequence = 0;
    report->kept.first = 1;
    report->kept.record_count = 0;
    report->sweep = (struct sweep){0, uv_now(report->loop), uv_now(report->loop)};
    residency_pages_restart(report->pages);
}

static void on_page(void *ctx, int error, const struct redis_reply *reply)
{
    struct residency_report *report = ctx;

    if (!is_open(report))
        return;
    if (is_answered_on_lane(report, error, reply))
        report->page_count++;
    else if (report->state == RESIDENCY_REPORT_PAGING && report->is_held)
        begin_anew(report); /* that page counts as said already */
    step(report);
}

static void send_page(struct residency_report *report)
{
    const struct residency_target target = target_of(report);
    const uint8_t *bytes;
    uint32_t page;
    int status;

    if (!has_room(report, 1))
        return;
    bytes = residency_pages_take_page(report->pages, &page);
    if (bytes == NULL) {
        set_state(report, RESIDENCY_REPORT_PAGED);
        return;
    }
    status = residency_send_page(&target, page, bytes, on_page, report);
    note_asked(report, status);
    if (status < 0)
        begin_anew(report); /* it counts as said */
}

/* ---- change, meta, lease ---- */

static void add_change(struct residency_report *report, struct residency_transaction *transaction)
{
    const struct flight *flight = &report->flight;
    uint8_t records[FLIGHT_COUNT_MAX * RESIDENCY_RECORD_BYTES];
    struct residency_change change = {
        .count = flight->said_count,
        .digest = flight->said_digest,
        .records = slice_of(records, flight->count * RESIDENCY_RECORD_BYTES),
    };

    for (size_t i = 0; i < flight->count; i++)
        residency_record_write(records + i * RESIDENCY_RECORD_BYTES, flight->places[i].record);
    residency_transaction_add_change(transaction, flight->sequence, flight->first_kept, &change);
}

static void add_lease(struct residency_report *report, struct residency_transaction *transaction,
                      uint64_t sequence, uint32_t page_count)
{
    struct residency_lease lease = report->lease;

    lease.fingerprint = report->meta.fingerprint;
    lease.life = report->life;
    lease.sequence = sequence;
    lease.page_count = page_count;
    lease.interval_ms = report->config.lease_ms / BEATS_PER_LEASE;
    residency_transaction_set_lease(transaction, &lease, report->config.lease_ms);
}

/* The oldest entry that is worth keeping beside the one that comes now. */
static uint64_t keep_entry(struct residency_report *report, uint64_t sequence, size_t record_count)
{
    struct kept *kept = &report->kept;
    const uint32_t size = report->config.change_count_max;

    while (kept->first < sequence && (sequence - kept->first >= size ||
                                      kept->record_count + record_count > KEPT_RECORD_COUNT_MAX)) {
        kept->record_count -= kept->counts[kept->first % size];
        kept->first++;
    }
    kept->counts[sequence % size] = (uint16_t)record_count;
    kept->record_count += record_count;
    return kept->first;
}

static int compare_slots(const void *a, const void *b)
{
    const struct residency_place *left = a, *right = b;

    return (left->slot > right->slot) - (left->slot < right->slot);
}

/* A flight of what was not said yet, at most count_max places; false: there is nothing to say. */
static bool fill_flight(struct residency_report *report, size_t count_max)
{
    struct flight *flight = &report->flight;
    struct residency_pages_stats stats;

    if (count_max > FLIGHT_COUNT_MAX)
        count_max = FLIGHT_COUNT_MAX;
    flight->count = residency_pages_take_places(report->pages, flight->places, count_max);
    if (flight->count == 0 && report->sequence > 0)
        return false;
    qsort(flight->places, flight->count, sizeof flight->places[0], compare_slots);
    stats = residency_pages_stats(report->pages);
    flight->sequence = report->sequence + 1;
    flight->said_count = stats.said_count;
    flight->said_digest = stats.said_digest;
    flight->first_kept = keep_entry(report, flight->sequence, flight->count);
    return true;
}

static void land_flight(struct residency_report *report)
{
    struct flight *flight = &report->flight;

    report->sequence = flight->sequence;
    report->page_count = flight->page_end;
    report->stats.flush_total++;
    report->stats.record_total += flight->count;
    flight->sequence = 0;
}

/* ---- opening ---- */

static void on_opened(void *ctx, int error, const struct redis_reply *reply)
{
    struct residency_report *report = ctx;
    const struct redis_reply *last;

    if (!is_open(report))
        return;
    if (is_answered_on_lane(report, error, reply) && report->state == RESIDENCY_REPORT_OPENING) {
        last = element(reply, (uint32_t)redis_reply_count(reply) - 1);
        land_flight(report);
        report->stats.anew_total++;
        if (is_others_lease(report, last)) {
            give_way(report);
        } else {
            set_state(report, RESIDENCY_REPORT_OPENED);
            report->stats.is_rivalled = false;
            report->is_flush_due = residency_pages_stats(report->pages).unsaid_count > 0;
        }
    }
    step(report);
}

/* The first change says nothing but what the pages have. */
static void send_opening(struct residency_report *report)
{
    const struct residency_target target = target_of(report);
    struct residency_transaction transaction;

    if (!report->has_meta)
        return; /* residency_report_set_meta() comes back here */
    if (report->flight.sequence == 0)
        (void)fill_flight(report, 0);
    report->flight.page_end = report->page_count;
    transaction = residency_transaction_begin(&target);
    add_change(report, &transaction);
    residency_transaction_renew_out(&transaction);
    residency_transaction_set_meta(&transaction, &report->meta);
    add_lease(report, &transaction, report->flight.sequence, report->page_count);
    note_asked(report, residency_transaction_end(&transaction, on_opened, report));
    if (report->is_busy)
        report->is_meta_unsaid = false;
}

/* ---- flushing ---- */

/* Whether every page was there and whole, and "out" too. */
static bool is_flight_true(const struct flight *flight, const struct redis_reply *reply,
                           uint32_t made_count)
{
    const struct redis_reply *added = element(reply, made_count + flight->run_count);

    for (uint32_t i = 0; i < flight->run_count; i++) {
        if (!is_integer(element(reply, made_count + i), RESIDENCY_PAGE_BYTES))
            return false;
    }
    return added != NULL && redis_reply_kind(added) == REDIS_REPLY_TEXT;
}

static void on_flushed(void *ctx, int error, const struct redis_reply *reply)
{
    struct residency_report *report = ctx;
    const struct flight *flight = &report->flight;

    if (!is_open(report))
        return;
    if (is_answered_on_lane(report, error, reply) && flight->sequence > 0) {
        const uint32_t made_count = flight->page_end - report->page_count;
        const uint32_t lease_at = made_count + flight->run_count + 1;
        const bool is_live = report->state == RESIDENCY_REPORT_LIVE;

        if (is_flight_true(flight, reply, made_count)) {
            land_flight(report);
            if (is_live && is_others_lease(report, element(reply, lease_at)))
                give_way(report);
        } else if (is_live) {
            begin_anew(report);
        } else {
            report->is_over = true; /* whoever looks finds that out */
        }
    }
    step(report);
}

/* How many places from first on follow each other within a page. */
static size_t run_length(const struct flight *flight, size_t first)
{
    const uint32_t slot = flight->places[first].slot;
    const uint32_t room = RESIDENCY_PAGE_RECORD_COUNT - slot % RESIDENCY_PAGE_RECORD_COUNT;
    size_t len = 1;

    while (len < room && first + len < flight->count &&
           flight->places[first + len].slot == slot + len)
        len++;
    return len;
}

static void add_places(struct residency_report *report, struct residency_transaction *transaction)
{
    struct flight *flight = &report->flight;

    flight->page_end = report->page_count;
    if (flight->count > 0) {
        const uint32_t last = flight->places[flight->count - 1].slot / RESIDENCY_PAGE_RECORD_COUNT;

        while (flight->page_end <= last)
            residency_transaction_make_page(transaction, flight->page_end++);
    }
    flight->run_count = 0;
    for (size_t first = 0, len; first < flight->count; first += len) {
        len = run_length(flight, first);
        residency_transaction_set_places(transaction, &flight->places[first], len);
        flight->run_count++;
    }
}

static void send_flush(struct residency_report *report)
{
    const struct residency_target target = target_of(report);
    struct residency_transaction transaction;

    if (!has_room(report, FIXED_COMMAND_COUNT + 1))
        return;
    if (report->flight.sequence == 0) {
        report->is_flush_due = false;
        if (!fill_flight(report, redis_link_room(report->link) - FIXED_COMMAND_COUNT))
            return;
    }
    report->flushed_ms = uv_now(report->loop);
    transaction = residency_transaction_begin(&target);
    add_places(report, &transaction);
    add_change(report, &transaction);
    if (report->flight.page_end > report->page_count)
        add_lease(report, &transaction, report->flight.sequence, report->flight.page_end);
    note_asked(report, residency_transaction_end(&transaction, on_flushed, report));
    if (residency_pages_stats(report->pages).unsaid_count > 0)
        report->is_flush_due = true; /* more than one flush takes */
}

/* ---- looking ---- */

/* The sequence of the last entry; 0: none. */
static uint64_t last_sequence(const struct redis_reply *entries)
{
    const struct redis_reply *entry = entries != NULL ? element(entries, 0) : NULL;
    const struct redis_reply *id = entry != NULL ? element(entry, 0) : NULL;
    char text[32] = "";

    if (id == NULL || redis_reply_text(id).len >= sizeof text)
        return 0;
    memcpy(text, redis_reply_text(id).ptr, redis_reply_text(id).len);
    return strtoull(text, NULL, 10);
}

static bool is_too_old(const struct residency_report *report)
{
    const uint64_t age_ms = uv_now(report->loop) - report->sweep.last_began_ms;

    return age_ms > (uint64_t)report->config.page_ttl_s * 1000 / 2;
}

static void judge(struct residency_report *report, const struct redis_reply *lease,
                  const struct redis_reply *entries)
{
    const uint64_t last = last_sequence(entries);

    if (is_others_lease(report, lease)) {
        give_way(report);
        return;
    }
    report->stats.is_rivalled = false;
    if (report->flight.sequence > 0 && last == report->flight.sequence)
        land_flight(report); /* it was done */
    if (report->is_over || last == 0 || last != report->sequence || is_too_old(report)) {
        begin_anew(report);
        return;
    }
    set_state(report, RESIDENCY_REPORT_OURS);
    report->is_meta_unsaid = true; /* a rival that is gone may have said its own */
    report->is_flush_due = true;
}

static void send_beat(struct residency_report *report);

static void on_looked(void *ctx, int error, const struct redis_reply *reply)
{
    struct residency_report *report = ctx;

    if (!is_open(report))
        return;
    if (is_answered_on_lane(report, error, reply) && report->state == RESIDENCY_REPORT_LOOKING)
        judge(report, element(reply, 0), element(reply, 1));
    if (report->state == RESIDENCY_REPORT_LIVE)
        send_beat(report); /* the lease may have run out meanwhile */
    step(report);
}

static void send_look(struct residency_report *report)
{
    const struct residency_target target = target_of(report);
    struct residency_transaction transaction = residency_transaction_begin(&target);

    residency_transaction_look(&transaction);
    note_asked(report, residency_transaction_end(&transaction, on_looked, report));
}

/* ---- the main lane ---- */

/* What comes next, if it can be now. */
static void step(struct residency_report *report)
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
        step(report); /* no page was left to say */
}

static void on_flush_timer(uv_timer_t *timer)
{
    struct residency_report *report = timer->data;

    report->is_flush_due = true;
    step(report);
}

/* ---- heart ---- */

static bool is_sweep_true(const struct beat *beat, const struct redis_reply *reply)
{
    for (uint32_t i = 0; i < beat->sweep_end - beat->sweep_from; i++) {
        if (!is_integer(element(reply, beat->renew_at + i), 1))
            return false;
    }
    return true;
}

static void advance_sweep(struct residency_report *report)
{
    struct sweep *sweep = &report->sweep;

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
    const struct beat *beat = &report->beat;

    if (!is_open(report))
        return;
    report->is_beating = false;
    if (error < 0 && beat->has_meta)
        report->is_meta_unsaid = true;
    if (is_answered(report, error, reply) && report->state == RESIDENCY_REPORT_LIVE &&
        beat->generation == report->life.generation) {
        const struct redis_reply *lease = element(reply, beat->lease_at);

        if (is_others_lease(report, lease))
            give_way(report);
        else if (!is_sweep_true(beat, reply))
            begin_anew(report);
        else if (lease == NULL || redis_reply_kind(lease) != REDIS_REPLY_TEXT)
            set_state(report, RESIDENCY_REPORT_DOUBT);
        else
            advance_sweep(report);
    }
    step(report);
}

/* How many keys a heartbeat renews, so that all are renewed SWEEPS_PER_TTL times in their time. */
static uint32_t sweep_key_count(const struct residency_report *report)
{
    const uint64_t beat_ms = report->config.lease_ms / BEATS_PER_LEASE;
    const uint64_t sweep_ms = (uint64_t)report->config.page_ttl_s * 1000 / SWEEPS_PER_TTL;
    const uint64_t beats = sweep_ms > beat_ms ? sweep_ms / beat_ms : 1;
    const uint64_t keys = (report->page_count + 1 + beats - 1) / beats;

    return keys < SWEEP_KEY_COUNT_MAX ? (uint32_t)keys : SWEEP_KEY_COUNT_MAX;
}

static void add_sweep(struct residency_report *report, struct residency_transaction *transaction)
{
    struct beat *beat = &report->beat;
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

static void send_beat(struct residency_report *report)
{
    const struct residency_target target = target_of(report);
    struct beat *beat = &report->beat;
    struct residency_transaction transaction;
    int status;

    if (report->is_beating)
        return;
    *beat = (struct beat){report->life.generation, .has_meta = report->is_meta_unsaid};
    transaction = residency_transaction_begin(&target);
    if (beat->has_meta)
        residency_transaction_set_meta(&transaction, &report->meta);
    add_sweep(report, &transaction);
    add_unlink(report, &transaction);
    beat->lease_at = transaction.count;
    /* It is done after a flush that is under way, and must not take back what that says. */
    if (report->is_busy && report->flight.sequence > 0)
        add_lease(report, &transaction, report->flight.sequence, report->flight.page_end);
    else
        add_lease(report, &transaction, report->sequence, report->page_count);
    status = residency_transaction_end(&transaction, on_beaten, report);
    if (status == 0) {
        report->is_beating = true;
        report->is_meta_unsaid = false;
        report->open_count++;
    } else if (status == -ENOTCONN) {
        set_state(report, RESIDENCY_REPORT_LOST);
    }
}

static void on_beat_timer(uv_timer_t *timer)
{
    struct residency_report *report = timer->data;

    report->is_held = false;
    if (report->state == RESIDENCY_REPORT_RIVALLED)
        set_state(report, RESIDENCY_REPORT_DUE);
    if (report->state == RESIDENCY_REPORT_LIVE && is_too_old(report))
        begin_anew(report);
    if (report->state == RESIDENCY_REPORT_LIVE)
        send_beat(report);
    step(report);
}

/* ---- the report ---- */

int residency_report_create(uv_loop_t *loop, struct redis_link *link,
                            struct residency_report_config config,
                            struct residency_report **created)
{
    const uint64_t beat_ms = config.lease_ms / BEATS_PER_LEASE;
    struct residency_report *report = calloc(1, sizeof *report);

    assert(config.epoch != 0 && beat_ms > 0 && config.change_count_max > 0);
    assert(strlen(config.worker) <= RESIDENCY_WORKER_NAME_BYTES_MAX);

    *created = NULL;
    if (report == NULL)
        return -ENOMEM;
    report->pages = residency_pages_create(config.record_count_max);
    report->kept.counts = calloc(config.change_count_max, sizeof *report->kept.counts);
    if (report->pages == NULL || report->kept.counts == NULL) {
        residency_pages_destroy(report->pages);
        free(report->kept.counts);
        free(report);
        return -ENOMEM;
    }
    report->config = config;
    memcpy(report->worker, config.worker, strlen(config.worker));
    report->loop = loop;
    report->link = link;
    report->state = RESIDENCY_REPORT_AWAY;
    report->life = (struct residency_life){config.epoch, 0};
    (void)uv_timer_init(loop, &report->flush_timer); /* neither can fail */
    (void)uv_timer_init(loop, &report->beat_timer);
    report->flush_timer.data = report->beat_timer.data = report;
    report->open_count = 2;
    (void)uv_timer_start(&report->beat_timer, on_beat_timer, beat_ms, beat_ms);
    *created = report;
    return 0;
}

void residency_report_linked(struct residency_report *report)
{
    set_state(report, RESIDENCY_REPORT_LINKED);
    report->is_held = false;
    step(report);
}

void residency_report_set_meta(struct residency_report *report, const struct residency_meta *meta)
{
    struct residency_meta next = *meta;

    next.epoch = report->life.epoch;
    if (report->has_meta && memcmp(&next, &report->meta, sizeof next) == 0)
        return;
    report->meta = next;
    report->has_meta = true;
    report->is_meta_unsaid = true;
    if (report->state == RESIDENCY_REPORT_LIVE)
        send_beat(report);
    step(report);
}

void residency_report_set_load(struct residency_report *report, bool has_load, uint32_t running,
                               uint32_t waiting)
{
    report->lease.has_load = has_load;
    report->lease.running = running;
    report->lease.waiting = waiting;
}

void residency_report_set_whole(struct residency_report *report, bool is_whole)
{
    report->lease.is_whole = is_whole;
}

/* What was said is not worth continuing: nothing of it has to be remembered. */
static void end_generation(struct residency_report *report)
{
    switch (report->state) {
    case RESIDENCY_REPORT_PAGING:
    case RESIDENCY_REPORT_OPENING:
    case RESIDENCY_REPORT_LIVE:
        begin_anew(report);
        step(report);
        break;
    default: /* nothing is known of Redis: whoever looks sees to it */
        report->is_over = true;
        residency_pages_restart(report->pages);
    }
}

/* Flushes are flush_ms apart. What comes after a quiet time goes out with the rest of its turn. */
static void arm_flush_timer(struct residency_report *report)
{
    const uint64_t due_ms = report->flushed_ms + report->config.flush_ms;
    const uint64_t now_ms = uv_now(report->loop);

    if (!uv_is_active((const uv_handle_t *)&report->flush_timer))
        (void)uv_timer_start(&report->flush_timer, on_flush_timer,
                             due_ms > now_ms ? due_ms - now_ms : 1, 0);
}

int residency_report_set(struct residency_report *report, struct residency_record record)
{
    uint64_t unsaid_count;
    int status;

    if (record.tokens > RESIDENCY_TOKENS_MAX)
        record.tokens = RESIDENCY_TOKENS_MAX;
    status = residency_pages_set(report->pages, record);
    if (status < 0) {
        report->stats.refused_total++;
        return status;
    }
    unsaid_count = residency_pages_stats(report->pages).unsaid_count;
    if (unsaid_count > report->config.record_count_max / 2 + 1)
        end_generation(report);
    else if (unsaid_count > 0 && report->state == RESIDENCY_REPORT_LIVE)
        arm_flush_timer(report);
    return 0;
}

void residency_report_clear(struct residency_report *report)
{
    residency_pages_clear(report->pages);
    end_generation(report);
}

struct residency_report_stats residency_report_stats(const struct residency_report *report)
{
    const struct residency_pages_stats pages = residency_pages_stats(report->pages);
    struct residency_report_stats stats = report->stats;

    stats.record_count = pages.held_count;
    stats.unsaid_count =
        pages.unsaid_count + (report->flight.sequence > 0 ? report->flight.count : 0);
    stats.sequence = report->sequence;
    stats.generation = report->life.generation;
    stats.is_live = report->state == RESIDENCY_REPORT_LIVE;
    return stats;
}

static void on_timer_closed(uv_handle_t *timer)
{
    drop(timer->data);
}

static void on_lease_given_up(void *ctx, int error, const struct redis_reply *reply)
{
    (void)error;
    (void)reply;
    drop(ctx);
}

void residency_report_close(struct residency_report **closed, void (*on_closed)(void *ctx),
                            void *ctx)
{
    struct residency_report *report = *closed;
    const struct residency_target target = target_of(report);

    *closed = NULL;
    report->on_closed = on_closed;
    report->closed_ctx = ctx;
    if (report->state == RESIDENCY_REPORT_LIVE &&
        residency_send_unlink_lease(&target, on_lease_given_up, report) == 0)
        report->open_count++;
    set_state(report, RESIDENCY_REPORT_CLOSE);
    uv_close((uv_handle_t *)&report->flush_timer, on_timer_closed);
    uv_close((uv_handle_t *)&report->beat_timer, on_timer_closed);
}
