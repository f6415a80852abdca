/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/eviction.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include "tests/support/leak_check.h"
#include "tests/unit/tiers/table_world.h"

TestSuite(eviction_lru_leaf, .fini = leak_check);

Test(eviction_lru_leaf, is_found_by_its_name_and_is_the_default)
{
    cr_assert(eq(ptr, (void *)eviction_find("lru_leaf"), (void *)&eviction_lru_leaf));
    cr_assert(eq(ptr, (void *)eviction_registry[0], (void *)&eviction_lru_leaf));
    cr_assert(eq(ptr, (void *)eviction_find("fifo"), NULL));
}

/* Two chains over one root:  1 - 2 - 3   used last      order: 5 4 3 2 1
 *                             \- 4 - 5                                    */
Test(eviction_lru_leaf, tails_go_before_their_prefix_and_old_chains_before_new)
{
    static const uint64_t expected[] = {5, 4, 3, 2, 1};
    struct block_table *table = table_of(8, 0, &eviction_lru_leaf);
    uint32_t victims[8];
    const uint32_t root = add_held(table, 1, 0, BLOCK_TIER_CPU);
    const uint32_t left = add_held(table, 2, root, BLOCK_TIER_CPU);
    const uint32_t left_end = add_held(table, 3, left, BLOCK_TIER_CPU);
    const uint32_t right = add_held(table, 4, root, BLOCK_TIER_CPU);
    const uint32_t right_end = add_held(table, 5, right, BLOCK_TIER_CPU);
    block_table_use(table, (uint32_t[]){root, right, right_end}, 3);
    block_table_use(table, (uint32_t[]){root, left, left_end}, 3);

    cr_assert(eq(sz, block_table_pick(table, BLOCK_TIER_CPU, victims, 8), 5));

    for (size_t i = 0; i < 5; i++)
        cr_assert(eq(u64, block_table_at(table, victims[i])->key.name.low, expected[i]));
    block_table_destroy(table);
}

Test(eviction_lru_leaf, a_use_moves_a_candidate)
{
    struct block_table *table = table_of(8, 0, &eviction_lru_leaf);
    const uint32_t older = add_held(table, 1, 0, BLOCK_TIER_CPU);
    const uint32_t newer = add_held(table, 2, 0, BLOCK_TIER_CPU);

    cr_assert(eq(u32, first_victim(table, BLOCK_TIER_CPU), older));
    block_table_use(table, &older, 1);

    cr_assert(eq(u32, first_victim(table, BLOCK_TIER_CPU), newer));
    block_table_destroy(table);
}

Test(eviction_lru_leaf, each_tier_has_an_order_of_its_own)
{
    struct block_table *table = table_of(4, 4, &eviction_lru_leaf);
    const uint32_t first = add_held(table, 1, 0, BLOCK_TIER_CPU);
    const uint32_t second = add_held(table, 2, 0, BLOCK_TIER_SSD);
    place_held(table, second, BLOCK_TIER_CPU);
    place_held(table, first, BLOCK_TIER_SSD);

    cr_assert(eq(u32, first_victim(table, BLOCK_TIER_CPU), first));
    cr_assert(eq(u32, first_victim(table, BLOCK_TIER_SSD), second));

    block_table_destroy(table);
}
