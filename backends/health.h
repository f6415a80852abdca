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

/*
 * Both may be NULL; both may close health.
 * on_state: after a worker changed state, by probes at once, by others (traffic, operator) with its
 * next round; and after restart_count grew: its cache is empty, forget what it held.
 * on_report: after its load report or its models were renewed.
 */
struct health_callbacks {
    void (*on_state)(void *ctx, struct worker *worker);
    void (*on_report)(void *ctx, struct worker *worker);
};

/*
 * Starts probing the workers that set has now, at once, on the loop of an io_loop. A worker becomes
 * UP only after it passed its probes AND listed its models, so that no request meets a worker whose
 * models are unknown. Borrows set and callbacks until on_closed.
 */
struct health *health_create(uv_loop_t *loop, struct worker_set *set, struct health_config config,
                             const struct health_callbacks *callbacks, void *ctx);

/* Stops; on_closed (may be NULL), once, when the last handle is gone. No callback comes after this
 * returns. */
void health_close(struct health *health, void (*on_closed)(void *ctx), void *ctx);

#endif
