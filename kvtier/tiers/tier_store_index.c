/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/tier_store_parts.h"

#include "backends/runtime/fault_point.h"
#include "kvtier/tiers/eviction.h"

#include <assert.h>

/*
 * DESIGN
 *
 * Leaving: those who watch are told, the index forgets, readers finish, the slot is free: in this
 * order, here and nowhere else. Appearing is tier_job_commit().
 *
 * A block is told of as long as it is HELD somewhere. One that leaves its last tier leaves before
 * what it follows: in CPU memory the block_table sees to that. The SSD holds no block without the
 * one before it (tier_store_demote), so nothing there hangs on CPU memory alone. The other way
 * about it happens: the end of a chain in CPU memory, its beginning on the SSD. Such a beginning
 * stays.
 *
 * Room in CPU memory is never waited for. A victim that is worth a copy on the SSD is given one
 * and another victim looked for; when there are no others it goes without.
 */
enum { EVICT_COUNT_MAX = 16, EVICT_LOOK_MIN = 16, EVICT_LOOK_FACTOR = 4 };
static_assert(EVICT_COUNT_MAX * EVICT_LOOK_FACTOR <= EVICTION_PICK_MAX, "what is looked at");

struct digest_128 tier_index_parent_name(const struct tier_store *store,
                                         const struct tier_block *block)
{
    if (block->parent == 0)
        return (struct digest_128){0};
    return tier_index_at(store, block->parent)->key.name;
}

bool tier_index_is_reachable(const struct tier_store *store, const struct tier_block *block)
{
    if (block->depth == 0)
        return true;
    return block->parent != 0 && tier_block_bits(tier_index_at(store, block->parent)) != 0;
}

bool tier_index_may_join_ssd(const struct tier_store *store, const struct tier_block *block)
{
    return block->depth == 0 ||
           (block->parent != 0 &&
            tier_index_at(store, block->parent)->place[BLOCK_TIER_SSD] == BLOCK_HELD);
}

static void tell(const struct tier_store *store, const struct tier_block *block, uint8_t tiers)
{
    if (store->config.on_changed != NULL)
        store->config.on_changed(store->config.ctx, block->key,
                                 tier_index_parent_name(store, block), block->depth, tiers);
}

void tier_index_tell(const struct tier_store *store, uint32_t block)
{
    const struct tier_block *at = tier_index_at(store, block);

    tell(store, at, tier_block_bits(at));
}

static void set_place(struct tier_store *store, uint32_t block, enum block_tier tier,
                      enum block_place place)
{
    block_table_set_place(store->table, block, tier, place, BLOCK_SLOT_NONE);
}

void tier_index_withdraw(struct tier_store *store, uint32_t block, enum block_tier tier)
{
    const struct tier_block *at = tier_index_at(store, block);

    assert(at->place[tier] == BLOCK_HELD);

    tell(store, at, (uint8_t)(tier_block_bits(at) & ~(1 << tier)));
    fault_point_pass(FAULT_WITHDRAW_TOLD);
    set_place(store, block, tier, BLOCK_LEAVING);
    fault_point_pass(FAULT_WITHDRAW_INDEX);
    if (at->readers[tier] == 0)
        set_place(store, block, tier, BLOCK_ABSENT);
}

void tier_index_end_read(struct tier_store *store, uint32_t block, enum block_tier tier)
{
    const struct tier_block *at = tier_index_at(store, block);

    block_table_end_read(store->table, block, tier);
    if (at->place[tier] == BLOCK_LEAVING && at->readers[tier] == 0)
        set_place(store, block, tier, BLOCK_ABSENT);
}

/* ---- room ---- */

/* How many go at once: few where there are few. */
static size_t evict_count(const struct tier_store *store, enum block_tier tier)
{
    const size_t share = store->stats.slot_count[tier] / 64;

    return share < 1 ? 1 : share > EVICT_COUNT_MAX ? EVICT_COUNT_MAX : share;
}

/* How many are looked at for so many that shall go. */
static size_t look_count(size_t wanted)
{
    const size_t count = wanted * EVICT_LOOK_FACTOR;

    return count < EVICT_LOOK_MIN ? EVICT_LOOK_MIN : count;
}

static void evict(struct tier_store *store, uint32_t block, enum block_tier tier)
{
    const struct tier_block *at = tier_index_at(store, block);

    if (tier == BLOCK_TIER_CPU && tier_block_bits(at) == 1 << BLOCK_TIER_CPU)
        seen_filter_note(&store->seen, at->key.name);
    if (tier == BLOCK_TIER_CPU && tier_demote_is_wanted(store, block))
        store->stats.demote_skipped_blocks++;
    tier_index_withdraw(store, block, tier);
}

/* Whether it may still go, now that others before it in a list of victims did or did not. */
static bool is_free_to_go(const struct tier_store *store, uint32_t block, enum block_tier tier)
{
    const struct tier_block *at = tier_index_at(store, block);

    return at->place[tier] == BLOCK_HELD && at->readers[tier] == 0 && at->held_children[tier] == 0;
}

static void evict_from_cpu(struct tier_store *store)
{
    uint32_t victims[EVICTION_PICK_MAX], due[EVICTION_PICK_MAX];
    const size_t wanted = evict_count(store, BLOCK_TIER_CPU);
    const size_t picked =
        block_table_pick(store->table, BLOCK_TIER_CPU, victims, look_count(wanted));
    size_t gone = 0, due_count = 0;

    for (size_t i = 0; i < picked && gone < wanted; i++) {
        if (tier_demote_is_due(store, victims[i])) {
            due[due_count++] = victims[i];
        } else if (is_free_to_go(store, victims[i], BLOCK_TIER_CPU)) {
            evict(store, victims[i], BLOCK_TIER_CPU);
            gone++;
        }
    }
    for (size_t i = 0; i < due_count && gone == 0; i++) {
        if (!is_free_to_go(store, due[i], BLOCK_TIER_CPU))
            continue;
        evict(store, due[i], BLOCK_TIER_CPU);
        gone++;
        due[i] = due[--due_count];
    }
    tier_demote_chains(store, due, due_count);
}

/* The beginning of a chain whose end lies in CPU memory alone stays. */
static void evict_from_ssd(struct tier_store *store)
{
    uint32_t victims[EVICTION_PICK_MAX];
    const size_t wanted = evict_count(store, BLOCK_TIER_SSD);
    const size_t picked =
        block_table_pick(store->table, BLOCK_TIER_SSD, victims, look_count(wanted));
    size_t gone = 0;

    for (size_t i = 0; i < picked && gone < wanted; i++) {
        const struct tier_block *at = tier_index_at(store, victims[i]);

        if (!is_free_to_go(store, victims[i], BLOCK_TIER_SSD) ||
            (at->place[BLOCK_TIER_CPU] != BLOCK_HELD && at->held_children[BLOCK_TIER_CPU] > 0))
            continue;
        evict(store, victims[i], BLOCK_TIER_SSD);
        gone++;
    }
}

uint32_t tier_index_take_slot(struct tier_store *store, enum block_tier tier)
{
    uint32_t slot = block_table_take_slot(store->table, tier);

    if (slot != BLOCK_SLOT_NONE)
        return slot;
    if (tier == BLOCK_TIER_CPU)
        evict_from_cpu(store);
    else
        evict_from_ssd(store);
    return block_table_take_slot(store->table, tier);
}
