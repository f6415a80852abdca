/* SPDX-License-Identifier: Apache-2.0 */

#include "router/join/tail_table.h"
#include "tests/support/leak_check.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

TestSuite(tail_table, .fini = leak_check);

Test(tail_table, knows_what_was_set_and_nothing_else)
{
    struct tail_table table = {0};
    uint32_t tokens = 0;

    tail_table_set(&table, 7, 4, 1000);

    cr_assert(tail_table_find(&table, 7, 1000, &tokens));
    cr_assert(eq(u32, tokens, 4));
    cr_assert(not(tail_table_find(&table, 8, 1000, &tokens)));
    cr_assert(not(tail_table_find(&table, 7 + TAIL_TABLE_COUNT, 1000, &tokens)));
}

Test(tail_table, a_tail_of_nothing_is_known_too)
{
    struct tail_table table = {0};
    uint32_t tokens = 9;

    tail_table_set(&table, 7, 0, 1000);

    cr_assert(tail_table_find(&table, 7, 1000, &tokens));
    cr_assert(eq(u32, tokens, 0));
}

Test(tail_table, what_is_old_is_found_out_anew)
{
    struct tail_table table = {0};
    uint32_t tokens;

    tail_table_set(&table, 7, 4, 1000);

    cr_assert(tail_table_find(&table, 7, 1000 + TAIL_TABLE_MS_MAX, &tokens));
    cr_assert(not(tail_table_find(&table, 7, 1001 + TAIL_TABLE_MS_MAX, &tokens)));
}

Test(tail_table, the_newer_takes_the_place)
{
    struct tail_table table = {0};
    uint32_t tokens;

    tail_table_set(&table, 7, 4, 1000);
    tail_table_set(&table, 7 + TAIL_TABLE_COUNT, 5, 1000);

    cr_assert(not(tail_table_find(&table, 7, 1000, &tokens)));
    cr_assert(tail_table_find(&table, 7 + TAIL_TABLE_COUNT, 1000, &tokens));
    cr_assert(eq(u32, tokens, 5));
}
