/* SPDX-License-Identifier: Apache-2.0 */

/*
 * eviction_heap: indices in the order of their ranks: the lowest is known at once, any can be taken
 * out. Pure; one thread at a time.
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
    uint32_t minor;
};

/* A rank and whose it is, without the four bytes that a struct in it would leave empty: four
 * entries are a cache line. */
struct eviction_entry {
    uint64_t major;
    uint32_t minor;
    uint32_t index;
};

struct eviction_heap {
    struct eviction_entry *entries;
    uint32_t *at; /* by index: 1 + where in entries, 0: not there; NULL: an index is not found */
    uint32_t count;
    uint32_t count_max;
    void *memory; /* that entries lie in */
};

static inline bool eviction_rank_is_lower(struct eviction_rank a, struct eviction_rank b)
{
    return a.major != b.major ? a.major < b.major : a.minor < b.minor;
}

static inline struct eviction_rank eviction_entry_rank(const struct eviction_entry *entry)
{
    return (struct eviction_rank){entry->major, entry->minor};
}

/* Room for count_max. index_count: indices are below it, and can be found; 0: any index, but then
 * has and remove may not be called. -ENOMEM. */
MUST_CHECK int eviction_heap_init(struct eviction_heap *heap, uint32_t count_max,
                                  uint32_t index_count);
void eviction_heap_release(struct eviction_heap *heap);

/* index is not there, and there is room. */
void eviction_heap_push(struct eviction_heap *heap, uint32_t index, struct eviction_rank rank);

/* The lowest, which there must be; pop takes it out. */
struct eviction_entry eviction_heap_top(const struct eviction_heap *heap);
struct eviction_entry eviction_heap_pop(struct eviction_heap *heap);

bool eviction_heap_has(const struct eviction_heap *heap, uint32_t index);
void eviction_heap_remove(struct eviction_heap *heap, uint32_t index);

#endif
