/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/eviction_heap.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "backends/runtime/huge_array.h"

/*
 * DESIGN
 *
 *   memory   [ . . . 0 | 1 2 3 4 | 5 6 7 8 | ... ]        a cache line has the children of one
 *
 * Four children a node: half the levels of a binary heap. The first entry is the last of its line,
 * so that those of one node, 4 i + 1 to 4 i + 4, begin one. Ranks are kept beside the indices, so
 * that sifting touches no block.
 */
enum { FAN = 4, LINE_OFFSET = FAN - 1 };
static_assert(sizeof(struct eviction_entry) * FAN == 64, "children fill a cache line");

static bool is_lower(struct eviction_entry a, struct eviction_entry b)
{
    return eviction_rank_is_lower(eviction_entry_rank(&a), eviction_entry_rank(&b));
}

static uint32_t first_child(uint32_t at)
{
    return at * FAN + 1;
}

static void put(struct eviction_heap *heap, uint32_t at, struct eviction_entry entry)
{
    heap->entries[at] = entry;
    if (heap->at != NULL)
        heap->at[entry.index] = at + 1;
}

/* Puts entry at `at` or above, where what was there has been taken. */
static void sift_up(struct eviction_heap *heap, uint32_t at, struct eviction_entry entry)
{
    while (at > 0) {
        const uint32_t above = (at - 1) / FAN;

        if (!is_lower(entry, heap->entries[above]))
            break;
        put(heap, at, heap->entries[above]);
        at = above;
    }
    put(heap, at, entry);
}

/* As sift_up, at `at` or below. */
static void sift_down(struct eviction_heap *heap, uint32_t at, struct eviction_entry entry)
{
    for (;;) {
        const uint32_t begin = first_child(at);
        uint32_t lowest = begin;

        if (begin >= heap->count)
            break;
        for (uint32_t i = begin + 1; i < begin + FAN && i < heap->count; i++)
            if (is_lower(heap->entries[i], heap->entries[lowest]))
                lowest = i;
        if (!is_lower(heap->entries[lowest], entry))
            break;
        put(heap, at, heap->entries[lowest]);
        at = lowest;
    }
    put(heap, at, entry);
}

/* The last one takes the place of the one at `at`, or where it belongs. */
static void remove_at(struct eviction_heap *heap, uint32_t at)
{
    const struct eviction_entry last = heap->entries[--heap->count];

    if (heap->at != NULL)
        heap->at[heap->entries[at].index] = 0;
    if (at == heap->count)
        return;
    if (at > 0 && is_lower(last, heap->entries[(at - 1) / FAN]))
        sift_up(heap, at, last);
    else
        sift_down(heap, at, last);
}

int eviction_heap_init(struct eviction_heap *heap, uint32_t count_max, uint32_t index_count)
{
    *heap = (struct eviction_heap){.count_max = count_max};
    heap->memory = huge_array_alloc((size_t)count_max + LINE_OFFSET, sizeof *heap->entries);
    if (index_count > 0)
        heap->at = huge_array_alloc(index_count, sizeof *heap->at);
    if (heap->memory == NULL || (index_count > 0 && heap->at == NULL)) {
        eviction_heap_release(heap);
        return -ENOMEM;
    }
    heap->entries = heap->memory;
    heap->entries += LINE_OFFSET;
    return 0;
}

void eviction_heap_release(struct eviction_heap *heap)
{
    free(heap->memory);
    free(heap->at);
    *heap = (struct eviction_heap){.entries = NULL};
}

void eviction_heap_push(struct eviction_heap *heap, uint32_t index, struct eviction_rank rank)
{
    assert(heap->count < heap->count_max);
    assert(heap->at == NULL || heap->at[index] == 0);

    sift_up(heap, heap->count++, (struct eviction_entry){rank.major, rank.minor, index});
}

struct eviction_entry eviction_heap_top(const struct eviction_heap *heap)
{
    assert(heap->count > 0);

    return heap->entries[0];
}

struct eviction_entry eviction_heap_pop(struct eviction_heap *heap)
{
    const struct eviction_entry top = eviction_heap_top(heap);

    remove_at(heap, 0);
    return top;
}

bool eviction_heap_has(const struct eviction_heap *heap, uint32_t index)
{
    assert(heap->at != NULL);

    return heap->at[index] != 0;
}

void eviction_heap_remove(struct eviction_heap *heap, uint32_t index)
{
    assert(eviction_heap_has(heap, index));

    remove_at(heap, heap->at[index] - 1);
}
