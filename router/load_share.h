/* SPDX-License-Identifier: Apache-2.0 */

/*
 * load_share: routers tell each other, through Redis, what they have in flight at which worker, so
 * that a burst over several of them does not meet at one. What is heard is in load_table. Without
 * Redis each router sees its own, and what engines report. Loop thread only.
 */
#ifndef ROUTER_LOAD_SHARE_H
#define ROUTER_LOAD_SHARE_H

#include <stdint.h>
#include <uv.h>

#include "backends/redis/redis_link.h"
#include "backends/runtime/must_check.h"
#include "backends/worker_set.h"
#include "router/load_table.h"

struct load_share;

struct load_share_config {
    uv_loop_t *loop;
    const struct worker_set *workers;
    struct redis_link *link;        /* to tell; borrowed until close */
    struct redis_link_config watch; /* of a link of its own, to hear */
    uint64_t router;                /* this router's id, not 0 */
};

/* -EINVAL: watch's url; -ENOMEM. */
MUST_CHECK int load_share_create(struct load_share_config config, struct load_share **share);

/* The own load of some worker has changed: it is told within milliseconds. Cheap. */
void load_share_touch(struct load_share *share);

/* What others have at that worker. share NULL: nothing is known of others. */
struct load_sum load_share_find(const struct load_share *share, uint64_t name_hash);

struct load_share_stats {
    uint64_t told_total;    /* messages that Redis has taken */
    uint64_t untold_total;  /* that it has not */
    uint64_t heard_total;   /* of others and of this router itself */
    uint64_t refused_total; /* not understood */
    uint32_t router_count;  /* others that are heard now, */
    uint64_t in_flight;     /* and what they have in flight */
};

struct load_share_stats load_share_stats(const struct load_share *share);

/* NULLs *share; to be called before the link to tell is closed. The loop ends it. NULL is fine. */
void load_share_close(struct load_share **share);

#endif
