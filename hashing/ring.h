/* SPDX-License-Identifier: Apache-2.0 */

/*
 * ring: consistent hashing with bounded load. A key belongs to the first node clockwise from it
 * that is not overloaded; a node that comes or goes moves about its own share of the keys. Unlike
 * rendezvous it costs one binary search, however many nodes there are. Immutable once built.
 */
#ifndef HASHING_RING_H
#define HASHING_RING_H

#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/must_check.h"

enum { RING_POINTS_PER_NODE = 128 }; /* shares differ by about 1 / sqrt(128) = 9 % */

struct ring_point {
    uint64_t at;
    uint32_t node; /* place in the array it was built from */
};

struct ring {
    struct ring_point *points; /* in clockwise order */
    size_t point_count;
    size_t node_count;
};

/* ids are the same on every router (hashes of names); count > 0. -ENOMEM. */
MUST_CHECK int ring_init(struct ring *ring, const uint64_t *ids, size_t count);

/*
 * The node of key, given the load of each node (requests in flight, say) without this one.
 * load_factor_max >= 1: how far above the mean a load may get by it; 1.25 is usual. HUGE_VAL: plain
 * consistent hashing, and then loads may be NULL.
 */
uint32_t ring_pick(const struct ring *ring, uint64_t key, const uint32_t *loads,
                   double load_factor_max);

void ring_release(struct ring *ring);

#endif
