/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/server.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>

#include "backends/runtime/clock.h"
#include "backends/runtime/log.h"
#include "tests/sim_engine/exchange.h"
#include "tests/sim_engine/generation.h"
#include "tests/sim_engine/prefix_cache.h"
#include "tests/sim_engine/random.h"
#include "tests/sim_engine/scheduler.h"

/*
 * DESIGN
 *
 * One timer drives the scheduler. libuv counts milliseconds and steps are fractions of one, so the
 * timer may fire late; the scheduler counts from the planned end of the step before, and the loop
 * below takes as many steps as the time that passed holds: rates stay exact, only the moment of a
 * single token is up to a millisecond late.
 */

static void on_token(void *ctx, struct sequence *sequence, bool is_last)
{
    (void)ctx;
    generation_on_token(sequence, is_last);
}

static void run_steps(struct server *server);

static void on_step_timer(uv_timer_t *timer)
{
    run_steps(timer->data);
}

static void run_steps(struct server *server)
{
    uint64_t now_us = clock_now_us();
    uint64_t next_us;

    do
        next_us = scheduler_step(server->scheduler, now_us);
    while (next_us != 0 && next_us <= now_us);
    if (next_us == 0 || server->is_closing)
        return;
    uv_update_time(&server->loop);
    uv_timer_start(&server->step_timer, on_step_timer, (next_us - now_us + 999) / 1000, 0);
}

void server_wake(struct server *server)
{
    run_steps(server);
}

void server_set_today(struct server *server)
{
    time_t now = (time_t)(clock_wall_ms() / 1000);
    struct tm tm;

    strftime(server->today, sizeof server->today, "%Y-%m-%d", gmtime_r(&now, &tm));
}

static void on_client(uv_stream_t *listener, int status)
{
    struct server *server = listener->data;

    if (status < 0)
        return;
    exchange_accept(server);
}

static void on_signal(uv_signal_t *handle, int number)
{
    struct server *server = handle->data;

    (void)number;
    if (server->is_closing)
        return;
    server->is_closing = true;
    uv_close((uv_handle_t *)&server->listener, NULL);
    uv_close((uv_handle_t *)&server->step_timer, NULL);
    for (size_t i = 0; i < array_count(server->signals); i++)
        uv_close((uv_handle_t *)&server->signals[i], NULL);
    for (struct list_node *node = server->exchanges.head.next; node != &server->exchanges.head;
         node = node->next)
        exchange_close(node);
}

static int listen_at(struct server *server)
{
    struct sockaddr_in address;
    struct sockaddr_in bound = {0};
    int bound_len = sizeof bound;
    int status = uv_ip4_addr(server->options.host, (int)server->options.port, &address);

    if (status == 0)
        status = uv_tcp_bind(&server->listener, (const struct sockaddr *)&address, 0);
    if (status == 0)
        status = uv_listen((uv_stream_t *)&server->listener, 1024, on_client);
    if (status == 0)
        status = uv_tcp_getsockname(&server->listener, (struct sockaddr *)&bound, &bound_len);
    if (status < 0)
        return status;
    printf("listening on %s:%d\n", server->options.host, ntohs(bound.sin_port));
    fflush(stdout);
    return 0;
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
    server->listener.data = server;
    server->step_timer.data = server;
    for (size_t i = 0; i < array_count(server->signals); i++) {
        must(uv_signal_init(&server->loop, &server->signals[i]));
        server->signals[i].data = server;
        must(uv_signal_start(&server->signals[i], on_signal, numbers[i]));
    }
    signal(SIGPIPE, SIG_IGN);
}

static void init_engine(struct server *server)
{
    const struct options *options = &server->options;
    struct scheduler_config config = {
        .time = {.prefill_tokens_per_s = options->prefill_tps,
                 .decode_ms = options->decode_ms,
                 .decode_ms_per_request = options->decode_ms_per_request,
                 .speedup = options->speedup},
        .running_count_max = (uint32_t)options->max_running,
    };
    size_t cache_tokens;

    server->cache = prefix_cache_create((uint32_t)options->blocks, (uint32_t)options->block_size);
    server->scheduler = scheduler_create(config, server->cache, on_token, server);
    server->scanner = json_scanner_create();
    assert(server->scanner != NULL);
    cache_tokens = prefix_cache_usable_count(server->cache) * (size_t)options->block_size;
    server->model = (struct engine_model){
        .name = slice_of_string(options->model),
        .lora_count = options->lora_count,
        .context_tokens_max =
            options->max_model_len > 0 && (size_t)options->max_model_len < cache_tokens
                ? (size_t)options->max_model_len
                : cache_tokens,
        .chat_template = {.habit = options->habit,
                          .date = options->date[0] != '\0' ? slice_of_string(options->date)
                                                           : slice_of(server->today, 10)},
    };
    for (size_t i = 0; i < options->lora_count; i++)
        server->model.loras[i] = slice_of_string(options->loras[i]);
}

int server_init(struct server *server, const struct options *options)
{
    *server = (struct server){.options = *options};
    server->started_s = clock_wall_ms() / 1000;
    server->random = clock_wall_ms() ^ (uint64_t)options->seed << 48;
    list_init(&server->exchanges);
    for (size_t i = 0; i < options->fault_count; i++)
        server->rules[i] = (struct fault_rule){
            .fault = options->faults[i],
            .random = (uint64_t)options->seed + i,
        };
    server_set_today(server);
    init_engine(server);
    init_handles(server);
    return listen_at(server);
}

/* After each turn of the loop, as log.h wants. */
static void flush_log(uv_check_t *check)
{
    (void)check;
    log_flush();
}

void server_run(struct server *server)
{
    uv_check_t check;

    must(uv_check_init(&server->loop, &check));
    must(uv_check_start(&check, flush_log));
    uv_unref((uv_handle_t *)&check);
    uv_run(&server->loop, UV_RUN_DEFAULT);
    uv_close((uv_handle_t *)&check, NULL);
    uv_run(&server->loop, UV_RUN_DEFAULT);
}

void server_release(struct server *server)
{
    int status = uv_loop_close(&server->loop);

    assert(status == 0);
    assert(server->exchanges.count == 0);
    scheduler_destroy(server->scheduler);
    prefix_cache_destroy(server->cache);
    json_scanner_destroy(server->scanner);
}
