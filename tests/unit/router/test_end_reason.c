/* SPDX-License-Identifier: Apache-2.0 */

#include "router/end_reason.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <string.h>

#include "tests/support/leak_check.h"

TestSuite(end_reason, .fini = leak_check);

Test(end_reason, every_reason_has_a_name_of_its_own_and_a_meaning)
{
    for (int i = 0; i < END_REASON_COUNT; i++) {
        const char *name = end_reason_name((enum end_reason)i);

        cr_assert(gt(sz, strlen(name), 0));
        cr_assert(gt(sz, strlen(end_reason_meaning((enum end_reason)i)), 0));
        for (int j = 0; j < i; j++)
            cr_assert(ne(str, (char *)name, (char *)end_reason_name((enum end_reason)j)));
    }
    cr_assert(eq(str, (char *)end_reason_name(END_UPSTREAM_TRUNCATED), "upstream_truncated"));
}
