/* SPDX-License-Identifier: Apache-2.0 */

/* server: the engine as a process: the loop, the listener, and the timer of its steps. Loop thread
 * only. */
#ifndef TESTS_SIM_ENGINE_SERVER_H
#define TESTS_SIM_ENGINE_SERVER_H

#include <stdbool.h>
#include <uv.h>

#include "backends/runtime/list.h"
#include "backends/runtime/must_check.h"
#include "tests/sim_engine/engine.h"

struct agent_connector;
struct kv_publisher;

struct server {
    struct engine engine;
    uv_loop_t loop;
    uv_tcp_t listener;
    uv_timer_t step_timer;
    uv_check_t after_turn; /* hands the log on */
    uv_signal_t signals[2];
    struct list exchanges;             /* all, to be closed at the end */
    struct kv_publisher *publisher;    /* NULL: of no KV events */
    struct agent_connector *connector; /* NULL: there is none */
    bool is_closing;
};

/*
 * Listens and prints "listening on HOST:PORT"; before it, where KV events are wanted, "KV events on
 * ENDPOINT" and "KV replay on ENDPOINT". Begins to register with its agent, which may come later.
 * -errno: one of them is not to be had; release it all the same.
 */
MUST_CHECK int server_init(struct server *server, const struct options *options);

/* Serves until SIGINT or SIGTERM, and until everything is closed. */
void server_run(struct server *server);

/* After server_run(), or a server_init() that failed. */
void server_release(struct server *server);

#endif
