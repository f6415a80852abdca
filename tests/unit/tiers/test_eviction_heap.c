/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/eviction_heap.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include "backends/runtime/random.h"
#include "kvtier/tiers/eviction.h"
#include "tests/support/leak_check.h"

TestSuite(eviction_heap, .fini = leak_check);

enum { INDEX_COUNT = 200 };

static struct eviction_rank some_rank(uint64_t *random)
{
    return (struct eviction_rank){random_next(random) % 8, random_next(random)};
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
        } else if (random_next(&random) % 2 == 0) {
            ranks[index] = some_rank(&random);
            eviction_heap_move(&heap, index, ranks[index]);
        } else {
            eviction_heap_remove(&heap, index);
            count--;
        }
        cr_assert(eq(u32, heap.count, count));
        for (uint32_t i = 0; i < INDEX_COUNT && count > 0; i++)
            cr_assert(not(eviction_heap_has(&heap, i) &&
                          eviction_rank_is_lower(ranks[i], eviction_heap_top(&heap).rank)));
    }
    struct eviction_rank last = {0, 0};
    while (heap.count > 0) {
        const struct eviction_entry entry = eviction_heap_pop(&heap);
        cr_assert(not(eviction_rank_is_lower(entry.rank, last)));
        cr_assert(eq(u64, entry.rank.minor, ranks[entry.index].minor));
        last = entry.rank;
    }
    eviction_heap_release(&heap);
}

Test(eviction_heap, the_first_are_those_that_would_come_out_and_stay_in)
{
    struct eviction_heap heap, scratch;
    uint32_t first[EVICTION_PICK_MAX];
    uint64_t random = 2;
    cr_assert(eq(int, eviction_heap_init(&heap, INDEX_COUNT, INDEX_COUNT), 0));
    cr_assert(eq(int, eviction_heap_init(&scratch, EVICTION_PICK_MAX * EVICTION_HEAP_FAN, 0), 0));
    for (uint32_t i = 0; i < INDEX_COUNT; i++)
        eviction_heap_push(&heap, i, some_rank(&random));

    const size_t count = eviction_heap_first(&heap, &scratch, first, EVICTION_PICK_MAX);

    cr_assert(eq(sz, count, EVICTION_PICK_MAX));
    cr_assert(eq(u32, heap.count, INDEX_COUNT));
    for (size_t i = 0; i < count; i++)
        cr_assert(eq(u32, eviction_heap_pop(&heap).index, first[i]));
    eviction_heap_release(&heap);
    eviction_heap_release(&scratch);
}

Test(eviction_heap, of_fewer_than_asked_all_are_first)
{
    struct eviction_heap heap, scratch;
    uint32_t first[8];
    cr_assert(eq(int, eviction_heap_init(&heap, 4, 4), 0));
    cr_assert(eq(int, eviction_heap_init(&scratch, 8 * EVICTION_HEAP_FAN, 0), 0));

    cr_assert(eq(sz, eviction_heap_first(&heap, &scratch, first, 8), 0));
    eviction_heap_push(&heap, 3, (struct eviction_rank){1, 1});
    eviction_heap_push(&heap, 1, (struct eviction_rank){0, 5});
    cr_assert(eq(sz, eviction_heap_first(&heap, &scratch, first, 8), 2));

    cr_assert(eq(u32, first[0], 1));
    cr_assert(eq(u32, first[1], 3));
    eviction_heap_release(&heap);
    eviction_heap_release(&scratch);
}
