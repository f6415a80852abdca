/* SPDX-License-Identifier: Apache-2.0 */

/*
 * eviction: which block of a tier goes when room is needed. A policy is a const vtable in a file of
 * its own, with a state for each tier, over the blocks of a block_table. The table alone knows
 * which blocks may go (leaves that nobody needs); it tells the policy when one becomes such a
 * candidate and when it is none any more, and asks for the next. Recency is the order of calls: no
 * policy knows a clock. Pure; O(log n) or better a call.
 */
#ifndef KVTIER_TIERS_EVICTION_H
#define KVTIER_TIERS_EVICTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvtier/tiers/eviction_order.h"
#include "kvtier/tiers/tier_block.h"

struct eviction_state; /* of one tier, the policy's own */

struct eviction_config {
    const struct tier_block *blocks; /* the table's array, for keys; indices < block_count */
    uint32_t block_count;
    uint32_t slot_count; /* of the tier */
};

struct eviction_ops {
    const char *name; /* as in --eviction */
    const char *help; /* one line */
    /* All the memory it will need. NULL: there is none. */
    struct eviction_state *(*create)(struct eviction_config config);
    void (*destroy)(struct eviction_state *state);
    /* The block came into the tier (HELD). */
    void (*on_held)(struct eviction_state *state, uint32_t index);
    /* A request used it while it was HELD in the tier, and is not told of as a candidate now. */
    void (*on_used)(struct eviction_state *state, uint32_t index);
    /* It may be evicted from now on, or may not: only candidates are in the policy's order. */
    void (*on_candidate)(struct eviction_state *state, uint32_t index);
    void (*on_needed)(struct eviction_state *state, uint32_t index);
    /* It has left the tier; was_evicted: because it was picked. What an adaptive policy remembers
     * of it (a ghost) it keeps by the key, in bounded memory. */
    void (*on_left)(struct eviction_state *state, uint32_t index, bool was_evicted);
    /* Up to count candidates, EVICTION_PICK_MAX at most, those to lose first at first. Changes
     * nothing. */
    size_t (*pick)(struct eviction_state *state, uint32_t *victims, size_t count);
    /* Of any block HELD in the tier: what its rank is, or would be were it a candidate. */
    struct eviction_rank (*rank)(const struct eviction_state *state, uint32_t index);
};

extern const struct eviction_ops eviction_lru_leaf; /* the leaf used longest ago */
extern const struct eviction_ops eviction_lfu_aged; /* least used, counts fade as others go */
extern const struct eviction_ops eviction_adaptive; /* whichever of the two would have kept more */

/* All policies, NULL at the end; the first is the default. NULL: no policy of that name. */
extern const struct eviction_ops *const eviction_registry[];
const struct eviction_ops *eviction_find(const char *name);

#endif
