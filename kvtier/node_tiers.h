/* SPDX-License-Identifier: Apache-2.0 */

/*
 * node_tiers: the tiers beneath the engines of this node as the agent has them: devices, the stores
 * of each layout, the engines that come to them, and the reporters that are told what is where.
 * It ties these together, and decides nothing. Loop thread only.
 */
#ifndef KVTIER_NODE_TIERS_H
#define KVTIER_NODE_TIERS_H

#include <stddef.h>
#include <stdint.h>

#include "backends/io_loop.h"
#include "backends/runtime/must_check.h"
#include "kvtier/connector/engine_layouts.h"
#include "kvtier/connector/engine_sessions.h"
#include "kvtier/device/cuda_device.h"
#include "kvtier/engine_spec.h"
#include "kvtier/options.h"
#include "kvtier/reporter.h"

struct node_tiers;

struct node_tiers_config {
    struct io_loop *io;
    const uint8_t *secret;               /* DIGEST_SECRET_BYTES; borrowed */
    const struct agent_options *options; /* borrowed until closed */
    const struct engine_spec *specs;     /* of all workers; borrowed */
    struct reporter *const *reporters;   /* likewise, in the same order; until close */
    size_t worker_count;
};

enum { NODE_TIERS_WHY_BYTES = IPC_SOCKET_WHY_BYTES };

/* Listens for engines. -errno with a sentence in why. */
MUST_CHECK int node_tiers_create(struct node_tiers_config config, struct node_tiers **tiers,
                                 char why[NODE_TIERS_WHY_BYTES]);

/* A request that wants blocks of these names is expected at the worker within so many ms. */
void node_tiers_prefetch(struct node_tiers *tiers, size_t worker, const struct digest_128 *names,
                         size_t count, uint32_t within_ms);

/* Of all layouts together; zeros where there are no tiers. */
struct node_tiers_stats {
    struct engine_sessions_stats engines;
    struct cuda_device_stats gpus; /* zeros where there is no driver */
#define NODE_TIERS_COUNTER(field) uint64_t field;
    TIER_STORE_COUNTERS(NODE_TIERS_COUNTER)
#undef NODE_TIERS_COUNTER
    uint32_t layout_count;
    uint32_t ssd_writable_count; /* layouts whose SSD takes writes */
    int ssd_status;              /* why another's does not: -errno */
    uint32_t scanning_count;     /* layouts that are still being found on the SSD */
    uint64_t refaults, closed;   /* as struct thrash_guard_stats */
    uint32_t closed_count;       /* layouts that let in next to nothing */
    uint64_t pressure_percent;   /* the most of any layout */
    uint64_t holds;
    uint64_t hold_oldest_ms;
    struct node_tier_stats {
        uint64_t slots;
        uint64_t held_blocks;
        uint64_t held_bytes;
        uint64_t free_slots;
        uint64_t load_bytes_per_s; /* the most of any layout; 0: not measured yet */
        uint64_t load_start_us;    /* likewise */
        uint64_t load_queue_ms;    /* likewise */
        uint64_t timed_count;      /* as struct tier_load_stats */
        uint64_t timed_us;
    } tier[BLOCK_TIER_COUNT];
};

/* tiers may be NULL: there are none. */
struct node_tiers_stats node_tiers_stats(const struct node_tiers *tiers);

/* Reporters are not called any more; engines end when what they have under way is done, then the
 * stores. NULLs *tiers, which may be NULL. The memory goes by the loop. */
void node_tiers_close(struct node_tiers **tiers);

#endif
