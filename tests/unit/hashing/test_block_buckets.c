/* SPDX-License-Identifier: Apache-2.0 */

#include "hashing/block_buckets.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include "backends/runtime/random.h"
#include "tests/support/leak_check.h"

TestSuite(block_buckets, .fini = leak_check);

enum { ENTRY_COUNT = 500, BUCKET_COUNT_MAX = 160 };

/* By a search as a user makes it. */
static bool has(const struct block_buckets *in, uint32_t tag, uint32_t entry)
{
    for (size_t at = block_buckets_home(in, tag);; at = block_buckets_after(in, at)) {
        const struct block_bucket *bucket = &in->at[at];

        for (unsigned mask = block_bucket_with_tag(bucket, tag); mask != 0; mask &= mask - 1)
            if (bucket->entries[__builtin_ctz(mask)] == entry)
                return true;
        if (!block_bucket_is_full(bucket))
            return false;
    }
}

/* Tags: few enough that some are shared and that homes overflow. */
static uint32_t tag_of(uint32_t entry, uint32_t tag_count)
{
    return block_tag(entry % tag_count);
}

static void churn(struct block_buckets *in, uint32_t tag_count)
{
    static bool is_in[ENTRY_COUNT + 1];
    uint64_t random = 1;
    size_t count = 0;

    for (int step = 0; step < 20000; step++) {
        const uint32_t entry = 1 + (uint32_t)(random_next(&random) % ENTRY_COUNT);
        const uint32_t tag = tag_of(entry, tag_count);

        cr_assert(eq(int, has(in, tag, entry), is_in[entry]));
        if (is_in[entry])
            cr_assert(block_buckets_remove(in, tag, entry));
        else
            block_buckets_add(in, tag, entry);
        count = is_in[entry] ? count - 1 : count + 1;
        is_in[entry] = !is_in[entry];
        cr_assert(eq(sz, in->count, count));
    }
    for (uint32_t entry = 1; entry <= ENTRY_COUNT; entry++)
        cr_assert(eq(int, block_buckets_remove(in, tag_of(entry, tag_count), entry), is_in[entry]));
    cr_assert(eq(sz, in->count, 0));
}

Test(block_buckets, whoever_was_added_is_found_until_removed_in_as_many_as_are_counted_for_them)
{
    static _Alignas(64) struct block_bucket at[BUCKET_COUNT_MAX];
    struct block_buckets in = {at, block_buckets_count_for(ENTRY_COUNT), 0};
    cr_assert(le(sz, in.bucket_count, BUCKET_COUNT_MAX));

    churn(&in, ENTRY_COUNT);
}

Test(block_buckets, whoever_shares_a_tag_with_others_is_found_too)
{
    static _Alignas(64) struct block_bucket at[BUCKET_COUNT_MAX];
    struct block_buckets in = {at, block_buckets_count_for(ENTRY_COUNT), 0};

    churn(&in, 7); /* one of them 0, the mark of a free slot */
}
