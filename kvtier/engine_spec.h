/* SPDX-License-Identifier: Apache-2.0 */

/*
 * engine_spec: the workers that an agent speaks for, made of what its operator wrote: one for each
 * engine, or for each data-parallel rank of it. Pure.
 */
#ifndef KVTIER_ENGINE_SPEC_H
#define KVTIER_ENGINE_SPEC_H

#include <stdint.h>

#include "backends/runtime/must_check.h"
#include "backends/runtime/option.h"
#include "backends/worker_url.h"

enum { ENGINE_ENDPOINT_BYTES_MAX = 256, ENGINE_SPEC_WHY_BYTES = 256, ENGINE_WORKER_COUNT_MAX = 64 };

/* What the operator wrote: lists of one order. advertise and kv_replay may be empty. */
struct engine_lists {
    struct option_list engine;
    struct option_list advertise;
    struct option_list kv_events;
    struct option_list kv_replay;
};

struct engine_spec {
    char
        name[WORKER_NAME_BYTES_MAX]; /* the worker's, as routers know it: "http://host:port#rank" */
    struct worker_url url;           /* where this agent reaches the engine */
    uint32_t engine;                 /* which of the operator's list */
    uint32_t rank;
    char events[ENGINE_ENDPOINT_BYTES_MAX];
    char replay[ENGINE_ENDPOINT_BYTES_MAX]; /* "": there is none */
};

/* Whether text is a place that events can come from. -EINVAL with a sentence in why. */
MUST_CHECK int engine_endpoint_check(struct slice text, char why[OPTION_WHY_BYTES]);

/* The specs of all workers, in the operator's order. Returns how many; -EINVAL with the option that
 * is wrong, and a sentence in why. */
MUST_CHECK int engine_specs_make(const struct engine_lists *lists,
                                 struct engine_spec specs[ENGINE_WORKER_COUNT_MAX],
                                 const char **option, char why[ENGINE_SPEC_WHY_BYTES]);

#endif
