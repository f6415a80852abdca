/* SPDX-License-Identifier: Apache-2.0 */

/*
 * holder_set: the holders of a block that has too many of them for its table entry, in ascending
 * order. It does not count bytes against a limit: who owns it does. Pure; one thread at a time.
 */
#ifndef ROUTER_RESIDENCY_HOLDER_SET_H
#define ROUTER_RESIDENCY_HOLDER_SET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    HOLDER_NUMBER_BITS = 11,
    HOLDER_WORD_BITS = 64,
    HOLDER_WORD_COUNT = (1 << HOLDER_NUMBER_BITS) / HOLDER_WORD_BITS, /* a bitmap of them all */
    HOLDER_TOKEN_BITS = 21,
    HOLDER_TIER_BITS = 3,
    HOLDER_TIERS_ALL = (1 << HOLDER_TIER_BITS) - 1,
};

/* What one holder has of a block. */
struct block_holding {
    uint32_t holder;
    uint32_t tokens; /* of a prompt up to the block's end */
    uint8_t tiers;   /* not 0 */
};

struct holder_set;

/* An empty set with room for capacity holders. Only if all of them are to have the same tokens may
 * it be told to keep them once. NULL: no memory. */
struct holder_set *holder_set_create(size_t capacity, bool is_agreed);
void holder_set_destroy(struct holder_set *set);

/* What such a set takes, with what the allocator adds. */
size_t holder_set_bytes(size_t capacity, bool is_agreed);

size_t holder_set_count(const struct holder_set *set);
size_t holder_set_capacity(const struct holder_set *set);

/* It keeps the tokens once. */
bool holder_set_is_agreed(const struct holder_set *set);

/* Where holder is, or would go: how many have lower numbers. */
size_t holder_set_place(const struct holder_set *set, uint32_t holder);

/* The holder at a place below count. */
struct block_holding holder_set_at(const struct holder_set *set, size_t at);

/* There is room, at is its place, and its tokens are those of all others where they are kept once.
 */
void holder_set_insert(struct holder_set *set, size_t at, struct block_holding holding);

/* The holder at that place stays the same; its tokens as with insert, unless it is the only one. */
void holder_set_replace(struct holder_set *set, size_t at, struct block_holding holding);
void holder_set_remove(struct holder_set *set, size_t at);

/* words[] becomes the set of holders below 64 * word_count that have it in one of tiers. */
void holder_set_write(const struct holder_set *set, uint8_t tiers, uint64_t *words,
                      size_t word_count);

#endif
