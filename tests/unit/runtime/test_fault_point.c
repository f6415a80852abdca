/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/runtime/fault_point.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>

#include "tests/support/leak_check.h"

TestSuite(fault_point, .fini = leak_check);

Test(fault_point, without_the_variable_nothing_happens)
{
    unsetenv("SAMOVAR_FAULT_POINT");

    cr_assert(eq(int, fault_point_init(), 0));
    for (int i = 0; i < FAULT_POINT_COUNT; i++)
        fault_point_pass((enum fault_point)i);
}

Test(fault_point, kills_the_process_where_it_was_told_to, .signal = SIGKILL)
{
    setenv("SAMOVAR_FAULT_POINT", "load-midway", 1);
    cr_assert(eq(int, fault_point_init(), 0));

    fault_point_pass(FAULT_LOAD_DONE);
    fault_point_pass(FAULT_LOAD_MIDWAY);
}

Test(fault_point, counts_how_often_it_comes_there)
{
    setenv("SAMOVAR_FAULT_POINT", "save-copied:3", 1);
    cr_assert(eq(int, fault_point_init(), 0));

    fault_point_pass(FAULT_SAVE_COPIED);
    fault_point_pass(FAULT_SAVE_COPIED); /* the third would be the last */
}

Test(fault_point, a_name_of_no_point_is_refused)
{
    static const char *const bad[] = {"nowhere",       "save-copied:", "save-copied:0",
                                      "save-copied:x", "save",         ":1"};

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        setenv("SAMOVAR_FAULT_POINT", bad[i], 1);
        cr_assert(eq(int, fault_point_init(), -EINVAL), "%s", bad[i]);
    }
}
