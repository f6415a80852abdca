/* SPDX-License-Identifier: Apache-2.0 */

/*
 * block_table: block hash -> 64-bit value, as hashing/block_map, for very many blocks that come and
 * are asked for as prompts: one after another. Entries stay where they were put, in the order in
 * which they came, so that who follows a prompt reads on where his last find ended. Grows a few
 * slots at a time and never takes more memory than it was allowed. What a value means is its user's
 * business. One thread at a time.
 */
#ifndef ROUTER_RESIDENCY_BLOCK_TABLE_H
#define ROUTER_RESIDENCY_BLOCK_TABLE_H

#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/must_check.h"
#include "hashing/block_buckets.h"
#include "hashing/block_chain.h"

struct block_entry {
    uint64_t hash; /* 0: free */
    uint64_t value;
};

struct block_table {
    struct block_entry *entries;  /* [0] is never used; address space for all that are allowed */
    struct block_buckets buckets; /* hash -> entry; takes everything new */
    struct block_buckets old;     /* being emptied into buckets after a growth */
    struct block_buckets next;    /* made ready for the next growth */
    size_t next_ready_bytes;      /* of next, from its front on */
    size_t drain_at;              /* bucket of old that is looked at next */
    size_t bucket_count_max;
    uint32_t entry_end;       /* entries from here on were never used */
    uint32_t entry_count_max; /* entry_end is never more */
    uint32_t free;            /* the entry freed last; 0: none */
};

/* Where somebody's last find ended; {0}: nowhere yet. */
struct block_trail {
    uint32_t entry; /* 0: none */
    int32_t step;   /* to where the next block is expected */
    uint32_t batch; /* blocks of the last batch that were not; 0: they were */
};

/* Never takes more than bytes_max, growth included. */
void block_table_init(struct block_table *table, size_t bytes_max);

/* The value of hash, to read or change until it is removed; NULL: not there. */
uint64_t *block_table_find(const struct block_table *table, uint64_t hash,
                           struct block_trail *trail);

/* As find, but adds hash (not 0) with value 0 where it is missing. NULL: the table is full. */
MUST_CHECK uint64_t *block_table_claim(struct block_table *table, uint64_t hash,
                                       struct block_trail *trail);

/* Removes the entry of a value that find, claim or next gave. trail says who is probably next. */
void block_table_remove(struct block_table *table, uint64_t *value,
                        const struct block_trail *trail);

/* Brings the place of hash nearer to the processor, for a claim or remove some 100 ns later. */
void block_table_prefetch(const struct block_table *table, uint64_t hash);

enum { BLOCK_TABLE_BATCH_MAX = 32 };

/*
 * The values of the next blocks of a prompt, 0 where a block is not there: as many as can be had
 * cheaply at once, from 1 to BLOCK_TABLE_BATCH_MAX and count, which is not 0. Returns that number.
 */
size_t block_table_follow(const struct block_table *table, const struct block *blocks, size_t count,
                          struct block_trail *trail, uint64_t values[BLOCK_TABLE_BATCH_MAX]);

/*
 * The next entry in no particular order, looking at *entry_count at most and taking them off; NULL
 * with some left: that was the last. *cursor starts as 0. Meanwhile the table may change in any
 * way; who is there from the first to the last call is seen exactly once.
 */
struct block_entry *block_table_next(struct block_table *table, size_t *cursor,
                                     size_t *entry_count);

size_t block_table_count(const struct block_table *table);
size_t block_table_bytes(const struct block_table *table);

/* Frees everything; only init may follow. */
void block_table_release(struct block_table *table);

#endif
