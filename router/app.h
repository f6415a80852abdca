/* SPDX-License-Identifier: Apache-2.0 */

/*
 * app: the composition root of samovar-router: makes the parts, ties them together, takes them
 * down. The only file that knows everybody. Loop thread only.
 */
#ifndef ROUTER_APP_H
#define ROUTER_APP_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "backends/io_loop.h"
#include "backends/runtime/must_check.h"
#include "backends/thread_pool.h"
#include "router/config.h"
#include "router/fleet.h"
#include "router/listener.h"
#include "router/relay.h"

struct redis_link;
struct redis_url;

struct app {
    struct config *config;
    struct io_loop io;
    struct relay relay;
    struct listener listener;
    struct listener admin_listener;
    struct fleet *fleet;
    char *worker_authorization; /* for our own requests to workers; NULL: none; a secret */
    void *parse_scanners[THREAD_POOL_THREAD_COUNT_MAX]; /* json_scanners, one for each thread */
    uv_signal_t signals[3];                             /* TERM, INT, HUP */
    uv_prepare_t turn_end; /* what one turn of the loop wrote and logged leaves together */
    uv_timer_t lag;        /* measures how late the loop runs it */
    uint64_t lag_due_ns;
    uv_timer_t drain; /* runs while draining */
    uint64_t drain_end_ms;
    uint64_t drain_ms;
    bool is_draining;
    bool is_stopping;
    struct redis_link *notes_link; /* what this router says goes through it; NULL: no Redis */
    bool has_notes_link;           /* it was up when it was last looked at */
    uint64_t router_id;            /* of this process, in what it says */
};

/* Sets everything up, and keeps config to read it again at SIGHUP. An exit code: EXIT_CODE_OK, or
 * the reason is on standard error. */
MUST_CHECK int app_init(struct app *app, struct config *config);

/* Runs until it was told to stop and everything is closed. */
void app_run(struct app *app);

void app_release(struct app *app);

/* Private to app*.c: the shared map, where there is one: reads it, and starts what is said in it.
 */
MUST_CHECK int app_start_map(struct app *app, const struct router_options *options);

/* What this router says to agents and to other routers. password NULL: none. -EINVAL: url; -ENOMEM.
 * Stopping what was not started does nothing. */
MUST_CHECK int app_start_join(struct app *app, const struct router_options *options,
                              const struct redis_url *url, const char *password);
void app_stop_join(struct app *app);

#endif
