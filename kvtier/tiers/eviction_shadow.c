/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/eviction_shadow.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "kvtier/tiers/eviction.h"

/*
 * DESIGN
 *
 * The policy itself runs over blocks of our own, so a shadow never differs from what it shadows. No
 * chains are kept: all blocks of a request are asked for together, and both policies that there are
 * let tails go before what all requests share.
 */

static uint32_t *bucket_of(const struct eviction_shadow *shadow, struct block_key key)
{
    return &shadow->buckets[key.name.low * 0x9e3779b97f4a7c15u >> 32 & shadow->bucket_mask];
}

int eviction_shadow_init(struct eviction_shadow *shadow, const struct eviction_ops *policy,
                         uint32_t slot_count)
{
    uint32_t bucket_count = 1;

    assert(slot_count > 0 && slot_count < UINT32_MAX / 2);

    while (bucket_count < slot_count)
        bucket_count *= 2;
    *shadow = (struct eviction_shadow){
        .policy = policy,
        .blocks = calloc((size_t)slot_count + 1, sizeof *shadow->blocks),
        .buckets = calloc(bucket_count, sizeof *shadow->buckets),
        .bucket_mask = bucket_count - 1,
        .slot_count = slot_count,
    };
    if (shadow->blocks != NULL && shadow->buckets != NULL)
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
    free(shadow->buckets);
    *shadow = (struct eviction_shadow){.policy = NULL};
}

static uint32_t find(const struct eviction_shadow *shadow, struct block_key key)
{
    uint32_t index = *bucket_of(shadow, key);

    while (index != 0 && !block_key_equal(shadow->blocks[index].key, key))
        index = shadow->blocks[index].next;
    return index;
}

/* The index of the block that goes. */
static uint32_t evict(struct eviction_shadow *shadow)
{
    uint32_t victim, *link;
    const size_t count = shadow->policy->pick(shadow->state, &victim, 1);

    assert(count == 1); /* all are candidates */
    link = bucket_of(shadow, shadow->blocks[victim].key);
    while (*link != victim)
        link = &shadow->blocks[*link].next;
    *link = shadow->blocks[victim].next;
    shadow->policy->on_needed(shadow->state, victim);
    shadow->policy->on_left(shadow->state, victim, true);
    return victim;
}

bool eviction_shadow_ask(struct eviction_shadow *shadow, struct block_key key)
{
    uint32_t index = find(shadow, key);
    uint32_t *bucket = bucket_of(shadow, key);

    if (index != 0) {
        shadow->policy->on_used(shadow->state, index);
        return true;
    }
    index = shadow->count < shadow->slot_count ? ++shadow->count : evict(shadow);
    shadow->blocks[index].key = key;
    shadow->blocks[index].next = *bucket;
    *bucket = index;
    shadow->policy->on_held(shadow->state, index);
    shadow->policy->on_candidate(shadow->state, index);
    return false;
}
