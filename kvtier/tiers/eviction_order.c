/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/eviction_order.h"

#include <assert.h>
#include <string.h>

/*
 * DESIGN
 *
 *   front   [ 31 28 27 ... 9 7 6 ]        sorted, the lowest at its end
 *   heap    31 <= all of it
 *
 * Whoever asks for the first takes most of them away, and then their parents become candidates,
 * with the age that they have had all along: hardly higher, mostly, than the children. In a heap
 * each of them would sink through all of its levels and rise through all of them, a miss a level.
 * Here a chain leaves from the end of a short array and never comes into the heap.
 *
 * A heap behind it and no list by age: a parent may belong anywhere.
 */

int eviction_order_init(struct eviction_order *order, uint32_t count_max, uint32_t index_count)
{
    order->front_count = 0;
    return eviction_heap_init(&order->heap, count_max, index_count);
}

void eviction_order_release(struct eviction_order *order)
{
    eviction_heap_release(&order->heap);
    order->front_count = 0;
}

/* Whoever is the highest of the front is the lowest of the heap then. */
static void make_room(struct eviction_order *order)
{
    if (order->front_count < EVICTION_PICK_MAX)
        return;
    eviction_heap_push(&order->heap, order->front[0].index, eviction_entry_rank(&order->front[0]));
    order->front_count--;
    memmove(order->front, order->front + 1, order->front_count * sizeof order->front[0]);
}

void eviction_order_add(struct eviction_order *order, uint32_t index, struct eviction_rank rank)
{
    uint32_t at;

    assert(order->front_count + order->heap.count < order->heap.count_max);
    assert(!eviction_heap_has(&order->heap, index));

    if (order->front_count == 0 ||
        !eviction_rank_is_lower(rank, eviction_entry_rank(&order->front[0]))) {
        eviction_heap_push(&order->heap, index, rank);
        return;
    }
    make_room(order);
    for (at = order->front_count;
         at > 0 && eviction_rank_is_lower(eviction_entry_rank(&order->front[at - 1]), rank); at--)
        order->front[at] = order->front[at - 1];
    order->front[at] = (struct eviction_entry){rank.major, rank.minor, index};
    order->front_count++;
}

void eviction_order_remove(struct eviction_order *order, uint32_t index)
{
    uint32_t at = order->front_count;

    if (eviction_heap_has(&order->heap, index)) {
        eviction_heap_remove(&order->heap, index);
        return;
    }
    while (at > 0 && order->front[at - 1].index != index)
        at--;
    assert(at > 0);
    for (order->front_count--; at <= order->front_count; at++)
        order->front[at - 1] = order->front[at];
}

size_t eviction_order_first(struct eviction_order *order, uint32_t *indices, size_t count)
{
    assert(count <= EVICTION_PICK_MAX);

    if (order->front_count < count) {
        const size_t wanted = count - order->front_count;
        const size_t more = wanted < order->heap.count ? wanted : order->heap.count;

        memmove(order->front + more, order->front, order->front_count * sizeof order->front[0]);
        for (size_t i = more; i > 0; i--)
            order->front[i - 1] = eviction_heap_pop(&order->heap);
        order->front_count += (uint32_t)more;
    }
    if (count > order->front_count)
        count = order->front_count;
    for (size_t i = 0; i < count; i++)
        indices[i] = order->front[order->front_count - 1 - i].index;
    return count;
}
