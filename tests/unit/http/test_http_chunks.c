/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/http/http_chunks.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <stdio.h>

#include "backends/runtime/buf.h"
#include "tests/support/leak_check.h"

static const struct http_raw_limits trailer_limits = {.bytes_max = 64};

enum { BODY_BYTES_MAX = 1 << 20 };

/* Reads bytes in pieces of step up to the body's end. 0, or the status of a fault. */
static int read_body(struct slice bytes, size_t step, struct buf *body, size_t *used)
{
    struct http_chunks chunks;
    struct http_fault fault = {0};

    buf_clear(body);
    *used = 0;
    http_chunks_begin(&chunks, BODY_BYTES_MAX, trailer_limits);
    while (*used < bytes.len && !http_chunks_is_done(&chunks)) {
        size_t len = bytes.len - *used < step ? bytes.len - *used : step;
        struct slice left = slice_of(bytes.ptr + *used, len), piece;
        int status;

        while ((status = http_chunks_next(&chunks, &left, &piece, &fault)) > 0) {
            cr_assert(gt(sz, piece.len, 0));
            cr_assert(eq(int, buf_append(body, piece), 0));
        }
        if (status < 0) {
            cr_assert(eq(int, status, -EBADMSG));
            return fault.status;
        }
        cr_assert(http_chunks_is_done(&chunks) || left.len == 0);
        *used += len - left.len;
    }
    cr_assert(http_chunks_is_done(&chunks), "the body did not end");
    return 0;
}

static void expect(struct slice bytes, int status, const char *body_wanted, size_t used_wanted)
{
    struct buf body;

    buf_init(&body, BODY_BYTES_MAX);
    for (size_t step = 1; step <= bytes.len; step++) {
        size_t used;
        int found = read_body(bytes, step, &body, &used);

        cr_assert(eq(int, found, status), "%s, step %zu", bytes.ptr, step);
        if (status != 0)
            continue;
        cr_assert(slice_eq(buf_slice(&body), slice_of_string(body_wanted)), "step %zu", step);
        cr_assert(eq(sz, used, used_wanted), "step %zu", step);
    }
    buf_release(&body);
}

static void expect_body(const char *bytes, const char *body)
{
    expect(slice_of_string(bytes), 0, body, strlen(bytes));
}

static void expect_fault(struct slice bytes, int status)
{
    expect(bytes, status, NULL, 0);
}

TestSuite(http_chunks, .fini = leak_check);

Test(http_chunks, frames_extensions_and_trailers_are_dropped)
{
    expect_body("0\r\n\r\n", "");
    expect_body("3\r\nabc\r\n0\r\n\r\n", "abc");
    expect_body("1\r\na\r\n0000A;x=\"y\";z\r\n0123456789\r\n0;e\r\nT: u\r\nV:\r\n\r\n",
                "a0123456789");
    expect_body("2\r\n\r\n\r\n0\r\n\r\n", "\r\n"); /* data may look like frames */
}

Test(http_chunks, what_follows_the_last_line_is_left_alone)
{
    expect(SLICE("1\r\na\r\n0\r\n\r\nGET / HTTP/1.1\r\n"), 0, "a", 11);
    expect(SLICE("0\r\nT: u\r\n\r\n\r\n"), 0, "", 11);
}

Test(http_chunks, a_size_is_hexadecimal_digits_and_nothing_else)
{
    static const struct slice rows[] = {
        SLICE("\r\n\r\n"),        SLICE("0x3\r\nabc\r\n"), SLICE("+3\r\nabc\r\n"),
        SLICE("-0\r\n\r\n"),      SLICE(" 3\r\nabc\r\n"),  SLICE("3 \r\nabc\r\n"),
        SLICE("3 ;a\r\nabc\r\n"), SLICE("3\t\r\nabc\r\n"), SLICE("g\r\n"),
        SLICE(";a\r\n"),          SLICE("3\0\r\nabc\r\n"), SLICE("3_0\r\n"),
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        expect_fault(rows[i], 400);
}

Test(http_chunks, a_size_has_at_most_13_digits)
{
    expect_body("0000000000003\r\nabc\r\n0000000000000\r\n\r\n", "abc");
    expect_fault(SLICE("00000000000003\r\nabc\r\n"), 400);
    expect_fault(SLICE("fffffffffffffffff\r\n"), 400);
}

Test(http_chunks, lines_end_with_crlf)
{
    static const struct slice rows[] = {
        SLICE("3\nabc\r\n0\r\n\r\n"),
        SLICE("3\r\nabc\n0\r\n\r\n"),
        SLICE("3\r\nabcXX0\r\n\r\n"),
        SLICE("3\r\nabc0\r\n\r\n"),
        SLICE("3\r\nabc\r\n\r\n0\r\n\r\n"),
        SLICE("3;a=b\r\rabc\r\n0\r\n\r\n"),
        SLICE("3;\nabc\r\n0\r\n\r\n"),
        SLICE("3;a\0\r\nabc\r\n0\r\n\r\n"),
        SLICE("3\r\nabc\r\r\n"),
        SLICE("3\rabc\r\n"),
        SLICE("0\n\r\n"),
        SLICE("0\r\n\n"),
        SLICE("0\r\n\rX"),
        SLICE("0\r\nT: u\n\r\n"),
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        expect_fault(rows[i], 400);
}

Test(http_chunks, extensions_have_a_limit_for_all_of_them_together)
{
    for (int excess = 0; excess <= 1; excess++) {
        struct buf bytes, body;
        size_t used;
        buf_init(&bytes, 1 << 20);
        buf_init(&body, 1 << 20);
        for (int i = 0; i < 4; i++) {
            cr_assert(eq(int, buf_append(&bytes, SLICE("1;")), 0));
            for (int at = 0; at < HTTP_CHUNK_EXTENSION_BYTES_MAX / 4; at++)
                cr_assert(eq(int, buf_append(&bytes, SLICE("e")), 0));
            if (excess > 0 && i == 3)
                cr_assert(eq(int, buf_append(&bytes, SLICE("e")), 0));
            cr_assert(eq(int, buf_append(&bytes, SLICE("\r\na\r\n")), 0));
        }
        cr_assert(eq(int, buf_append(&bytes, SLICE("0\r\n\r\n")), 0));

        cr_assert(eq(int, read_body(buf_slice(&bytes), 1000, &body, &used), excess > 0 ? 400 : 0));

        buf_release(&bytes);
        buf_release(&body);
    }
}

Test(http_chunks, trailers_have_the_limits_of_a_head)
{
    char trailer[128];

    for (int len = 64; len <= 65; len++) { /* with name, colon, blank and both line ends */
        snprintf(trailer, sizeof trailer, "0\r\nT: %0*d\r\n\r\n", len - 7, 0);

        if (len == 64)
            expect_body(trailer, "");
        else
            expect_fault(slice_of_string(trailer), 431);
    }
}

Test(http_chunks, a_body_over_the_limit_is_refused_at_the_size_that_says_so)
{
    char bytes[64];

    snprintf(bytes, sizeof bytes, "1\r\na\r\n%x\r\n", BODY_BYTES_MAX);

    expect_fault(slice_of_string(bytes), 413);
    expect_fault(SLICE("fffffffffffff\r\n"), 413);
}
