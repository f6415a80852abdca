/* SPDX-License-Identifier: Apache-2.0 */

/*
 * health: probes every worker (GET /health), asks it for its models and its load, and tells it what
 * the probes say. A failed probe alone never takes down a worker that is making progress on
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
    const char *authorization;   /* sent with each probe; NULL: none; borrowed; a secret */
};

/*
 * Both may be NULL; both may close health. Changes of a worker's state are told by its lists.
 * on_restart: after restart_count grew: its cache is empty, forget what it held.
 * on_report: after its load report or its models were renewed.
 */
struct health_callbacks {
    void (*on_restart)(void *ctx, struct worker *worker);
    void (*on_report)(void *ctx, struct worker *worker);
};

/* Probes nobody yet; on the loop of an io_loop. Borrows set and callbacks until on_closed. */
struct health *health_create(uv_loop_t *loop, struct worker_set *set, struct health_config config,
                             const struct health_callbacks *callbacks, void *ctx);

/*
 * Probes worker from now on, until health_remove(). It becomes UP only after it passed its probes
 * AND listed its models, so that no request meets a worker whose models are unknown. The ranks of
 * one endpoint share a probe: what it says is said of each of them.
 */
void health_add(struct health *health, struct worker *worker);

/* Its probe ends here: worker may be freed. Of one that is not probed: nothing. Not from within a
 * callback of health, or of a worker's lists. */
void health_remove(struct health *health, struct worker *worker);

/* Another interval, from each worker's next round on. */
void health_set_probe_interval(struct health *health, uint64_t probe_interval_ms);

/* Stops; on_closed (may be NULL), once, when the last handle is gone. No callback comes after this
 * returns. */
void health_close(struct health *health, void (*on_closed)(void *ctx), void *ctx);

#endif
