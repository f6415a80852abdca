/* SPDX-License-Identifier: Apache-2.0 */

/* engine_metrics: the engine's /metrics under vLLM's names: what routers read; and, under sim_,
 * what only tests read of its connector. Pure. */
#ifndef TESTS_SIM_ENGINE_ENGINE_METRICS_H
#define TESTS_SIM_ENGINE_ENGINE_METRICS_H

#include "backends/runtime/buf.h"
#include "backends/runtime/slice.h"
#include "tests/sim_engine/connector.h"
#include "tests/sim_engine/kv_event_log.h"
#include "tests/sim_engine/prefix_cache.h"
#include "tests/sim_engine/scheduler.h"

struct engine_counts {
    uint64_t ended_by_length;
    uint64_t ended_by_stop;
    uint64_t aborted;
};

struct engine_metrics_input {
    struct slice model;
    const struct prefix_cache *cache;
    const struct scheduler *scheduler;
    uint32_t block_size;
    struct engine_counts counts;
    const struct connector_stats *connector; /* NULL: none */
    const struct kv_event_log *events;       /* NULL: none are wanted */
};

void engine_metrics_put(struct buf *buf, const struct engine_metrics_input *input);

#endif
