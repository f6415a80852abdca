/* SPDX-License-Identifier: Apache-2.0 */

/* table_world: a block_table for tests, with keys of small numbers. */
#ifndef TESTS_UNIT_TIERS_TABLE_WORLD_H
#define TESTS_UNIT_TIERS_TABLE_WORLD_H

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include "kvtier/tiers/block_table.h"
#include "kvtier/tiers/eviction.h"

static inline struct block_key key_of(uint64_t number)
{
    return (struct block_key){.name = {number, number * 3}, .check = number * 5};
}

static inline struct block_table *table_of(uint32_t cpu_slots, uint32_t ssd_slots,
                                           const struct eviction_ops *eviction)
{
    struct block_table *table;

    cr_assert(eq(int,
                 block_table_create(
                     (struct block_table_config){
                         .block_count_max = cpu_slots + ssd_slots,
                         .slot_count = {[BLOCK_TIER_CPU] = cpu_slots, [BLOCK_TIER_SSD] = ssd_slots},
                         .eviction = eviction,
                     },
                     &table),
                 0));
    return table;
}

/* There must be a free slot. */
static inline void place_held(struct block_table *table, uint32_t index, enum block_tier tier)
{
    const uint32_t slot = block_table_take_slot(table, tier);

    cr_assert(ne(u32, slot, BLOCK_SLOT_NONE));
    block_table_set_place(table, index, tier, BLOCK_WRITING, slot);
    block_table_set_place(table, index, tier, BLOCK_HELD, BLOCK_SLOT_NONE);
}

/* A block behind parent (an index or 0), HELD in tier. */
static inline uint32_t add_held(struct block_table *table, uint64_t number, uint32_t parent,
                                enum block_tier tier)
{
    const uint32_t depth = parent != 0 ? block_table_at(table, parent)->depth + 1 : 0;
    const uint32_t index = block_table_add(table, key_of(number), parent, depth);

    cr_assert(ne(u32, index, 0));
    place_held(table, index, tier);
    return index;
}

static inline void make_leave(struct block_table *table, uint32_t index, enum block_tier tier)
{
    block_table_set_place(table, index, tier, BLOCK_LEAVING, BLOCK_SLOT_NONE);
    block_table_set_place(table, index, tier, BLOCK_ABSENT, BLOCK_SLOT_NONE);
}

/* The one victim that goes first; 0: none may. */
static inline uint32_t first_victim(struct block_table *table, enum block_tier tier)
{
    uint32_t victim;

    return block_table_pick(table, tier, &victim, 1) == 1 ? victim : 0;
}

#endif
