/* SPDX-License-Identifier: Apache-2.0 */

/*
 * eviction_ghosts: how often blocks were used that have left, for when they come back. Bounded: a
 * newer one takes the place of an older. A hint: names may be mistaken for each other.
 * Pure; one thread at a time.
 */
#ifndef KVTIER_TIERS_EVICTION_GHOSTS_H
#define KVTIER_TIERS_EVICTION_GHOSTS_H

#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/must_check.h"

struct eviction_ghost {
    uint32_t tag; /* of the name */
    uint32_t count;
};

struct eviction_ghosts {
    struct eviction_ghost *ghosts;
    size_t mask;
};

/* Room for count_min of them or more. -ENOMEM. */
MUST_CHECK int eviction_ghosts_init(struct eviction_ghosts *ghosts, size_t count_min);
void eviction_ghosts_release(struct eviction_ghosts *ghosts);

void eviction_ghosts_put(struct eviction_ghosts *ghosts, uint64_t name, uint32_t count);

/* What was put under that name, which is forgotten with this; 0: nothing is known. */
uint32_t eviction_ghosts_take(struct eviction_ghosts *ghosts, uint64_t name);

#endif
