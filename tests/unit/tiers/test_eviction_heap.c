/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/eviction_heap.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include "backends/runtime/random.h"
#include "tests/support/leak_check.h"

TestSuite(eviction_heap, .fini = leak_check);

enum { INDEX_COUNT = 200 };

static struct eviction_rank some_rank(uint64_t *random)
{
    return (struct eviction_rank){random_next(random) % 8, (uint32_t)random_next(random)};
}

Test(eviction_heap, comes_out_in_order_after_any_interleaving)
{
    struct eviction_heap heap;
    struct eviction_rank ranks[INDEX_COUNT] = {{0, 0}};
    uint32_t count = 0;
    uint64_t random = 1;
    cr_assert(eq(int, eviction_heap_init(&heap, INDEX_COUNT, INDEX_COUNT), 0));

    for (int step = 0; step < 20000; step++) {
        const uint32_t index = (uint32_t)(random_next(&random) % INDEX_COUNT);

        if (!eviction_heap_has(&heap, index)) {
            ranks[index] = some_rank(&random);
            eviction_heap_push(&heap, index, ranks[index]);
            count++;
        } else {
            eviction_heap_remove(&heap, index);
            count--;
        }
        cr_assert(eq(u32, heap.count, count));
        for (uint32_t i = 0; i < INDEX_COUNT && count > 0; i++) {
            const struct eviction_entry top = eviction_heap_top(&heap);

            cr_assert(not(eviction_heap_has(&heap, i) &&
                          eviction_rank_is_lower(ranks[i], eviction_entry_rank(&top))));
        }
    }
    struct eviction_rank last = {0, 0};
    while (heap.count > 0) {
        const struct eviction_entry entry = eviction_heap_pop(&heap);
        cr_assert(not(eviction_rank_is_lower(eviction_entry_rank(&entry), last)));
        cr_assert(eq(u32, entry.minor, ranks[entry.index].minor));
        last = eviction_entry_rank(&entry);
    }
    eviction_heap_release(&heap);
}

Test(eviction_heap, without_indices_equal_ones_may_be_in_it_twice)
{
    struct eviction_heap heap;
    cr_assert(eq(int, eviction_heap_init(&heap, 3, 0), 0));

    for (int i = 0; i < 3; i++)
        eviction_heap_push(&heap, 1000, (struct eviction_rank){1, 1});

    for (int i = 0; i < 3; i++)
        cr_assert(eq(u32, eviction_heap_pop(&heap).index, 1000));
    cr_assert(eq(u32, heap.count, 0));
    eviction_heap_release(&heap);
}
