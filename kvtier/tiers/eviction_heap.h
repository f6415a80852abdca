/* SPDX-License-Identifier: Apache-2.0 */

/*
 * eviction_heap: indices in the order of their ranks: the lowest is known at once, any can be taken
 * out or moved. Pure; one thread at a time.
 */
#ifndef KVTIER_TIERS_EVICTION_HEAP_H
#define KVTIER_TIERS_EVICTION_HEAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/must_check.h"

/* Where a candidate stands: the lower goes first, by major, then minor. Of two blocks of one chain
 * the nearer to its end is never the higher after a use of both. */
struct eviction_rank {
    uint64_t major;
    uint64_t minor;
};

struct eviction_entry {
    struct eviction_rank rank;
    uint32_t index;
};

struct eviction_heap {
    struct eviction_entry *entries;
    uint32_t *at; /* by index: 1 + where in entries, 0: not there; NULL: an index is not found */
    uint32_t count;
    uint32_t count_max;
};

static inline bool eviction_rank_is_lower(struct eviction_rank a, struct eviction_rank b)
{
    return a.major != b.major ? a.major < b.major : a.minor < b.minor;
}

/* Room for count_max. index_count: indices are below it, and can be found; 0: any index, but then
 * has, move and remove may not be called. -ENOMEM. */
MUST_CHECK int eviction_heap_init(struct eviction_heap *heap, uint32_t count_max,
                                  uint32_t index_count);
void eviction_heap_release(struct eviction_heap *heap);

/* index is not there, and there is room. */
void eviction_heap_push(struct eviction_heap *heap, uint32_t index, struct eviction_rank rank);

/* The lowest, which there must be; pop takes it out. */
struct eviction_entry eviction_heap_top(const struct eviction_heap *heap);
struct eviction_entry eviction_heap_pop(struct eviction_heap *heap);

bool eviction_heap_has(const struct eviction_heap *heap, uint32_t index);
void eviction_heap_move(struct eviction_heap *heap, uint32_t index, struct eviction_rank rank);
void eviction_heap_remove(struct eviction_heap *heap, uint32_t index);

/* The count lowest or all, lowest first. Returns how many. scratch: a heap without indices that has
 * room for EVICTION_HEAP_FAN * count; what is in it is lost. */
enum { EVICTION_HEAP_FAN = 4 };
size_t eviction_heap_first(const struct eviction_heap *heap, struct eviction_heap *scratch,
                           uint32_t *indices, size_t count);

#endif
