/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/block_table.h"

#include <assert.h>

#include "kvtier/tiers/block_table_parts.h"

/*
 * DESIGN
 *
 *   candidate in a tier = HELD, no holds, no readers, no child HELD or WRITING there
 *
 * Whether a block is one is a function of its own fields, so no state of it is kept: who changes a
 * field asks before and after, and block_table_tell() tells the policy of the difference.
 *
 * A child that is LEAVING does not keep its parent: it was withdrawn before, which is the order in
 * which those who watch are told, and its slot is its own affair.
 */
/* clang-format off */
static const bool is_legal[BLOCK_PLACE_COUNT][BLOCK_PLACE_COUNT] = {
    /* from \ to        ABSENT  WRITING  HELD   LEAVING */
    [BLOCK_ABSENT]  = { false,  true,    false, false },
    [BLOCK_WRITING] = { true,   false,   true,  false },
    [BLOCK_HELD]    = { false,  false,   false, true  },
    [BLOCK_LEAVING] = { true,   false,   true,  false },
};
/* clang-format on */

void block_table_tell(struct block_table *table, uint32_t index, enum block_tier tier,
                      bool was_candidate)
{
    const bool is_candidate = block_is_candidate(&table->blocks[index], tier);

    if (is_candidate && !was_candidate)
        table->config.eviction->on_candidate(table->states[tier], index);
    if (!is_candidate && was_candidate)
        table->config.eviction->on_needed(table->states[tier], index);
}

uint32_t block_table_take_slot(struct block_table *table, enum block_tier tier)
{
    const uint32_t slot = slot_pool_take(&table->slots[tier]);

    table->stats.free_slots[tier] = table->slots[tier].free_count;
    return slot;
}
static_assert(SLOT_POOL_NONE == BLOCK_SLOT_NONE, "no slot is no slot");

void block_table_give_slot(struct block_table *table, enum block_tier tier, uint32_t slot)
{
    slot_pool_give(&table->slots[tier], slot);
    table->stats.free_slots[tier] = table->slots[tier].free_count;
}

bool block_table_claim_slot(struct block_table *table, enum block_tier tier, uint32_t slot)
{
    const bool was_free = slot_pool_claim(&table->slots[tier], slot);

    table->stats.free_slots[tier] = table->slots[tier].free_count;
    return was_free;
}

/* The block has come to keep its parent in tier (1), or does no longer (-1). */
static void count_in_parent(struct block_table *table, uint32_t index, enum block_tier tier,
                            int change)
{
    const uint32_t parent = table->blocks[index].parent;
    struct tier_block *above = &table->blocks[parent];
    bool was_candidate;

    if (parent == 0)
        return;
    was_candidate = block_is_candidate(above, tier);
    assert(change > 0 || above->held_children[tier] > 0);
    above->held_children[tier] += (uint32_t)change;
    if (change > 0)
        block_set_picked(above, tier, false);
    block_table_tell(table, parent, tier, was_candidate);
}

/* What a step means beyond the place itself. */
static void enter(struct block_table *table, uint32_t index, enum block_tier tier,
                  enum block_place from)
{
    const struct eviction_ops *eviction = table->config.eviction;
    struct tier_block *block = &table->blocks[index];

    switch ((enum block_place)block->place[tier]) {
    case BLOCK_WRITING:
        break;
    case BLOCK_HELD:
        table->stats.held[tier]++;
        block_set_picked(block, tier, false);
        if (from == BLOCK_WRITING)
            eviction->on_held(table->states[tier], index);
        break;
    case BLOCK_LEAVING:
        table->stats.held[tier]--;
        break;
    case BLOCK_ABSENT:
        assert(block->readers[tier] == 0);
        if (from == BLOCK_LEAVING) {
            eviction->on_left(table->states[tier], index, block_is_picked(block, tier));
            table->stats.evicted[tier] += block_is_picked(block, tier);
        }
        block_table_give_slot(table, tier, block->slot[tier]);
        block->slot[tier] = BLOCK_SLOT_NONE;
        block_set_picked(block, tier, false);
        break;
    case BLOCK_PLACE_COUNT:
        assert(!"a count is no place");
    }
}

void block_table_set_place(struct block_table *table, uint32_t index, enum block_tier tier,
                           enum block_place place, uint32_t slot)
{
    struct tier_block *block = block_table_known(table, index);
    const enum block_place from = (enum block_place)block->place[tier];
    const bool was_candidate = block_is_candidate(block, tier);
    const bool was_child = block_is_child_in(block, tier);

    assert(place < BLOCK_PLACE_COUNT);
    assert(is_legal[from][place]);
    assert(block->has_check);

    if (place == BLOCK_WRITING) {
        assert(slot < table->config.slot_count[tier]);
        assert(!slot_pool_is_free(&table->slots[tier], slot));
        block->slot[tier] = slot;
    }
    block->place[tier] = (uint8_t)place;
    enter(table, index, tier, from);
    block_table_tell(table, index, tier, was_candidate);
    if (block_is_child_in(block, tier) != was_child)
        count_in_parent(table, index, tier, was_child ? -1 : 1);
    block_table_let_go(table, index);
}

void block_table_begin_read(struct block_table *table, uint32_t index, enum block_tier tier)
{
    struct tier_block *block = block_table_known(table, index);
    const bool was_candidate = block_is_candidate(block, tier);

    assert(block->place[tier] == BLOCK_HELD);
    assert(block->readers[tier] < UINT16_MAX);

    block->readers[tier]++;
    block_set_picked(block, tier, false);
    block_table_tell(table, index, tier, was_candidate);
}

void block_table_end_read(struct block_table *table, uint32_t index, enum block_tier tier)
{
    struct tier_block *block = block_table_known(table, index);

    assert(block->readers[tier] > 0);
    assert(block->place[tier] == BLOCK_HELD || block->place[tier] == BLOCK_LEAVING);

    block->readers[tier]--;
    block_table_tell(table, index, tier, false); /* it was read until now */
}

void block_table_hold(struct block_table *table, uint32_t index)
{
    struct tier_block *block = block_table_known(table, index);

    assert(block->holds < UINT32_MAX);

    for (int tier = 0; tier < BLOCK_TIER_COUNT; tier++) {
        if (block_is_candidate(block, (enum block_tier)tier))
            table->config.eviction->on_needed(table->states[tier], index);
        if (block->place[tier] == BLOCK_HELD)
            block_set_picked(block, (enum block_tier)tier, false);
    }
    block->holds++;
    table->stats.holds++;
}

size_t block_table_hold_chain(struct block_table *table, const struct block_key *keys, size_t count,
                              uint32_t *indices)
{
    struct block_trail trail = {0, 0};
    size_t held = 0;

    while (held < count) {
        const size_t end =
            held + block_table_follow(table, keys + held, count - held, &trail, indices + held);

        for (; held < end; held++) {
            if (!block_is_readable(&table->blocks[indices[held]], keys[held]))
                return held;
            block_table_hold(table, indices[held]);
        }
    }
    return held;
}

void block_table_unhold(struct block_table *table, uint32_t index)
{
    struct tier_block *block = block_table_known(table, index);

    assert(block->holds > 0);

    block->holds--;
    table->stats.holds--;
    for (int tier = 0; tier < BLOCK_TIER_COUNT; tier++)
        block_table_tell(table, index, (enum block_tier)tier, false); /* it was held until now */
    block_table_let_go(table, index);
}

static void count_use(struct tier_block *block)
{
    block->uses = (uint8_t)(block->uses + (block->uses < UINT8_MAX));
}

void block_table_count_return(struct block_table *table, uint32_t index)
{
    count_use(block_table_known(table, index));
}

static void use(struct block_table *table, uint32_t index, enum block_tier tier)
{
    const bool is_candidate = block_is_candidate(&table->blocks[index], tier);

    if (is_candidate)
        table->config.eviction->on_needed(table->states[tier], index);
    table->config.eviction->on_used(table->states[tier], index);
    if (is_candidate)
        table->config.eviction->on_candidate(table->states[tier], index);
}

void block_table_use(struct block_table *table, const uint32_t *indices, size_t count)
{
    for (size_t i = count; i > 0; i--) {
        struct tier_block *block = block_table_known(table, indices[i - 1]);

        count_use(block);
        for (int tier = 0; tier < BLOCK_TIER_COUNT; tier++)
            if (block->place[tier] == BLOCK_HELD)
                use(table, indices[i - 1], (enum block_tier)tier);
    }
}

/* A victim of this pick no longer keeps its parent: that may be the next. */
static void release_parent(struct block_table *table, uint32_t index, enum block_tier tier)
{
    const uint32_t parent = table->blocks[index].parent;
    const struct tier_block *above = &table->blocks[parent];

    if (parent == 0 || ++table->picked_children[parent] < above->held_children[tier])
        return;
    if (above->place[tier] == BLOCK_HELD && above->holds == 0 && above->readers[tier] == 0)
        eviction_heap_push(&table->released, parent,
                           table->config.eviction->rank(table->states[tier], parent));
}

static bool is_top_lower(const struct eviction_heap *heap, struct eviction_rank rank)
{
    const struct eviction_entry top = eviction_heap_top(heap);

    return eviction_rank_is_lower(eviction_entry_rank(&top), rank);
}

/* The policy's own candidates are in its order; parents of whose children all have been picked are
 * merged into it by rank. */
size_t block_table_pick(struct block_table *table, enum block_tier tier, uint32_t *victims,
                        size_t count)
{
    const struct eviction_ops *eviction = table->config.eviction;
    struct eviction_heap *released = &table->released;
    uint32_t candidates[EVICTION_PICK_MAX];
    size_t candidate_count, picked = 0, next = 0;

    if (table->states[tier] == NULL)
        return 0;
    count = count < EVICTION_PICK_MAX ? count : EVICTION_PICK_MAX;
    candidate_count = eviction->pick(table->states[tier], candidates, count);
    while (picked < count && (next < candidate_count || released->count > 0)) {
        bool is_released = released->count > 0;

        if (is_released && next < candidate_count)
            is_released =
                is_top_lower(released, eviction->rank(table->states[tier], candidates[next]));
        victims[picked] = is_released ? eviction_heap_pop(released).index : candidates[next++];
        block_set_picked(&table->blocks[victims[picked]], tier, true);
        release_parent(table, victims[picked], tier);
        picked++;
    }
    for (size_t i = 0; i < picked; i++) {
        const struct tier_block *block = &table->blocks[victims[i]];

        table->picked_children[block->parent] = 0;
        /* It leaves soon. */
        block_buckets_prefetch(&table->buckets, block_tag(block->key.name.low));
    }
    released->count = 0;
    return picked;
}
