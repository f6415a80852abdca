/* SPDX-License-Identifier: Apache-2.0 */

#include "hashing/checksum.h"

#include "hashing/xxh3.h"
#include "tests/support/leak_check.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <stdlib.h>

TestSuite(checksum, .fini = leak_check);

Test(checksum, stays_what_it_was_on_every_host)
{
    cr_assert(eq(u64, checksum(NULL, 0), 0x2d06800538d394c2));
    cr_assert(eq(u64, checksum("tea", 3), XXH3_64bits("tea", 3)));
}

Test(checksum, is_the_same_however_wide_the_registers_are)
{
    enum { BYTES = 70000 };
    uint8_t *bytes = malloc(BYTES);
    cr_assert(bytes != NULL);
    for (size_t i = 0; i < BYTES; i++)
        bytes[i] = (uint8_t)(i * i >> 3);

    for (size_t len = 0; len <= BYTES; len = len * 3 + 1)
        for (size_t at = 0; at < 3 && at + len <= BYTES; at++)
            cr_assert(eq(u64, checksum(bytes + at, len), XXH3_64bits(bytes + at, len)));
    free(bytes);
}

Test(checksum, sees_one_flipped_bit_wherever_it_is)
{
    enum { BYTES = 8192 + 5 };
    uint8_t bytes[BYTES] = {0};
    uint64_t before = checksum(bytes, BYTES);

    for (size_t bit = 0; bit < (size_t)BYTES * 8; bit += 7) {
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        cr_assert(ne(u64, checksum(bytes, BYTES), before));
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    cr_assert(eq(u64, checksum(bytes, BYTES), before));
}
