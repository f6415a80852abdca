/* SPDX-License-Identifier: Apache-2.0 */

/*
 * eviction_order: the candidates of a tier, by their ranks: which go first. Pure; one thread at a
 * time.
 */
#ifndef KVTIER_TIERS_EVICTION_ORDER_H
#define KVTIER_TIERS_EVICTION_ORDER_H

#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/must_check.h"
#include "kvtier/tiers/eviction_heap.h"

enum { EVICTION_PICK_MAX = 64 }; /* victims of one pick */

struct eviction_order {
    struct eviction_entry front[EVICTION_PICK_MAX]; /* the lowest of all, highest first */
    uint32_t front_count;
    struct eviction_heap heap; /* all others */
};

/* Room for count_max of the indices below index_count. -ENOMEM. */
MUST_CHECK int eviction_order_init(struct eviction_order *order, uint32_t count_max,
                                   uint32_t index_count);
void eviction_order_release(struct eviction_order *order);

/* index is not there, and there is room; its rank stays until it is removed. */
void eviction_order_add(struct eviction_order *order, uint32_t index, struct eviction_rank rank);

/* index is there. */
void eviction_order_remove(struct eviction_order *order, uint32_t index);

/* The count (EVICTION_PICK_MAX at most) lowest or all, lowest first, who stay. Returns how many. */
size_t eviction_order_first(struct eviction_order *order, uint32_t *indices, size_t count);

#endif
