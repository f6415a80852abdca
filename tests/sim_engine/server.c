/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/server.h"

#include <assert.h>
#include <signal.h>
#include <stdio.h>

#include "backends/runtime/clock.h"
#include "backends/runtime/log.h"
#include "tests/sim_engine/agent_connector.h"
#include "tests/sim_engine/exchange.h"
#include "tests/sim_engine/kv_publisher.h"
#include "tests/sim_engine/scheduler.h"

/*
 * DESIGN
 *
 * One timer drives the scheduler. libuv counts milliseconds and steps are fractions of one, so the
 * timer may fire late; the scheduler counts from the planned end of the step before, and the loop
 * below takes as many steps as the time that passed holds: rates stay exact, only the moment of a
 * single token is up to a millisecond late.
 */

static void take_steps(struct server *server);

static void on_step_timer(uv_timer_t *timer)
{
    take_steps(timer->data);
}

static void take_steps(struct server *server)
{
    uint64_t now_us = clock_now_us();
    uint64_t next_us;

    do
        next_us = scheduler_step(server->engine.scheduler, now_us);
    while (next_us != 0 && next_us <= now_us);
    if (next_us == 0 || server->is_closing)
        return;
    uv_update_time(&server->loop);
    uv_timer_start(&server->step_timer, on_step_timer, (next_us - now_us + 999) / 1000, 0);
}

static void wake(void *ctx)
{
    take_steps(ctx);
}

/* A step has ended: what it did to the cache is told before its tokens. */
static void publish(void *ctx)
{
    struct server *server = ctx;
    struct kv_batch batch;
    enum batch_fate fate;

    if (!kv_event_log_take(server->engine.events, (double)clock_wall_ms() / 1000, &batch))
        return;
    fate = engine_batch_fate(&server->engine);
    kv_publisher_put(server->publisher, batch, fate == BATCH_PUBLISHED, fate != BATCH_LOST);
}

/* What the connector sent is on its way; nothing of an answer was seen. */
static void on_sent(void *ctx, enum ipc_kind kind)
{
    struct server *server = ctx;
    enum fault_kind fault = kind == IPC_LOAD   ? FAULT_KILL_AT_LOAD
                            : kind == IPC_SAVE ? FAULT_KILL_AT_SAVE
                                               : FAULT_KILL_AT_LOOKUP;

    if (engine_dies_at(&server->engine, fault))
        (void)raise(SIGKILL);
}

static void on_client(uv_stream_t *listener, int status)
{
    struct server *server = listener->data;

    if (status == 0)
        exchange_accept(listener, &server->engine, &server->exchanges);
}

static void close_all(struct server *server)
{
    if (server->is_closing)
        return;
    server->is_closing = true;
    uv_close((uv_handle_t *)&server->listener, NULL);
    uv_close((uv_handle_t *)&server->step_timer, NULL);
    uv_close((uv_handle_t *)&server->after_turn, NULL);
    agent_connector_close(server->connector);
    for (size_t i = 0; i < array_count(server->signals); i++)
        uv_close((uv_handle_t *)&server->signals[i], NULL);
    for (struct list_node *node = server->exchanges.head.next; node != &server->exchanges.head;
         node = node->next)
        exchange_close(node);
}

static void on_signal(uv_signal_t *handle, int number)
{
    (void)number;
    close_all(handle->data);
}

static void flush_log(uv_check_t *check)
{
    (void)check;
    log_flush();
}

static void must(int status)
{
    assert(status == 0);
}

static void init_handles(struct server *server)
{
    static const int numbers[] = {SIGINT, SIGTERM};

    must(uv_loop_init(&server->loop));
    must(uv_tcp_init(&server->loop, &server->listener));
    must(uv_timer_init(&server->loop, &server->step_timer));
    must(uv_check_init(&server->loop, &server->after_turn));
    must(uv_check_start(&server->after_turn, flush_log));
    server->listener.data = server;
    server->step_timer.data = server;
    for (size_t i = 0; i < array_count(server->signals); i++) {
        must(uv_signal_init(&server->loop, &server->signals[i]));
        server->signals[i].data = server;
        must(uv_signal_start(&server->signals[i], on_signal, numbers[i]));
    }
    signal(SIGPIPE, SIG_IGN);
}

static int listen_at(struct server *server, const char *host, int port)
{
    struct sockaddr_in address;
    struct sockaddr_in bound = {0};
    int bound_len = sizeof bound;
    int status = uv_ip4_addr(host, port, &address);

    if (status == 0)
        status = uv_tcp_bind(&server->listener, (const struct sockaddr *)&address, 0);
    if (status == 0)
        status = uv_listen((uv_stream_t *)&server->listener, 1024, on_client);
    if (status == 0)
        status = uv_tcp_getsockname(&server->listener, (struct sockaddr *)&bound, &bound_len);
    if (status < 0)
        return status;
    server->engine.options.port = ntohs(bound.sin_port);
    return 0;
}

/* Behind listen_at(): faults are aimed by port. */
static int open_publisher(struct server *server)
{
    const struct options *options = &server->engine.options;
    struct kv_publisher_config config = {
        .events_endpoint = options->kv_events,
        .replay_endpoint = options->kv_replay,
        .topic = options->kv_topic,
        .replay_batches_max = (size_t)options->kv_buffer_steps,
        .hides_replay = engine_hides_replay(&server->engine),
    };

    if (server->engine.events == NULL)
        return 0;
    return kv_publisher_create(&config, &server->publisher);
}

/* Behind listen_at(): the engine's name may be its address. */
static int open_connector(struct server *server)
{
    const struct options *options = &server->engine.options;
    char url[300];
    struct agent_connector_config config = {
        .loop = &server->loop,
        .path = options->connector,
        .worker = options->connector_worker[0] != '\0' ? options->connector_worker : url,
        .model = options->model,
        .block_count = (uint32_t)options->blocks,
        .page_bytes = (uint32_t)options->page_bytes,
        .lookup_ms = (uint32_t)options->connector_lookup_ms,
        .cache = server->engine.cache,
        .scheduler = server->engine.scheduler,
        .on_sent = on_sent,
        .wake = wake,
        .ctx = server,
    };
    int status;

    if (options->connector[0] == '\0')
        return 0;
    snprintf(url, sizeof url, "http://%s:%d", options->host, (int)options->port);
    status = agent_connector_create(&config, &server->connector);
    if (status == 0)
        server->engine.connector = agent_connector_stats(server->connector);
    return status;
}

static void print_addresses(const struct server *server)
{
    const struct options *options = &server->engine.options;

    if (server->publisher != NULL)
        printf("KV events on %s\n", kv_publisher_events_endpoint(server->publisher));
    if (server->publisher != NULL && options->kv_replay[0] != '\0')
        printf("KV replay on %s\n", kv_publisher_replay_endpoint(server->publisher));
    printf("listening on %s:%d\n", options->host, (int)options->port);
    fflush(stdout);
}

int server_init(struct server *server, const struct options *options)
{
    int status;

    *server = (struct server){0};
    list_init(&server->exchanges);
    engine_init(&server->engine, options, clock_wall_ms() ^ (uint64_t)options->seed << 48);
    server->engine.wake = wake;
    server->engine.wake_ctx = server;
    server->engine.publish = publish;
    server->engine.publish_ctx = server;
    init_handles(server);
    status = listen_at(server, options->host, (int)options->port);
    if (status == 0)
        status = open_publisher(server);
    if (status == 0)
        status = open_connector(server);
    if (status == 0)
        print_addresses(server);
    return status;
}

void server_run(struct server *server)
{
    uv_run(&server->loop, UV_RUN_DEFAULT);
}

void server_release(struct server *server)
{
    close_all(server);
    uv_run(&server->loop, UV_RUN_DEFAULT);
    must(uv_loop_close(&server->loop));
    assert(server->exchanges.count == 0);
    kv_publisher_destroy(server->publisher);
    agent_connector_destroy(server->connector);
    engine_release(&server->engine);
}
