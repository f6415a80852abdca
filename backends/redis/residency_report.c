/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/redis/residency_report.h"

#include "backends/redis/residency_report_parts.h"

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
 * An agent that crashed and is back finds the lease of its own life before. Knowing that to be over
 * it does not wait: its lease replaces that one as it would replace none. SET returns what it has
 * replaced, so nobody who came between is taken for it; and should the old one live after all, it
 * finds our lease where its own was, with its next heartbeat, and says nothing any more.
 *
 * When more has changed than half of what can be held (Redis was away for long), pages are said
 * anew: they cost less than so many changes, and then nothing of what changes has to be remembered.
 *
 * Keys of a generation that is over are removed by and by, with the heartbeats; whatever is left
 * has its time to live.
 */

struct residency_target report_target(const struct residency_report *report)
{
    return (struct residency_target){report->link, report->worker, report->life,
                                     report->config.page_ttl_s};
}

void report_set_state(struct residency_report *report, enum residency_report_event event)
{
    int state = residency_report_state_after(report->state, event);

    assert(state >= 0);

    report->state = (enum residency_report_state)state;
    if (report->state == RESIDENCY_REPORT_LIVE)
        memset(report->former_epochs, 0, sizeof report->former_epochs);
}

static void report_drop(struct residency_report *report)
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

bool report_is_open(struct residency_report *report)
{
    if (report->state == RESIDENCY_REPORT_CLOSED) {
        report_drop(report);
        return false;
    }
    report->open_count--;
    return true;
}

bool report_is_answered(struct residency_report *report, int error, const struct redis_reply *reply)
{
    report->stats.error = error;
    if (error == 0)
        return true;
    report->stats.failed_total++;
    if (reply == NULL)
        report_set_state(report, RESIDENCY_REPORT_LOST);
    else
        report->is_held = true; /* refused: it would be again */
    return false;
}

const struct redis_reply *exec_element(const struct redis_reply *reply, uint32_t index)
{
    return index < redis_reply_count(reply) ? redis_reply_at(reply, index) : NULL;
}

bool exec_integer_is(const struct redis_reply *reply, uint32_t index, int64_t value)
{
    const struct redis_reply *element = exec_element(reply, index);

    return element != NULL && redis_reply_kind(element) == REDIS_REPLY_INTEGER &&
           redis_reply_integer(element) == value;
}

static bool is_former(const struct residency_report *report, uint64_t epoch)
{
    for (size_t i = 0; i < RESIDENCY_FORMER_COUNT_MAX; i++) {
        if (epoch != 0 && report->former_epochs[i] == epoch)
            return true;
    }
    return false;
}

/* In whose name a lease is. 0: there is none, or none that can be read. */
static uint64_t epoch_of(const struct redis_reply *reply)
{
    struct residency_lease lease;

    if (reply == NULL || redis_reply_kind(reply) != REDIS_REPLY_TEXT ||
        residency_lease_read(redis_reply_text(reply), &lease) < 0)
        return 0;
    return lease.life.epoch;
}

bool report_is_others_lease(const struct residency_report *report, const struct redis_reply *reply)
{
    uint64_t epoch;

    if (reply == NULL || redis_reply_kind(reply) != REDIS_REPLY_TEXT)
        return false;
    epoch = epoch_of(reply);
    return epoch != report->life.epoch && !is_former(report, epoch);
}

void report_note_former(struct residency_report *report, const struct redis_reply *reply)
{
    const uint64_t epoch = epoch_of(reply);

    if (is_former(report, epoch))
        report->lease.after_epoch = epoch;
}

void report_give_way(struct residency_report *report)
{
    report_set_state(report, RESIDENCY_REPORT_OTHERS);
    report->stats.is_rivalled = true;
}

/* ---- the lease, and a new generation ---- */

void report_add_lease(const struct residency_report *report,
                      struct residency_transaction *transaction, uint64_t sequence,
                      uint32_t page_count)
{
    struct residency_lease lease = report->lease;

    lease.fingerprint = report->meta.fingerprint;
    lease.life = report->life;
    lease.sequence = sequence;
    lease.page_count = page_count;
    lease.interval_ms = report->config.lease_ms / REPORT_BEATS_PER_LEASE;
    residency_transaction_set_lease(transaction, &lease, report->config.lease_ms);
}

bool report_is_too_old(const struct residency_report *report)
{
    const uint64_t age_ms = uv_now(report->loop) - report->sweep.last_began_ms;

    return age_ms > (uint64_t)report->config.page_ttl_s * 1000 / 2;
}

void report_begin_anew(struct residency_report *report)
{
    report_set_state(report, RESIDENCY_REPORT_GONE);
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
    report->sweep = (struct report_sweep){0, uv_now(report->loop), uv_now(report->loop)};
    residency_pages_restart(report->pages);
}

/* ---- time ---- */

static void on_beat_timer(uv_timer_t *timer)
{
    struct residency_report *report = timer->data;

    report->is_held = false;
    if (report->state == RESIDENCY_REPORT_RIVALLED)
        report_set_state(report, RESIDENCY_REPORT_DUE);
    if (report->state == RESIDENCY_REPORT_LIVE && report_is_too_old(report))
        report_begin_anew(report);
    if (report->state == RESIDENCY_REPORT_LIVE)
        report_send_beat(report);
    report_step(report);
}

/* ---- the report ---- */

int residency_report_create(uv_loop_t *loop, struct redis_link *link,
                            struct residency_report_config config,
                            struct residency_report **created)
{
    const uint64_t beat_ms = config.lease_ms / REPORT_BEATS_PER_LEASE;
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
    report->config.worker = report->worker;
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

void residency_report_succeed(struct residency_report *report,
                              const uint64_t epochs[RESIDENCY_FORMER_COUNT_MAX])
{
    assert(report->state != RESIDENCY_REPORT_LIVE);

    memcpy(report->former_epochs, epochs, sizeof report->former_epochs);
    report->lease.after_epoch = epochs[0]; /* the newest, until it is seen who spoke last */
}

void residency_report_linked(struct residency_report *report)
{
    report_set_state(report, RESIDENCY_REPORT_LINKED);
    report->is_held = false;
    report_step(report);
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
        report_send_beat(report);
    report_step(report);
}

void residency_report_set_load(struct residency_report *report, bool has_load, uint32_t running,
                               uint32_t waiting)
{
    report->lease.has_load = has_load;
    report->lease.running = running;
    report->lease.waiting = waiting;
}

void residency_report_set_queues(struct residency_report *report, uint32_t cpu_queue_ms,
                                 uint32_t ssd_queue_ms)
{
    report->lease.cpu_queue_ms = cpu_queue_ms;
    report->lease.ssd_queue_ms = ssd_queue_ms;
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
        report_begin_anew(report);
        report_step(report);
        break;
    default: /* nothing is known of Redis: whoever looks sees to it */
        report->is_over = true;
        residency_pages_restart(report->pages);
    }
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
        report_flush_soon(report);
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
    report_drop(timer->data);
}

static void on_lease_given_up(void *ctx, int error, const struct redis_reply *reply)
{
    (void)error;
    (void)reply;
    report_drop(ctx);
}

void residency_report_close(struct residency_report **closed, void (*on_closed)(void *ctx),
                            void *ctx)
{
    struct residency_report *report = *closed;
    const struct residency_target target = report_target(report);

    *closed = NULL;
    report->on_closed = on_closed;
    report->closed_ctx = ctx;
    if (report->state == RESIDENCY_REPORT_LIVE &&
        residency_send_unlink_lease(&target, on_lease_given_up, report) == 0)
        report->open_count++;
    report_set_state(report, RESIDENCY_REPORT_CLOSE);
    uv_close((uv_handle_t *)&report->flush_timer, on_timer_closed);
    uv_close((uv_handle_t *)&report->beat_timer, on_timer_closed);
}
