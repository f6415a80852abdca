/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/eviction_shadow.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "backends/runtime/huge_array.h"
#include "kvtier/tiers/eviction.h"

/*
 * DESIGN
 *
 * The policy itself runs over blocks of our own, so a shadow never differs from what it shadows. No
 * chains are kept: all blocks of a request are asked for together, and both policies that there are
 * let tails go before what all requests share.
 */

int eviction_shadow_init(struct eviction_shadow *shadow, const struct eviction_ops *policy,
                         uint32_t slot_count)
{
    const size_t bucket_count = block_buckets_count_for(slot_count);

    assert(slot_count > 0 && slot_count < UINT32_MAX / 2);

    *shadow = (struct eviction_shadow){
        .policy = policy,
        .blocks = huge_array_alloc((size_t)slot_count + 1, sizeof *shadow->blocks),
        .buckets = {huge_array_alloc(bucket_count, sizeof *shadow->buckets.at), bucket_count, 0},
        .slot_count = slot_count,
    };
    if (shadow->blocks != NULL && shadow->buckets.at != NULL)
        shadow->state = policy->create((struct eviction_config){
            .blocks = shadow->blocks,
            .block_count = slot_count + 1,
            .slot_count = slot_count,
        });
    if (shadow->state == NULL) {
        eviction_shadow_release(shadow);
        return -ENOMEM;
    }
    return 0;
}

void eviction_shadow_release(struct eviction_shadow *shadow)
{
    if (shadow->state != NULL)
        shadow->policy->destroy(shadow->state);
    free(shadow->blocks);
    free(shadow->buckets.at);
    *shadow = (struct eviction_shadow){.policy = NULL};
}

static uint32_t find(const struct eviction_shadow *shadow, struct block_key key)
{
    const uint32_t tag = block_tag(key.name.low);
    size_t at = block_buckets_home(&shadow->buckets, tag);

    for (;; at = block_buckets_after(&shadow->buckets, at)) {
        const struct block_bucket *bucket = &shadow->buckets.at[at];

        for (unsigned mask = block_bucket_with_tag(bucket, tag); mask != 0; mask &= mask - 1) {
            const uint32_t index = bucket->entries[__builtin_ctz(mask)];

            if (index != 0 && block_key_equal(shadow->blocks[index].key, key))
                return index;
        }
        if (!block_bucket_is_full(bucket))
            return 0;
    }
}

/* The index of the block that goes. */
static uint32_t evict(struct eviction_shadow *shadow)
{
    uint32_t victim;
    const size_t count = shadow->policy->pick(shadow->state, &victim, 1);

    assert(count == 1); /* all are candidates */
    if (!block_buckets_remove(&shadow->buckets, block_tag(shadow->blocks[victim].key.name.low),
                              victim))
        abort(); /* a block that no bucket knows */
    shadow->policy->on_needed(shadow->state, victim);
    shadow->policy->on_left(shadow->state, victim, true);
    return victim;
}

bool eviction_shadow_ask(struct eviction_shadow *shadow, struct block_key key)
{
    uint32_t index = find(shadow, key);

    if (index != 0) {
        shadow->policy->on_needed(shadow->state, index);
        shadow->policy->on_used(shadow->state, index);
        shadow->policy->on_candidate(shadow->state, index);
        return true;
    }
    index = shadow->count < shadow->slot_count ? ++shadow->count : evict(shadow);
    shadow->blocks[index].key = key;
    block_buckets_add(&shadow->buckets, block_tag(key.name.low), index);
    shadow->policy->on_held(shadow->state, index);
    shadow->policy->on_candidate(shadow->state, index);
    return false;
}
