/* SPDX-License-Identifier: Apache-2.0 */

/*
 * worker_set: all workers of a process: add, find, remove; and which models they serve, merged
 * from their own lists. A worker's index is stable for its life, its id is never used again. Loop
 * thread only.
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
    bool is_lora;      /* that has a "parent": an adapter of another model, as vLLM lists them */
    uint32_t source;   /* the first that listed it; another one when that one no longer does */
    uint32_t *workers; /* indices of those that list it, ascending, also while they are down */
    size_t worker_count;
};

struct worker_set;

struct worker_set *worker_set_create(void);

/* Workers must have lost their pools before. */
void worker_set_destroy(struct worker_set *set);

struct worker_lists *worker_set_lists(struct worker_set *set);

/* Who a worker is, checked and resolved. */
struct worker_place {
    char name[WORKER_NAME_BYTES_MAX];      /* unique in its set */
    char authority[WORKER_NAME_BYTES_MAX]; /* for the Host header */
    struct sockaddr_storage address;
    uint32_t rank;
    uint32_t rank_count; /* 0: no rank */
};

/* Adds a worker, STARTING. -EEXIST: one of that name is there; -ENOSPC. It is the set's. */
MUST_CHECK int worker_set_add(struct worker_set *set, const struct worker_place *place,
                              uint64_t now_ms, struct worker **worker);

/*
 * worker is GONE and freed, its index free for another; models that it alone listed go too. Nothing
 * may use it any more: no attempt is in flight, its pool and its probe are closed. Knowledge kept
 * under its index must be forgotten before.
 */
void worker_set_remove(struct worker_set *set, struct worker *worker, enum worker_reason reason,
                       uint64_t now_ms);

/* Indices run from 0 to worker_set_count() - 1; NULL where none is, or no more. */
size_t worker_set_count(const struct worker_set *set);
struct worker *worker_set_at(const struct worker_set *set, uint32_t index);

/* NULL when none has that id, or has no more; that name. */
struct worker *worker_set_find(const struct worker_set *set, uint64_t id);
struct worker *worker_set_find_name(const struct worker_set *set, const char *name);

/*
 * The panic floor, per model and over the workers that answer their probes (UP, TRIAL, EJECTED):
 * failed requests take none out of service where fewer than 100 - panic_percent of them would be
 * left UP (0: never). Where probes have taken so many down that fewer than that are UP already,
 * is_panic: the EJECTED get requests like the others, since the few that are left would fail under
 * the load of all. A worker that does not answer its probes is out in any case.
 */
bool worker_set_may_eject(const struct worker_set *set, const struct worker *worker,
                          uint32_t panic_percent);
bool worker_set_is_panic(const struct worker_set *set, const struct model *model,
                         uint32_t panic_percent);

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
