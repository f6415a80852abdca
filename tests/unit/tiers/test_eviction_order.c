/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/eviction_order.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include "backends/runtime/random.h"
#include "tests/support/leak_check.h"

TestSuite(eviction_order, .fini = leak_check);

enum { INDEX_COUNT = 300 };

struct model {
    struct eviction_order order;
    struct eviction_rank ranks[INDEX_COUNT];
    bool is_in[INDEX_COUNT];
    uint64_t random;
};

/* The lowest of those that are in and not taken; INDEX_COUNT: none. */
static uint32_t lowest(const struct model *model, const bool *is_taken)
{
    uint32_t found = INDEX_COUNT;

    for (uint32_t i = 0; i < INDEX_COUNT; i++) {
        if (model->is_in[i] && !is_taken[i] &&
            (found == INDEX_COUNT || eviction_rank_is_lower(model->ranks[i], model->ranks[found])))
            found = i;
    }
    return found;
}

static void expect_first(struct model *model, size_t count)
{
    uint32_t first[EVICTION_PICK_MAX];
    bool is_taken[INDEX_COUNT] = {false};
    const size_t got = eviction_order_first(&model->order, first, count);

    for (size_t i = 0; i < got; i++) {
        cr_assert(eq(u32, first[i], lowest(model, is_taken)));
        is_taken[first[i]] = true;
    }
    if (got < count)
        cr_assert(eq(u32, lowest(model, is_taken), INDEX_COUNT));
}

/* As ranks are: no two are equal, and most of those that come in are low. */
static void add_or_remove(struct model *model, uint32_t step)
{
    const uint32_t index = (uint32_t)(random_next(&model->random) % INDEX_COUNT);

    if (model->is_in[index]) {
        eviction_order_remove(&model->order, index);
    } else {
        model->ranks[index] = (struct eviction_rank){random_next(&model->random) % 50, step};
        eviction_order_add(&model->order, index, model->ranks[index]);
    }
    model->is_in[index] = !model->is_in[index];
}

Test(eviction_order, the_first_are_the_lowest_in_order_after_any_interleaving)
{
    struct model model = {.random = 1};
    cr_assert(eq(int, eviction_order_init(&model.order, INDEX_COUNT, INDEX_COUNT), 0));

    for (uint32_t step = 0; step < 5000; step++) {
        add_or_remove(&model, step);
        if (random_next(&model.random) % 8 == 0)
            expect_first(&model, random_next(&model.random) % (EVICTION_PICK_MAX + 1));
    }

    expect_first(&model, EVICTION_PICK_MAX);
    eviction_order_release(&model.order);
}

Test(eviction_order, those_that_were_first_stay_until_they_are_removed)
{
    struct eviction_order order;
    uint32_t first[EVICTION_PICK_MAX], again[EVICTION_PICK_MAX];
    cr_assert(eq(int, eviction_order_init(&order, INDEX_COUNT, INDEX_COUNT), 0));
    for (uint32_t i = 0; i < INDEX_COUNT; i++)
        eviction_order_add(&order, i, (struct eviction_rank){i, 0});

    cr_assert(eq(sz, eviction_order_first(&order, first, 10), 10));
    cr_assert(eq(sz, eviction_order_first(&order, again, 5), 5));
    cr_assert(eq(u32, again[4], first[4]));

    eviction_order_remove(&order, first[0]);
    cr_assert(eq(sz, eviction_order_first(&order, again, 10), 10));
    for (size_t i = 0; i < 10; i++)
        cr_assert(eq(u32, again[i], i + 1));
    eviction_order_release(&order);
}

Test(eviction_order, more_low_ones_than_are_ever_asked_for_come_in_behind_the_first)
{
    struct eviction_order order;
    uint32_t first[EVICTION_PICK_MAX];
    cr_assert(eq(int, eviction_order_init(&order, INDEX_COUNT, INDEX_COUNT), 0));
    eviction_order_add(&order, INDEX_COUNT - 1, (struct eviction_rank){INDEX_COUNT, 0});
    cr_assert(eq(sz, eviction_order_first(&order, first, 1), 1));

    for (uint32_t i = INDEX_COUNT - 1; i > 0; i--)
        eviction_order_add(&order, i - 1, (struct eviction_rank){i - 1, 0});

    for (uint32_t i = 0; i < INDEX_COUNT; i++) {
        cr_assert(eq(sz, eviction_order_first(&order, first, 1), 1));
        cr_assert(eq(u32, first[0], i));
        eviction_order_remove(&order, i);
    }
    cr_assert(eq(sz, eviction_order_first(&order, first, 1), 0));
    eviction_order_release(&order);
}
