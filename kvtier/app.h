/* SPDX-License-Identifier: Apache-2.0 */

/*
 * app: the composition root of samovar-agent: makes the parts, ties them together, takes them down.
 * The only file that knows everybody. Loop thread only.
 */
#ifndef KVTIER_APP_H
#define KVTIER_APP_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "backends/http/admin_server.h"
#include "backends/io_loop.h"
#include "backends/redis/redis_link.h"
#include "backends/runtime/must_check.h"
#include "backends/runtime/private_file.h"
#include "hashing/digest.h"
#include "kvtier/engine_probes.h"
#include "kvtier/engine_spec.h"
#include "kvtier/node_tiers.h"
#include "kvtier/note_feed.h"
#include "kvtier/options.h"
#include "kvtier/reporter.h"

struct agent_app {
    const struct agent_options *options;
    struct io_loop io;
    uint8_t secret[DIGEST_SECRET_BYTES];
    uint64_t fingerprint;
    struct redis_url redis;
    struct private_file password; /* of Redis; empty: none */
    struct private_file api_key;  /* of the engines; empty: none */
    char authorization[PRIVATE_FILE_BYTES_MAX + 16];
    struct engine_spec specs[ENGINE_WORKER_COUNT_MAX];
    struct reporter *reporters[ENGINE_WORKER_COUNT_MAX];
    const char *names[ENGINE_WORKER_COUNT_MAX]; /* of the workers */
    size_t worker_count;
    struct redis_link *map; /* what is reported goes there */
    struct note_feed *notes;
    struct node_tiers *tiers; /* NULL: there are none */
    struct engine_probes *probes;
    struct admin_server admin;
    uv_timer_t registration; /* the workers are named in Redis again and again */
    uv_signal_t signals[3];  /* TERM, INT, HUP */
    uv_prepare_t turn_end;   /* what one turn of the loop logged leaves together */
    size_t open_reporter_count;
    bool is_map_ready;
    bool is_away_logged;
    bool is_stopping;
};

/* Sets everything up; borrows options until it is released. An exit code: EXIT_CODE_OK, or the
 * reason is on standard error. */
MUST_CHECK int agent_app_init(struct agent_app *app, const struct agent_options *options);

/* Runs until it was told to stop and everything is closed. */
void agent_app_run(struct agent_app *app);

void agent_app_release(struct agent_app *app);

#endif
