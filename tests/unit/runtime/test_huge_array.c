/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/runtime/huge_array.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <stdint.h>
#include <stdlib.h>

#include "tests/support/leak_check.h"

TestSuite(huge_array, .fini = leak_check);

Test(huge_array, is_zeroed_and_begins_at_a_cache_line_whatever_its_size)
{
    static const size_t counts[] = {0, 1, 7, 4096, (4 << 20) + 1};

    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        uint8_t *bytes = huge_array_alloc(counts[i], 1);

        cr_assert(ne(ptr, bytes, NULL));
        cr_assert(eq(u64, (uintptr_t)bytes % 64, 0));
        for (size_t at = 0; at < counts[i]; at++) {
            if (bytes[at] != 0)
                cr_fatal("byte %zu of %zu is not 0", at, counts[i]);
        }
        free(bytes);
    }
}

Test(huge_array, more_than_there_can_be_is_no_memory)
{
    cr_assert(eq(ptr, huge_array_alloc(SIZE_MAX / 8, 64), NULL));
    cr_assert(eq(ptr, huge_array_alloc(SIZE_MAX, 1), NULL));
}
