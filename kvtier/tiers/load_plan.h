/* SPDX-License-Identifier: Apache-2.0 */

/*
 * load_plan: how many of the blocks that the tiers hold are worth loading: as long as loading them
 * is faster than computing them anew. Pure; any thread.
 */
#ifndef KVTIER_TIERS_LOAD_PLAN_H
#define KVTIER_TIERS_LOAD_PLAN_H

#include <stddef.h>
#include <stdint.h>

#include "kvtier/tiers/tier_block.h"

struct load_plan_query {
    const uint8_t
        *tiers; /* [block_count] of the blocks behind what the engine has itself; bits
                 * 1 << enum block_tier, none 0; a block in both is read from CPU memory */
    size_t block_count;
    uint32_t block_tokens;
    double prefill_ms_per_token; /* of this engine, learned; 0: not known, then all is loaded */
    double start_ms[BLOCK_TIER_COUNT];     /* of any load from it: learned, or a default */
    double queue_ms[BLOCK_TIER_COUNT];     /* before a load begun now gets its turn */
    double ms_per_block[BLOCK_TIER_COUNT]; /* measured, or a default */
};

struct load_plan {
    size_t block_count; /* to load, from the first on; 0: compute everything */
    double load_ms;     /* of these */
    double saved_ms;    /* against computing them; 0 where nothing is loaded, or not known */
};

/* The prefix with the greatest saving; of two equal ones the longer. It ends where a block is in no
 * tier. Both tiers are read at the same time: the slower one counts. */
struct load_plan load_plan_make(const struct load_plan_query *query);

#endif
