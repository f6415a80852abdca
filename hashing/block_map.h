/* SPDX-License-Identifier: Apache-2.0 */

/*
 * block_map: block hash -> 64-bit value. Open addressing; grows a few slots at a time, so that no
 * call ever stops to move a whole table; never takes more memory than it was allowed. What the
 * value means is its user's business. One thread at a time.
 */
#ifndef HASHING_BLOCK_MAP_H
#define HASHING_BLOCK_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/must_check.h"

struct block_map_slot {
    uint64_t hash; /* 0: free */
    uint64_t value;
};

struct block_map_table {
    struct block_map_slot *slots; /* NULL: none */
    size_t slot_count;
    size_t count; /* slots in use */
};

struct block_map {
    struct block_map_table table; /* takes everything new */
    struct block_map_table old;   /* being emptied into table after a growth */
    size_t drain_at;              /* slot of old that is looked at next */
    size_t slot_count_max;
};

/* Takes no memory yet; never more than bytes_max of it, growth included. */
void block_map_init(struct block_map *map, size_t bytes_max);

/* The value of hash, to read or change until the next claim or remove; NULL: not there. */
uint64_t *block_map_find(const struct block_map *map, uint64_t hash);

/* As find, but adds hash (not 0) with value 0 where it is missing. NULL: the map is full. */
MUST_CHECK uint64_t *block_map_claim(struct block_map *map, uint64_t hash);

/* False: it was not there. */
bool block_map_remove(struct block_map *map, uint64_t hash);

/* Removes the entry whose value find or claim has just given. */
void block_map_remove_value(struct block_map *map, uint64_t *value);

/* Brings the place of hash nearer to the processor, for a find some 100 ns later. */
void block_map_prefetch(const struct block_map *map, uint64_t hash);

/*
 * The next entry in no particular order; NULL after the last. *cursor starts as 0. Meanwhile the
 * map may be changed only by block_map_remove_at(), after which an entry may be given twice.
 */
struct block_map_slot *block_map_next(struct block_map *map, size_t *cursor);

/* Removes the entry that block_map_next() gave last; the walk goes on behind it. */
void block_map_remove_at(struct block_map *map, size_t *cursor);

size_t block_map_count(const struct block_map *map);
size_t block_map_bytes(const struct block_map *map);

/* Frees everything; the map is empty and may be used again. */
void block_map_release(struct block_map *map);

#endif
