/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/http/worker_pool.h"

#include "tests/support/loop_fixture.h"
#include "tests/support/scripted_server.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "backends/runtime/must_check.h"
#include "backends/worker.h"

enum { WAIT_MS = 5000, CONN_COUNT_MAX = 3, IDLE_MS_LONG = 60000, SERVED_COUNT_MAX = 8 };

/* What the server does with each request, and the connections that it did so on. */
enum ending { STAYS_OPEN, CLOSES, RESETS };

struct script {
    struct slice bytes;
    enum ending ending;
    struct scripted_conn *served[SERVED_COUNT_MAX];
    size_t served_count;
};

static const struct slice ok_answer = SLICE("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");

/* A worker that is a scripted server, and the pool to it. */
struct pool_world {
    struct script script;
    struct scripted_server *server;
    struct worker worker;
    struct io_deadlines idle;
    struct worker_pool *pool;
};

/* One exchange, as far as the pool is concerned: what it was told. */
struct lender {
    struct pool_world *world;
    struct worker_conn *conn;
    bool is_connected; /* or failed to */
    int connect_status;
    int head_status; /* HTTP's */
    size_t body_len;
    bool has_ended;
    bool has_failed;
    bool is_over; /* has_ended or has_failed was told by on_progress */
    int failure;
    uint32_t progress_count;
    bool returns_when_over;
};

static void on_request(void *ctx, struct scripted_conn *conn,
                       const struct scripted_request *request)
{
    struct script *script = ctx;

    (void)request;
    cr_assert(lt(sz, script->served_count, SERVED_COUNT_MAX));
    script->served[script->served_count++] = conn;
    scripted_conn_send(conn, script->bytes);
    if (script->ending == CLOSES)
        scripted_conn_close(conn);
    if (script->ending == RESETS)
        scripted_conn_reset(conn);
}

static void on_connected(void *ctx, int status)
{
    struct lender *lender = ctx;

    cr_assert(not(lender->is_connected));
    lender->is_connected = true;
    lender->connect_status = status;
}

static int on_head(void *ctx, const struct http_head *head)
{
    struct lender *lender = ctx;

    lender->head_status = head->status;
    return 0;
}

static int on_body(void *ctx, struct slice piece)
{
    struct lender *lender = ctx;

    lender->body_len += piece.len;
    return 0;
}

static int on_end(void *ctx)
{
    struct lender *lender = ctx;

    lender->has_ended = true;
    return 0;
}

static void on_progress(void *ctx, int status)
{
    struct lender *lender = ctx;

    cr_assert(not(lender->has_failed), "nothing comes after a failure");
    lender->progress_count++;
    lender->has_failed = status < 0;
    lender->failure = status;
    lender->is_over = lender->has_ended || lender->has_failed;
    if (lender->is_over && lender->returns_when_over)
        worker_pool_return(&lender->conn);
}

static const struct worker_conn_callbacks callbacks = {on_connected, on_head, on_body, on_end,
                                                       on_progress};

static void pool_world_init(struct pool_world *world, uint64_t idle_ms)
{
    *world = (struct pool_world){.script = {.bytes = ok_answer}};
    world->server = scripted_server_create(loop_fixture_loop(), 0, on_request, &world->script);
    world->worker.address = scripted_server_address(world->server);
    io_deadlines_init(&world->idle, loop_fixture_io(), idle_ms, worker_pool_idle_expired);
    world->pool = worker_pool_create(&world->worker, (struct worker_pool_config){
                                                         .io = loop_fixture_io(),
                                                         .idle = &world->idle,
                                                         .conn_count_max = CONN_COUNT_MAX,
                                                         .answer_head_bytes_max = 4096,
                                                     });
    cr_assert(ne(ptr, world->pool, NULL));
}

static void pool_world_release(struct pool_world *world)
{
    if (world->pool != NULL)
        worker_pool_close(world->pool);
    if (world->server != NULL)
        scripted_server_close(world->server);
}

static struct worker_pool_stats stats_of(const struct pool_world *world)
{
    return worker_pool_stats(world->pool);
}

static int lender_acquire(struct lender *lender, struct pool_world *world, bool fresh)
{
    *lender = (struct lender){.world = world};
    return worker_pool_acquire(world->pool, fresh, &callbacks, lender, &lender->conn);
}

static void lender_open(struct lender *lender, struct pool_world *world)
{
    cr_assert(eq(int, lender_acquire(lender, world, true), 0));
    cr_assert(not(lender->is_connected)); /* never told from within acquire */
    cr_assert(loop_run_until_flag(&lender->is_connected, WAIT_MS));
    cr_assert(eq(int, lender->connect_status, 0));
}

static void lender_send(struct lender *lender)
{
    static const struct slice request[] = {SLICE("GET / HTTP/1.1\r\n"), SLICE("Host: a\r\n\r\n")};

    worker_conn_send(lender->conn, request, array_count(request));
}

static void lender_exchange(struct lender *lender)
{
    lender_send(lender);
    cr_assert(loop_run_until_flag(&lender->is_over, WAIT_MS));
}

/* Opens count connections, uses each and returns them in order. */
static void fill_idle(struct pool_world *world, struct worker_conn **conns, size_t count)
{
    struct lender lenders[CONN_COUNT_MAX];

    for (size_t i = 0; i < count; i++)
        lender_open(&lenders[i], world);
    for (size_t i = 0; i < count; i++) {
        lender_exchange(&lenders[i]);
        conns[i] = lenders[i].conn;
        worker_pool_return(&lenders[i].conn);
        cr_assert(eq(ptr, lenders[i].conn, NULL));
    }
    cr_assert(eq(u32, stats_of(world).idle_count, (uint32_t)count));
}

static bool has_no_idle(void *ctx)
{
    const struct pool_world *world = ctx;

    return stats_of(world).idle_count == 0;
}

/* The server has seen connections, and all of them end. */
static bool server_is_alone(void *ctx)
{
    const struct pool_world *world = ctx;
    struct scripted_stats stats = scripted_server_stats(world->server);

    return stats.accepted_count > 0 && stats.open_count == 0;
}

TestSuite(worker_pool, .init = loop_fixture_init, .fini = loop_fixture_fini);

/* ---- lending ---- */

Test(worker_pool, an_answer_is_told_in_order_and_the_connection_kept)
{
    struct pool_world world;
    struct lender lender;
    pool_world_init(&world, IDLE_MS_LONG);
    lender_open(&lender, &world);
    cr_assert(not(worker_conn_is_reused(lender.conn)));
    cr_assert(not(worker_conn_has_answer_bytes(lender.conn)));

    lender_exchange(&lender);

    cr_assert(eq(int, lender.failure, 0));
    cr_assert(eq(int, lender.head_status, 200));
    cr_assert(eq(sz, lender.body_len, 2));
    cr_assert(worker_conn_has_answer_bytes(lender.conn));
    cr_assert(worker_conn_is_sent(lender.conn));
    worker_pool_return(&lender.conn);
    cr_assert(eq(u32, stats_of(&world).idle_count, 1));
    cr_assert(eq(u32, stats_of(&world).lent_count, 0));
    pool_world_release(&world);
}

Test(worker_pool, the_newest_idle_connection_is_lent_first)
{
    struct pool_world world;
    struct worker_conn *conns[3];
    pool_world_init(&world, IDLE_MS_LONG);
    fill_idle(&world, conns, 3);

    for (size_t i = 3; i-- > 0;) {
        struct lender lender;

        cr_assert(eq(int, lender_acquire(&lender, &world, false), 1));

        cr_assert(eq(ptr, lender.conn, conns[i]));
        cr_assert(worker_conn_is_reused(lender.conn));
        cr_assert(not(worker_conn_has_answer_bytes(lender.conn)));
        worker_pool_return(&lender.conn); /* unused: nobody can say that it is clean */
    }

    cr_assert(eq(u64, stats_of(&world).reused_total, 3));
    cr_assert(eq(u64, stats_of(&world).opened_total, 3));
    cr_assert(eq(u32, stats_of(&world).idle_count, 0));
    pool_world_release(&world);
}

Test(worker_pool, a_connection_serves_one_exchange_after_the_other)
{
    struct pool_world world;
    struct worker_conn *conn;
    pool_world_init(&world, IDLE_MS_LONG);
    fill_idle(&world, &conn, 1);

    for (int i = 0; i < 5; i++) {
        struct lender lender;
        cr_assert(eq(int, lender_acquire(&lender, &world, false), 1));
        lender_exchange(&lender);
        cr_assert(eq(sz, lender.body_len, 2));
        worker_pool_return(&lender.conn);
    }

    cr_assert(eq(u32, scripted_server_stats(world.server).accepted_count, 1));
    cr_assert(eq(u32, scripted_server_stats(world.server).request_count, 6));
    pool_world_release(&world);
}

Test(worker_pool, a_fresh_one_was_used_by_nobody)
{
    struct pool_world world;
    struct worker_conn *conn;
    struct lender lender;
    pool_world_init(&world, IDLE_MS_LONG);
    fill_idle(&world, &conn, 1);

    lender_open(&lender, &world);

    cr_assert(ne(ptr, lender.conn, conn));
    cr_assert(not(worker_conn_is_reused(lender.conn)));
    cr_assert(eq(u32, stats_of(&world).idle_count, 1));
    worker_pool_return(&lender.conn);
    pool_world_release(&world);
}

Test(worker_pool, a_lower_limit_closes_idle_connections_and_those_that_come_back)
{
    struct pool_world world;
    struct worker_conn *conns[3];
    struct lender lenders[2];
    pool_world_init(&world, IDLE_MS_LONG);
    fill_idle(&world, conns, 3);
    for (size_t i = 0; i < 2; i++)
        cr_assert(eq(int, lender_acquire(&lenders[i], &world, false), 1));

    worker_pool_set_conn_count_max(world.pool, 1);

    cr_assert(eq(u32, stats_of(&world).idle_count, 0));
    cr_assert(eq(u32, stats_of(&world).lent_count, 2));
    for (size_t i = 0; i < 2; i++) {
        lender_exchange(&lenders[i]); /* what runs goes on */
        cr_assert(eq(sz, lenders[i].body_len, 2));
        worker_pool_return(&lenders[i].conn);
    }
    cr_assert(eq(u32, stats_of(&world).idle_count, 1));
    pool_world_release(&world);
}

Test(worker_pool, a_fresh_one_takes_the_place_of_the_oldest_idle_one)
{
    struct pool_world world;
    struct worker_conn *conns[CONN_COUNT_MAX];
    struct lender lender;
    pool_world_init(&world, IDLE_MS_LONG);
    fill_idle(&world, conns, CONN_COUNT_MAX);

    lender_open(&lender, &world);

    cr_assert(eq(u32, stats_of(&world).idle_count, CONN_COUNT_MAX - 1));
    cr_assert(eq(u32, stats_of(&world).lent_count, 1));
    cr_assert(eq(u64, stats_of(&world).idle_closed_total, 1));
    worker_pool_return(&lender.conn);
    pool_world_release(&world);
}

Test(worker_pool, one_more_than_the_limit_is_busy_until_one_comes_back)
{
    struct pool_world world;
    struct lender lenders[CONN_COUNT_MAX], more;
    pool_world_init(&world, IDLE_MS_LONG);
    for (size_t i = 0; i < CONN_COUNT_MAX; i++)
        cr_assert(eq(int, lender_acquire(&lenders[i], &world, false), 0));

    cr_assert(eq(int, lender_acquire(&more, &world, false), -EBUSY));
    cr_assert(eq(u32, stats_of(&world).lent_count, CONN_COUNT_MAX));

    worker_pool_return(&lenders[0].conn);
    cr_assert(eq(int, lender_acquire(&lenders[0], &world, false), 0));
    for (size_t i = 0; i < CONN_COUNT_MAX; i++)
        worker_pool_return(&lenders[i].conn);
    pool_world_release(&world);
}

Test(worker_pool, a_refused_connection_is_told_by_on_connected)
{
    struct pool_world world;
    struct lender lender;
    pool_world_init(&world, IDLE_MS_LONG);
    scripted_server_close(world.server);
    world.server = NULL;
    uv_run(loop_fixture_loop(), UV_RUN_NOWAIT);

    cr_assert(eq(int, lender_acquire(&lender, &world, false), 0));
    cr_assert(loop_run_until_flag(&lender.is_connected, WAIT_MS));

    cr_assert(eq(int, lender.connect_status, -ECONNREFUSED));
    worker_pool_return(&lender.conn);
    cr_assert(eq(u32, stats_of(&world).idle_count, 0));
    pool_world_release(&world);
}

/* ---- idle connections ---- */

Test(worker_pool, an_idle_connection_is_closed_when_its_wait_is_over)
{
    struct pool_world world;
    struct worker_conn *conn;
    pool_world_init(&world, 2 * IO_TICK_MS);
    fill_idle(&world, &conn, 1);

    cr_assert(loop_run_until(has_no_idle, &world, WAIT_MS));

    cr_assert(eq(u64, stats_of(&world).idle_closed_total, 1));
    cr_assert(loop_run_until(server_is_alone, &world, WAIT_MS));
    pool_world_release(&world);
}

Test(worker_pool, a_lent_connection_has_no_idle_wait)
{
    struct pool_world world;
    struct worker_conn *conn;
    struct lender lender;
    pool_world_init(&world, 2 * IO_TICK_MS);
    fill_idle(&world, &conn, 1);
    cr_assert(eq(int, lender_acquire(&lender, &world, false), 1));

    loop_run_for(5 * IO_TICK_MS);

    lender_exchange(&lender);
    cr_assert(eq(int, lender.failure, 0));
    cr_assert(eq(u64, stats_of(&world).idle_closed_total, 0));
    worker_pool_return(&lender.conn);
    pool_world_release(&world);
}

Test(worker_pool, an_idle_connection_that_its_worker_closes_is_dropped)
{
    struct pool_world world;
    struct worker_conn *conn;
    pool_world_init(&world, IDLE_MS_LONG);
    fill_idle(&world, &conn, 1);

    scripted_conn_close(world.script.served[0]);
    cr_assert(loop_run_until(has_no_idle, &world, WAIT_MS));

    cr_assert(eq(u64, stats_of(&world).idle_closed_total, 1));
    pool_world_release(&world);
}

Test(worker_pool, an_idle_connection_that_is_reset_is_dropped)
{
    struct pool_world world;
    struct worker_conn *conn;
    pool_world_init(&world, IDLE_MS_LONG);
    fill_idle(&world, &conn, 1);

    scripted_conn_reset(world.script.served[0]);

    cr_assert(loop_run_until(has_no_idle, &world, WAIT_MS));
    pool_world_release(&world);
}

Test(worker_pool, bytes_that_nobody_asked_for_never_reach_anybody)
{
    struct pool_world world;
    struct worker_conn *conn;
    pool_world_init(&world, IDLE_MS_LONG);
    fill_idle(&world, &conn, 1);

    scripted_conn_answer(world.script.served[0], 200, SLICE("for somebody else"));
    cr_assert(loop_run_until(has_no_idle, &world, WAIT_MS));

    cr_assert(loop_run_until(server_is_alone, &world, WAIT_MS));
    pool_world_release(&world);
}

Test(worker_pool, dropping_the_idle_ones_leaves_the_lent_ones)
{
    struct pool_world world;
    struct worker_conn *conns[2];
    struct lender lender;
    pool_world_init(&world, IDLE_MS_LONG);
    fill_idle(&world, conns, 2);
    lender_open(&lender, &world);

    worker_pool_drop_idle(world.pool);

    cr_assert(eq(u32, stats_of(&world).idle_count, 0));
    cr_assert(eq(u64, stats_of(&world).idle_closed_total, 2));
    lender_exchange(&lender);
    cr_assert(eq(int, lender.failure, 0));
    worker_pool_return(&lender.conn);
    pool_world_release(&world);
}

/* ---- what comes back is kept only when it is clean ---- */

Test(worker_pool, a_connection_returned_too_early_is_closed)
{
    enum { BEFORE_CONNECT, BEFORE_SEND, BEFORE_ANSWER, IN_BODY, STAGE_COUNT };

    for (int stage = 0; stage < STAGE_COUNT; stage++) {
        struct pool_world world;
        struct lender lender;
        pool_world_init(&world, IDLE_MS_LONG);
        world.script.bytes =
            stage == IN_BODY ? SLICE("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok") : SLICE("");
        if (stage == BEFORE_CONNECT)
            cr_assert(eq(int, lender_acquire(&lender, &world, false), 0));
        else
            lender_open(&lender, &world);
        if (stage >= BEFORE_ANSWER)
            lender_send(&lender);
        while (stage == IN_BODY && lender.body_len == 0)
            uv_run(loop_fixture_loop(), UV_RUN_ONCE);

        worker_pool_return(&lender.conn);

        cr_assert(eq(u32, stats_of(&world).idle_count, 0), "%d", stage);
        cr_assert(eq(u32, stats_of(&world).lent_count, 0), "%d", stage);
        cr_assert(loop_run_until(server_is_alone, &world, WAIT_MS), "%d", stage);
        pool_world_release(&world);
    }
}

Test(worker_pool, a_connection_that_cannot_be_trusted_is_closed)
{
    static const struct {
        struct slice bytes;
        enum ending ending;
    } rows[] = {
        /* it says that it closes, or has closed */
        {SLICE("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"), STAYS_OPEN},
        {SLICE("HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n"), STAYS_OPEN},
        {SLICE("HTTP/1.1 200 OK\r\n\r\nuntil the end"), CLOSES},
        /* it talks on behind its answer */
        {SLICE("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok!"), STAYS_OPEN},
        {SLICE("HTTP/1.1 204 No Content\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"), STAYS_OPEN},
        {SLICE("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nx"), STAYS_OPEN},
    };

    for (size_t i = 0; i < array_count(rows); i++) {
        struct pool_world world;
        struct lender lender;
        pool_world_init(&world, IDLE_MS_LONG);
        world.script.bytes = rows[i].bytes;
        world.script.ending = rows[i].ending;
        lender_open(&lender, &world);

        lender_exchange(&lender);

        cr_assert(lender.has_ended, "row %zu", i);
        cr_assert(eq(int, lender.failure, 0), "row %zu", i);
        worker_pool_return(&lender.conn);
        cr_assert(eq(u32, stats_of(&world).idle_count, 0), "row %zu", i);
        cr_assert(loop_run_until(server_is_alone, &world, WAIT_MS), "row %zu", i);
        pool_world_release(&world);
    }
}

Test(worker_pool, a_worker_that_dies_is_told_once_with_the_reason)
{
    static const struct {
        struct slice bytes;
        enum ending ending;
        int failure;
        bool has_answer_bytes;
    } rows[] = {
        {SLICE(""), CLOSES, -EPIPE, false},
        {SLICE(""), RESETS, -ECONNRESET, false},
        {SLICE("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok"), CLOSES, -EPIPE, true},
        {SLICE("HTTP/1.1 20"), CLOSES, -EPIPE, true},
        {SLICE("HTTP/1.1 100 Continue\r\n\r\n"), CLOSES, -EPIPE, true},
        {SLICE("SSH-2.0-OpenSSH\r\n"), STAYS_OPEN, -EBADMSG, true},
        {SLICE("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok"), STAYS_OPEN,
         -EBADMSG, true},
    };

    for (size_t i = 0; i < array_count(rows); i++) {
        struct pool_world world;
        struct lender lender;
        pool_world_init(&world, IDLE_MS_LONG);
        world.script.bytes = rows[i].bytes;
        world.script.ending = rows[i].ending;
        lender_open(&lender, &world);

        lender_exchange(&lender);

        cr_assert(not(lender.has_ended), "row %zu", i);
        cr_assert(eq(int, lender.failure, rows[i].failure), "row %zu", i);
        cr_assert(eq(int, worker_conn_has_answer_bytes(lender.conn), rows[i].has_answer_bytes),
                  "row %zu", i);
        loop_run_for(2 * IO_TICK_MS); /* nothing more comes: on_progress asserts it */
        worker_pool_return(&lender.conn);
        cr_assert(eq(u32, stats_of(&world).idle_count, 0), "row %zu", i);
        pool_world_release(&world);
    }
}

Test(worker_pool, the_lease_may_end_inside_on_progress)
{
    for (int ending = STAYS_OPEN; ending <= RESETS; ending++) {
        struct pool_world world;
        struct lender lender;
        pool_world_init(&world, IDLE_MS_LONG);
        world.script.bytes = ending == STAYS_OPEN ? ok_answer : SLICE("");
        world.script.ending = (enum ending)ending;
        lender_open(&lender, &world);
        lender.returns_when_over = true;

        lender_exchange(&lender);

        cr_assert(eq(ptr, lender.conn, NULL));
        cr_assert(eq(u32, stats_of(&world).lent_count, 0));
        cr_assert(eq(u32, stats_of(&world).idle_count, ending == STAYS_OPEN));
        pool_world_release(&world);
    }
}

/* ---- backpressure ---- */

Test(worker_pool, a_paused_answer_waits_and_goes_on_when_resumed)
{
    struct pool_world world;
    struct lender lender;
    pool_world_init(&world, IDLE_MS_LONG);
    lender_open(&lender, &world);
    worker_conn_pause(lender.conn);
    lender_send(&lender);

    loop_run_for(3 * IO_TICK_MS);
    cr_assert(eq(u32, lender.progress_count, 0));

    worker_conn_resume(lender.conn);
    cr_assert(loop_run_until_flag(&lender.is_over, WAIT_MS));
    cr_assert(lender.has_ended);
    worker_pool_return(&lender.conn);
    pool_world_release(&world);
}

Test(worker_pool, a_paused_connection_is_read_again_once_it_is_idle)
{
    struct pool_world world;
    struct lender lender;
    pool_world_init(&world, IDLE_MS_LONG);
    lender_open(&lender, &world);
    lender_exchange(&lender);
    worker_conn_pause(lender.conn);
    worker_pool_return(&lender.conn);
    cr_assert(eq(u32, stats_of(&world).idle_count, 1));

    scripted_conn_close(world.script.served[0]);

    cr_assert(loop_run_until(has_no_idle, &world, WAIT_MS));
    pool_world_release(&world);
}

static bool is_sent(void *ctx)
{
    const struct lender *lender = ctx;

    return worker_conn_is_sent(lender->conn);
}

Test(worker_pool, a_large_request_is_sent_when_the_kernel_has_all_of_it)
{
    enum { BODY_BYTES = 16 << 20 };
    struct pool_world world;
    struct lender lender;
    char *body = calloc(1, BODY_BYTES);
    char head[96];
    struct slice request[2] = {{head, 0}, {body, BODY_BYTES}};
    pool_world_init(&world, IDLE_MS_LONG);
    lender_open(&lender, &world);
    request[0].len = (size_t)snprintf(
        head, sizeof head, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n", BODY_BYTES);

    worker_conn_send(lender.conn, request, 2);
    cr_assert(not(worker_conn_is_sent(lender.conn))); /* no socket buffer is that large */

    cr_assert(loop_run_until(is_sent, &lender, WAIT_MS));
    cr_assert(loop_run_until_flag(&lender.is_over, WAIT_MS));
    cr_assert(lender.has_ended);
    worker_pool_return(&lender.conn);
    cr_assert(eq(u32, stats_of(&world).idle_count, 1));
    free(body);
    pool_world_release(&world);
}

/* ---- the end ---- */

Test(worker_pool, it_is_freed_with_the_last_socket_whatever_state_they_are_in)
{
    struct pool_world world;
    struct worker_conn *conn;
    struct lender connecting, sending;
    pool_world_init(&world, IDLE_MS_LONG);
    world.script.bytes = ok_answer;
    fill_idle(&world, &conn, 1);
    world.script.bytes = SLICE("");
    lender_open(&sending, &world);
    lender_send(&sending);
    cr_assert(eq(int, lender_acquire(&connecting, &world, true), 0));
    worker_pool_return(&connecting.conn); /* closing: its connect is still under way */
    worker_pool_return(&sending.conn);

    pool_world_release(&world); /* the fixture's end finds what is left */
}

Test(worker_pool, one_that_never_opened_anything_is_freed_at_once)
{
    struct pool_world world;
    pool_world_init(&world, IDLE_MS_LONG);

    pool_world_release(&world);
}

/* ---- the table ---- */

Test(worker_pool, every_pair_of_states_is_a_listed_move_or_none)
{
    static const enum worker_conn_state legal[][2] = {
        {WORKER_CONN_CONNECTING, WORKER_CONN_LENT}, {WORKER_CONN_CONNECTING, WORKER_CONN_CLOSING},
        {WORKER_CONN_LENT, WORKER_CONN_IDLE},       {WORKER_CONN_LENT, WORKER_CONN_CLOSING},
        {WORKER_CONN_IDLE, WORKER_CONN_LENT},       {WORKER_CONN_IDLE, WORKER_CONN_CLOSING},
    };

    for (int from = 0; from < WORKER_CONN_STATE_COUNT; from++) {
        for (int to = 0; to < WORKER_CONN_STATE_COUNT; to++) {
            bool is_listed = false;

            for (size_t i = 0; i < array_count(legal); i++)
                is_listed |= (int)legal[i][0] == from && (int)legal[i][1] == to;
            cr_assert(
                eq(int,
                   worker_conn_may_move((enum worker_conn_state)from, (enum worker_conn_state)to),
                   is_listed),
                "%d to %d", from, to);
        }
    }
}
