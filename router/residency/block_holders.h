/* SPDX-License-Identifier: Apache-2.0 */

/*
 * block_holders: all holders of one block, in the 64 bits that a block_table keeps for it; 0:
 * nobody. A value owns memory once its holders no longer fit into it. Pure; one thread at a time.
 */
#ifndef ROUTER_RESIDENCY_BLOCK_HOLDERS_H
#define ROUTER_RESIDENCY_BLOCK_HOLDERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/must_check.h"
#include "router/residency/holder_set.h"

/* What all values of an index take beyond their 64 bits. */
struct block_holders_memory {
    size_t bytes;
    size_t bytes_max;
};

/* 1: holding.holder is new, 0: what was known of it is replaced, -ENOBUFS: no room, unchanged. */
MUST_CHECK int block_holders_store(uint64_t *value, struct block_holding holding,
                                   struct block_holders_memory *memory);

/* False: it was none of them. */
bool block_holders_remove(uint64_t *value, uint32_t holder, struct block_holders_memory *memory);

/* Its tiers, 0: it is none of them. *tokens is set only if it is. */
uint8_t block_holders_find(uint64_t value, uint32_t holder, uint32_t *tokens);

/* True: *tokens is what all of them say. False: they may disagree, or there are none. */
bool block_holders_agreed(uint64_t value, uint32_t *tokens);

/* The lowest number among them that is in words too, or -1. */
int block_holders_first_of(uint64_t value, const uint64_t words[HOLDER_WORD_COUNT]);

/* words[] becomes the set of holders below 64 * word_count that have it in one of tiers. */
void block_holders_write(uint64_t value, uint8_t tiers, uint64_t *words, size_t word_count);

/* Equal and not 0 only where the same holders have both blocks in the same tiers. May differ
 * although they do. */
uint64_t block_holders_key(uint64_t value);

/* Gives back what value owns; it is 0 then. */
void block_holders_release(uint64_t *value, struct block_holders_memory *memory);

#endif
