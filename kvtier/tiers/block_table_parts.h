/* SPDX-License-Identifier: Apache-2.0 */

/* block_table_parts: what the files of block_table share, and nobody else sees. */
#ifndef KVTIER_TIERS_BLOCK_TABLE_PARTS_H
#define KVTIER_TIERS_BLOCK_TABLE_PARTS_H

#include "hashing/block_buckets.h"
#include "kvtier/tiers/block_table.h"
#include "kvtier/tiers/eviction.h"
#include "kvtier/tiers/eviction_heap.h"
#include "kvtier/tiers/slot_pool.h"

struct block_table {
    struct block_table_config config;
    struct tier_block *blocks;    /* [block_count_max + 1]; 0 is nobody */
    struct block_buckets buckets; /* by name.low */
    uint32_t free;  /* the node freed last, whose parent is the one before it; 0: none */
    uint32_t fresh; /* may be without a place, child or hold: forgotten unless it has got one */
    struct slot_pool slots[BLOCK_TIER_COUNT];
    struct eviction_state *states[BLOCK_TIER_COUNT]; /* NULL: there is no such tier */
    struct block_table_stats stats;
    struct eviction_heap released; /* during a pick: parents of whose children all were picked */
    uint32_t *picked_children;     /* by index; all 0 outside of a pick */
};

static inline bool block_is_known(const struct tier_block *block)
{
    return block->key.name.low != 0;
}

static inline bool block_has_key(const struct tier_block *block, struct block_key key)
{
    return block->has_check && block_key_equal(block->key, key);
}

/* Whether it is of that key and may be loaded: HELD somewhere. */
static inline bool block_is_readable(const struct tier_block *block, struct block_key key)
{
    return block_has_key(block, key) && tier_block_bits(block) != 0;
}

/* Counts in its parent, and keeps that from going. */
static inline bool block_is_child_in(const struct tier_block *block, enum block_tier tier)
{
    return block->place[tier] == BLOCK_HELD || block->place[tier] == BLOCK_WRITING;
}

static inline bool block_is_candidate(const struct tier_block *block, enum block_tier tier)
{
    return block->place[tier] == BLOCK_HELD && block->holds == 0 && block->readers[tier] == 0 &&
           block->held_children[tier] == 0;
}

static inline bool block_has_place(const struct tier_block *block)
{
    for (int tier = 0; tier < BLOCK_TIER_COUNT; tier++)
        if (block->place[tier] != BLOCK_ABSENT)
            return true;
    return false;
}

static inline bool block_is_kept(const struct tier_block *block)
{
    return block->child_count > 0 || block->holds > 0 || block_has_place(block);
}

/* Where somebody who goes along a prompt is; {0, 0}: nowhere yet. */
struct block_trail {
    uint32_t last;  /* the last that he found; 0: none */
    uint32_t batch; /* how many were looked up together last; 0: none had to be */
};

/* The indices of the next of keys[0..count), 0 of those whose name is not known: BLOCK_TRAIL_MAX at
 * most. Returns how many, at least one. */
enum { BLOCK_TRAIL_MAX = 64 };
size_t block_table_follow(const struct block_table *table, const struct block_key *keys,
                          size_t count, struct block_trail *trail, uint32_t *indices);

/* The block of an index that must be of a known one. */
struct tier_block *block_table_known(struct block_table *table, uint32_t index);

static inline bool block_is_picked(const struct tier_block *block, enum block_tier tier)
{
    return (block->picked & 1 << tier) != 0;
}

static inline void block_set_picked(struct tier_block *block, enum block_tier tier, bool is_picked)
{
    const unsigned others = block->picked & ~(1u << tier);

    block->picked = (others | (unsigned)is_picked << tier) & 3;
}

/* Forgets the block if nothing keeps it, and then its parent if it was all that did. */
void block_table_let_go(struct block_table *table, uint32_t index);

/* After a change: tells the policy if the block has become a candidate, or is none any more. */
void block_table_tell(struct block_table *table, uint32_t index, enum block_tier tier,
                      bool was_candidate);

#endif
