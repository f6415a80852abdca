/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/seen_filter.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include "tests/support/leak_check.h"

TestSuite(seen_filter, .fini = leak_check);

Test(seen_filter, what_was_noted_is_known_until_another_takes_its_place)
{
    struct seen_filter filter;
    cr_assert(eq(int, seen_filter_init(&filter, 5), 0));

    seen_filter_note(&filter, (struct digest_128){3, 0});
    const bool before = seen_filter_has(&filter, (struct digest_128){3, 0});
    seen_filter_note(&filter, (struct digest_128){3 + 8, 0});

    cr_assert(before);
    cr_assert(eq(sz, filter.count, 8));
    cr_assert(not(seen_filter_has(&filter, (struct digest_128){3, 0})));
    cr_assert(seen_filter_has(&filter, (struct digest_128){11, 0}));
    seen_filter_release(&filter);
}

Test(seen_filter, what_was_never_noted_is_not_known)
{
    struct seen_filter filter;
    cr_assert(eq(int, seen_filter_init(&filter, 1024), 0));

    for (uint64_t low = 1; low < 2000; low++)
        cr_assert(not(seen_filter_has(&filter, (struct digest_128){low, low})));

    seen_filter_release(&filter);
    seen_filter_release(&filter);
}
