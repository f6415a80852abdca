/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/health.h"

#include "backends/runtime/clock.h"
#include "backends/worker_set.h"
#include "tests/support/loop_fixture.h"
#include "tests/support/scripted_server.h"
#include "tests/support/worker_by_url.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <stdio.h>

enum { WAIT_MS = 10000, INTERVAL_MS = 20, HANG_MS = 40 };

#define MODELS  "{\"object\":\"list\",\"data\":[{\"id\":\"tiny\",\"object\":\"model\"}]}"
#define METRICS "vllm:num_requests_running 3.0\nvllm:num_requests_waiting 1.0\n"

/* One answer of the worker; status 0: it hangs. */
struct reply {
    int status;
    struct slice body;
};

/* One worker that answers as the test says, the set that it is in, and its health. */
struct health_world {
    struct scripted_server *server;
    uint16_t port;
    struct reply health_reply, models_reply, metrics_reply;
    uint32_t health_asked, models_asked, metrics_asked;
    uint64_t timeout_ms; /* of a fetch: long, so that a slow machine fails no test */
    uint64_t models_interval_ms;
    uint32_t *counter; /* what has_counted() looks at, and */
    uint32_t wanted;   /* how far */
    struct worker_set *set;
    struct worker *worker;
    struct health *health;
    const char *authorization; /* that each probe must carry */
    uint32_t state_told, restart_told, report_told;
    bool closes_on_state;
    bool is_closed;
};

static void check_authorization(const struct health_world *world,
                                const struct scripted_request *request)
{
    char wanted[128];
    const char *found = memmem(request->head.ptr, request->head.len, "\r\nAuthorization:", 16);

    cr_assert(eq(int, found != NULL, world->authorization != NULL));
    if (found == NULL)
        return;
    snprintf(wanted, sizeof wanted, "\r\nAuthorization: %s\r\n", world->authorization);
    cr_assert(eq(int, strncmp(found, wanted, strlen(wanted)), 0));
}

static void on_request(void *ctx, struct scripted_conn *conn,
                       const struct scripted_request *request)
{
    struct health_world *world = ctx;
    struct reply reply = world->health_reply;

    check_authorization(world, request);
    if (slice_eq(request->target, SLICE("/v1/models"))) {
        world->models_asked++;
        reply = world->models_reply;
    } else if (slice_eq(request->target, SLICE("/metrics"))) {
        world->metrics_asked++;
        reply = world->metrics_reply;
    } else {
        cr_assert(slice_eq(request->target, SLICE("/health")));
        world->health_asked++;
    }
    if (reply.status != 0)
        scripted_conn_answer(conn, reply.status, reply.body);
}

static void on_closed(void *ctx)
{
    struct health_world *world = ctx;

    world->is_closed = true;
}

static void on_state(void *ctx, struct worker *worker)
{
    struct health_world *world = ctx;

    cr_assert(eq(ptr, worker, world->worker));
    world->state_told++;
    if (world->closes_on_state)
        health_close(world->health, on_closed, world);
}

static void on_restart(void *ctx, struct worker *worker)
{
    struct health_world *world = ctx;

    cr_assert(eq(ptr, worker, world->worker));
    world->restart_told++;
}

static void on_report(void *ctx, struct worker *worker)
{
    struct health_world *world = ctx;

    cr_assert(eq(ptr, worker, world->worker));
    world->report_told++;
}

static const struct health_callbacks callbacks = {on_restart, on_report};

static void start_server(struct health_world *world)
{
    world->server = scripted_server_create(loop_fixture_loop(), world->port, on_request, world);
    world->port = scripted_server_port(world->server);
}

static void stop_server(struct health_world *world)
{
    scripted_server_close(world->server);
    world->server = NULL;
    loop_run_for(1);
}

static void world_init(struct health_world *world)
{
    char url[64];

    *world = (struct health_world){
        .health_reply = {200, {NULL, 0}},
        .models_reply = {200, SLICE(MODELS)},
        .metrics_reply = {200, SLICE(METRICS)},
        .timeout_ms = WAIT_MS,
        .models_interval_ms = 60000,
    };
    start_server(world);
    world->set = worker_set_create();
    snprintf(url, sizeof url, "http://127.0.0.1:%u", world->port);
    cr_assert(eq(int, add_worker_by_url(world->set, url, 0, &world->worker), 0));
    worker_set_lists(world->set)->on_change = on_state;
    worker_set_lists(world->set)->ctx = world;
}

static void start_health(struct health_world *world)
{
    const struct health_config config = {
        .probe_interval_ms = INTERVAL_MS,
        .probe_timeout_ms = world->timeout_ms,
        .fail_count = 3,
        .pass_count = 2,
        .models_interval_ms = world->models_interval_ms,
        .progress_ms = 60000,
        .authorization = world->authorization,
    };

    world->health = health_create(loop_fixture_loop(), world->set, config, &callbacks, world);
    for (uint32_t i = 0; i < worker_set_count(world->set); i++)
        health_add(world->health, worker_set_at(world->set, i));
}

static void world_release(struct health_world *world)
{
    if (!world->closes_on_state)
        health_close(world->health, on_closed, world);
    cr_assert(loop_run_until_flag(&world->is_closed, WAIT_MS));
    if (world->server != NULL)
        scripted_server_close(world->server);
    loop_run_for(1);
    worker_set_destroy(world->set);
}

static bool is_up(void *ctx)
{
    struct health_world *world = ctx;

    return world->worker->state == WORKER_UP;
}

static bool is_down(void *ctx)
{
    struct health_world *world = ctx;

    return world->worker->state == WORKER_DOWN;
}

static bool is_reported(void *ctx)
{
    struct health_world *world = ctx;

    return world->worker->report.is_known;
}

static bool has_counted(void *ctx)
{
    struct health_world *world = ctx;

    return *world->counter >= world->wanted;
}

static bool counts_up_to(struct health_world *world, uint32_t *counter, uint32_t wanted)
{
    world->counter = counter;
    world->wanted = wanted;
    return loop_run_until(has_counted, world, WAIT_MS);
}

static bool has_failed_often(void *ctx)
{
    struct health_world *world = ctx;

    return world->worker->stats.probe_failed_total >= 6;
}

static bool has_passed_again(void *ctx)
{
    struct health_world *world = ctx;

    return world->worker->probe_streak_is_ok && world->worker->probe_streak >= 3;
}

static void bring_up(struct health_world *world)
{
    start_health(world);
    cr_assert(loop_run_until(is_up, world, WAIT_MS));
}

TestSuite(health, .init = loop_fixture_init, .fini = loop_fixture_fini);

Test(health, a_worker_is_up_once_it_is_alive_and_has_listed_its_models)
{
    struct health_world world;
    world_init(&world);

    bring_up(&world);

    cr_assert(eq(int, world.worker->reason, WORKER_REASON_PROBE));
    cr_assert(eq(int, world.worker->probe_result, PROBE_PASSED));
    cr_assert(ne(u64, world.worker->up_since_ms, 0));
    cr_assert(eq(u32, world.health_asked, 1), "one passed probe is enough for a STARTING worker");
    cr_assert(eq(u32, world.state_told, 1));
    const struct model *model = worker_set_find_model(world.set, SLICE("tiny"));
    cr_assert(ne(ptr, (void *)model, NULL));
    cr_assert(worker_serves_model(world.worker, model));
    world_release(&world);
}

Test(health, its_load_and_its_engine_are_learned_from_its_metrics)
{
    struct health_world world;
    world_init(&world);
    start_health(&world);

    cr_assert(loop_run_until(is_reported, &world, WAIT_MS));

    cr_assert(eq(int, world.worker->engine, ENGINE_VLLM));
    cr_assert(eq(u32, world.worker->report.running, 3));
    cr_assert(eq(u32, world.worker->report.waiting, 1));
    cr_assert(ge(u32, world.report_told, 2), "models and metrics");
    world_release(&world);
}

Test(health, the_key_of_the_workers_is_sent_with_each_probe)
{
    struct health_world world;
    world_init(&world);
    world.authorization = "Bearer worker-key";
    start_health(&world);

    cr_assert(loop_run_until(is_reported, &world, WAIT_MS)); /* on_request checks each of them */

    cr_assert(ge(u32, world.metrics_asked, 1));
    world_release(&world);
}

Test(health, four_hundreds_are_life)
{
    struct health_world world;
    world_init(&world);
    world.health_reply.status = 404;

    bring_up(&world);

    world_release(&world);
}

Test(health, a_worker_that_is_not_ready_stays_starting_until_it_is)
{
    struct health_world world;
    world_init(&world);
    world.health_reply.status = 503;
    start_health(&world);

    cr_assert(loop_run_until(has_failed_often, &world, WAIT_MS));
    cr_assert(eq(int, world.worker->state, WORKER_STARTING));
    cr_assert(eq(int, world.worker->probe_result, PROBE_NOT_READY));
    cr_assert(eq(u32, world.models_asked, 0));
    world.health_reply.status = 200;

    cr_assert(loop_run_until(is_up, &world, WAIT_MS));
    world_release(&world);
}

Test(health, a_model_list_that_is_not_understood_does_not_make_it_up)
{
    static const struct slice bodies[] = {
        {"", 0}, {"{", 1}, {"{\"data\":{}}", 11}, {"\xff\xfe<html>", 8}, {"[]", 2},
    };

    for (size_t i = 0; i < array_count(bodies); i++) {
        struct health_world world;
        world_init(&world);
        world.models_reply.body = bodies[i];
        start_health(&world);

        cr_assert(loop_run_until(has_failed_often, &world, WAIT_MS));

        cr_assert(eq(int, world.worker->state, WORKER_STARTING));
        cr_assert(eq(int, world.worker->probe_result, PROBE_NO_MODELS));
        world_release(&world);
    }
}

Test(health, a_worker_that_hangs_goes_down_after_three_probes)
{
    struct health_world world;
    world_init(&world);
    world.timeout_ms = HANG_MS;
    bring_up(&world);
    uint64_t failed_before = world.worker->stats.probe_failed_total;
    world.health_reply.status = 0;

    cr_assert(loop_run_until(is_down, &world, WAIT_MS));

    cr_assert(eq(u64, world.worker->stats.probe_failed_total - failed_before, 3));
    cr_assert(eq(int, world.worker->reason, WORKER_REASON_PROBE));
    cr_assert(eq(int, world.worker->probe_result, PROBE_TIMED_OUT));
    cr_assert(not(world.worker->report.is_known), "the load of a worker that is down is unknown");
    cr_assert(eq(u32, world.state_told, 2));
    world_release(&world);
}

Test(health, answers_in_progress_outweigh_failed_probes)
{
    struct health_world world;
    world_init(&world);
    world.timeout_ms = HANG_MS;
    bring_up(&world);
    world.health_reply.status = 0;
    worker_mark_success(world.worker, clock_now_ms(), clock_now_ms());

    cr_assert(loop_run_until(has_failed_often, &world, WAIT_MS));
    cr_assert(eq(int, world.worker->state, WORKER_UP));
    world.worker->progress_ms = clock_now_ms() - 60001; /* the progress is over */

    cr_assert(loop_run_until(is_down, &world, WAIT_MS));
    world_release(&world);
}

static bool is_on_trial(void *ctx)
{
    struct health_world *world = ctx;

    return world->worker->state == WORKER_TRIAL;
}

Test(health, what_traffic_took_out_is_tried_by_a_request_after_its_back_off)
{
    struct health_world world;
    world_init(&world);
    bring_up(&world);
    uint64_t now_ms = clock_now_ms();
    for (int i = 0; i < WORKER_FAILURE_STREAK_MAX; i++)
        (void)worker_mark_failure(world.worker, now_ms, true, now_ms);
    cr_assert(eq(int, world.worker->state, WORKER_EJECTED));
    world.worker->traffic.eject_until_ms = now_ms + 1000000;

    cr_assert(loop_run_until(has_passed_again, &world, WAIT_MS));
    cr_assert(eq(int, world.worker->state, WORKER_EJECTED), "passed probes do not bring it back");
    world.worker->traffic.eject_until_ms = clock_now_ms();
    cr_assert(loop_run_until(is_on_trial, &world, WAIT_MS));

    cr_assert(eq(u32, world.state_told, 3), "up, ejected, trial");
    world_release(&world);
}

Test(health, what_is_drained_stays_so_whatever_the_probes_say)
{
    struct health_world world;
    world_init(&world);
    bring_up(&world);
    cr_assert(
        worker_handle(world.worker, WORKER_EVENT_DRAIN, WORKER_REASON_OPERATOR, clock_now_ms()));

    cr_assert(loop_run_until(has_passed_again, &world, WAIT_MS));

    cr_assert(eq(int, world.worker->state, WORKER_DRAINING));
    world_release(&world);
}

Test(health, it_starts_with_nobody_there_and_finds_the_worker_later)
{
    struct health_world world;
    world_init(&world);
    stop_server(&world);
    start_health(&world);
    cr_assert(loop_run_until(has_failed_often, &world, WAIT_MS));
    cr_assert(eq(int, world.worker->probe_result, PROBE_REFUSED));
    cr_assert(eq(int, world.worker->state, WORKER_STARTING));

    start_server(&world);

    cr_assert(loop_run_until(is_up, &world, WAIT_MS));
    cr_assert(eq(u32, world.worker->restart_count, 0), "its first process is no restart");
    world_release(&world);
}

static bool has_restarted(void *ctx)
{
    struct health_world *world = ctx;

    return world->worker->restart_count == 1;
}

static bool was_refused(void *ctx)
{
    struct health_world *world = ctx;

    return world->worker->probe_result == PROBE_REFUSED;
}

Test(health, a_restart_is_told_even_when_the_worker_never_went_down)
{
    struct health_world world;
    world_init(&world);
    bring_up(&world);
    stop_server(&world);
    cr_assert(loop_run_until(was_refused, &world, WAIT_MS));
    cr_assert(eq(int, world.worker->state, WORKER_UP));

    start_server(&world);
    cr_assert(loop_run_until(has_restarted, &world, WAIT_MS));

    cr_assert(eq(int, world.worker->state, WORKER_UP));
    cr_assert(eq(u32, world.restart_told, 1));
    cr_assert(not(world.worker->report.is_known));
    world_release(&world);
}

static bool has_reported_running_9(void *ctx)
{
    struct health_world *world = ctx;

    return world->worker->report.is_known && world->worker->report.running == 9;
}

Test(health, a_counter_that_fell_is_a_restart_too)
{
    struct health_world world;
    world_init(&world);
    world.metrics_reply.body = SLICE(METRICS "vllm:prompt_tokens_total 500.0\n");
    start_health(&world);
    cr_assert(loop_run_until(is_reported, &world, WAIT_MS));
    cr_assert(eq(u32, world.worker->restart_count, 0));
    world.metrics_reply.body = SLICE("vllm:prompt_tokens_total 20.0\n"
                                     "vllm:num_requests_running 9.0\n"
                                     "vllm:num_requests_waiting 0.0\n");

    cr_assert(loop_run_until(has_reported_running_9, &world, WAIT_MS));

    cr_assert(eq(u32, world.worker->restart_count, 1));
    cr_assert(eq(u32, world.restart_told, 1));
    world_release(&world);
}

Test(health, a_worker_without_metrics_is_up_and_rarely_asked_for_them)
{
    struct health_world world;
    world_init(&world);
    world.metrics_reply.status = 404;
    bring_up(&world);

    cr_assert(counts_up_to(&world, &world.health_asked, 8));

    cr_assert(eq(int, world.worker->engine, ENGINE_UNKNOWN));
    cr_assert(not(world.worker->report.is_known));
    cr_assert(eq(u32, world.metrics_asked, 1));
    world_release(&world);
}

Test(health, models_are_asked_for_again_and_kept_when_that_fails)
{
    struct health_world world;
    world_init(&world);
    world.models_interval_ms = 2 * INTERVAL_MS;
    bring_up(&world);
    world.models_reply.body = SLICE("garbage");

    cr_assert(counts_up_to(&world, &world.models_asked, world.models_asked + 3));

    cr_assert(eq(int, world.worker->state, WORKER_UP));
    cr_assert(eq(sz, worker_set_model_count(world.set), 1));
    world_release(&world);
}

Test(health, closing_amid_each_fetch_leaves_nothing_behind)
{
    static const int hang_at[] = {0, 1, 2};

    for (size_t i = 0; i < array_count(hang_at); i++) {
        struct health_world world;
        world_init(&world);
        struct reply *replies[] = {&world.health_reply, &world.models_reply, &world.metrics_reply};
        uint32_t *asked[] = {&world.health_asked, &world.models_asked, &world.metrics_asked};
        replies[hang_at[i]]->status = 0;
        start_health(&world);
        cr_assert(counts_up_to(&world, asked[hang_at[i]], 1));

        world_release(&world); /* the fixture's end checks the loop and the memory */

        cr_assert(world.is_closed);
    }
}

Test(health, it_may_be_closed_from_its_own_callback)
{
    struct health_world world;
    world_init(&world);
    world.closes_on_state = true;
    start_health(&world);

    cr_assert(loop_run_until_flag(&world.is_closed, WAIT_MS));

    cr_assert(eq(u32, world.state_told, 1));
    world_release(&world);
}

Test(health, without_workers_it_just_closes)
{
    struct health_world world = {.set = worker_set_create(), .timeout_ms = WAIT_MS};
    start_health(&world);

    health_close(world.health, on_closed, &world);

    cr_assert(not(world.is_closed));
    cr_assert(loop_run_until_flag(&world.is_closed, WAIT_MS));
    worker_set_destroy(world.set);
}

/* ---- ranks and comings and goings ---- */

enum { RANK_COUNT = 3 };

#define RANK_METRICS                                                                               \
    "vllm:num_requests_running{engine=\"0\"} 4.0\nvllm:num_requests_waiting{engine=\"0\"} 0.0\n"   \
    "vllm:num_requests_running{engine=\"1\"} 5.0\nvllm:num_requests_waiting{engine=\"1\"} 1.0\n"

/* Replaces the only worker of world by the ranks of its endpoint; returns them in ranks. */
static void make_ranks(struct health_world *world, struct worker *ranks[RANK_COUNT])
{
    struct worker_place place = {.address = world->worker->address, .rank_count = RANK_COUNT};

    worker_set_lists(world->set)->on_change = NULL;
    memcpy(place.authority, world->worker->authority, sizeof place.authority);
    worker_set_remove(world->set, world->worker, WORKER_REASON_DISCOVERY, 0);
    for (uint32_t rank = 0; rank < RANK_COUNT; rank++) {
        place.rank = rank;
        snprintf(place.name, sizeof place.name, "rank %u", rank);
        cr_assert(eq(int, worker_set_add(world->set, &place, 0, &ranks[rank]), 0));
    }
    world->worker = ranks[RANK_COUNT - 1];
}

static bool has_rank_report(void *ctx)
{
    struct health_world *world = ctx;

    return worker_set_at(world->set, 1)->report.is_known;
}

static void ignore_report(void *ctx, struct worker *worker)
{
    (void)ctx;
    (void)worker;
}

static const struct health_callbacks rank_callbacks = {ignore_report, ignore_report};

Test(health, the_ranks_of_an_endpoint_share_a_probe_and_have_their_own_reports)
{
    struct health_world world;
    struct worker *ranks[RANK_COUNT];
    const struct health_config config = {.probe_interval_ms = INTERVAL_MS,
                                         .probe_timeout_ms = WAIT_MS,
                                         .fail_count = 3,
                                         .pass_count = 2,
                                         .models_interval_ms = 60000,
                                         .progress_ms = 60000};
    world_init(&world);
    world.metrics_reply.body = SLICE(RANK_METRICS);
    make_ranks(&world, ranks);
    world.health = health_create(loop_fixture_loop(), world.set, config, &rank_callbacks, &world);
    for (uint32_t rank = 0; rank < RANK_COUNT; rank++)
        health_add(world.health, ranks[rank]);

    cr_assert(loop_run_until(has_rank_report, &world, WAIT_MS));

    cr_assert(eq(u32, world.health_asked, 1), "all of them in one round");
    cr_assert(eq(u32, world.models_asked, 1));
    for (uint32_t rank = 0; rank < RANK_COUNT; rank++)
        cr_assert(eq(int, ranks[rank]->state, WORKER_UP));
    cr_assert(eq(u32, ranks[0]->report.running, 4));
    cr_assert(eq(u32, ranks[1]->report.running, 5));
    cr_assert(eq(u32, ranks[1]->report.waiting, 1));
    cr_assert(not(ranks[2]->report.is_known), "nothing was said of it");

    health_remove(world.health, ranks[0]);
    cr_assert(counts_up_to(&world, &world.health_asked, 3));
    health_remove(world.health, ranks[1]);
    health_remove(world.health, ranks[2]);
    uint32_t asked = world.health_asked;
    loop_run_for(5 * INTERVAL_MS);
    cr_assert(eq(u32, world.health_asked, asked), "nobody is left to probe");
    world_release(&world);
}

Test(health, a_worker_removed_amid_each_fetch_may_be_freed_at_once)
{
    for (int hang_at = 0; hang_at < 3; hang_at++) {
        struct health_world world;
        world_init(&world);
        struct reply *replies[] = {&world.health_reply, &world.models_reply, &world.metrics_reply};
        uint32_t *asked[] = {&world.health_asked, &world.models_asked, &world.metrics_asked};
        replies[hang_at]->status = 0;
        start_health(&world);
        cr_assert(counts_up_to(&world, asked[hang_at], 1));

        health_remove(world.health, world.worker);
        worker_set_remove(world.set, world.worker, WORKER_REASON_DISCOVERY, 0);

        loop_run_for(3 * INTERVAL_MS);
        world_release(&world);
    }
}
