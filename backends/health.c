/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/health.h"

#include "backends/http/http_fetch.h"
#include "backends/load_report.h"
#include "backends/runtime/clock.h"
#include "backends/runtime/random.h"
#include "backends/worker.h"
#include "backends/worker_set.h"
#include "backends/worker_url.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

/*
 * DESIGN
 *
 * Each endpoint has one probe, which runs one round after another: a chain of fetches, one at a
 * time. Its members are the worker there, or all ranks behind it: asking each of eight ranks would
 * ask the same process the same eight times.
 *
 *   timer -> GET /health --ok--> GET /v1/models --ok--> judge(passed) -> GET /metrics -> timer
 *                 |       (when due; always while one is  |
 *                 |        STARTING or DOWN)              |
 *                 `--------- failed ---------- failed ----`-> judge(failed) ----------> timer
 *
 * judge() alone counts streaks and tells the workers, once per round. Metrics come after it: a
 * worker whose metrics hang is not less alive for it. A worker forgets its streak whenever its
 * state changes, whoever changed it.
 *
 * Any answer below 500 to GET /health is life (an engine without that path says 404); 5xx is not:
 * vLLM answers 503 when its engine has died, llama.cpp while it loads.
 *
 * Two things prove that a process is another one than before, with an empty cache, also if the
 * worker never went DOWN in between: nobody listened (refused) and then somebody answered; or a
 * counter that only grows fell (a quick restart, or a host that was away and let connects time
 * out).
 */

static_assert((int)LOAD_REPORT_RANK_COUNT_MAX >= (int)WORKER_RANK_COUNT_MAX,
              "a report for each rank of an endpoint");

enum { MODELS_BYTES_MAX = 4 << 20, METRICS_BYTES_MAX = 8 << 20, HEALTH_BYTES_MAX = 64 << 10 };

struct probe_member {
    struct worker *worker;
    uint64_t prompt_tokens_seen; /* in its last report */
};

struct probe {
    struct health *health;
    struct list_node in_health;
    struct probe_member members[WORKER_RANK_COUNT_MAX];
    uint32_t member_count;    /* 0: it is closing */
    uv_timer_t timer;         /* runs between two rounds */
    struct http_fetch *fetch; /* the one in flight, or NULL */
    uint64_t models_due_ms;   /* while all are known */
    uint64_t metrics_due_ms;  /* later than now only when there are none that we know */
    bool was_refused;         /* since the last answer */
};

struct health {
    uv_loop_t *loop;
    struct worker_set *set;
    struct health_config config;
    const struct health_callbacks *callbacks;
    void *ctx;
    uint64_t random;            /* state of the jitter's generator */
    uv_timer_t anchor;          /* never runs: so that there is a handle to close without workers */
    uint32_t open_handle_count; /* timers of the probes and the anchor */
    bool is_closing;
    void (*on_closed)(void *ctx);
    void *closed_ctx;
    struct list probes;
};

static void begin_round(uv_timer_t *timer);

/* What one round found out: the streaks of the worker and its state are changed here only. */

/* Busy, not dead: probes that are late or answered 5xx do not count. A refused connection is no
 * sign of being busy. */
static bool is_making_progress(const struct probe *probe, const struct worker *worker,
                               uint64_t now_ms)
{
    return worker->progress_ms != 0 &&
           now_ms < worker->progress_ms + probe->health->config.progress_ms;
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

static void judge_worker(struct probe *probe, struct worker *worker, enum probe_result result)
{
    const struct health_config *config = &probe->health->config;
    uint64_t now_ms = clock_now_ms();

    count_streak(worker, result == PROBE_PASSED);
    worker->probe_result = result;
    if (result == PROBE_PASSED) {
        if (worker->state != WORKER_DOWN || worker->probe_streak >= config->pass_count)
            worker_note_alive(worker, now_ms);
    } else if (worker->probe_streak >= config->fail_count &&
               (result == PROBE_REFUSED || !is_making_progress(probe, worker, now_ms))) {
        (void)worker_handle(worker, WORKER_EVENT_DEAD, WORKER_REASON_PROBE, now_ms);
        worker->report.is_known = false; /* what it said of its load is over */
    }
}

static void judge(struct probe *probe, enum probe_result result)
{
    for (uint32_t i = 0; i < probe->member_count; i++)
        judge_worker(probe, probe->members[i].worker, result);
}

static void tell_restart(struct probe *probe, struct probe_member *member)
{
    struct health *health = probe->health;

    worker_note_restart(member->worker);
    member->prompt_tokens_seen = 0;
    probe->models_due_ms = 0;
    probe->metrics_due_ms = 0;
    if (health->callbacks->on_restart != NULL && !health->is_closing)
        health->callbacks->on_restart(health->ctx, member->worker);
}

/* An answer came: if nobody was there before, this is a new process, and nothing of what the old
 * one said holds. */
static void note_answer(struct probe *probe)
{
    bool was_refused = probe->was_refused;

    probe->was_refused = false;
    for (uint32_t i = 0; was_refused && i < probe->member_count; i++) {
        if (probe->members[i].worker->state != WORKER_STARTING) /* that one saw its first process */
            tell_restart(probe, &probe->members[i]);
    }
}

/* A worker whose models have to be known before it comes up. */
static bool has_stranger(const struct probe *probe)
{
    for (uint32_t i = 0; i < probe->member_count; i++) {
        if (probe->members[i].worker->state == WORKER_STARTING ||
            probe->members[i].worker->state == WORKER_DOWN)
            return true;
    }
    return false;
}

static bool has_reachable(const struct probe *probe)
{
    for (uint32_t i = 0; i < probe->member_count; i++) {
        if (worker_is_reachable(probe->members[i].worker))
            return true;
    }
    return false;
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
    interval_ms = interval_ms - interval_ms / 10 + random_next(&health->random) % spread_ms;
    status = uv_timer_start(&probe->timer, begin_round, interval_ms, 0);
    assert(status == 0);
    (void)status;
}

/* Without memory or a descriptor of OURS the worker is not to blame. */
static bool is_our_fault(int error)
{
    return error == -EMFILE || error == -ENFILE || error == -ENOMEM;
}

/* A fetch failed, or its answer is `otherwise`. */
static void end_failed(struct probe *probe, int error, enum probe_result otherwise)
{
    enum probe_result result = error < 0 ? result_of_error(error) : otherwise;

    if (!is_our_fault(error)) {
        probe->was_refused |= result == PROBE_REFUSED;
        judge(probe, result);
    }
    end_round(probe);
}

/* Without memory or a descriptor of OURS the worker is not to blame: the round just ends. */
static void get(struct probe *probe, const char *target, size_t body_bytes_max,
                http_fetch_done_fn *on_done)
{
    const struct worker *worker = probe->members[0].worker; /* all of them are there */
    const struct http_fetch_request request = {
        .address = &worker->address,
        .authority = worker->authority,
        .target = target,
        .authorization = probe->health->config.authorization,
        .timeout_ms = probe->health->config.probe_timeout_ms,
        .body_bytes_max = body_bytes_max,
    };

    assert(probe->fetch == NULL);

    probe->fetch = http_fetch_get(probe->health->loop, request, on_done, probe);
    if (probe->fetch == NULL)
        end_round(probe);
}

static void tell_report(struct probe *probe, struct worker *worker)
{
    struct health *health = probe->health;

    if (health->callbacks->on_report != NULL && !health->is_closing)
        health->callbacks->on_report(health->ctx, worker);
}

static void take_report(struct probe *probe, struct probe_member *member, enum engine_kind engine,
                        const struct worker_report *report)
{
    struct worker *worker = member->worker;

    worker->engine = engine;
    if (worker->rank_count > 0 && !report->is_known) {
        worker->report.is_known = false; /* nothing was said of this rank */
        return;
    }
    if (report->prompt_tokens < member->prompt_tokens_seen)
        tell_restart(probe, member);
    member->prompt_tokens_seen = report->prompt_tokens;
    worker->report = *report;
    tell_report(probe, worker);
}

/* False: these are no metrics of an engine we know. */
static bool take_reports(struct probe *probe, struct slice body)
{
    struct worker_report reports[WORKER_RANK_COUNT_MAX];
    uint32_t rank_count = probe->members[0].worker->rank_count;
    enum engine_kind engine =
        rank_count > 0 ? load_report_parse_ranks(body, clock_now_ms(), reports, rank_count)
                       : load_report_parse(body, clock_now_ms(), reports);

    if (engine == ENGINE_UNKNOWN)
        return false;
    for (uint32_t i = 0; i < probe->member_count; i++)
        take_report(probe, &probe->members[i], engine, &reports[probe->members[i].worker->rank]);
    return true;
}

static void on_metrics(void *ctx, int error, int status, struct slice body)
{
    struct probe *probe = ctx;

    probe->fetch = NULL;
    if (error == -ECANCELED)
        return;
    if (error == 0 && (status != 200 || !take_reports(probe, body))) {
        /* It has none (SGLang without --enable-metrics), or we do not know them: rarely again. */
        probe->metrics_due_ms = clock_now_ms() + probe->health->config.models_interval_ms;
        for (uint32_t i = 0; i < probe->member_count; i++)
            probe->members[i].worker->report.is_known = false;
    }
    end_round(probe);
}

static void get_metrics(struct probe *probe)
{
    if (probe->health->is_closing)
        return; /* a callback closed us */
    if (has_reachable(probe) && clock_now_ms() >= probe->metrics_due_ms)
        get(probe, "/metrics", METRICS_BYTES_MAX, on_metrics);
    else
        end_round(probe);
}

/* Whether the list was understood, and by whom it is served. */
static bool learn_models(struct probe *probe, struct slice body)
{
    bool is_learned = true;

    for (uint32_t i = 0; is_learned && i < probe->member_count; i++) {
        struct worker *worker = probe->members[i].worker;

        /* An empty list is that of an engine which still loads: it is asked again next round. */
        is_learned = worker_set_learn_models(probe->health->set, worker, body) > 0;
        if (is_learned)
            tell_report(probe, worker);
    }
    return is_learned;
}

static void on_models(void *ctx, int error, int status, struct slice body)
{
    struct probe *probe = ctx;
    struct health *health = probe->health;
    enum probe_result result = PROBE_PASSED;

    probe->fetch = NULL;
    if (error == -ECANCELED)
        return;
    if (error == 0 && status == 200 && learn_models(probe, body))
        probe->models_due_ms = clock_now_ms() + health->config.models_interval_ms;
    else
        result = error < 0 ? result_of_error(error) : PROBE_NO_MODELS;
    if (is_our_fault(error)) {
        end_round(probe);
        return;
    }
    for (uint32_t i = 0; i < probe->member_count; i++) {
        struct worker *worker = probe->members[i].worker;

        /* One that is in service keeps the models it had: its /health has just passed. */
        judge_worker(probe, worker, worker_is_reachable(worker) ? PROBE_PASSED : result);
    }
    get_metrics(probe);
}

static void on_health(void *ctx, int error, int status, struct slice body)
{
    struct probe *probe = ctx;

    (void)body;
    probe->fetch = NULL;
    if (error == -ECANCELED)
        return;
    if (error == 0)
        note_answer(probe);
    if (probe->health->is_closing)
        return;
    if (error < 0 || status >= 500) {
        end_failed(probe, error, PROBE_NOT_READY);
    } else if (has_stranger(probe) || clock_now_ms() >= probe->models_due_ms) {
        get(probe, "/v1/models", MODELS_BYTES_MAX, on_models);
    } else {
        judge(probe, PROBE_PASSED);
        get_metrics(probe);
    }
}

static void begin_round(uv_timer_t *timer)
{
    struct probe *probe = timer->data;

    get(probe, "/health", HEALTH_BYTES_MAX, on_health);
}

struct health *health_create(uv_loop_t *loop, struct worker_set *set, struct health_config config,
                             const struct health_callbacks *callbacks, void *ctx)
{
    struct health *health = calloc(1, sizeof *health);
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
    health->random = clock_now_us();
    list_init(&health->probes);
    status = uv_timer_init(loop, &health->anchor);
    assert(status == 0);
    (void)status;
    health->anchor.data = health;
    health->open_handle_count = 1;
    return health;
}

/* ---- who is probed ---- */

/* The probe of worker's endpoint, where it is one rank of several. */
static struct probe *find_endpoint(const struct health *health, const struct worker *worker)
{
    const struct list_node *head = &health->probes.head;

    for (struct list_node *node = head->next; worker->rank_count > 0 && node != head;
         node = node->next) {
        struct probe *probe = container_of(node, struct probe, in_health);
        const struct worker *first = probe->members[0].worker;

        if (first->rank_count == worker->rank_count &&
            strcmp(first->authority, worker->authority) == 0 &&
            memcmp(&first->address, &worker->address, sizeof worker->address) == 0)
            return probe;
    }
    return NULL;
}

static struct probe *start_probe(struct health *health)
{
    struct probe *probe = calloc(1, sizeof *probe);
    int status;

    if (probe == NULL)
        abort(); /* bookkeeping */
    status = uv_timer_init(health->loop, &probe->timer);
    assert(status == 0);
    probe->health = health;
    probe->timer.data = probe;
    list_node_init(&probe->in_health);
    list_append(&health->probes, &probe->in_health);
    health->open_handle_count++;
    status = uv_timer_start(&probe->timer, begin_round, 0, 0);
    assert(status == 0);
    (void)status;
    return probe;
}

void health_add(struct health *health, struct worker *worker)
{
    struct probe *probe = find_endpoint(health, worker);

    assert(!health->is_closing);

    if (probe == NULL)
        probe = start_probe(health);
    assert(probe->member_count < WORKER_RANK_COUNT_MAX);
    probe->members[probe->member_count++] = (struct probe_member){.worker = worker};
}

/* ---- the end ---- */

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
    struct health *health = probe->health;

    free(probe);
    drop_handle(health);
}

static void on_anchor_closed(uv_handle_t *handle)
{
    drop_handle(handle->data);
}

static void close_probe(struct probe *probe)
{
    probe->member_count = 0;
    list_remove(&probe->health->probes, &probe->in_health);
    uv_close((uv_handle_t *)&probe->timer, on_probe_closed);
    if (probe->fetch != NULL)
        http_fetch_cancel(probe->fetch);
}

void health_remove(struct health *health, struct worker *worker)
{
    struct list_node *next;

    for (struct list_node *node = health->probes.head.next; node != &health->probes.head;
         node = next) {
        struct probe *probe = container_of(node, struct probe, in_health);
        uint32_t kept = 0;

        next = node->next;
        for (uint32_t i = 0; i < probe->member_count; i++) {
            if (probe->members[i].worker != worker)
                probe->members[kept++] = probe->members[i];
        }
        probe->member_count = kept;
        if (kept == 0)
            close_probe(probe);
    }
}

void health_set_probe_interval(struct health *health, uint64_t probe_interval_ms)
{
    assert(probe_interval_ms > 0);

    health->config.probe_interval_ms = probe_interval_ms;
}

void health_close(struct health *health, void (*on_closed)(void *ctx), void *ctx)
{
    assert(!health->is_closing);

    health->is_closing = true;
    health->on_closed = on_closed;
    health->closed_ctx = ctx;
    /* The anchor first: libuv ends what was closed last first, so on_closed comes last of all. */
    uv_close((uv_handle_t *)&health->anchor, on_anchor_closed);
    while (health->probes.count > 0)
        close_probe(container_of(health->probes.head.next, struct probe, in_health));
}
