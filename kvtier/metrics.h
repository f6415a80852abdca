/* SPDX-License-Identifier: Apache-2.0 */

/*
 * metrics: what the agent counts, one row each in metrics.def, and its Prometheus text. Modules own
 * their counters; all of them are read at a scrape. No label takes a value from outside but the
 * operator's names of workers. Loop thread only.
 */
#ifndef KVTIER_METRICS_H
#define KVTIER_METRICS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/redis/redis_link.h"
#include "backends/runtime/buf.h"
#include "backends/runtime/must_check.h"
#include "kvtier/node_tiers.h"
#include "kvtier/note_feed.h"
#include "kvtier/reporter.h"

/* What a scrape reads. */
struct agent_metrics_sources {
    struct reporter *const *reporters;
    size_t reporter_count;
    struct redis_link_stats map;
    struct note_feed_stats notes;
    struct node_tiers_stats tiers;
    bool is_map_ready;
    uint64_t log_dropped_count;
};

/* The whole answer to GET /metrics, text format 0.0.4. -ENOBUFS, -ENOMEM. */
MUST_CHECK int agent_metrics_write(struct buf *out, const struct agent_metrics_sources *sources);

#endif
