/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/near_name.h"

#include "backends/runtime/must_check.h"
#include "tests/support/leak_check.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

TestSuite(near_name, .fini = leak_check);

Test(near_name, the_cost_is_what_a_person_would_call_near)
{
    static const struct {
        const char *typed;
        const char *name;
        size_t cost;
    } rows[] = {
        {"tiny", "tiny", 0},
        {"TINY", "tiny", 0},
        {"llama-3.1-8b", "meta-llama/Llama-3.1-8B", 0},
        {"llama", "llama-3.1-8b", 1},
        {"llama-3.1-8b-instruct", "llama-3.1-8b", 1},
        {"tinny", "tiny", 1},  /* one insertion */
        {"tin", "ton", 1},     /* one change */
        {"qwen3", "qwne3", 2}, /* swapped letters are two */
        {"abcd", "wxyz", NEAR_NAME_FAR},
        {"ab", "xy", NEAR_NAME_FAR}, /* two edits, but nothing in common */
        {"qwen3-8b-instruct", "qwen3-7b-instract", 2},
        {"gpt-4o", "qwen3-8b", NEAR_NAME_FAR},
        {"", "tiny", NEAR_NAME_FAR},
        {"tiny", "", NEAR_NAME_FAR},
        {"/", "a/", NEAR_NAME_FAR},
    };

    for (size_t i = 0; i < array_count(rows); i++) {
        size_t cost = near_name_cost(slice_of_string(rows[i].typed), slice_of_string(rows[i].name));

        cr_assert(eq(sz, cost, rows[i].cost), "'%s' and '%s'", rows[i].typed, rows[i].name);
    }
}

Test(near_name, long_names_cost_no_more_than_a_look)
{
    static char a[100000], b[100000];
    memset(a, 'a', sizeof a);
    memset(b, 'a', sizeof b);
    b[50] = 'b';

    cr_assert(eq(sz, near_name_cost(slice_of(a, sizeof a), slice_of(a, sizeof a - 1)), 1));
    cr_assert(eq(sz, near_name_cost(slice_of(a, sizeof a), slice_of(b, sizeof b)), NEAR_NAME_FAR));
}
