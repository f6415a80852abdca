/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/health.h"

#include "backends/runtime/clock.h"
#include "backends/worker_set.h"
#include "tests/support/loop_fixture.h"
#include "tests/support/scripted_server.h"

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
    uint32_t state_told, report_told;
    bool closes_on_state;
    bool is_closed;
};

static void on_request(void *ctx, struct scripted_conn *conn,
                       const struct scripted_request *request)
{
    struct health_world *world = ctx;
    struct reply reply = world->health_reply;

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

static void on_report(void *ctx, struct worker *worker)
{
    struct health_world *world = ctx;

    cr_assert(eq(ptr, worker, world->worker));
    world->report_told++;
}

static const struct health_callbacks callbacks = {on_state, on_report};

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
    char url[64], why[192];

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
    cr_assert(eq(int, worker_set_add(world->set, slice_of_string(url), 0, &world->worker, why), 0));
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
    };

    world->health = health_create(loop_fixture_loop(), world->set, config, &callbacks, world);
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
    worker_mark_success(world.worker, clock_now_ms());

    cr_assert(loop_run_until(has_failed_often, &world, WAIT_MS));
    cr_assert(eq(int, world.worker->state, WORKER_UP));
    world.worker->progress_ms = clock_now_ms() - 60001; /* the progress is over */

    cr_assert(loop_run_until(is_down, &world, WAIT_MS));
    world_release(&world);
}

Test(health, what_traffic_took_down_has_to_pass_again)
{
    struct health_world world;
    world_init(&world);
    bring_up(&world);
    cr_assert(loop_run_until(has_passed_again, &world, WAIT_MS));
    uint64_t passed_before = world.worker->stats.probe_ok_total;
    for (int i = 0; i < WORKER_FAILURE_STREAK_MAX; i++)
        worker_mark_failure(world.worker, clock_now_ms());
    cr_assert(eq(int, world.worker->state, WORKER_DOWN));

    cr_assert(loop_run_until(is_up, &world, WAIT_MS));

    cr_assert(eq(u64, world.worker->stats.probe_ok_total - passed_before, 2));
    cr_assert(eq(u32, world.state_told, 3), "up, down by traffic, up again");
    world_release(&world);
}

Test(health, what_the_operator_took_down_stays_down)
{
    struct health_world world;
    world_init(&world);
    bring_up(&world);
    cr_assert(
        eq(int, worker_set_state(world.worker, WORKER_DOWN, WORKER_REASON_OPERATOR, clock_now_ms()),
           0));

    cr_assert(loop_run_until(has_passed_again, &world, WAIT_MS));

    cr_assert(eq(int, world.worker->state, WORKER_DOWN));
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
    uint32_t told_before = world.state_told;

    start_server(&world);
    cr_assert(loop_run_until(has_restarted, &world, WAIT_MS));

    cr_assert(eq(int, world.worker->state, WORKER_UP));
    cr_assert(eq(u32, world.state_told, told_before + 1));
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
    cr_assert(eq(u32, world.state_told, 2), "up, restarted");
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
