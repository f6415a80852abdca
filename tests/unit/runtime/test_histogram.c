/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/runtime/histogram.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <math.h>

#include "tests/support/leak_check.h"

static const struct histogram_bounds three = {3, {1, 2, 4}};

TestSuite(histogram, .fini = leak_check);

Test(histogram, a_bound_belongs_to_its_bucket_and_what_is_above_all_to_the_last)
{
    static const struct {
        double value;
        size_t bucket;
    } rows[] = {{0, 0}, {1, 0}, {1.0000001, 1}, {2, 1}, {3, 2}, {4, 2}, {4.5, 3}, {INFINITY, 3}};

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct histogram histogram;
        histogram_init(&histogram, &three);

        histogram_observe(&histogram, rows[i].value);

        cr_assert(eq(u64, histogram.counts[rows[i].bucket], 1), "value %g", rows[i].value);
        cr_assert(eq(u64, histogram_count(&histogram), 1));
    }
}

Test(histogram, sum_and_count_add_up)
{
    struct histogram histogram;
    histogram_init(&histogram, &three);

    histogram_observe(&histogram, 0.5);
    histogram_observe(&histogram, 3.5);
    histogram_observe(&histogram, 10);

    cr_assert(eq(u64, histogram_count(&histogram), 3));
    cr_assert(ieee_ulp_eq(dbl, histogram.sum, 14, 1));
}

Test(histogram, no_number_is_not_counted_and_a_negative_one_is_zero)
{
    struct histogram histogram;
    histogram_init(&histogram, &three);

    histogram_observe(&histogram, NAN);
    histogram_observe(&histogram, -1);

    cr_assert(eq(u64, histogram.counts[0], 1));
    cr_assert(eq(u64, histogram_count(&histogram), 1));
    cr_assert(ieee_ulp_eq(dbl, histogram.sum, 0, 1));
}

Test(histogram, every_table_of_bounds_is_in_order)
{
    const struct histogram_bounds *tables[] = {&histogram_duration_seconds, &histogram_ttft_seconds,
                                               &histogram_overhead_seconds, &histogram_tokens};

    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        struct histogram histogram;
        histogram_init(&histogram, tables[i]); /* asserts the order */
        histogram_observe(&histogram, tables[i]->bounds[tables[i]->count - 1]);
        cr_assert(eq(u64, histogram.counts[tables[i]->count], 0));
    }
}
