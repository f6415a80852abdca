/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/runtime/system_random.h"

#include "tests/support/leak_check.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <signal.h>

TestSuite(system_random, .fini = leak_check);

Test(system_random, ids_are_not_zero_and_differ)
{
    uint64_t first = system_random_id(), second = system_random_id();

    cr_assert(ne(u64, first, 0));
    cr_assert(ne(u64, second, 0));
    cr_assert(ne(u64, first, second));
}

Test(system_random, fills_up_to_the_last_byte_and_no_further)
{
    uint8_t bytes[SYSTEM_RANDOM_BYTES_MAX + 1] = {0};
    unsigned changed = 0;

    for (int i = 0; i < 64; i++) { /* that a byte is 0 each time happens to nobody */
        system_random_fill(bytes, SYSTEM_RANDOM_BYTES_MAX);
        changed |= bytes[SYSTEM_RANDOM_BYTES_MAX - 1];
    }

    cr_assert(ne(uint, changed, 0));
    cr_assert(eq(u8, bytes[SYSTEM_RANDOM_BYTES_MAX], 0));
}

Test(system_random, more_than_the_system_gives_at_once_is_a_mistake, .signal = SIGABRT)
{
    uint8_t bytes[SYSTEM_RANDOM_BYTES_MAX + 1];

    system_random_fill(bytes, sizeof bytes);
}
