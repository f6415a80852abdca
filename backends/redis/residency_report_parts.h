/* SPDX-License-Identifier: Apache-2.0 */

/*
 * residency_report_parts: what the files of residency_report share: residency_report.c knows how
 * far it has come, residency_report_lane.c and residency_report_heart.c say what is due on either
 * lane, residency_report_flight.c makes up and reads a flush. Nobody else includes it.
 */
#ifndef BACKENDS_REDIS_RESIDENCY_REPORT_PARTS_H
#define BACKENDS_REDIS_RESIDENCY_REPORT_PARTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "backends/redis/redis_link.h"
#include "backends/redis/residency_pages.h"
#include "backends/redis/residency_report.h"
#include "backends/redis/residency_report_state.h"
#include "backends/redis/residency_transaction.h"
#include "backends/redis/residency_wire.h"

enum {
    REPORT_FLIGHT_COUNT_MAX = 1024, /* places of one flush: a few milliseconds of Redis */
    REPORT_BEATS_PER_LEASE = 3,
};

/* What a flush says, until Redis has taken it. */
struct report_flight {
    uint64_t sequence; /* 0: there is none */
    uint64_t first_kept;
    uint64_t said_count;
    uint64_t said_digest;
    size_t count;
    struct residency_place places[REPORT_FLIGHT_COUNT_MAX]; /* by slot */
    uint32_t page_end;                                      /* pages that are there after it */
    uint32_t run_count; /* SETRANGEs: their replies come behind those of the pages made */
};

/* Entries of "out", as far as they are to be kept. */
struct report_kept {
    uint64_t first;        /* the oldest one's sequence */
    uint64_t record_count; /* in all of them */
    uint16_t *counts;      /* of each, at sequence % change_count_max */
};

/* Keys are renewed one after the other: 0 is "out", then come the pages. */
struct report_sweep {
    uint32_t at;
    uint64_t began_ms;      /* this one */
    uint64_t last_began_ms; /* the one before: no key was renewed longer ago */
};

struct report_beat { /* the one under way */
    uint32_t generation;
    uint32_t sweep_from, sweep_end;
    uint32_t renew_at; /* in EXEC's list: where the replies to the sweep begin */
    uint32_t lease_at;
    bool has_meta;
};

struct residency_report {
    struct residency_report_config config; /* its worker is the copy below */
    char worker[RESIDENCY_WORKER_NAME_BYTES_MAX + 1];
    uv_loop_t *loop;
    struct redis_link *link;
    enum residency_report_state state;
    struct residency_pages *pages;
    struct residency_life life;
    uint64_t former_epochs[RESIDENCY_FORMER_COUNT_MAX]; /* see residency_report_succeed() */
    uint64_t sequence;                                  /* of the last change that was taken */
    uint32_t page_count;                                /* of this generation that are there */
    bool is_over; /* this generation is not to be continued, whatever is there */
    struct report_flight flight;
    struct report_kept kept;
    struct report_sweep sweep;
    struct report_beat beat;
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

/* ---- residency_report.c ---- */

void report_set_state(struct residency_report *report, enum residency_report_event event);

/* Whose keys: of the generation that is now. */
struct residency_target report_target(const struct residency_report *report);

/* Each reply comes through here first. False: the report is closed, and perhaps no more. */
bool report_is_open(struct residency_report *report);

/* Whether Redis did what was asked; if not, what follows from that is done. */
bool report_is_answered(struct residency_report *report, int error,
                        const struct redis_reply *reply);

/* What stands in place of a lease: none, our process's, or that of one before it which is over, is
 * nobody else's. */
bool report_is_others_lease(const struct residency_report *report, const struct redis_reply *reply);

/* Where it is the lease of a life before, that is the one which spoke last. */
void report_note_former(struct residency_report *report, const struct redis_reply *reply);

/* Another has the lease: nothing is said any more. */
void report_give_way(struct residency_report *report);

/* What is there is over: all is said anew, under another generation's keys. */
void report_begin_anew(struct residency_report *report);

/* The keys may run out, or have run out: too many heartbeats did not renew them. */
bool report_is_too_old(const struct residency_report *report);

/* The lease, as it is when sequence is said and page_count pages are there. */
void report_add_lease(const struct residency_report *report,
                      struct residency_transaction *transaction, uint64_t sequence,
                      uint32_t page_count);

/* Element index of an EXEC's reply; NULL: there is none. */
const struct redis_reply *exec_element(const struct redis_reply *reply, uint32_t index);

/* Whether that is the integer value. */
bool exec_integer_is(const struct redis_reply *reply, uint32_t index, int64_t value);

/* ---- residency_report_lane.c ---- */

/* Says what comes next on the main lane, if it can be said now. */
void report_step(struct residency_report *report);

/* Something has changed while LIVE: a flush follows, flush_ms after the last one. */
void report_flush_soon(struct residency_report *report);

/* ---- residency_report_heart.c ---- */

/* Renews the lease and some keys, and removes some of the generation before. */
void report_send_beat(struct residency_report *report);

/* ---- residency_report_flight.c ---- */

/* A flight of what was not said yet, at most count_max places; false: there is nothing to say. */
bool flight_fill(struct residency_report *report, size_t count_max);

/* Its places: the pages that they begin, and what they hold. */
void flight_add_places(struct residency_report *report, struct residency_transaction *transaction);

/* The same as an entry of "out". */
void flight_add_change(const struct residency_report *report,
                       struct residency_transaction *transaction);

/* Whether every page was there and whole, and "out" too. */
bool flight_is_true(const struct residency_report *report, const struct redis_reply *reply);

/* The reply to the lease of a flush; NULL: it had none. */
const struct redis_reply *flight_lease(const struct residency_report *report,
                                       const struct redis_reply *reply);

/* Redis has taken it. */
void flight_land(struct residency_report *report);

#endif
