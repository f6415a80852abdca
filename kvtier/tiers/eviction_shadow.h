/* SPDX-License-Identifier: Apache-2.0 */

/*
 * eviction_shadow: which of the blocks that are asked for a tier would still hold if one policy had
 * had it from the start: keys only, no bytes. Pure; one thread at a time.
 */
#ifndef KVTIER_TIERS_EVICTION_SHADOW_H
#define KVTIER_TIERS_EVICTION_SHADOW_H

#include <stdbool.h>
#include <stdint.h>

#include "backends/runtime/must_check.h"
#include "hashing/block_buckets.h"
#include "kvtier/tiers/tier_block.h"

struct eviction_ops;
struct eviction_state;

struct eviction_shadow {
    const struct eviction_ops *policy;
    struct eviction_state *state;
    struct tier_block *blocks;    /* [slot_count + 1]; only key is used */
    struct block_buckets buckets; /* by name.low */
    uint32_t slot_count;
    uint32_t count;
};

/* slot_count: not 0. -ENOMEM. */
MUST_CHECK int eviction_shadow_init(struct eviction_shadow *shadow,
                                    const struct eviction_ops *policy, uint32_t slot_count);
void eviction_shadow_release(struct eviction_shadow *shadow);

/* A request asks for that block: whether it would be there. It is from now on. */
bool eviction_shadow_ask(struct eviction_shadow *shadow, struct block_key key);

#endif
