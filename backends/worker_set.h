/* SPDX-License-Identifier: Apache-2.0 */

/*
 * worker_set: all workers of a process: add, find, remove; and which models they serve, merged
 * from their own lists. A worker's index is stable for its life. Loop thread only.
 */
#ifndef BACKENDS_WORKER_SET_H
#define BACKENDS_WORKER_SET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/must_check.h"
#include "backends/runtime/slice.h"
#include "backends/worker.h"

enum {
    WORKER_COUNT_MAX = 1024,
    MODEL_COUNT_MAX = 1024,
    MODEL_ID_BYTES_MAX = 512, /* a longer id is not usable */
    MODEL_NEAR_MAX = 8
};

/* One model as the workers describe it. */
struct model {
    char *id;          /* NUL-terminated */
    char *json;        /* its object as the worker at source last wrote it, minified */
    uint32_t source;   /* the first that listed it; another one when that one no longer does */
    uint32_t *workers; /* indices of those that list it, ascending, also while they are down */
    size_t worker_count;
};

struct worker_set;

struct worker_set *worker_set_create(void);

/* Workers must have lost their pools before. */
void worker_set_destroy(struct worker_set *set);

struct worker_lists *worker_set_lists(struct worker_set *set);

/*
 * Adds a worker for url ("http://host:port", host a name, IPv4 or [IPv6]; path and https refused;
 * port 80 when it has none). Names resolve here, once, blocking: at boot. -EINVAL, -EEXIST or
 * -ENOSPC, each with a sentence in why[] (192 bytes). On success *worker is the set's.
 */
MUST_CHECK int worker_set_add(struct worker_set *set, struct slice url, uint64_t now_ms,
                              struct worker **worker, char why[192]);

/* Indices run from 0 to worker_set_count() - 1; a GONE worker leaves a NULL behind. */
size_t worker_set_count(const struct worker_set *set);
struct worker *worker_set_at(const struct worker_set *set, uint32_t index);

/*
 * worker lists exactly these models now: the body of its GET /v1/models. Returns how many. Keeps
 * what it listed before when body is not understood (-EINVAL). At most MODEL_COUNT_MAX models;
 * more are ignored and counted, and so is an entry without a usable id. A model that no worker
 * lists any more is gone: pointers to models live until the next call.
 */
MUST_CHECK int worker_set_learn_models(struct worker_set *set, struct worker *worker,
                                       struct slice body);

/* Models in order of first sight. */
size_t worker_set_model_count(const struct worker_set *set);
uint64_t worker_set_ignored_model_count(const struct worker_set *set);
const struct model *worker_set_model_at(const struct worker_set *set, size_t index);
const struct model *worker_set_find_model(const struct worker_set *set, struct slice id);

/* Whether worker lists model. */
bool worker_serves_model(const struct worker *worker, const struct model *model);

/* Up to count_max (at most MODEL_NEAR_MAX) models whose id is near to id, nearest first: equal but
 * for case or for the organisation before the slash, one a prefix of the other, or few edits away.
 */
size_t worker_set_near_models(const struct worker_set *set, struct slice id,
                              const struct model **near, size_t count_max);

#endif
