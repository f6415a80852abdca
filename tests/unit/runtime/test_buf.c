/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/runtime/buf.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <stdint.h>

#include "tests/support/leak_check.h"

TestSuite(buf, .fini = leak_check);

Test(buf, bytes_come_out_in_the_order_they_went_in)
{
    struct buf buf;
    uint8_t next_in = 0, next_out = 0;
    buf_init(&buf, 1 << 16);

    for (size_t round = 0; round < 2000; round++) {
        char piece[97];
        size_t len = round * 31 % sizeof piece;
        for (size_t i = 0; i < len; i++)
            piece[i] = (char)next_in++;
        cr_assert(eq(int, buf_append(&buf, slice_of(piece, len)), 0));
        size_t taken = buf_len(&buf) < round % 53 ? buf_len(&buf) : round % 53;
        for (size_t i = 0; i < taken; i++)
            cr_assert(eq(u8, (uint8_t)buf_slice(&buf).ptr[i], next_out++));
        buf_consume(&buf, taken);
    }

    for (size_t i = 0; i < buf_len(&buf); i++)
        cr_assert(eq(u8, (uint8_t)buf_slice(&buf).ptr[i], next_out++));
    cr_assert(eq(u8, next_out, next_in));
    buf_release(&buf);
}

Test(buf, the_limit_counts_what_is_held_not_what_has_passed)
{
    struct buf buf;
    char bytes[100] = {0};
    buf_init(&buf, sizeof bytes);

    for (int round = 0; round < 100; round++) {
        cr_assert(eq(int, buf_append(&buf, slice_of(bytes, sizeof bytes)), 0));
        cr_assert(eq(int, buf_append(&buf, SLICE("x")), -ENOBUFS));
        cr_assert(eq(sz, buf_len(&buf), sizeof bytes));
        buf_consume(&buf, sizeof bytes);
    }

    buf_release(&buf);
}

Test(buf, padding_behind_the_end_is_readable)
{
    struct buf buf;
    unsigned sum = 0;
    buf_init(&buf, 1000);
    for (size_t i = 0; i < 1000; i++)
        cr_assert(eq(int, buf_append(&buf, SLICE("a")), 0));

    for (size_t i = 0; i < BUF_PADDING; i++)
        sum += (unsigned char)buf.bytes[buf.end + i]; /* ASan sees what is not ours */

    cr_assert(le(uint, sum, 255 * BUF_PADDING));
    buf_release(&buf);
}

Test(buf, printf_appends_without_its_terminator)
{
    struct buf buf;
    buf_init(&buf, 64);

    cr_assert(eq(int, buf_printf(&buf, "%s=%d", "port", 80), 0));
    cr_assert(eq(int, buf_printf(&buf, ";"), 0));

    cr_assert(slice_eq(buf_slice(&buf), SLICE("port=80;")));
    buf_release(&buf);
}

Test(buf, an_append_that_does_not_fit_changes_nothing)
{
    struct buf buf;
    buf_init(&buf, 4);
    cr_assert(eq(int, buf_append(&buf, SLICE("abc")), 0));

    cr_assert(eq(int, buf_append(&buf, SLICE("de")), -ENOBUFS));
    cr_assert(eq(int, buf_printf(&buf, "%d", 100), -ENOBUFS));

    cr_assert(slice_eq(buf_slice(&buf), SLICE("abc")));
    buf_release(&buf);
}
