/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/eviction_heap.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

/*
 * DESIGN
 *
 * A heap, not a list by age: a parent becomes a candidate when its last child has left, with the
 * age that it has had all along, so it goes in anywhere.
 *
 * Four children a node: half the levels of a binary heap, and the children of one lie in two cache
 * lines. Ranks are kept beside the indices, so that sifting touches no block.
 */

static uint32_t first_child(uint32_t at)
{
    return at * EVICTION_HEAP_FAN + 1;
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
        const uint32_t above = (at - 1) / EVICTION_HEAP_FAN;

        if (!eviction_rank_is_lower(entry.rank, heap->entries[above].rank))
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
        for (uint32_t i = begin + 1; i < begin + EVICTION_HEAP_FAN && i < heap->count; i++)
            if (eviction_rank_is_lower(heap->entries[i].rank, heap->entries[lowest].rank))
                lowest = i;
        if (!eviction_rank_is_lower(heap->entries[lowest].rank, entry.rank))
            break;
        put(heap, at, heap->entries[lowest]);
        at = lowest;
    }
    put(heap, at, entry);
}

/* Puts entry where it belongs, `at` or elsewhere. */
static void settle(struct eviction_heap *heap, uint32_t at, struct eviction_entry entry)
{
    if (at > 0 &&
        eviction_rank_is_lower(entry.rank, heap->entries[(at - 1) / EVICTION_HEAP_FAN].rank))
        sift_up(heap, at, entry);
    else
        sift_down(heap, at, entry);
}

static void remove_at(struct eviction_heap *heap, uint32_t at)
{
    const struct eviction_entry last = heap->entries[--heap->count];

    if (heap->at != NULL)
        heap->at[heap->entries[at].index] = 0;
    if (at < heap->count)
        settle(heap, at, last);
}

int eviction_heap_init(struct eviction_heap *heap, uint32_t count_max, uint32_t index_count)
{
    *heap = (struct eviction_heap){.count_max = count_max};
    heap->entries = calloc(count_max, sizeof *heap->entries);
    if (index_count > 0)
        heap->at = calloc(index_count, sizeof *heap->at);
    if (heap->entries == NULL || (index_count > 0 && heap->at == NULL)) {
        eviction_heap_release(heap);
        return -ENOMEM;
    }
    return 0;
}

void eviction_heap_release(struct eviction_heap *heap)
{
    free(heap->entries);
    free(heap->at);
    *heap = (struct eviction_heap){.entries = NULL};
}

void eviction_heap_push(struct eviction_heap *heap, uint32_t index, struct eviction_rank rank)
{
    assert(heap->count < heap->count_max);
    assert(heap->at == NULL || heap->at[index] == 0);

    sift_up(heap, heap->count++, (struct eviction_entry){rank, index});
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

void eviction_heap_move(struct eviction_heap *heap, uint32_t index, struct eviction_rank rank)
{
    assert(eviction_heap_has(heap, index));

    settle(heap, heap->at[index] - 1, (struct eviction_entry){rank, index});
}

void eviction_heap_remove(struct eviction_heap *heap, uint32_t index)
{
    assert(eviction_heap_has(heap, index));

    remove_at(heap, heap->at[index] - 1);
}

/* The next lowest is the lowest of the children of those that were taken: scratch holds these, by
 * their places. */
size_t eviction_heap_first(const struct eviction_heap *heap, struct eviction_heap *scratch,
                           uint32_t *indices, size_t count)
{
    size_t taken = 0;

    assert(scratch->at == NULL);
    assert(scratch->count_max >= count * EVICTION_HEAP_FAN);

    scratch->count = 0;
    if (heap->count > 0 && count > 0)
        eviction_heap_push(scratch, 0, heap->entries[0].rank);
    while (taken < count && scratch->count > 0) {
        const uint32_t at = eviction_heap_pop(scratch).index;
        const uint32_t begin = first_child(at);

        indices[taken++] = heap->entries[at].index;
        for (uint32_t i = begin; i < begin + EVICTION_HEAP_FAN && i < heap->count; i++)
            eviction_heap_push(scratch, i, heap->entries[i].rank);
    }
    return taken;
}
