/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/http/http_writer.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "tests/support/leak_check.h"

static void expect(const struct buf *buf, struct slice bytes)
{
    cr_assert(slice_eq(buf_slice(buf), bytes), "'%.*s'", (int)buf_len(buf), buf->bytes);
}

TestSuite(http_writer, .fini = leak_check);

Test(http_writer, a_request_head_is_its_lines)
{
    struct buf buf;
    buf_init(&buf, 4096);

    cr_assert(eq(int, http_write_request_line(&buf, HTTP_METHOD_POST, SLICE("/v1/x?y")), 0));
    cr_assert(eq(int, http_write_header(&buf, SLICE("Host"), SLICE("a:80")), 0));
    cr_assert(eq(int, http_write_header(&buf, SLICE("Empty"), slice_of(NULL, 0)), 0));
    cr_assert(eq(int, http_write_header_u64(&buf, SLICE("Content-Length"), 0), 0));
    cr_assert(eq(int, http_write_head_end(&buf), 0));

    expect(&buf, SLICE("POST /v1/x?y HTTP/1.1\r\nHost: a:80\r\nEmpty: \r\n"
                       "Content-Length: 0\r\n\r\n"));
    buf_release(&buf);
}

static bool is_host(struct slice name)
{
    return slice_eq_nocase(name, SLICE("host"));
}

Test(http_writer, headers_of_the_connection_and_replaced_ones_are_not_passed)
{
    struct http_header headers[] = {
        {SLICE("Host"), SLICE("theirs")},
        {SLICE("X-First"), SLICE("1")},
        {SLICE("Connection"), SLICE("close, x-named, Authorization")},
        {SLICE("X-Named"), SLICE("2")},
        {SLICE("Transfer-Encoding"), SLICE("chunked")},
        {SLICE("Authorization"), SLICE("Bearer x")}, /* nobody may name this one away */
    };
    struct http_head head = {.headers = headers, .header_count = array_count(headers)};
    struct buf buf;
    buf_init(&buf, 4096);

    cr_assert(eq(int, http_write_passed_headers(&buf, &head, is_host), 0));

    expect(&buf, SLICE("X-First: 1\r\nAuthorization: Bearer x\r\n"));
    buf_release(&buf);
}

Test(http_writer, a_status_line_has_its_text_or_none)
{
    static const struct {
        int status;
        struct slice line;
    } rows[] = {{200, SLICE("HTTP/1.1 200 OK\r\n")},
                {431, SLICE("HTTP/1.1 431 Request Header Fields Too Large\r\n")},
                {299, SLICE("HTTP/1.1 299 \r\n")},
                {100, SLICE("HTTP/1.1 100 Continue\r\n")},
                {999, SLICE("HTTP/1.1 999 \r\n")}};

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct buf buf;
        buf_init(&buf, 4096);

        cr_assert(eq(int, http_write_status_line(&buf, rows[i].status), 0));

        expect(&buf, rows[i].line);
        buf_release(&buf);
    }
}

Test(http_writer, numbers_are_decimals_up_to_the_largest)
{
    static const uint64_t numbers[] = {0, 9, 10, 99, 100, UINT32_MAX, UINT64_MAX};

    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct buf buf;
        char line[64];
        buf_init(&buf, 64);

        cr_assert(eq(int, http_write_header_u64(&buf, SLICE("N"), numbers[i]), 0));

        snprintf(line, sizeof line, "N: %" PRIu64 "\r\n", numbers[i]);
        expect(&buf, slice_of_string(line));
        buf_release(&buf);
    }
}

Test(http_writer, a_full_buf_is_an_error_and_gets_no_half_line)
{
    struct buf buf;
    buf_init(&buf, 10);

    cr_assert(eq(int, http_write_header(&buf, SLICE("Name"), SLICE("value")), -ENOBUFS));
    cr_assert(eq(int, http_write_request_line(&buf, HTTP_METHOD_GET, SLICE("/")), -ENOBUFS));
    cr_assert(eq(int, http_write_status_line(&buf, 200), -ENOBUFS));
    cr_assert(eq(int, http_write_header_u64(&buf, SLICE("Name"), 12345), -ENOBUFS));

    cr_assert(eq(sz, buf_len(&buf), 0));
    cr_assert(eq(int, http_write_header(&buf, SLICE("N"), SLICE("valu")), 0)); /* 9 bytes fit */
    buf_release(&buf);
}

Test(http_writer, a_chunk_head_is_its_length_in_hex)
{
    static const struct {
        size_t len;
        const char *head;
    } rows[] = {{1, "1\r\n"},
                {9, "9\r\n"},
                {10, "a\r\n"},
                {15, "f\r\n"},
                {16, "10\r\n"},
                {255, "ff\r\n"},
                {256, "100\r\n"},
                {0xabcd, "abcd\r\n"},
                {UINT32_MAX, "ffffffff\r\n"},
                {SIZE_MAX, "ffffffffffffffff\r\n"}};

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char head[HTTP_CHUNK_HEAD_BYTES_MAX];

        size_t len = http_write_chunk_head(head, rows[i].len);

        cr_assert(slice_eq(slice_of(head, len), slice_of_string(rows[i].head)), "%zu", rows[i].len);
    }
}
