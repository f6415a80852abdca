/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/block_table.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "kvtier/tiers/block_table_parts.h"

/*
 * DESIGN
 *
 *   buckets[name] -> block -> block              nodes know their parents, parents count children:
 *                      |  parent                 all that is asked of a chain (may this one go? who
 *                      v                         may go after it?) is answered by counts, and no
 *                    block                       list of children has to be kept
 *
 * This file names blocks; block_table_places.c has their places and what keeps them there;
 * block_table_check.c looks at all of them at once.
 *
 * Every array is taken at create, so nothing here can fail later but for want of room that its
 * owner has set. Hence buckets with links in the nodes, and not hashing/block_map, which grows.
 *
 * A node that nothing keeps (no place, no child, no hold) is forgotten at once, except the one that
 * was added or claimed last: `fresh`, which its owner is about to place. A parent's depth is one
 * less than its child's, so parents never form a circle, whatever a slot's header says.
 */

enum { PREFETCH_AHEAD = 8 };

static uint32_t bucket_of(const struct block_table *table, struct digest_128 name)
{
    /* Names are keyed digests already; the factor (Knuth 6.4) is for names that are not. */
    return (uint32_t)(name.low * 0x9e3779b97f4a7c15u >> 32) & table->bucket_mask;
}

uint32_t block_table_find_name(const struct block_table *table, struct digest_128 name)
{
    uint32_t index = table->buckets[bucket_of(table, name)];

    while (index != 0 && (table->blocks[index].key.name.low != name.low ||
                          table->blocks[index].key.name.high != name.high))
        index = table->blocks[index].next;
    return index;
}

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
    size_t bucket_count = 1;

    while (bucket_count < count)
        bucket_count *= 2;
    table->bucket_mask = (uint32_t)(bucket_count - 1);
    table->buckets = calloc(bucket_count, sizeof *table->buckets);
    table->blocks = calloc(count, sizeof *table->blocks);
    table->picked_children = calloc(count, sizeof *table->picked_children);
    if (table->buckets == NULL || table->blocks == NULL || table->picked_children == NULL)
        return -ENOMEM;
    for (uint32_t i = 1; i + 1 < count; i++)
        table->blocks[i].next = i + 1;
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
    free(table->buckets);
    free(table);
}

uint32_t block_table_find_key(const struct block_table *table, struct block_key key)
{
    const uint32_t index = block_table_find_name(table, key.name);
    const struct tier_block *block = &table->blocks[index];

    return index != 0 && block->has_check && block->key.check == key.check ? index : 0;
}

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
    uint32_t *link = &table->buckets[bucket_of(table, block->key.name)];

    while (*link != index)
        link = &table->blocks[*link].next;
    *link = block->next;
    *block = (struct tier_block){.next = table->free};
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
    uint32_t *bucket = &table->buckets[bucket_of(table, name)];
    const uint32_t index = table->free;
    struct tier_block *block = &table->blocks[index];

    if (index == 0)
        return 0;
    table->free = block->next;
    *block = (struct tier_block){
        .key.name = name,
        .depth = depth,
        .slot = {BLOCK_SLOT_NONE, BLOCK_SLOT_NONE},
        .next = *bucket,
    };
    *bucket = index;
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

/* A name's bucket, and then its block, are asked for before they are needed: in a large table both
 * miss every cache, and a prompt has hundreds of blocks. */
static void prefetch(const struct block_table *table, const struct block_key *keys, size_t count)
{
    if (count > 2 * PREFETCH_AHEAD)
        __builtin_prefetch(&table->buckets[bucket_of(table, keys[2 * PREFETCH_AHEAD].name)]);
    if (count > PREFETCH_AHEAD)
        __builtin_prefetch(
            &table->blocks[table->buckets[bucket_of(table, keys[PREFETCH_AHEAD].name)]]);
}

size_t block_table_match(const struct block_table *table, const struct block_key *keys,
                         size_t count, uint8_t *tiers)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t index;
        uint8_t bits;

        prefetch(table, keys + i, count - i);
        index = block_table_find_key(table, keys[i]);
        bits = index != 0 ? tier_block_bits(&table->blocks[index]) : 0;
        if (bits == 0)
            return i;
        if (tiers != NULL)
            tiers[i] = bits;
    }
    return count;
}

const struct block_table_stats *block_table_stats(const struct block_table *table)
{
    return &table->stats;
}
