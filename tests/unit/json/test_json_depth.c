/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/json/json_depth.h"
#include "tests/support/leak_check.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

/* The deepest that text nests, by asking. */
static size_t depth_of(const char *text)
{
    size_t depth = 0;

    while (json_is_deeper(slice_of_string(text), depth))
        depth++;
    return depth;
}

TestSuite(json_depth, .fini = leak_check);

Test(json_depth, counts_arrays_and_objects_alike)
{
    cr_assert(eq(sz, depth_of("17"), 0));
    cr_assert(eq(sz, depth_of("[]"), 1));
    cr_assert(eq(sz, depth_of("{\"a\":[{\"b\":[]}]}"), 4));
}

Test(json_depth, what_was_closed_counts_no_more)
{
    cr_assert(eq(sz, depth_of("[[],[],[[]],[]]"), 3));
    cr_assert(eq(sz, depth_of("{\"a\":{},\"b\":{},\"c\":{}}"), 2));
}

Test(json_depth, brackets_in_strings_and_keys_do_not_count)
{
    cr_assert(eq(sz, depth_of("[\"[[[{{{\"]"), 1));
    cr_assert(eq(sz, depth_of("{\"[[[\":1,\"]]\":[]}"), 2));
}

Test(json_depth, only_an_unescaped_quote_ends_a_string)
{
    cr_assert(eq(sz, depth_of("[\"\\\"[[[\"]"), 1));
    cr_assert(eq(sz, depth_of("[\"\\\\\",[]]"), 2));
    cr_assert(eq(sz, depth_of("[\"\\\\\\\"[[\"]"), 1));
    cr_assert(eq(sz, depth_of("[\"\",\"\\\\\\\\\",[[]]]"), 3));
    cr_assert(eq(sz, depth_of("[\"\\\\\"[[]"), 3)); /* no JSON, but nothing hides behind it */
}

Test(json_depth, text_that_is_cut_or_closes_too_much_ends_the_look)
{
    cr_assert(eq(sz, depth_of(""), 0));
    cr_assert(eq(sz, depth_of("[[\"[["), 2));
    cr_assert(eq(sz, depth_of("]]]][[[["), 0));
    cr_assert(eq(sz, depth_of("[\"\\"), 1));
}
