/* SPDX-License-Identifier: Apache-2.0 */

#include "router/load_table.h"
#include "tests/support/leak_check.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

enum { OWN = 1, OTHER = 2, THIRD = 3, ANNA = 100, BEN = 200 };

static void say(struct load_table *table, uint64_t router, const struct residency_load *loads,
                size_t count, uint64_t now_ms)
{
    struct buf message;

    buf_init(&message, SIZE_MAX);
    cr_assert(eq(int, residency_loads_write(&message, router, loads, count), 0));
    load_table_take(table, buf_slice(&message), now_ms);
    buf_release(&message);
}

static void say_one(struct load_table *table, uint64_t router, uint64_t worker, uint32_t in_flight,
                    uint64_t now_ms)
{
    const struct residency_load load = {worker, in_flight, in_flight * 100, in_flight / 2};

    say(table, router, &load, 1, now_ms);
}

static struct load_table new_table(void)
{
    struct load_table table;

    cr_assert(eq(int, load_table_init(&table, OWN), 0));
    return table;
}

TestSuite(load_table, .fini = leak_check);

Test(load_table, others_add_up_and_this_router_does_not)
{
    struct load_table table = new_table();
    struct load_sum sum;

    say_one(&table, OTHER, ANNA, 4, 0);
    say_one(&table, THIRD, ANNA, 6, 0);
    say_one(&table, OWN, ANNA, 100, 0);
    sum = load_table_find(&table, ANNA);

    cr_assert(eq(u64, sum.in_flight, 10));
    cr_assert(eq(u64, sum.decoding, 5));
    cr_assert(eq(u64, sum.queued_tokens, 1000));
    cr_assert(eq(u64, load_table_find(&table, BEN).in_flight, 0));
    cr_assert(eq(sz, load_table_router_count(&table), 2));
    load_table_release(&table);
}

Test(load_table, what_a_router_says_takes_the_place_of_what_it_said)
{
    struct load_table table = new_table();

    say_one(&table, OTHER, ANNA, 4, 0);
    say_one(&table, OTHER, BEN, 3, 0);

    cr_assert(eq(u64, load_table_find(&table, ANNA).in_flight, 0));
    cr_assert(eq(u64, load_table_find(&table, BEN).in_flight, 3));
    say(&table, OTHER, NULL, 0, 0);
    cr_assert(eq(u64, load_table_find(&table, BEN).in_flight, 0));
    load_table_release(&table);
}

Test(load_table, who_is_silent_counts_nothing)
{
    struct load_table table = new_table();

    say_one(&table, OTHER, ANNA, 4, 1000);
    say_one(&table, THIRD, ANNA, 6, 2000);
    load_table_expire(&table, 1000 + LOAD_TABLE_SILENT_MS_MAX);
    cr_assert(eq(u64, load_table_find(&table, ANNA).in_flight, 10));
    load_table_expire(&table, 1001 + LOAD_TABLE_SILENT_MS_MAX);
    cr_assert(eq(u64, load_table_find(&table, ANNA).in_flight, 6));
    load_table_expire(&table, 2001 + LOAD_TABLE_SILENT_MS_MAX);

    cr_assert(eq(u64, load_table_find(&table, ANNA).in_flight, 0));
    cr_assert(eq(sz, load_table_router_count(&table), 0));
    load_table_release(&table);
}

Test(load_table, one_router_too_many_and_what_is_no_message_change_nothing)
{
    struct load_table table = new_table();

    for (uint64_t router = 0; router < LOAD_TABLE_ROUTER_COUNT_MAX; router++)
        say_one(&table, OTHER + router, ANNA, 1, 0);
    say_one(&table, OTHER + LOAD_TABLE_ROUTER_COUNT_MAX, ANNA, 1, 0);
    load_table_take(&table, SLICE("garbage"), 0);
    load_table_take(&table, slice_of(NULL, 0), 0);

    cr_assert(eq(u64, load_table_find(&table, ANNA).in_flight, LOAD_TABLE_ROUTER_COUNT_MAX));
    cr_assert(eq(u64, table.refused_total, 3));
    load_table_release(&table);
}

Test(load_table, a_worker_named_twice_in_one_message_is_counted_twice_and_taken_off_twice)
{
    const struct residency_load loads[] = {{ANNA, 1, 10, 0}, {ANNA, 2, 20, 1}, {0, 5, 5, 5}};
    struct load_table table = new_table();

    say(&table, OTHER, loads, 3, 0);
    cr_assert(eq(u64, load_table_find(&table, ANNA).in_flight, 3));
    say(&table, OTHER, NULL, 0, 0);

    cr_assert(eq(u64, load_table_find(&table, ANNA).in_flight, 0));
    load_table_release(&table);
}

Test(load_table, numbers_that_nobody_can_have_do_not_overflow)
{
    const struct residency_load loads[] = {{ANNA, UINT32_MAX, UINT32_MAX, UINT32_MAX},
                                           {ANNA, UINT32_MAX, UINT32_MAX, UINT32_MAX}};
    struct load_table table = new_table();

    say(&table, OTHER, loads, 2, 0);
    cr_assert(eq(u64, load_table_find(&table, ANNA).in_flight, 2ull * UINT32_MAX));
    say(&table, OTHER, NULL, 0, 0);

    cr_assert(eq(u64, load_table_find(&table, ANNA).in_flight, 0));
    load_table_release(&table);
}

Test(load_table, places_of_workers_are_used_again)
{
    struct load_table table = new_table();

    for (uint64_t worker = 1; worker < 20000; worker++) {
        say_one(&table, OTHER, worker, 2, 0);
        cr_assert(eq(u64, load_table_find(&table, worker).in_flight, 2));
    }
    cr_assert(le(sz, table.sum_count, 2));
    load_table_release(&table);
}
