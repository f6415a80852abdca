/* SPDX-License-Identifier: Apache-2.0 */

/*
 * agent_connector: the engine's connector to the agent of its node: what the scheduler asks of
 * connector_ops, said over a connector_link, with real pages that are compared wherever they are
 * read. Loop thread only.
 */
#ifndef TESTS_SIM_ENGINE_AGENT_CONNECTOR_H
#define TESTS_SIM_ENGINE_AGENT_CONNECTOR_H

#include <stdint.h>
#include <uv.h>

#include "backends/runtime/must_check.h"
#include "kvtier/connector/ipc_wire.h"
#include "tests/sim_engine/connector.h"
#include "tests/sim_engine/prefix_cache.h"
#include "tests/sim_engine/scheduler.h"

struct agent_connector;

struct agent_connector_config {
    uv_loop_t *loop;
    const char *path;   /* of the agent's socket; all texts are copied */
    const char *worker; /* what the agent calls this engine */
    const char *model;
    uint32_t block_count;
    uint32_t page_bytes;
    uint32_t lookup_ms;
    struct prefix_cache *cache;
    struct scheduler *scheduler;
    void (*on_sent)(void *ctx, enum ipc_kind kind); /* see connector_link_callbacks */
    void (*wake)(void *ctx);                        /* something waits no longer: step */
    void *ctx;
};

/* Connects itself to the scheduler and begins to register. -errno: no memory for pages. */
MUST_CHECK int agent_connector_create(const struct agent_connector_config *config,
                                      struct agent_connector **connector);

/* Borrowed, for the connector's life. */
const struct connector_stats *agent_connector_stats(const struct agent_connector *connector);

/* Closes its handles. Destroy it when the loop has ended and no sequence is left. */
void agent_connector_close(struct agent_connector *connector);
void agent_connector_destroy(struct agent_connector *connector);

#endif
