/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Any payload, twice: what is told of changes is what the chain holds, in every tier; and of
 * another epoch of the engine nothing is held.
 */
#include "kvtier/cache_events.h"

#include <assert.h>
#include <string.h>

enum { NODE_COUNT_MAX = 64 };

struct world {
    struct token_chain chain;
    struct cache_events events;
    uint32_t held[TOKEN_TIER_COUNT]; /* as told */
};

static const uint8_t secret[DIGEST_SECRET_BYTES] = "a secret of the cluster";

static void on_changed(void *ctx, uint64_t name, uint8_t before, uint8_t after)
{
    struct world *world = ctx;

    assert(name != 0 && before != after);
    for (unsigned tier = 0; tier < TOKEN_TIER_COUNT; tier++)
        world->held[tier] += (after >> tier & 1U) - (before >> tier & 1U);
}

static void check_held(const struct world *world)
{
    uint32_t held[TOKEN_TIER_COUNT] = {0};

    for (uint32_t i = 1; i <= world->chain.node_used; i++)
        for (unsigned tier = 0; tier < TOKEN_TIER_COUNT; tier++)
            held[tier] += token_chain_at(&world->chain, i)->tiers >> tier & 1U;
    assert(memcmp(held, world->held, sizeof held) == 0);
    assert(world->events.block_tokens <= CACHE_EVENTS_BLOCK_TOKENS_MAX);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct world world;
    static const uint32_t none[TOKEN_TIER_COUNT];
    struct kv_event_batch batch;
    int status =
        token_chain_init(&world.chain, (struct token_chain_config){.secret = secret,
                                                                   .node_count_max = NODE_COUNT_MAX,
                                                                   .groups = 1,
                                                                   .on_changed = on_changed,
                                                                   .ctx = &world});

    assert(status == 0);
    memset(world.held, 0, sizeof world.held);
    cache_events_init(&world.events, secret, &world.chain);
    for (int i = 0; i < 2; i++) {
        if (kv_event_batch_open(&batch, slice_of((const char *)data, size)) == 0)
            cache_events_apply(&world.events, &batch);
        check_held(&world);
    }
    cache_events_begin_epoch(&world.events);
    check_held(&world);
    assert(memcmp(world.held, none, sizeof none) == 0);
    token_chain_release(&world.chain);
    return 0;
}
