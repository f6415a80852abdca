/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/eviction.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include "kvtier/tiers/eviction_shadow.h"
#include "tests/support/leak_check.h"
#include "tests/unit/tiers/table_world.h"

TestSuite(eviction_adaptive, .fini = leak_check);
TestSuite(eviction_shadow, .fini = leak_check);

enum { SLOTS = 64 };

/* A request for one block. True: it was there. */
static bool ask(struct block_table *table, uint64_t number)
{
    uint32_t index = block_table_find_key(table, key_of(number));

    if (index != 0) {
        block_table_use(table, &index, 1);
        return true;
    }
    if (block_table_stats(table)->free_slots[BLOCK_TIER_CPU] == 0)
        make_leave(table, first_victim(table, BLOCK_TIER_CPU), BLOCK_TIER_CPU);
    add_held(table, number, 0, BLOCK_TIER_CPU);
    return false;
}

/* Favours counts: 40 blocks that come again and again between ever new ones, each after more blocks
 * than there are slots, so that recency has lost all of them by then. */
static uint64_t hits_of_popular(struct block_table *table, uint64_t from, uint64_t count)
{
    uint64_t hits = 0;

    for (uint64_t i = from; i < from + count; i++) {
        hits += ask(table, 1 + i % 40);
        ask(table, 1000000 + i * 2);
        ask(table, 1000000 + i * 2 + 1);
    }
    return hits;
}

/* Favours recency: sets of 50 that are used for a while and never again. */
static uint64_t hits_of_moving(struct block_table *table, uint64_t from, uint64_t count)
{
    uint64_t hits = 0;

    for (uint64_t i = from; i < from + count; i++)
        hits += ask(table, 2000000 + i / 500 * 50 + i % 50);
    return hits;
}

static uint64_t hits_under(const struct eviction_ops *policy,
                           uint64_t (*hits_of)(struct block_table *, uint64_t, uint64_t))
{
    struct block_table *table = table_of(SLOTS, 0, policy);

    hits_of(table, 0, 10000); /* until it knows */
    const uint64_t hits = hits_of(table, 10000, 10000);
    cr_assert(block_table_is_sound(table));
    block_table_destroy(table);
    return hits;
}

Test(eviction_adaptive, follows_counts_where_recency_keeps_nothing)
{
    const uint64_t recency = hits_under(&eviction_lru_leaf, hits_of_popular);
    const uint64_t counts = hits_under(&eviction_lfu_aged, hits_of_popular);

    const uint64_t adaptive = hits_under(&eviction_adaptive, hits_of_popular);

    cr_assert(eq(u64, recency, 0));
    cr_assert(gt(u64, counts, 9000));
    cr_assert(ge(u64, adaptive, counts - counts / 100));
}

Test(eviction_adaptive, follows_recency_where_counts_hold_what_is_over)
{
    const uint64_t recency = hits_under(&eviction_lru_leaf, hits_of_moving);

    const uint64_t adaptive = hits_under(&eviction_adaptive, hits_of_moving);

    cr_assert(eq(u64, recency, 9000)); /* each set once in vain */
    cr_assert(ge(u64, adaptive, recency - recency / 100));
}

Test(eviction_adaptive, changes_its_mind_when_requests_change)
{
    struct block_table *table = table_of(SLOTS, 0, &eviction_adaptive);

    hits_of_moving(table, 0, 10000);
    hits_of_popular(table, 0, 3000);
    cr_assert(gt(u64, hits_of_popular(table, 3000, 1000), 900));
    hits_of_moving(table, 10000, 3000);
    cr_assert(gt(u64, hits_of_moving(table, 13000, 1000), 890));

    block_table_destroy(table);
}

Test(eviction_adaptive, goes_by_recency_until_it_knows_better)
{
    struct block_table *table = table_of(8, 0, &eviction_adaptive);
    const uint32_t used = add_held(table, 1, 0, BLOCK_TIER_CPU);
    block_table_use(table, &used, 1);
    add_held(table, 2, 0, BLOCK_TIER_CPU);

    cr_assert(eq(u32, first_victim(table, BLOCK_TIER_CPU), used));

    block_table_destroy(table);
}

Test(eviction_adaptive, a_tier_of_many_slots_is_sampled_and_decides_alike)
{
    enum { MANY = 40000 };
    struct block_table *table = table_of(MANY, 0, &eviction_adaptive);
    uint64_t hits = 0, asked = 0;

    for (uint64_t i = 0; i < 600000; i++) { /* as hits_of_popular(), for that many slots */
        const bool is_hit = ask(table, 1 + i % 25000);

        ask(table, 1000000 + i * 2);
        ask(table, 1000000 + i * 2 + 1);
        if (i >= 500000) {
            hits += is_hit;
            asked++;
        }
    }

    cr_assert(gt(u64, hits * 100, asked * 90));
    block_table_destroy(table);
}

/* Three slots by recency: 1 2 3, 1 again, 4 takes the place of 2, 2 that of 3. */
Test(eviction_shadow, has_what_its_policy_would_have_kept)
{
    static const uint64_t asked[] = {1, 2, 3, 1, 4, 1, 2, 3};
    static const bool expected[] = {false, false, false, true, false, true, false, false};
    struct eviction_shadow shadow;
    cr_assert(eq(int, eviction_shadow_init(&shadow, &eviction_lru_leaf, 3), 0));

    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++)
        cr_assert(eq(int, eviction_shadow_ask(&shadow, key_of(asked[i])), expected[i]));

    eviction_shadow_release(&shadow);
}
