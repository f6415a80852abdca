/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/eviction.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include "kvtier/tiers/eviction_ghosts.h"
#include "tests/support/leak_check.h"
#include "tests/unit/tiers/table_world.h"

TestSuite(eviction_lfu_aged, .fini = leak_check);
TestSuite(eviction_ghosts, .fini = leak_check);

static uint64_t evict_first(struct block_table *table)
{
    const uint32_t victim = first_victim(table, BLOCK_TIER_CPU);
    const uint64_t number = block_table_at(table, victim)->key.name.low;

    make_leave(table, victim, BLOCK_TIER_CPU);
    return number;
}

/*
 * By hand, age 0 at first:       priority = uses + age
 *   1 comes, 2 comes, 3 comes    1: 1    2: 1    3: 1
 *   1 is used twice, 2 once      1: 3    2: 2    3: 1
 *   3 goes                       age 1
 *   4 comes                                      4: 2 (later than 2)
 *   2 goes                       age 2
 *   5 comes, is used             5: 2 + 2 = 4
 *   4 goes (2)                   age 2
 *   6 comes                      6: 1 + 2 = 3 (later than 1)
 *   1 goes (3), for all its uses; then 6 (3), then 5 (4)
 */
Test(eviction_lfu_aged, goes_by_uses_that_fade)
{
    static const uint64_t expected[] = {4, 1, 6, 5};
    struct block_table *table = table_of(8, 0, &eviction_lfu_aged);
    const uint32_t one = add_held(table, 1, 0, BLOCK_TIER_CPU);
    const uint32_t two = add_held(table, 2, 0, BLOCK_TIER_CPU);
    add_held(table, 3, 0, BLOCK_TIER_CPU);
    block_table_use(table, &one, 1);
    block_table_use(table, &one, 1);
    block_table_use(table, &two, 1);

    cr_assert(eq(u64, evict_first(table), 3));
    add_held(table, 4, 0, BLOCK_TIER_CPU);
    cr_assert(eq(u64, evict_first(table), 2));
    const uint32_t five = add_held(table, 5, 0, BLOCK_TIER_CPU);
    block_table_use(table, &five, 1);
    cr_assert(eq(u64, evict_first(table), expected[0]));
    add_held(table, 6, 0, BLOCK_TIER_CPU);
    for (size_t i = 1; i < sizeof expected / sizeof *expected; i++)
        cr_assert(eq(u64, evict_first(table), expected[i]));

    block_table_destroy(table);
}

Test(eviction_lfu_aged, a_chain_goes_from_its_end_whatever_the_counts)
{
    struct block_table *table = table_of(8, 0, &eviction_lfu_aged);
    uint32_t chain[3], victims[8], parent = 0;
    for (uint32_t i = 0; i < 3; i++)
        parent = chain[i] = add_held(table, i + 1, parent, BLOCK_TIER_CPU);
    block_table_use(table, chain + 2, 1); /* the end alone, more often than what is before it */

    cr_assert(eq(sz, block_table_pick(table, BLOCK_TIER_CPU, victims, 8), 3));

    for (uint32_t i = 0; i < 3; i++)
        cr_assert(eq(u32, victims[i], chain[2 - i]));
    block_table_destroy(table);
}

Test(eviction_lfu_aged, who_comes_back_goes_on_counting)
{
    struct block_table *table = table_of(8, 0, &eviction_lfu_aged);
    const uint32_t one = add_held(table, 1, 0, BLOCK_TIER_CPU);
    block_table_use(table, &one, 1);
    cr_assert(eq(u64, evict_first(table), 1)); /* age 2 */
    add_held(table, 1, 0, BLOCK_TIER_CPU);     /* 3 + 2 */
    add_held(table, 2, 0, BLOCK_TIER_CPU);     /* 1 + 2 */

    cr_assert(eq(u64, evict_first(table), 2));

    block_table_destroy(table);
}

Test(eviction_lfu_aged, what_was_withdrawn_ages_nobody)
{
    struct block_table *table = table_of(8, 0, &eviction_lfu_aged);
    const uint32_t one = add_held(table, 1, 0, BLOCK_TIER_CPU);
    const uint32_t two = add_held(table, 2, 0, BLOCK_TIER_CPU);
    for (int i = 0; i < 5; i++)
        block_table_use(table, &one, 1);
    block_table_use(table, &two, 1);

    make_leave(table, one, BLOCK_TIER_CPU); /* not picked: age stays 0 */
    add_held(table, 3, 0, BLOCK_TIER_CPU);  /* 1, and not 7 */

    cr_assert(eq(u64, evict_first(table), 3));
    block_table_destroy(table);
}

Test(eviction_ghosts, remembers_once_and_loses_the_older_of_one_place)
{
    struct eviction_ghosts ghosts;
    cr_assert(eq(int, eviction_ghosts_init(&ghosts, 1), 0)); /* one place for all */

    cr_assert(eq(u32, eviction_ghosts_take(&ghosts, 5), 0));
    eviction_ghosts_put(&ghosts, 5, 3);
    cr_assert(eq(u32, eviction_ghosts_take(&ghosts, 6), 0));
    cr_assert(eq(u32, eviction_ghosts_take(&ghosts, 5), 3));
    cr_assert(eq(u32, eviction_ghosts_take(&ghosts, 5), 0));
    eviction_ghosts_put(&ghosts, 5, 3);
    eviction_ghosts_put(&ghosts, 6, 4);
    cr_assert(eq(u32, eviction_ghosts_take(&ghosts, 5), 0));
    cr_assert(eq(u32, eviction_ghosts_take(&ghosts, 6), 4));

    eviction_ghosts_release(&ghosts);
}
