/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/http/worker_call.h"

#include "tests/support/loop_fixture.h"
#include "tests/support/scripted_server.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <stdio.h>

#include "backends/http/worker_pool.h"
#include "backends/worker.h"

enum { WAIT_MS = 5000, CALL_MS_SHORT = 60 };

/* A worker that is a scripted server, the pool to it, and what came of one call. */
struct call_world {
    struct scripted_server *server;
    struct worker worker;
    struct io_deadlines idle, deadlines;
    struct worker_call *call;
    /* What the server does. */
    bool is_silent;
    bool closes;      /* after the answer, unannounced */
    struct slice raw; /* sent instead of an answer */
    char request[256];
    char answer[64];
    /* What was told. */
    bool is_done;
    int error;
    int status;
    char body[64];
};

static void on_request(void *ctx, struct scripted_conn *conn,
                       const struct scripted_request *request)
{
    struct call_world *world = ctx;

    snprintf(world->request, sizeof world->request, "%.*s %.*s %.*s", (int)request->method.len,
             request->method.ptr, (int)request->target.len, request->target.ptr,
             (int)request->body.len, request->body.ptr);
    if (world->is_silent)
        return;
    if (world->raw.len > 0)
        scripted_conn_send(conn, world->raw);
    else
        scripted_conn_answer(conn, 200, slice_of_string(world->answer));
    if (world->closes)
        scripted_conn_close(conn);
}

static void on_done(void *ctx, int error, int status, struct buf *body)
{
    struct call_world *world = ctx;

    cr_assert(not(world->is_done), "told twice");
    world->is_done = true;
    world->call = NULL;
    world->error = error;
    world->status = status;
    snprintf(world->body, sizeof world->body, "%.*s", (int)buf_len(body), buf_slice(body).ptr);
}

static void call_world_init(struct call_world *world, uint64_t call_ms)
{
    *world = (struct call_world){.answer = "{\"count\":3}"};
    world->server = scripted_server_create(loop_fixture_loop(), 0, on_request, world);
    world->worker.address = scripted_server_address(world->server);
    snprintf(world->worker.authority, sizeof world->worker.authority, "worker.test");
    io_deadlines_init(&world->idle, loop_fixture_io(), 60000, worker_pool_idle_expired);
    io_deadlines_init(&world->deadlines, loop_fixture_io(), call_ms, worker_call_expired);
    world->worker.pool = worker_pool_create(
        &world->worker, (struct worker_pool_config){loop_fixture_io(), &world->idle, 1, 4096});
}

static void call_world_release(struct call_world *world)
{
    if (world->call != NULL)
        worker_call_cancel(world->call);
    worker_pool_close(world->worker.pool);
    if (world->server != NULL)
        scripted_server_close(world->server);
}

static int start(struct call_world *world)
{
    world->is_done = false;
    return worker_call_start(&world->worker,
                             &(struct worker_call_request){
                                 .io = loop_fixture_io(),
                                 .deadlines = &world->deadlines,
                                 .target = "/tokenize",
                                 .pieces = {SLICE("{"), SLICE("\"a\":1,"), SLICE("\"b\":2}")},
                                 .piece_count = 3,
                                 .answer_bytes_max = 32,
                             },
                             on_done, world, &world->call);
}

static void run(struct call_world *world)
{
    cr_assert(eq(int, start(world), 0));
    cr_assert(not(world->is_done), "never from within the start");
    cr_assert(loop_run_until_flag(&world->is_done, WAIT_MS));
}

TestSuite(worker_call, .init = loop_fixture_init, .fini = loop_fixture_fini);

Test(worker_call, posts_the_pieces_as_one_body_and_gives_the_answer)
{
    struct call_world world;

    call_world_init(&world, WAIT_MS);
    run(&world);

    cr_assert(eq(int, world.error, 0));
    cr_assert(eq(int, world.status, 200));
    cr_assert(eq(str, world.request, "POST /tokenize {\"a\":1,\"b\":2}"));
    cr_assert(eq(str, world.body, "{\"count\":3}"));
    call_world_release(&world);
}

Test(worker_call, the_next_call_takes_the_same_connection)
{
    struct call_world world;

    call_world_init(&world, WAIT_MS);
    run(&world);
    run(&world);

    cr_assert(eq(u32, scripted_server_stats(world.server).accepted_count, 1));
    cr_assert(eq(u32, scripted_server_stats(world.server).request_count, 2));
    call_world_release(&world);
}

Test(worker_call, a_connection_closed_while_idle_is_replaced_by_a_fresh_one)
{
    struct call_world world;

    call_world_init(&world, WAIT_MS);
    world.closes = true; /* with its FIN still on the way when the next call begins */
    run(&world);
    world.closes = false;
    run(&world);

    cr_assert(eq(int, world.error, 0));
    cr_assert(eq(u32, scripted_server_stats(world.server).request_count, 2));
    call_world_release(&world);
}

Test(worker_call, silence_ends_at_the_deadline)
{
    struct call_world world;

    call_world_init(&world, CALL_MS_SHORT);
    world.is_silent = true;
    run(&world);

    cr_assert(eq(int, world.error, -ETIMEDOUT));
    call_world_release(&world);
}

Test(worker_call, an_answer_that_is_too_long_is_refused_whether_it_says_so_or_not)
{
    struct call_world world;

    call_world_init(&world, WAIT_MS);
    world.raw = SLICE("HTTP/1.1 200 OK\r\nContent-Length: 33\r\n\r\n");
    run(&world);
    cr_assert(eq(int, world.error, -ENOBUFS));
    world.raw = SLICE("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
                      "21\r\n123456789012345678901234567890123\r\n0\r\n\r\n");
    run(&world);
    cr_assert(eq(int, world.error, -ENOBUFS));
    call_world_release(&world);
}

Test(worker_call, what_is_not_http_is_told)
{
    struct call_world world;

    call_world_init(&world, WAIT_MS);
    world.raw = SLICE("SSH-2.0\r\n\r\n");
    run(&world);

    cr_assert(eq(int, world.error, -EBADMSG));
    call_world_release(&world);
}

Test(worker_call, nobody_listens)
{
    struct call_world world;

    call_world_init(&world, WAIT_MS);
    scripted_server_close(world.server);
    world.server = NULL;
    loop_run_for(1);
    run(&world);

    cr_assert(eq(int, world.error, -ECONNREFUSED));
    call_world_release(&world);
}

Test(worker_call, without_a_free_connection_it_does_not_begin)
{
    struct call_world world;
    struct call_world second;

    call_world_init(&world, WAIT_MS);
    cr_assert(eq(int, start(&world), 0));
    second = world;

    cr_assert(eq(int, start(&second), -EBUSY));
    cr_assert(eq(ptr, second.call, NULL));
    cr_assert(loop_run_until_flag(&world.is_done, WAIT_MS));
    call_world_release(&world);
}

Test(worker_call, cancelled_it_tells_nothing_more)
{
    struct call_world world;

    call_world_init(&world, WAIT_MS);
    cr_assert(eq(int, start(&world), 0));
    worker_call_cancel(world.call);
    world.call = NULL;
    loop_run_for(30);

    cr_assert(not(world.is_done));
    call_world_release(&world);
}
