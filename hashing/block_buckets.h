/* SPDX-License-Identifier: Apache-2.0 */

/*
 * block_buckets: where a table finds its entries by the hashes of blocks: slots of a tag and an
 * entry's number, in buckets of a cache line. Which entry a tag means among those that share it is
 * seen in the entries, by their user; so is when to grow. One thread at a time.
 */
#ifndef HASHING_BLOCK_BUCKETS_H
#define HASHING_BLOCK_BUCKETS_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { BLOCK_BUCKET_SLOTS = 8 };

/* One cache line of slots; those in use come first. */
struct block_bucket {
    uint32_t tags[BLOCK_BUCKET_SLOTS];
    uint32_t entries[BLOCK_BUCKET_SLOTS]; /* 0: free */
};

/* Half slots of a bucket that may be in use on average: some are free then, which ends searches. */
enum { BLOCK_BUCKET_FILLED_HALVES = 13 };

struct block_buckets {
    struct block_bucket *at; /* the caller's memory, zeroed; NULL: none */
    size_t bucket_count;
    size_t count; /* slots in use */
};

/* Fibonacci hashing (Knuth 6.4): an odd multiplier loses nothing, and only high bits are used. */
static inline uint32_t block_tag(uint64_t hash)
{
    return (uint32_t)(hash * 0x9e3779b97f4a7c15 >> 32);
}

/* Where slots of that tag begin. */
static inline size_t block_buckets_home(const struct block_buckets *in, uint32_t tag)
{
    return (size_t)((uint64_t)tag * in->bucket_count >> 32);
}

/* The bucket behind at; behind the last comes the first. */
static inline size_t block_buckets_after(const struct block_buckets *in, size_t at)
{
    return at + 1 < in->bucket_count ? at + 1 : 0;
}

/* Else a search that comes this far ends here. */
static inline bool block_bucket_is_full(const struct block_bucket *bucket)
{
    return bucket->entries[BLOCK_BUCKET_SLOTS - 1] != 0;
}

/* Brings the bucket nearer where slots of that tag begin. Inlined by all means, as is whoever does
 * nothing but call it: gcc takes a call that only prefetches for one without effect. */
static inline __attribute__((always_inline)) void
block_buckets_prefetch(const struct block_buckets *in, uint32_t tag)
{
    __builtin_prefetch(&in->at[block_buckets_home(in, tag)]);
}

/* Buckets that take so many slots. */
static inline size_t block_buckets_count_for(size_t slot_count)
{
    return slot_count * 2 / BLOCK_BUCKET_FILLED_HALVES + 1;
}

static inline unsigned block_bucket_bit(const struct block_bucket *bucket, uint32_t tag, unsigned i)
{
    return (unsigned)(bucket->tags[i] == tag) << i;
}

/* A bit for each slot with that tag; of free slots too, if it is 0. Written out: a loop that the
 * compiler keeps costs as much as the cache line. */
static inline unsigned block_bucket_with_tag(const struct block_bucket *bucket, uint32_t tag)
{
    static_assert(BLOCK_BUCKET_SLOTS == 8, "a term for each");
    return block_bucket_bit(bucket, tag, 0) | block_bucket_bit(bucket, tag, 1) |
           block_bucket_bit(bucket, tag, 2) | block_bucket_bit(bucket, tag, 3) |
           block_bucket_bit(bucket, tag, 4) | block_bucket_bit(bucket, tag, 5) |
           block_bucket_bit(bucket, tag, 6) | block_bucket_bit(bucket, tag, 7);
}

/* Adds a slot. There is room. */
void block_buckets_add(struct block_buckets *in, uint32_t tag, uint32_t entry);

/* False: that entry has no slot in here. */
bool block_buckets_remove(struct block_buckets *in, uint32_t tag, uint32_t entry);

/* Removes slot i of bucket `hole`, and brings back whoever was displaced by it, and by him. */
void block_buckets_remove_slot(struct block_buckets *in, size_t hole, unsigned i);

#endif
