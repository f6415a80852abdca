/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/load_plan.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include "backends/runtime/random.h"
#include "tests/support/leak_check.h"

TestSuite(load_plan, .fini = leak_check);

enum { CPU = 1 << BLOCK_TIER_CPU, SSD = 1 << BLOCK_TIER_SSD, BLOCKS_MAX = 40 };

/* 10 ms to compute a block; 1 to load it from CPU memory, 4 from the SSD; 5 before any load. */
static struct load_plan_query query_of(const uint8_t *tiers, size_t count)
{
    return (struct load_plan_query){
        .tiers = tiers,
        .block_count = count,
        .block_tokens = 100,
        .prefill_ms_per_token = 0.1,
        .start_ms = {[BLOCK_TIER_CPU] = 5, [BLOCK_TIER_SSD] = 5},
        .ms_per_block = {[BLOCK_TIER_CPU] = 1, [BLOCK_TIER_SSD] = 4},
    };
}

Test(load_plan, loads_all_where_that_is_faster)
{
    static const uint8_t tiers[] = {CPU, CPU | SSD, CPU, CPU};
    const struct load_plan_query query = query_of(tiers, 4);

    const struct load_plan plan = load_plan_make(&query);

    cr_assert(eq(sz, plan.block_count, 4));
    cr_assert(epsilon_eq(dbl, plan.load_ms, 5 + 4, 1e-9));
    cr_assert(epsilon_eq(dbl, plan.saved_ms, 40 - 9, 1e-9));
}

Test(load_plan, loads_nothing_where_computing_is_faster)
{
    static const uint8_t tiers[] = {CPU, CPU};
    struct load_plan_query query = query_of(tiers, 2);
    query.queue_ms[BLOCK_TIER_CPU] = 14;

    const struct load_plan plan = load_plan_make(&query);

    cr_assert(eq(sz, plan.block_count, 0));
    cr_assert(eq(dbl, plan.load_ms, 0));
    cr_assert(eq(dbl, plan.saved_ms, 0));
}

Test(load_plan, of_equal_savings_the_longer_is_loaded)
{
    static const uint8_t tiers[] = {CPU, CPU};
    struct load_plan_query query = query_of(tiers, 2);
    query.queue_ms[BLOCK_TIER_CPU] = 13; /* 5 + 13 + 2 == 20 */

    cr_assert(eq(sz, load_plan_make(&query).block_count, 2));
}

Test(load_plan, a_slow_end_is_left_out)
{
    static const uint8_t tiers[] = {CPU, CPU, SSD, SSD};
    struct load_plan_query query = query_of(tiers, 4);
    query.queue_ms[BLOCK_TIER_SSD] = 100;

    const struct load_plan plan = load_plan_make(&query);

    cr_assert(eq(sz, plan.block_count, 2));
    cr_assert(epsilon_eq(dbl, plan.load_ms, 7, 1e-9));
}

Test(load_plan, a_slow_middle_is_loaded_for_what_is_behind_it)
{
    static const uint8_t tiers[] = {SSD, CPU, CPU, CPU, CPU, CPU};
    struct load_plan_query query = query_of(tiers, 6);
    query.queue_ms[BLOCK_TIER_SSD] = 20; /* alone: 5 + 20 + 4 against 10 */

    const struct load_plan plan = load_plan_make(&query);

    cr_assert(eq(sz, plan.block_count, 6));
    cr_assert(epsilon_eq(dbl, plan.load_ms, 29, 1e-9));
}

Test(load_plan, both_tiers_are_read_at_the_same_time)
{
    static const uint8_t tiers[] = {CPU, CPU, CPU, SSD, SSD};
    const struct load_plan_query query = query_of(tiers, 5);

    cr_assert(epsilon_eq(dbl, load_plan_make(&query).load_ms, 5 + 8, 1e-9));
}

Test(load_plan, ends_at_a_block_that_is_nowhere)
{
    static const uint8_t tiers[] = {CPU, 0, CPU, CPU};
    const struct load_plan_query query = query_of(tiers, 4);

    cr_assert(eq(sz, load_plan_make(&query).block_count, 1));
}

Test(load_plan, loads_all_there_is_where_prefill_is_not_known)
{
    static const uint8_t tiers[] = {CPU, SSD, 0};
    struct load_plan_query query = query_of(tiers, 3);
    query.prefill_ms_per_token = 0;
    query.queue_ms[BLOCK_TIER_SSD] = 1000;

    const struct load_plan plan = load_plan_make(&query);

    cr_assert(eq(sz, plan.block_count, 2));
    cr_assert(eq(dbl, plan.saved_ms, 0));
    cr_assert(epsilon_eq(dbl, plan.load_ms, 1009, 1e-9));
}

Test(load_plan, of_no_blocks_none_are_loaded)
{
    const struct load_plan_query query = query_of(NULL, 0);

    cr_assert(eq(sz, load_plan_make(&query).block_count, 0));
}

/* What the first `count` blocks cost to load, worked out anew. */
static double load_ms_of(const struct load_plan_query *query, size_t count)
{
    double cpu = 0, ssd = 0;

    for (size_t i = 0; i < count; i++) {
        if (query->tiers[i] & CPU)
            cpu += query->ms_per_block[BLOCK_TIER_CPU];
        else
            ssd += query->ms_per_block[BLOCK_TIER_SSD];
    }
    if (cpu > 0)
        cpu += query->start_ms[BLOCK_TIER_CPU] + query->queue_ms[BLOCK_TIER_CPU];
    if (ssd > 0)
        ssd += query->start_ms[BLOCK_TIER_SSD] + query->queue_ms[BLOCK_TIER_SSD];
    return cpu > ssd ? cpu : ssd;
}

Test(load_plan, never_costs_more_than_any_other_prefix)
{
    uint64_t random = 3;

    for (int round = 0; round < 20000; round++) {
        uint8_t tiers[BLOCKS_MAX];
        const size_t count = random_next(&random) % BLOCKS_MAX;
        struct load_plan_query query = query_of(tiers, count);
        for (size_t i = 0; i < count; i++)
            tiers[i] = (uint8_t)(1 + random_next(&random) % 3);
        for (int tier = 0; tier < BLOCK_TIER_COUNT; tier++) {
            query.start_ms[tier] = (double)(random_next(&random) % 20);
            query.queue_ms[tier] = (double)(random_next(&random) % 80);
            query.ms_per_block[tier] = (double)(1 + random_next(&random) % 150) / 10;
        }

        const struct load_plan plan = load_plan_make(&query);

        const double cost = plan.load_ms + 10.0 * (double)(count - plan.block_count);
        cr_assert(epsilon_eq(dbl, plan.load_ms, load_ms_of(&query, plan.block_count), 1e-6));
        cr_assert(epsilon_eq(dbl, plan.saved_ms, 10.0 * (double)count - cost, 1e-6));
        for (size_t other = 0; other <= count; other++)
            cr_assert(
                le(dbl, cost, load_ms_of(&query, other) + 10.0 * (double)(count - other) + 1e-6));
    }
}
