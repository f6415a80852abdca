/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/runtime/edit_distance.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <stdint.h>

#include "tests/support/leak_check.h"

TestSuite(edit_distance, .fini = leak_check);

Test(edit_distance, counts_the_four_slips)
{
    static const struct {
        const char *a, *b;
        size_t distance;
    } rows[] = {
        {"", "", 0},          {"port", "port", 0},     {"prot", "port", 1}, {"por", "port", 1},
        {"poort", "port", 1}, {"part", "port", 1},     {"", "port", 4},     {"port", "", 4},
        {"ca", "abc", 3},     {"kitten", "sitting", 3}};

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        cr_assert(eq(sz, edit_distance(slice_of_string(rows[i].a), slice_of_string(rows[i].b)),
                     rows[i].distance),
                  "%s, %s", rows[i].a, rows[i].b);
}

Test(edit_distance, what_is_too_long_is_far_from_everything)
{
    char bytes[EDIT_DISTANCE_BYTES_MAX + 1] = {0};

    cr_assert(eq(sz, edit_distance(slice_of(bytes, sizeof bytes), SLICE("a")), SIZE_MAX));
}

Test(edit_distance, near_is_a_slip_or_a_beginning)
{
    size_t distance;

    cr_assert(edit_distance_is_near(SLICE("probe"), SLICE("probe-interval-ms"), &distance));
    cr_assert(edit_distance_is_near(SLICE("prot"), SLICE("port"), &distance));
    cr_assert(not(edit_distance_is_near(SLICE("xyz"), SLICE("port"), &distance)));
    cr_assert(not(edit_distance_is_near(SLICE("a"), SLICE("b"), &distance)));
}
