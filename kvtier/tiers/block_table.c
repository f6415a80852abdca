/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/block_table.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "backends/runtime/huge_array.h"
#include "kvtier/tiers/block_table_parts.h"

/*
 * DESIGN
 *
 *   buckets[name] -> block                       nodes know their parents, parents count children:
 *                      |  parent                 all that is asked of a chain (may this one go? who
 *                      v                         may go after it?) is answered by counts, and no
 *                    block                       list of children has to be kept
 *
 * This file names blocks; block_table_places.c has their places and what keeps them there;
 * block_table_check.c looks at all of them at once.
 *
 * Nodes that were freed are taken again last in, first out, and a chain leaves from its end: so the
 * blocks of a prompt, which are saved in order, lie side by side. Who goes along a prompt compares
 * the name of the block beside his last, and needs the buckets only where a prompt leaves another's
 * path (router/residency/block_table does the same). What may not be side by side is fetched some
 * blocks ahead: in a large table each bucket and each block is a miss.
 *
 * Every array is taken at create, so nothing here can fail later but for want of room that its
 * owner has set.
 *
 * A node that nothing keeps (no place, no child, no hold) is forgotten at once, except the one that
 * was added or claimed last: `fresh`, which its owner is about to place. A parent's depth is one
 * less than its child's, so parents never form a circle, whatever a slot's header says.
 */

enum { BATCH_MIN = 4, PREFETCH_AHEAD = 8 };

static bool is_named(const struct tier_block *block, struct digest_128 name)
{
    return block->key.name.low == name.low && block->key.name.high == name.high;
}

/* ---- finding ---- */

uint32_t block_table_find_name(const struct block_table *table, struct digest_128 name)
{
    const uint32_t tag = block_tag(name.low);
    size_t at = block_buckets_home(&table->buckets, tag);

    for (;; at = block_buckets_after(&table->buckets, at)) {
        const struct block_bucket *bucket = &table->buckets.at[at];

        for (unsigned mask = block_bucket_with_tag(bucket, tag); mask != 0; mask &= mask - 1) {
            const uint32_t index = bucket->entries[__builtin_ctz(mask)];

            if (index != 0 && is_named(&table->blocks[index], name))
                return index;
        }
        if (!block_bucket_is_full(bucket))
            return 0;
    }
}

uint32_t block_table_find_key(const struct block_table *table, struct block_key key)
{
    const uint32_t index = block_table_find_name(table, key.name);

    return block_has_key(&table->blocks[index], key) ? index : 0;
}

/* The block that most likely has that name: the first with its tag in its home. Inlined for the
 * same reason as block_buckets_prefetch(). */
static inline __attribute__((always_inline)) void prefetch_block(const struct block_table *table,
                                                                 struct digest_128 name)
{
    const uint32_t tag = block_tag(name.low);
    const struct block_bucket *bucket =
        &table->buckets.at[block_buckets_home(&table->buckets, tag)];
    const unsigned mask = block_bucket_with_tag(bucket, tag);

    __builtin_prefetch(&table->blocks[mask != 0 ? bucket->entries[__builtin_ctz(mask)] : 0]);
}

/* Blocks side by side with the last one and each other. */
static size_t follow_beside(const struct block_table *table, const struct block_key *keys,
                            size_t count, struct block_trail *trail, uint32_t *indices)
{
    size_t got = 0;

    while (got < count && trail->last != 0 && trail->last < table->config.block_count_max &&
           is_named(&table->blocks[trail->last + 1], keys[got].name)) {
        indices[got++] = ++trail->last;
        __builtin_prefetch(&table->blocks[trail->last] + PREFETCH_AHEAD);
    }
    return got;
}

size_t block_table_follow(const struct block_table *table, const struct block_key *keys,
                          size_t count, struct block_trail *trail, uint32_t *indices)
{
    size_t got;

    if (count > BLOCK_TRAIL_MAX)
        count = BLOCK_TRAIL_MAX;
    got = follow_beside(table, keys, count, trail, indices);
    if (got > 0) {
        trail->batch = 0;
        return got;
    }
    /* A path that was left once is left again soon, or not at all: twice as far each time. */
    trail->batch = trail->batch > 0 ? 2 * trail->batch : BATCH_MIN;
    if (trail->batch > BLOCK_TRAIL_MAX)
        trail->batch = BLOCK_TRAIL_MAX;
    if (count > trail->batch)
        count = trail->batch;
    for (size_t i = 0; i < count; i++)
        block_buckets_prefetch(&table->buckets, block_tag(keys[i].name.low));
    for (size_t i = 0; i < count; i++)
        prefetch_block(table, keys[i].name);
    for (size_t i = 0; i < count; i++) {
        indices[i] = block_table_find_name(table, keys[i].name);
        if (indices[i] != 0)
            trail->last = indices[i];
    }
    return count;
}

size_t block_table_match(const struct block_table *table, const struct block_key *keys,
                         size_t count, uint8_t *tiers)
{
    struct block_trail trail = {0, 0};
    uint32_t indices[BLOCK_TRAIL_MAX];
    size_t matched = 0;

    while (matched < count) {
        const size_t got =
            block_table_follow(table, keys + matched, count - matched, &trail, indices);

        for (size_t i = 0; i < got; i++, matched++) {
            const struct tier_block *block = &table->blocks[indices[i]];

            if (!block_is_readable(block, keys[matched]))
                return matched;
            if (tiers != NULL)
                tiers[matched] = tier_block_bits(block);
        }
    }
    return matched;
}

/* ---- life ---- */

static bool is_config_valid(struct block_table_config config)
{
    uint64_t slot_count = 0;

    for (int tier = 0; tier < BLOCK_TIER_COUNT; tier++)
        slot_count += config.slot_count[tier];
    return config.block_count_max < UINT32_MAX / 2 && slot_count > 0 &&
           slot_count <= config.block_count_max;
}

static int create_tier(struct block_table *table, enum block_tier tier)
{
    const uint32_t slot_count = table->config.slot_count[tier];

    if (slot_pool_init(&table->slots[tier], slot_count) < 0)
        return -ENOMEM;
    table->stats.free_slots[tier] = slot_count;
    if (slot_count == 0)
        return 0;
    table->states[tier] = table->config.eviction->create((struct eviction_config){
        .blocks = table->blocks,
        .block_count = table->config.block_count_max + 1,
        .slot_count = slot_count,
    });
    return table->states[tier] != NULL ? 0 : -ENOMEM;
}

static int create_arrays(struct block_table *table)
{
    const size_t count = (size_t)table->config.block_count_max + 1;

    table->buckets.bucket_count = block_buckets_count_for(count);
    table->buckets.at = huge_array_alloc(table->buckets.bucket_count, sizeof *table->buckets.at);
    table->blocks = huge_array_alloc(count + PREFETCH_AHEAD, sizeof *table->blocks);
    table->picked_children = calloc(count, sizeof *table->picked_children);
    if (table->buckets.at == NULL || table->blocks == NULL || table->picked_children == NULL)
        return -ENOMEM;
    for (uint32_t i = 1; i + 1 < count; i++)
        table->blocks[i].parent = i + 1;
    table->free = 1;
    return eviction_heap_init(&table->released, EVICTION_PICK_MAX, 0);
}

int block_table_create(struct block_table_config config, struct block_table **table)
{
    struct block_table *made = NULL;
    int status = -EINVAL;

    assert(config.eviction != NULL);

    *table = NULL;
    if (!is_config_valid(config))
        goto out;
    status = -ENOMEM;
    made = calloc(1, sizeof *made);
    if (made == NULL)
        goto out;
    made->config = config;
    status = create_arrays(made);
    for (int tier = 0; tier < BLOCK_TIER_COUNT && status == 0; tier++)
        status = create_tier(made, (enum block_tier)tier);
    if (status < 0)
        goto out;
    *table = made;
    made = NULL;
out:
    block_table_destroy(made);
    return status;
}

void block_table_destroy(struct block_table *table)
{
    if (table == NULL)
        return;
    for (int tier = 0; tier < BLOCK_TIER_COUNT; tier++) {
        slot_pool_release(&table->slots[tier]);
        if (table->states[tier] != NULL)
            table->config.eviction->destroy(table->states[tier]);
    }
    eviction_heap_release(&table->released);
    free(table->picked_children);
    free(table->blocks);
    free(table->buckets.at);
    free(table);
}

/* ---- knowing ---- */

const struct tier_block *block_table_at(const struct block_table *table, uint32_t index)
{
    assert(index > 0 && index <= table->config.block_count_max);
    assert(block_is_known(&table->blocks[index]));

    return &table->blocks[index];
}

struct tier_block *block_table_known(struct block_table *table, uint32_t index)
{
    assert(index > 0 && index <= table->config.block_count_max);
    assert(block_is_known(&table->blocks[index]));

    return &table->blocks[index];
}

static void forget(struct block_table *table, uint32_t index)
{
    struct tier_block *block = &table->blocks[index];

    if (!block_buckets_remove(&table->buckets, block_tag(block->key.name.low), index))
        abort(); /* a block that no bucket knows */
    *block = (struct tier_block){.parent = table->free};
    table->free = index;
}

void block_table_let_go(struct block_table *table, uint32_t index)
{
    while (index != 0 && !block_is_kept(&table->blocks[index])) {
        const uint32_t parent = table->blocks[index].parent;

        forget(table, index);
        if (parent != 0) {
            assert(table->blocks[parent].child_count > 0);
            table->blocks[parent].child_count--;
        }
        index = parent;
    }
}

/* The block added or claimed last has had its turn. */
static void end_fresh(struct block_table *table)
{
    const uint32_t fresh = table->fresh;

    table->fresh = 0;
    if (fresh != 0 && block_is_known(&table->blocks[fresh]))
        block_table_let_go(table, fresh);
}

static uint32_t add_node(struct block_table *table, struct digest_128 name, uint32_t depth)
{
    const uint32_t index = table->free;
    struct tier_block *block = &table->blocks[index];

    if (index == 0)
        return 0;
    table->free = block->parent;
    *block = (struct tier_block){
        .key.name = name,
        .depth = depth,
        .slot = {BLOCK_SLOT_NONE, BLOCK_SLOT_NONE},
    };
    block_buckets_add(&table->buckets, block_tag(name.low), index);
    return index;
}
static_assert(BLOCK_TIER_COUNT == 2, "slots of a new node");

static void link_parent(struct block_table *table, uint32_t index, uint32_t parent)
{
    struct tier_block *block = &table->blocks[index];
    struct tier_block *above = &table->blocks[parent];

    assert(block->parent == 0);
    assert(above->depth + 1 == block->depth);

    block->parent = parent;
    above->child_count++;
    for (int tier = 0; tier < BLOCK_TIER_COUNT; tier++) {
        const bool was_candidate = block_is_candidate(above, (enum block_tier)tier);

        if (block_is_child_in(block, (enum block_tier)tier))
            above->held_children[tier]++;
        block_table_tell(table, parent, (enum block_tier)tier, was_candidate);
    }
}

/* The node of key, known or new; 0: there can be none. */
static uint32_t node_of(struct block_table *table, struct block_key key, uint32_t depth)
{
    uint32_t index = block_table_find_name(table, key.name);
    struct tier_block *block;

    if (index == 0)
        index = add_node(table, key.name, depth);
    block = &table->blocks[index];
    if (index == 0 || block->depth != depth || (block->has_check && block->key.check != key.check))
        return 0;
    block->key.check = key.check;
    block->has_check = true;
    return index;
}

uint32_t block_table_add(struct block_table *table, struct block_key key, uint32_t parent,
                         uint32_t depth)
{
    uint32_t index;

    assert(key.name.low != 0);

    if (parent != 0)
        block_table_known(table, parent)->child_count++; /* so that end_fresh() leaves it */
    end_fresh(table);
    index = node_of(table, key, depth);
    if (parent != 0)
        table->blocks[parent].child_count--;
    if (index == 0) {
        table->fresh = parent;
        table->stats.refused++;
        return 0;
    }
    if (parent != 0 && table->blocks[index].parent == 0)
        link_parent(table, index, parent);
    table->fresh = index;
    return index;
}

uint32_t block_table_claim_parent(struct block_table *table, struct digest_128 name,
                                  uint32_t child_depth)
{
    uint32_t index;

    end_fresh(table);
    if (name.low == 0 || child_depth == 0)
        return 0;
    index = block_table_find_name(table, name);
    if (index == 0) {
        index = add_node(table, name, child_depth - 1);
        table->fresh = index;
    }
    return index != 0 && table->blocks[index].depth == child_depth - 1 ? index : 0;
}

const struct block_table_stats *block_table_stats(const struct block_table *table)
{
    return &table->stats;
}
