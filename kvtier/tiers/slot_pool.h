/* SPDX-License-Identifier: Apache-2.0 */

/*
 * slot_pool: which slots of a tier are free. Every slot is either free or taken, and every call
 * takes the same short time. Pure; one thread at a time.
 */
#ifndef KVTIER_TIERS_SLOT_POOL_H
#define KVTIER_TIERS_SLOT_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "backends/runtime/must_check.h"

#define SLOT_POOL_NONE UINT32_MAX

struct slot_pool {
    uint32_t *free; /* [free_count] those that are free; the last goes next */
    uint32_t *at;   /* [slot_count] where in free, SLOT_POOL_NONE: taken */
    uint32_t free_count;
    uint32_t slot_count;
};

/* All free; the lowest go first until slots come back. 0 slots are no mistake. -ENOMEM. */
MUST_CHECK int slot_pool_init(struct slot_pool *pool, uint32_t slot_count);
void slot_pool_release(struct slot_pool *pool);

/* A slot that was free, or SLOT_POOL_NONE. */
uint32_t slot_pool_take(struct slot_pool *pool);

/* Takes that one. False: it is taken, or there is none of that number. */
bool slot_pool_claim(struct slot_pool *pool, uint32_t slot);

/* Frees a slot that is taken. */
void slot_pool_give(struct slot_pool *pool, uint32_t slot);

bool slot_pool_is_free(const struct slot_pool *pool, uint32_t slot);

/* Whether both arrays say the same: for tests, O(slots). */
bool slot_pool_is_sound(const struct slot_pool *pool);

#endif
