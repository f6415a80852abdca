/* SPDX-License-Identifier: Apache-2.0 */

#include "hashing/block_buckets.h"

#include <assert.h>

/*
 * DESIGN
 *
 * A bucket is a cache line. An entry is in the first bucket from its home on that had room, so that
 * a bucket with room ends a search; removal brings one back that was displaced by the one that
 * goes, and there are no tombstones: searches stay short under churn. Buckets are filled to 13/16
 * on average, where one in four is full. Tags are compared all at once: a branch for each would be
 * mispredicted as often as not, and that costs more than the line. The tag is the high half of the
 * mixed hash:
 *
 *     home = tag * bucket_count >> 32
 *
 * keeps the order of tags for any bucket_count: so moving a slot to other buckets needs no entry,
 * and sizes need not be powers of two.
 */

static_assert(sizeof(struct block_bucket) == 64, "a cache line");

static size_t distance(const struct block_buckets *in, size_t from, size_t to)
{
    return to >= from ? to - from : to + in->bucket_count - from;
}

static unsigned used_count(const struct block_bucket *bucket)
{
    unsigned count = 0;

    for (unsigned i = 0; i < BLOCK_BUCKET_SLOTS; i++)
        count += bucket->entries[i] != 0;
    return count;
}

void block_buckets_add(struct block_buckets *in, uint32_t tag, uint32_t entry)
{
    size_t at = block_buckets_home(in, tag);
    unsigned i;

    while (block_bucket_is_full(&in->at[at]))
        at = block_buckets_after(in, at);
    i = used_count(&in->at[at]);
    in->at[at].tags[i] = tag;
    in->at[at].entries[i] = entry;
    in->count++;
}

/* Takes slot i out of its bucket; the last one takes its place. */
static void take_slot(struct block_bucket *bucket, unsigned i)
{
    const unsigned last = used_count(bucket) - 1;

    bucket->tags[i] = bucket->tags[last];
    bucket->entries[i] = bucket->entries[last];
    bucket->tags[last] = 0;
    bucket->entries[last] = 0;
}

/* A slot in bucket `at` that `hole` or one before it is the home of, or -1. */
static int displaced_slot(const struct block_buckets *in, size_t at, size_t hole)
{
    for (unsigned i = 0; i < BLOCK_BUCKET_SLOTS && in->at[at].entries[i] != 0; i++)
        if (distance(in, block_buckets_home(in, in->at[at].tags[i]), at) >= distance(in, hole, at))
            return (int)i;
    return -1;
}

void block_buckets_remove_slot(struct block_buckets *in, size_t hole, unsigned i)
{
    bool was_full = block_bucket_is_full(&in->at[hole]);

    assert(in->count > 0);

    take_slot(&in->at[hole], i);
    in->count--;
    for (size_t at = block_buckets_after(in, hole); was_full; at = block_buckets_after(in, at)) {
        const int back = displaced_slot(in, at, hole);

        was_full = block_bucket_is_full(&in->at[at]);
        if (back < 0)
            continue;
        in->at[hole].tags[BLOCK_BUCKET_SLOTS - 1] = in->at[at].tags[back];
        in->at[hole].entries[BLOCK_BUCKET_SLOTS - 1] = in->at[at].entries[back];
        take_slot(&in->at[at], (unsigned)back);
        hole = at;
    }
}

bool block_buckets_remove(struct block_buckets *in, uint32_t tag, uint32_t entry)
{
    if (in->count == 0)
        return false;
    for (size_t at = block_buckets_home(in, tag);; at = block_buckets_after(in, at)) {
        const struct block_bucket *bucket = &in->at[at];

        for (unsigned mask = block_bucket_with_tag(bucket, tag); mask != 0; mask &= mask - 1) {
            const unsigned i = (unsigned)__builtin_ctz(mask);

            if (bucket->entries[i] != entry)
                continue;
            block_buckets_remove_slot(in, at, i);
            return true;
        }
        if (!block_bucket_is_full(bucket))
            return false;
    }
}
