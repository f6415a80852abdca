/* SPDX-License-Identifier: Apache-2.0 */

/*
 * tier_block: what a block_table knows of one block, for it to write and for eviction policies and
 * everybody else to read. Pure; any thread.
 */
#ifndef KVTIER_TIERS_TIER_BLOCK_H
#define KVTIER_TIERS_TIER_BLOCK_H

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

#include "kvtier/tiers/block_key.h"

enum block_tier { BLOCK_TIER_CPU, BLOCK_TIER_SSD, BLOCK_TIER_COUNT };

#define BLOCK_SLOT_NONE UINT32_MAX

/*
 * A block's place in one tier. Only block_table_set_place() changes it:
 *
 *   ABSENT -> WRITING   a slot was taken, bytes are on their way; nobody may read it
 *   WRITING -> HELD     header and payload are there: it may be found, loaded and told of
 *   WRITING -> ABSENT   the move failed; the slot is free again
 *   HELD -> LEAVING     withdrawn from the map; those that read it read on, nobody begins to
 *   LEAVING -> ABSENT   the last reader has gone; the slot is free again
 *   LEAVING -> HELD     its eviction was given up before anything was done to it
 */
enum block_place { BLOCK_ABSENT, BLOCK_WRITING, BLOCK_HELD, BLOCK_LEAVING, BLOCK_PLACE_COUNT };

/* A block; parent is an index, 0: none. A node without a place in any tier exists only as long as
 * something follows it or someone holds it. A cache line: who asks for a prompt reads one for each
 * of its blocks. (Not struct block: hashing/block_chain.h has that.) */
struct tier_block {
    struct block_key key; /* of a node made by block_table_claim_parent(): the name alone */
    uint32_t parent;      /* 0: first of a chain, or its parent could not be had */
    uint32_t child_count; /* blocks that follow it */
    uint32_t depth;       /* blocks before it in the chain, as whoever stored it said */
    uint32_t holds;       /* leases: it may not leave what it is in, see block_table_hold() */
    uint32_t held_children[BLOCK_TIER_COUNT]; /* of those that follow: HELD or WRITING there */
    uint32_t slot[BLOCK_TIER_COUNT];          /* BLOCK_SLOT_NONE where it has no place */
    uint16_t readers[BLOCK_TIER_COUNT];       /* moves that read the slot now */
    uint8_t place[BLOCK_TIER_COUNT];          /* enum block_place */
    uint8_t uses;                             /* by requests, as long as it is known; saturating */
    uint8_t picked : 2; /* tiers (bits) of which block_table_pick() gave it; until that is void */
    bool has_check : 1; /* false: only its name is known, nothing is held */
};
static_assert(sizeof(struct tier_block) == 64, "a cache line");
static_assert(BLOCK_TIER_COUNT == 2, "bits of picked");

/* In which tiers it can be read: bits 1 << enum block_tier. */
static inline uint8_t tier_block_bits(const struct tier_block *block)
{
    uint8_t bits = 0;

    for (int tier = 0; tier < BLOCK_TIER_COUNT; tier++) {
        if (block->place[tier] == BLOCK_HELD)
            bits |= (uint8_t)(1 << tier);
    }
    return bits;
}

#endif
