/* SPDX-License-Identifier: Apache-2.0 */

/*
 * residency_report: publishes what one worker holds, as residency_wire.h describes it: pages,
 * changes, meta and lease, each written so that a reader sees a true state at any moment, and
 * published anew where it cannot be known what Redis has. Nothing queues while Redis is away: the
 * state to publish is what is held, not a history. Loop thread only; residency_pages is its pure
 * half.
 */
#ifndef BACKENDS_REDIS_RESIDENCY_REPORT_H
#define BACKENDS_REDIS_RESIDENCY_REPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "backends/redis/redis_link.h"
#include "backends/redis/residency_wire.h"
#include "backends/runtime/must_check.h"

struct residency_report;

enum { RESIDENCY_FORMER_COUNT_MAX = 8 };

struct residency_report_config {
    const char *worker;  /* its name; copied */
    uint64_t epoch;      /* random; see struct residency_life */
    uint32_t flush_ms;   /* flushes are so far apart, and longer where Redis is slower; 10 */
    uint32_t lease_ms;   /* believed so long after a heartbeat; 3000. One every third of it */
    uint32_t page_ttl_s; /* 900 */
    uint32_t record_count_max;
    uint32_t change_count_max; /* that "out" keeps; 4096 */
};

/* Borrows link until close; call residency_report_linked() when it is READY (again). A flush takes
 * up to a thousand commands of the link's pending_max at once, fewer where there is less room.
 * -ENOMEM. */
MUST_CHECK int residency_report_create(uv_loop_t *loop, struct redis_link *link,
                                       struct residency_report_config config,
                                       struct residency_report **report);

/* Epochs of the same agent's that are known to be over: a lease in the name of one is no other
 * agent's, and is replaced at once. 0s are none. Until this report is live: whoever speaks in such
 * a name afterwards lives after all, and is another agent. */
void residency_report_succeed(struct residency_report *report,
                              const uint64_t epochs[RESIDENCY_FORMER_COUNT_MAX]);

/* The link is READY again: what is there is looked at, and continued or published anew. */
void residency_report_linked(struct residency_report *report);

/* Who the worker is, from now on. Published when it differs. */
void residency_report_set_meta(struct residency_report *report, const struct residency_meta *meta);

/* What the engine says of its load, and whether all that it holds is known. Told with the lease. */
void residency_report_set_load(struct residency_report *report, bool has_load, uint32_t running,
                               uint32_t waiting);
void residency_report_set_queues(struct residency_report *report, uint32_t cpu_queue_ms,
                                 uint32_t ssd_queue_ms); /* see struct residency_lease */
void residency_report_set_whole(struct residency_report *report, bool is_whole);

/* record.hash is held like this now; tiers 0: no longer. More tokens than RESIDENCY_TOKENS_MAX
 * count as so many. -ENOBUFS: record_count_max; counted. */
MUST_CHECK int residency_report_set(struct residency_report *report,
                                    struct residency_record record);

/* Nothing is held any more: another generation begins, without walking what was. */
void residency_report_clear(struct residency_report *report);

struct residency_report_stats {
    uint64_t record_count; /* held */
    uint64_t unsaid_count; /* of the changes since what Redis is known to have */
    uint64_t sequence;     /* of the last change that Redis has taken */
    uint32_t generation;
    uint64_t flush_total;
    uint64_t record_total;  /* said in changes */
    uint64_t anew_total;    /* times everything was published anew */
    uint64_t failed_total;  /* flushes and heartbeats that Redis did not take */
    uint64_t refused_total; /* records beyond record_count_max */
    /* Another agent claims this worker, or one did that ended less than a lease ago and is not
     * succeeded: see meta.epoch. Nothing is published meanwhile. */
    bool is_rivalled;
    bool is_live; /* all is published and the lease is ours */
    int error;    /* of the last flush or heartbeat, as redis_done_fn's; 0: it was taken */
};

struct residency_report_stats residency_report_stats(const struct residency_report *report);

/* Gives up the lease (if it can be said) and ends. NULLs *report; on_closed, which may be NULL,
 * once by the loop: when the link has answered what was asked, or was closed. */
void residency_report_close(struct residency_report **report, void (*on_closed)(void *ctx),
                            void *ctx);

#endif
