/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/slot_pool.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

/*
 * DESIGN
 *
 *   free  [ 7 | 2 | 5 ]         a stack of the free slots, in any order
 *   at      2 -> 1, 5 -> 2, 7 -> 0, all others NONE
 *
 * A bit map would be smaller, but finds a free slot by looking for it. at lets a restart scan claim
 * one slot out of the middle: the last of the stack takes its place.
 */

int slot_pool_init(struct slot_pool *pool, uint32_t slot_count)
{
    *pool = (struct slot_pool){.free_count = slot_count, .slot_count = slot_count};
    if (slot_count == 0)
        return 0;
    pool->free = malloc(slot_count * sizeof *pool->free);
    pool->at = malloc(slot_count * sizeof *pool->at);
    if (pool->free == NULL || pool->at == NULL) {
        slot_pool_release(pool);
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < slot_count; i++) {
        pool->free[i] = slot_count - 1 - i;
        pool->at[slot_count - 1 - i] = i;
    }
    return 0;
}

void slot_pool_release(struct slot_pool *pool)
{
    free(pool->free);
    free(pool->at);
    *pool = (struct slot_pool){.free = NULL};
}

uint32_t slot_pool_take(struct slot_pool *pool)
{
    uint32_t slot;

    if (pool->free_count == 0)
        return SLOT_POOL_NONE;
    slot = pool->free[--pool->free_count];
    pool->at[slot] = SLOT_POOL_NONE;
    return slot;
}

bool slot_pool_claim(struct slot_pool *pool, uint32_t slot)
{
    uint32_t last, at;

    if (!slot_pool_is_free(pool, slot))
        return false;
    at = pool->at[slot];
    last = pool->free[--pool->free_count];
    pool->free[at] = last;
    pool->at[last] = at;
    pool->at[slot] = SLOT_POOL_NONE; /* after the line above: slot may be the last itself */
    return true;
}

void slot_pool_give(struct slot_pool *pool, uint32_t slot)
{
    assert(slot < pool->slot_count);
    assert(pool->at[slot] == SLOT_POOL_NONE);

    pool->at[slot] = pool->free_count;
    pool->free[pool->free_count++] = slot;
}

bool slot_pool_is_free(const struct slot_pool *pool, uint32_t slot)
{
    return slot < pool->slot_count && pool->at[slot] != SLOT_POOL_NONE;
}

bool slot_pool_is_sound(const struct slot_pool *pool)
{
    uint32_t free_count = 0;

    for (uint32_t slot = 0; slot < pool->slot_count; slot++) {
        if (pool->at[slot] == SLOT_POOL_NONE)
            continue;
        if (pool->at[slot] >= pool->free_count || pool->free[pool->at[slot]] != slot)
            return false;
        free_count++;
    }
    return free_count == pool->free_count;
}
