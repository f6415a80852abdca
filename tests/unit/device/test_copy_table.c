/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/device/copy_table.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include "tests/support/leak_check.h"

TestSuite(copy_table, .fini = leak_check);

Test(copy_table, small_and_many_pieces_are_gathered_where_nothing_was_measured)
{
    struct copy_table table = copy_table_default();

    cr_assert(eq(int, copy_table_way(&table, COPY_TO_ENGINE, 28 << 10, 64), COPY_GATHER));
    cr_assert(eq(int, copy_table_way(&table, COPY_FROM_ENGINE, 1, 1 << 20), COPY_GATHER));
    cr_assert(eq(int, copy_table_way(&table, COPY_TO_ENGINE, (28 << 10) + 1, 64), COPY_BATCH));
    cr_assert(eq(int, copy_table_way(&table, COPY_TO_ENGINE, 1024, 63), COPY_BATCH));
    cr_assert(eq(int, copy_table_way(&table, COPY_TO_ENGINE, 2 << 20, 1 << 20), COPY_BATCH));
}

Test(copy_table, the_cell_of_a_job_is_the_first_size_that_holds_it_and_the_last_count_it_reaches)
{
    struct copy_table table = {0};
    table.cells[COPY_TO_ENGINE][1][1].way = COPY_GATHER; /* to 8 KiB, from 512 on */

    cr_assert(eq(int, copy_table_way(&table, COPY_TO_ENGINE, 8 << 10, 512), COPY_GATHER));
    cr_assert(eq(int, copy_table_way(&table, COPY_TO_ENGINE, (2 << 10) + 1, 9999), COPY_GATHER));
    cr_assert(eq(int, copy_table_way(&table, COPY_TO_ENGINE, 2 << 10, 512), COPY_BATCH));
    cr_assert(eq(int, copy_table_way(&table, COPY_TO_ENGINE, 8 << 10, 511), COPY_BATCH));
    cr_assert(eq(int, copy_table_way(&table, COPY_FROM_ENGINE, 8 << 10, 512), COPY_BATCH));
}

Test(copy_table, gathering_must_be_clearly_faster)
{
    const double equal[COPY_WAY_COUNT] = {100, 100}, a_little[COPY_WAY_COUNT] = {100, 85},
                 clearly[COPY_WAY_COUNT] = {100, 79};

    cr_assert(eq(int, copy_table_decide(equal), COPY_BATCH));
    cr_assert(eq(int, copy_table_decide(a_little), COPY_BATCH));
    cr_assert(eq(int, copy_table_decide(clearly), COPY_GATHER));
}
