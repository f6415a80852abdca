/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/runtime/near_name.h"

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
        {"qwen3", "qwne3", 1}, /* one swap of neighbours */
        {"prot", "port", 1},
        {"probe", "probe-interval-ms", 1},
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

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* The plain recursion that the definition is. */
static size_t slow_distance(const char *a, const char *b)
{
    size_t edits;

    if (*a == '\0' || *b == '\0')
        return strlen(a) + strlen(b);
    if (*a == *b)
        return slow_distance(a + 1, b + 1);
    edits = slow_distance(a + 1, b + 1);
    edits = smaller(edits, slow_distance(a, b + 1));
    edits = smaller(edits, slow_distance(a + 1, b));
    if (a[0] == b[1] && a[1] == b[0])
        edits = smaller(edits, slow_distance(a + 2, b + 2));
    return 1 + edits;
}

Test(near_name, edits_are_counted_as_the_definition_counts_them)
{
    uint32_t seed = 7;

    for (int round = 0; round < 3000; round++) {
        char typed[9] = "x", name[9] = "y"; /* no prefix of each other */
        for (size_t i = 1; i < 8; i++) {
            seed = seed * 1664525 + 1013904223;
            typed[i] = "abc\0"[(seed >> 24) % (i < 5 ? 3 : 4)];
            name[i] = "abc\0"[(seed >> 16 & 0xff) % (i < 5 ? 3 : 4)];
        }
        size_t distance = slow_distance(typed, name);

        size_t cost = near_name_cost(slice_of_string(typed), slice_of_string(name));

        cr_assert(eq(sz, cost, distance <= 2 ? distance : NEAR_NAME_FAR), "%s %s", typed, name);
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
