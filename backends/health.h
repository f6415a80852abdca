/* SPDX-License-Identifier: Apache-2.0 */

/*
 * health: probes every worker (GET /health), asks it for its models and its load, and moves it
 * between UP and DOWN. A failed probe alone never ejects a worker that is making progress on
 * answers; 4xx counts as life. Loop thread only.
 */
#ifndef BACKENDS_HEALTH_H
#define BACKENDS_HEALTH_H

#include <stdint.h>
#include <uv.h>

#include "backends/runtime/must_check.h"

struct health;
struct worker;
struct worker_set;

struct health_config {
    uint64_t probe_interval_ms; /* between two rounds of one worker, jittered by a tenth */
    uint64_t probe_timeout_ms;
    uint32_t fail_count;         /* failed probes in a row that take an UP worker down: 3 */
    uint32_t pass_count;         /* passed ones that bring a DOWN worker up: 2; a STARTING one: 1 */
    uint64_t models_interval_ms; /* how often an UP worker is asked for its models again */
    uint64_t progress_ms;        /* an answer byte this recent outweighs failed probes */
};

/* Told after a worker changed state, or after its report or models were renewed. */
struct health_callbacks {
    void (*on_state)(void *ctx, struct worker *worker); /* after the change */
    void (*on_report)(void *ctx, struct worker *worker);
};

/*
 * Starts probing the workers of set at once. A worker becomes UP only after it passed its probes
 * AND listed its models, so that no request meets a worker whose models are unknown.
 */
struct health *health_create(uv_loop_t *loop, struct worker_set *set, struct health_config config,
                             const struct health_callbacks *callbacks, void *ctx);

/* Stops; on_closed, once, when the last handle is gone. */
void health_close(struct health *health, void (*on_closed)(void *ctx), void *ctx);

#endif
