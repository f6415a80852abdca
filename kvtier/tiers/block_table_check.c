/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/block_table.h"

#include <stdlib.h>

#include "kvtier/tiers/block_table_parts.h"

/* What of a block's can be told from itself, its parent and its slots. */
static bool is_block_sound(const struct block_table *table, const struct tier_block *block)
{
    const struct tier_block *above = &table->blocks[block->parent];

    if (block->parent != 0 && (!block_is_known(above) || above->depth + 1 != block->depth))
        return false;
    if (!block_is_kept(block) && block != &table->blocks[table->fresh])
        return false;
    for (int tier = 0; tier < BLOCK_TIER_COUNT; tier++) {
        const bool has_slot = block->slot[tier] != BLOCK_SLOT_NONE;

        if (has_slot != (block->place[tier] != BLOCK_ABSENT))
            return false;
        if (has_slot && (block->slot[tier] >= table->config.slot_count[tier] ||
                         slot_pool_is_free(&table->slots[tier], block->slot[tier])))
            return false;
        if (block->readers[tier] > 0 && block->place[tier] != BLOCK_HELD &&
            block->place[tier] != BLOCK_LEAVING)
            return false;
    }
    return true;
}

/* Counted anew into counts, which is all zero, and compared. */
static bool are_counts_sound(const struct block_table *table, struct tier_block *counts)
{
    for (uint32_t i = 1; i <= table->config.block_count_max; i++) {
        const struct tier_block *block = &table->blocks[i];

        if (!block_is_known(block))
            continue;
        counts[block->parent].child_count++;
        for (int tier = 0; tier < BLOCK_TIER_COUNT; tier++)
            counts[block->parent].held_children[tier] +=
                block_is_child_in(block, (enum block_tier)tier);
    }
    for (uint32_t i = 1; i <= table->config.block_count_max; i++) {
        if (counts[i].child_count != table->blocks[i].child_count || table->picked_children[i] != 0)
            return false;
        for (int tier = 0; tier < BLOCK_TIER_COUNT; tier++)
            if (counts[i].held_children[tier] != table->blocks[i].held_children[tier])
                return false;
    }
    return true;
}

/* Each node is found by its name or free; each slot is one block's at most; sums are what they say.
 */
static bool are_sums_sound(const struct block_table *table)
{
    uint64_t holds = 0, known = 0, found = 0, free_nodes = 0;

    for (uint32_t i = 1; i <= table->config.block_count_max; i++) {
        const struct tier_block *block = &table->blocks[i];

        holds += block->holds;
        if (!block_is_known(block))
            continue;
        known++;
        found += block_table_find_name(table, block->key.name) == i;
    }
    for (uint32_t i = table->free; i != 0; i = table->blocks[i].parent)
        free_nodes += !block_is_known(&table->blocks[i]);
    return holds == table->stats.holds && found == known && table->buckets.count == known &&
           known + free_nodes == table->config.block_count_max;
}

static bool is_tier_sound(const struct block_table *table, enum block_tier tier)
{
    const uint32_t slot_count = table->config.slot_count[tier];
    uint8_t *is_used = calloc((size_t)slot_count + 1, sizeof *is_used);
    uint64_t held = 0;
    bool is_sound = is_used != NULL && slot_pool_is_sound(&table->slots[tier]) &&
                    table->stats.free_slots[tier] == table->slots[tier].free_count;

    for (uint32_t i = 1; i <= table->config.block_count_max && is_sound; i++) {
        const struct tier_block *block = &table->blocks[i];

        if (!block_is_known(block) || block->place[tier] == BLOCK_ABSENT)
            continue;
        held += block->place[tier] == BLOCK_HELD;
        is_sound = block->slot[tier] < slot_count && !is_used[block->slot[tier]];
        if (is_sound)
            is_used[block->slot[tier]] = 1;
    }
    free(is_used);
    return is_sound && held == table->stats.held[tier];
}

bool block_table_is_sound(const struct block_table *table)
{
    const size_t count = (size_t)table->config.block_count_max + 1;
    struct tier_block *counts = calloc(count, sizeof *counts);
    bool is_sound = counts != NULL && are_counts_sound(table, counts) && are_sums_sound(table);

    for (uint32_t i = 1; i < count && is_sound; i++)
        if (block_is_known(&table->blocks[i]))
            is_sound = is_block_sound(table, &table->blocks[i]);
    for (int tier = 0; tier < BLOCK_TIER_COUNT && is_sound; tier++)
        is_sound = is_tier_sound(table, (enum block_tier)tier);
    free(counts);
    return is_sound;
}

/* qsort_r() hands its ctx on without const. */
struct depths {
    const struct tier_block *blocks;
};

static int by_depth(const void *left, const void *right, void *ctx)
{
    const struct depths *depths = ctx;
    const uint32_t *a = left, *b = right;
    const uint32_t depth_a = depths->blocks[*a].depth, depth_b = depths->blocks[*b].depth;

    return depth_a != depth_b ? (depth_a > depth_b) - (depth_a < depth_b) : (*a > *b) - (*a < *b);
}

size_t block_table_list(const struct block_table *table, uint32_t *indices)
{
    struct depths depths = {table->blocks};
    size_t count = 0;

    for (uint32_t i = 1; i <= table->config.block_count_max; i++)
        if (block_is_known(&table->blocks[i]) && block_has_place(&table->blocks[i]))
            indices[count++] = i;
    qsort_r(indices, count, sizeof *indices, by_depth, &depths);
    return count;
}
