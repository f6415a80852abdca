/* SPDX-License-Identifier: Apache-2.0 */

/*
 * server: the engine as a process: the loop, the listener, the step timer, and what all exchanges
 * share. Loop thread only.
 */
#ifndef TESTS_SIM_ENGINE_SERVER_H
#define TESTS_SIM_ENGINE_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "backends/json/json_scan.h"
#include "backends/runtime/list.h"
#include "backends/runtime/must_check.h"
#include "tests/sim_engine/engine_metrics.h"
#include "tests/sim_engine/engine_request.h"
#include "tests/sim_engine/options.h"

struct server {
    uv_loop_t loop;
    uv_tcp_t listener;
    uv_timer_t step_timer;
    uv_signal_t signals[2];
    struct options options;
    struct engine_model model;
    char today[sizeof "2026-11-29"]; /* what model.chat_template.date shows without --date */
    struct prefix_cache *cache;
    struct scheduler *scheduler;
    struct json_scanner *scanner; /* one document at a time, within one callback */
    struct fault_rule rules[OPTIONS_FAULT_COUNT_MAX];
    struct list exchanges; /* all, to be closed at the end */
    struct engine_counts counts;
    size_t active_count; /* generations in progress */
    uint64_t random;     /* for ids */
    uint64_t started_s;
    bool is_closing;
};

/* Listens and prints "listening on HOST:PORT". -errno: the address is not to be had. */
MUST_CHECK int server_init(struct server *server, const struct options *options);

/* Serves until SIGINT or SIGTERM. */
void server_run(struct server *server);

/* Sees that the dated template writes the date of today. */
void server_set_today(struct server *server);

/* Something was added to the scheduler: sees that its steps are taken. */
void server_wake(struct server *server);

void server_release(struct server *server);

#endif
