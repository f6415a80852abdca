/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/health.h"

#include "backends/http/http_fetch.h"
#include "backends/load_report.h"
#include "backends/runtime/clock.h"
#include "backends/worker.h"
#include "backends/worker_set.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

/*
 * DESIGN
 *
 * Each worker has one probe, which runs one round after another: a chain of fetches, one at a time.
 *
 *   timer -> GET /health --ok--> GET /v1/models --ok--> judge(passed) -> GET /metrics -> timer
 *                 |        (when due; always while not UP)  |
 *                 `--------- failed ---------- failed ------`-> judge(failed) ----------> timer
 *
 * judge() alone counts streaks and changes state, once per round. Metrics come after it: a worker
 * whose metrics hang is not less alive for it.
 *
 * Any answer below 500 to GET /health is life (an engine without that path says 404); 5xx is not:
 * vLLM answers 503 when its engine has died, llama.cpp while it loads.
 *
 * A change of state by others (traffic, operator) is seen at the next round by the count of
 * changes: the streak starts anew there, so that a worker which traffic took down has to pass
 * again, and the owner is told.
 *
 * Two things prove that a process is another one than before, with an empty cache, also if the
 * worker never went DOWN in between: nobody listened (refused) and then somebody answered; or a
 * counter that only grows fell (a quick restart, or a host that was away and let connects time
 * out).
 */

enum { MODELS_BYTES_MAX = 4 << 20, METRICS_BYTES_MAX = 8 << 20, HEALTH_BYTES_MAX = 64 << 10 };

struct probe {
    struct health *health;
    struct worker *worker;
    uv_timer_t timer;            /* runs between two rounds */
    struct http_fetch *fetch;    /* the one in flight, or NULL */
    uint64_t models_due_ms;      /* while UP */
    uint64_t metrics_due_ms;     /* later than now only when the worker has none that we know */
    uint32_t seen_change_count;  /* of worker->state_change_count: more means others changed it */
    uint64_t prompt_tokens_seen; /* in its last report */
    bool was_refused;            /* since the last answer */
};

struct health {
    uv_loop_t *loop;
    struct worker_set *set;
    struct health_config config;
    const struct health_callbacks *callbacks;
    void *ctx;
    uint64_t random;            /* xorshift state of the jitter; never 0 */
    uv_timer_t anchor;          /* never runs: so that there is a handle to close without workers */
    uint32_t open_handle_count; /* timers of the probes and the anchor */
    bool is_closing;
    void (*on_closed)(void *ctx);
    void *closed_ctx;
    size_t probe_count;
    struct probe probes[];
};

static void begin_round(uv_timer_t *timer);

/* What one round found out: the streaks of the worker and its state are changed here only. */

/* Busy, not dead: probes that are late or answered 5xx do not count. A refused connection is no
 * sign of being busy. */
static bool is_making_progress(const struct probe *probe, uint64_t now_ms)
{
    const struct worker *worker = probe->worker;

    return worker->progress_ms != 0 &&
           now_ms < worker->progress_ms + probe->health->config.progress_ms;
}

static void tell_state(struct probe *probe)
{
    struct health *health = probe->health;

    probe->seen_change_count = probe->worker->state_change_count;
    if (health->callbacks->on_state != NULL)
        health->callbacks->on_state(health->ctx, probe->worker);
}

static void move(struct probe *probe, enum worker_state state, uint64_t now_ms)
{
    struct worker *worker = probe->worker;
    int status = worker_set_state(worker, state, WORKER_REASON_PROBE, now_ms);

    assert(status == 0); /* only STARTING or DOWN -> UP and UP -> DOWN are asked for */
    (void)status;
    if (state == WORKER_DOWN)
        worker->report.is_known = false; /* what it said of its load is over */
    tell_state(probe);
}

static void count_streak(struct worker *worker, bool is_ok)
{
    if (worker->probe_streak_is_ok != is_ok)
        worker->probe_streak = 0;
    worker->probe_streak_is_ok = is_ok;
    worker->probe_streak++;
    if (is_ok)
        worker->stats.probe_ok_total++;
    else
        worker->stats.probe_failed_total++;
}

/* Changes that traffic or the operator made since the last round. */
static void note_changes_of_others(struct probe *probe)
{
    if (probe->seen_change_count == probe->worker->state_change_count)
        return;
    probe->worker->probe_streak = 0;
    tell_state(probe);
}

/* What the operator took down is the operator's to bring back. */
static bool may_come_up(const struct worker *worker, uint32_t pass_count)
{
    if (worker->state == WORKER_STARTING)
        return true;
    return worker->state == WORKER_DOWN && worker->reason != WORKER_REASON_OPERATOR &&
           worker->probe_streak >= pass_count;
}

static void judge(struct probe *probe, enum probe_result result)
{
    const struct health_config *config = &probe->health->config;
    struct worker *worker = probe->worker;
    uint64_t now_ms = clock_now_ms();

    note_changes_of_others(probe); /* made while this round was on its way */
    if (probe->health->is_closing)
        return;
    count_streak(worker, result == PROBE_PASSED);
    worker->probe_result = result;
    if (result == PROBE_PASSED) {
        if (may_come_up(worker, config->pass_count))
            move(probe, WORKER_UP, now_ms);
    } else if (worker->state == WORKER_UP && worker->probe_streak >= config->fail_count &&
               (result == PROBE_REFUSED || !is_making_progress(probe, now_ms))) {
        move(probe, WORKER_DOWN, now_ms);
    }
}

/* The process is another one than before: nothing of what the old one said holds. */
static void note_restart(struct probe *probe)
{
    struct worker *worker = probe->worker;

    worker->restart_count++;
    worker->report.is_known = false;
    probe->prompt_tokens_seen = 0;
    probe->models_due_ms = 0;
    probe->metrics_due_ms = 0;
    tell_state(probe);
}

/* An answer came: if nobody was there before, this is a new process. */
static void note_answer(struct probe *probe)
{
    bool was_refused = probe->was_refused;

    probe->was_refused = false;
    if (was_refused && probe->worker->state != WORKER_STARTING) /* that one saw its first process */
        note_restart(probe);
}

static enum probe_result result_of_error(int error)
{
    switch (error) {
    case -ECONNREFUSED:
        return PROBE_REFUSED;
    case -ETIMEDOUT:
        return PROBE_TIMED_OUT;
    default:
        return PROBE_BROKEN;
    }
}

/* The next round, a tenth earlier or later, so that many workers and routers do not beat in time.
 */
static void end_round(struct probe *probe)
{
    struct health *health = probe->health;
    uint64_t interval_ms = health->config.probe_interval_ms;
    uint64_t spread_ms = interval_ms / 5 + 1;
    int status;

    if (health->is_closing)
        return;
    health->random ^= health->random << 13;
    health->random ^= health->random >> 7;
    health->random ^= health->random << 17;
    interval_ms = interval_ms - interval_ms / 10 + health->random % spread_ms;
    status = uv_timer_start(&probe->timer, begin_round, interval_ms, 0);
    assert(status == 0);
    (void)status;
}

/* Without memory or a descriptor of OURS the worker is not to blame. */
static bool is_our_fault(int error)
{
    return error == -EMFILE || error == -ENFILE || error == -ENOMEM;
}

static void fail_round(struct probe *probe, enum probe_result result)
{
    if (result == PROBE_REFUSED)
        probe->was_refused = true;
    judge(probe, result);
    end_round(probe);
}

/* Without memory or a descriptor of OURS the worker is not to blame: the round just ends. */
static void get(struct probe *probe, const char *target, size_t body_bytes_max,
                http_fetch_done_fn *on_done)
{
    const struct http_fetch_request request = {
        .address = &probe->worker->address,
        .authority = probe->worker->authority,
        .target = target,
        .timeout_ms = probe->health->config.probe_timeout_ms,
        .body_bytes_max = body_bytes_max,
    };

    assert(probe->fetch == NULL);

    probe->fetch = http_fetch_get(probe->health->loop, request, on_done, probe);
    if (probe->fetch == NULL)
        end_round(probe);
}

static void tell_report(struct probe *probe)
{
    struct health *health = probe->health;

    if (health->callbacks->on_report != NULL)
        health->callbacks->on_report(health->ctx, probe->worker);
}

static void on_metrics(void *ctx, int error, int status, struct slice body)
{
    struct probe *probe = ctx;
    struct worker *worker = probe->worker;
    struct worker_report report;
    enum engine_kind engine = ENGINE_UNKNOWN;

    probe->fetch = NULL;
    if (error == -ECANCELED)
        return;
    if (error == 0 && status == 200)
        engine = load_report_parse(body, clock_now_ms(), &report);
    if (engine != ENGINE_UNKNOWN) {
        if (report.prompt_tokens < probe->prompt_tokens_seen)
            note_restart(probe);
        probe->prompt_tokens_seen = report.prompt_tokens;
        worker->engine = engine;
        worker->report = report;
        if (!probe->health->is_closing)
            tell_report(probe);
    } else if (error == 0) {
        /* It has none (SGLang without --enable-metrics), or we do not know them: rarely again. */
        probe->metrics_due_ms = clock_now_ms() + probe->health->config.models_interval_ms;
        worker->report.is_known = false;
    }
    end_round(probe);
}

static void get_metrics(struct probe *probe)
{
    if (probe->health->is_closing)
        return; /* a callback closed us */
    if (probe->worker->state == WORKER_DOWN || clock_now_ms() < probe->metrics_due_ms)
        end_round(probe);
    else
        get(probe, "/metrics", METRICS_BYTES_MAX, on_metrics);
}

static void on_models(void *ctx, int error, int status, struct slice body)
{
    struct probe *probe = ctx;
    struct health *health = probe->health;
    bool is_learned;

    probe->fetch = NULL;
    if (error == -ECANCELED)
        return;
    /* An empty list is that of an engine which still loads: it is asked again next round. */
    is_learned = error == 0 && status == 200 &&
                 worker_set_learn_models(health->set, probe->worker, body) > 0;
    if (is_learned) {
        probe->models_due_ms = clock_now_ms() + health->config.models_interval_ms;
        tell_report(probe);
    }
    if (health->is_closing)
        return;
    /* An UP worker keeps the models it had: its /health has just passed. */
    if (is_learned || probe->worker->state == WORKER_UP) {
        judge(probe, PROBE_PASSED);
        get_metrics(probe);
    } else {
        fail_round(probe, error < 0 ? result_of_error(error) : PROBE_NO_MODELS);
    }
}

static void on_health(void *ctx, int error, int status, struct slice body)
{
    struct probe *probe = ctx;

    (void)body;
    probe->fetch = NULL;
    if (error == -ECANCELED)
        return;
    if (error < 0 || status >= 500) {
        if (error == 0)
            note_answer(probe);
        if (probe->health->is_closing)
            return;
        if (is_our_fault(error))
            end_round(probe);
        else
            fail_round(probe, error < 0 ? result_of_error(error) : PROBE_NOT_READY);
        return;
    }
    note_answer(probe);
    if (probe->health->is_closing)
        return;
    if (probe->worker->state != WORKER_UP || clock_now_ms() >= probe->models_due_ms) {
        get(probe, "/v1/models", MODELS_BYTES_MAX, on_models);
    } else {
        judge(probe, PROBE_PASSED);
        get_metrics(probe);
    }
}

static void begin_round(uv_timer_t *timer)
{
    struct probe *probe = timer->data;

    if (probe->worker->state == WORKER_GONE)
        return; /* and never again */
    note_changes_of_others(probe);
    if (!probe->health->is_closing)
        get(probe, "/health", HEALTH_BYTES_MAX, on_health);
}

static void start_probe(struct health *health, struct worker *worker)
{
    struct probe *probe = &health->probes[health->probe_count++];
    int status = uv_timer_init(health->loop, &probe->timer);

    assert(status == 0);
    probe->health = health;
    probe->worker = worker;
    probe->timer.data = probe;
    probe->seen_change_count = worker->state_change_count;
    health->open_handle_count++;
    status = uv_timer_start(&probe->timer, begin_round, 0, 0);
    assert(status == 0);
    (void)status;
}

struct health *health_create(uv_loop_t *loop, struct worker_set *set, struct health_config config,
                             const struct health_callbacks *callbacks, void *ctx)
{
    size_t worker_count = worker_set_count(set);
    struct health *health = calloc(1, sizeof *health + worker_count * sizeof health->probes[0]);
    int status;

    assert(config.probe_interval_ms > 0 && config.probe_timeout_ms > 0);
    assert(config.fail_count > 0 && config.pass_count > 0);

    if (health == NULL)
        abort(); /* at boot */
    health->loop = loop;
    health->set = set;
    health->config = config;
    health->callbacks = callbacks;
    health->ctx = ctx;
    health->random = clock_now_us() | 1;
    status = uv_timer_init(loop, &health->anchor);
    assert(status == 0);
    (void)status;
    health->anchor.data = health;
    health->open_handle_count = 1;
    for (uint32_t i = 0; i < worker_count; i++) {
        if (worker_set_at(set, i) != NULL)
            start_probe(health, worker_set_at(set, i));
    }
    return health;
}

static void drop_handle(struct health *health)
{
    void (*on_closed)(void *ctx) = health->on_closed;
    void *ctx = health->closed_ctx;

    assert(health->open_handle_count > 0);

    if (--health->open_handle_count > 0)
        return;
    free(health);
    if (on_closed != NULL)
        on_closed(ctx);
}

static void on_probe_closed(uv_handle_t *handle)
{
    struct probe *probe = handle->data;

    drop_handle(probe->health);
}

static void on_anchor_closed(uv_handle_t *handle)
{
    drop_handle(handle->data);
}

void health_close(struct health *health, void (*on_closed)(void *ctx), void *ctx)
{
    assert(!health->is_closing);

    health->is_closing = true;
    health->on_closed = on_closed;
    health->closed_ctx = ctx;
    /* The anchor first: libuv ends what was closed last first, so on_closed comes last of all. */
    uv_close((uv_handle_t *)&health->anchor, on_anchor_closed);
    for (size_t i = 0; i < health->probe_count; i++) {
        struct probe *probe = &health->probes[i];

        uv_close((uv_handle_t *)&probe->timer, on_probe_closed);
        if (probe->fetch != NULL)
            http_fetch_cancel(probe->fetch);
    }
}
