/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/runtime/slice.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include "tests/support/leak_check.h"

TestSuite(slice, .fini = leak_check);

Test(slice, equality_is_of_bytes_and_length)
{
    cr_assert(slice_eq(SLICE("abc"), slice_of_string("abc")));
    cr_assert(not(slice_eq(SLICE("abc"), SLICE("abd"))));
    cr_assert(not(slice_eq(SLICE("abc"), SLICE("ab"))));
    cr_assert(not(slice_eq(SLICE("a\0b"), SLICE("a\0c"))));
}

Test(slice, empty_is_empty_whatever_it_points_to)
{
    cr_assert(slice_eq((struct slice){NULL, 0}, SLICE("")));
    cr_assert(slice_eq_nocase(SLICE(""), (struct slice){NULL, 0}));
    cr_assert(slice_starts_with((struct slice){NULL, 0}, (struct slice){NULL, 0}));
}

Test(slice, case_is_ignored_only_where_asked)
{
    cr_assert(slice_eq_nocase(SLICE("Content-Length"), SLICE("content-length")));
    cr_assert(not(slice_eq(SLICE("Content-Length"), SLICE("content-length"))));
}

Test(slice, starts_with_needs_the_whole_prefix)
{
    cr_assert(slice_starts_with(SLICE("http://a"), SLICE("http://")));
    cr_assert(slice_starts_with(SLICE("http://a"), SLICE("")));
    cr_assert(not(slice_starts_with(SLICE("http:/"), SLICE("http://"))));
}

Test(slice, find_gives_the_first_place_or_the_length)
{
    cr_assert(eq(sz, slice_find(SLICE("a:b:c"), ':'), 1));
    cr_assert(eq(sz, slice_find(SLICE("abc"), ':'), 3));
    cr_assert(eq(sz, slice_find((struct slice){NULL, 0}, ':'), 0));
}

Test(slice, skip_keeps_the_rest)
{
    struct slice rest = slice_skip(SLICE("prefix"), 3);

    cr_assert(slice_eq(rest, SLICE("fix")));
    cr_assert(eq(sz, slice_skip(rest, 3).len, 0));
}
