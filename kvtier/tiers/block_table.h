/* SPDX-License-Identifier: Apache-2.0 */

/*
 * block_table: the blocks that the tiers beneath the engines hold: which slot of which tier each
 * lies in, what follows what, and who needs them just now. It moves no bytes and chooses no victim
 * by itself: an eviction policy is told what is used and asked who shall go.
 * Pure: no I/O, clock or globals; create takes all the memory. One thread at a time.
 */
#ifndef KVTIER_TIERS_BLOCK_TABLE_H
#define KVTIER_TIERS_BLOCK_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/must_check.h"
#include "kvtier/tiers/block_key.h"
#include "kvtier/tiers/tier_block.h"

struct eviction_ops;

struct block_table_config {
    uint32_t block_count_max;              /* nodes: at least the slots of all tiers together */
    uint32_t slot_count[BLOCK_TIER_COUNT]; /* 0: there is no such tier */
    const struct eviction_ops *eviction;   /* the same policy for each tier, a state for each */
};

struct block_table_stats {
    uint64_t held[BLOCK_TIER_COUNT]; /* places HELD now */
    uint64_t free_slots[BLOCK_TIER_COUNT];
    uint64_t evicted[BLOCK_TIER_COUNT]; /* chosen by block_table_pick() and gone since */
    uint64_t refused;                   /* that block_table_add() turned away */
    uint64_t holds;                     /* now */
};

struct block_table;

/* -ENOMEM; -EINVAL: a limit is 0 or contradicts another. */
MUST_CHECK int block_table_create(struct block_table_config config, struct block_table **table);
void block_table_destroy(struct block_table *table);

/* The index of the block of that key, 0: not known. A block whose name is known with another check
 * is another block, and cannot be taken in while the first is there. */
uint32_t block_table_find_key(const struct block_table *table, struct block_key key);

/* The same by name alone, whatever its check: who follows a block knows no more of it. */
uint32_t block_table_find_name(const struct block_table *table, struct digest_128 name);

/* By index, which must be of a known block. Good until the next call that adds or forgets one. */
const struct tier_block *block_table_at(const struct block_table *table, uint32_t index);

/*
 * Known from now on, with no place yet: give it one in the same turn or it is forgotten by the next
 * add or claim, unless that is of its child. Who is known already keeps its place and learns its
 * parent. parent: an index, which must be of the block before it (depth - 1), or 0. 0: no room, or
 * the name is known with another check or depth (counted).
 */
uint32_t block_table_add(struct block_table *table, struct block_key key, uint32_t parent,
                         uint32_t depth);

/*
 * The block of that name, to be given as parent to the add of one at child_depth. What is not known
 * (a restart scan finds slots in any order) gets a node with no place, which its own add completes
 * later. 0: name.low is 0 (the child is first of a chain), no room, or it is known at another depth
 * than the one before child_depth.
 */
uint32_t block_table_claim_parent(struct block_table *table, struct digest_128 name,
                                  uint32_t child_depth);

/*
 * How many of keys[0..count), from the first on, may be loaded: HELD in a tier. tiers[i], unless
 * tiers is NULL, gets bits 1 << enum block_tier. Changes nothing.
 */
size_t block_table_match(const struct block_table *table, const struct block_key *keys,
                         size_t count, uint8_t *tiers);

/* A free slot of tier, or BLOCK_SLOT_NONE: then something must leave first. */
uint32_t block_table_take_slot(struct block_table *table, enum block_tier tier);

/* A slot that no block has: one that was taken and is not wanted, found unused by a restart scan.
 */
void block_table_give_slot(struct block_table *table, enum block_tier tier, uint32_t slot);

/* Marks slot as taken, so that a restart scan can put back what it found there. False: it is. */
bool block_table_claim_slot(struct block_table *table, enum block_tier tier, uint32_t slot);

/*
 * The one function that changes a place; asserts that the step is in the table above. To WRITING:
 * slot is the one taken, else it is not looked at. To ABSENT frees the slot, and forgets the block
 * where nothing keeps it.
 */
void block_table_set_place(struct block_table *table, uint32_t index, enum block_tier tier,
                           enum block_place place, uint32_t slot);

/* A move begins or ends to read the slot; it must be HELD (or, at the end, LEAVING). */
void block_table_begin_read(struct block_table *table, uint32_t index, enum block_tier tier);
void block_table_end_read(struct block_table *table, uint32_t index, enum block_tier tier);

/* A lease on it: block_table_pick() leaves it alone, and its node stays known. Counted. */
void block_table_hold(struct block_table *table, uint32_t index);
void block_table_unhold(struct block_table *table, uint32_t index);

/* block_table_match() and a hold of each of those in one walk; their indices. Returns how many. */
size_t block_table_hold_chain(struct block_table *table, const struct block_key *keys, size_t count,
                              uint32_t *indices);

/* A request used these blocks, from the first of their chain on: the policy is told of the last one
 * first, so that by recency too tails go before their prefix. A block that has come in by this
 * request is used by that: whoever saves the end of a chain calls this for what was there. */
void block_table_use(struct block_table *table, const uint32_t *indices, size_t count);

/* It has just come in, which the policy takes for a use, and it is not its first: that is counted
 * in its uses, and the policy not told again. */
void block_table_count_return(struct block_table *table, uint32_t index);

/*
 * Up to count victims of tier that may leave now, in the order in which the policy would rather
 * lose them: HELD there, not held or read, and nothing that follows them is HELD or WRITING in the
 * same tier unless it is an earlier victim: a chain may go in one call, leaf first, and a parent
 * never goes before its child. Changes nothing: whoever evicts sets LEAVING, in this order. May
 * return fewer than there are (EVICTION_PICK_MAX at most); 0: nothing may leave.
 */
size_t block_table_pick(struct block_table *table, enum block_tier tier, uint32_t *victims,
                        size_t count);

/* The indices of all blocks that have a place, parents before children; room for block_count_max.
 * O(blocks log blocks). */
size_t block_table_list(const struct block_table *table, uint32_t *indices);

const struct block_table_stats *block_table_stats(const struct block_table *table);

/* Whether slots taken + free == all, counts and lists agree: for tests, O(blocks). */
bool block_table_is_sound(const struct block_table *table);

#endif
