/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/http/http_raw_head.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <stdio.h>

#include "backends/runtime/must_check.h"
#include "tests/support/leak_check.h"

static const struct http_raw_limits limits = {.bytes_max = 4096, .target_bytes_max = 256};

struct verdict {
    int status; /* 0, or of the fault */
    const char *code;
    bool is_done;
    size_t used;
};

/* What is said of bytes that come in pieces of step. */
static struct verdict judge(enum http_raw_kind kind, struct http_raw_limits own, struct slice bytes,
                            size_t step)
{
    struct http_raw_head head;
    struct http_fault fault = {0};
    struct verdict verdict = {.code = ""};
    int status = 0;

    http_raw_head_begin(&head, kind, own);
    for (size_t at = 0; at < bytes.len && status == 0 && !verdict.is_done; at += step) {
        size_t used, len = bytes.len - at < step ? bytes.len - at : step;

        status = http_raw_head_feed(&head, slice_of(bytes.ptr + at, len), &used, &fault);
        cr_assert(le(sz, used, len));
        verdict.used += used;
        verdict.is_done = http_raw_head_is_done(&head);
        if (status == 0 && !verdict.is_done)
            cr_assert(eq(sz, used, len));
    }
    cr_assert(eq(int, status, fault.status != 0 ? -EBADMSG : 0));
    cr_assert(eq(sz, head.len, verdict.used));
    verdict.status = fault.status;
    verdict.code = fault.code != NULL ? fault.code : "";
    return verdict;
}

struct row {
    struct slice bytes;
    const char *code; /* "": fine and complete; "...": fine so far */
};

static void expect_rows(enum http_raw_kind kind, const struct row *rows, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        for (size_t step = 1; step <= rows[i].bytes.len; step++) {
            struct verdict verdict = judge(kind, limits, rows[i].bytes, step);
            const char *said = verdict.status != 0 || verdict.is_done ? verdict.code : "...";

            cr_assert(eq(str, (char *)said, (char *)rows[i].code), "row %zu, step %zu", i, step);
        }
    }
}

#define EXPECT_ROWS(kind, ...)                                                                     \
    do {                                                                                           \
        static const struct row rows[] = {__VA_ARGS__};                                            \
        expect_rows(kind, rows, array_count(rows));                                                \
    } while (0)

#define LINE "GET / HTTP/1.1\r\n"

TestSuite(http_raw_head, .fini = leak_check);

Test(http_raw_head, a_request_ends_behind_its_empty_line)
{
    EXPECT_ROWS(HTTP_RAW_REQUEST, {SLICE(LINE "Host: a\r\n\r\n"), ""},
                {SLICE(LINE "Host: a\r\n\r\n\n \0 what follows is not looked at"), ""},
                {SLICE(LINE "\r\n"), ""}, {SLICE(LINE "Host: a\r\n"), "..."},
                {SLICE(LINE "Host: a\r\n\r"), "..."});
    cr_assert(eq(sz, judge(HTTP_RAW_REQUEST, limits, SLICE(LINE "\r\nabc"), 64).used,
                 sizeof LINE - 1 + 2));
}

Test(http_raw_head, empty_lines_before_a_request_are_nothing)
{
    EXPECT_ROWS(HTTP_RAW_REQUEST, {SLICE("\r\n\r\n" LINE "\r\n"), ""}, {SLICE("\r\n\r\n"), "..."},
                {SLICE("\n" LINE "\r\n"), "invalid_http"},
                {SLICE("\r" LINE "\r\n"), "invalid_http"});
    EXPECT_ROWS(HTTP_RAW_ANSWER, {SLICE("\r\nHTTP/1.1 200 OK\r\n\r\n"), "upstream_protocol_error"});
}

Test(http_raw_head, a_request_line_has_two_blanks_and_no_more)
{
    EXPECT_ROWS(HTTP_RAW_REQUEST, {SLICE("GET  / HTTP/1.1\r\n\r\n"), "invalid_http"},
                {SLICE("GET /  HTTP/1.1\r\n\r\n"), "invalid_http"},
                {SLICE("GET / HTTP/1.1 \r\n\r\n"), "invalid_http"},
                {SLICE("GET\t/\tHTTP/1.1\r\n\r\n"), "invalid_http"},
                {SLICE("GET /\tHTTP/1.1\r\n\r\n"), "invalid_http"},
                {SLICE(" GET / HTTP/1.1\r\n\r\n"), "invalid_http"},
                {SLICE("GET /a b HTTP/1.1\r\n\r\n"), "invalid_http"},
                {SLICE("GET / http/1.1\r\n\r\n"), "invalid_http"},
                {SLICE("GET /\r\n\r\n"), "invalid_http"}, /* HTTP/0.9 */
                {SLICE("GET\r\n\r\n"), "invalid_http"},
                {SLICE("G=\":<>(e),[T];?\" / HTTP/1.1\r\n\r\n"), "invalid_http"});
}

Test(http_raw_head, a_target_is_visible_ascii_without_a_fragment)
{
    for (int byte = 0; byte < 256; byte++) {
        char request[] = "GET /?x HTTP/1.1\r\n\r\n";
        bool is_fine = byte > 0x20 && byte < 0x7f && byte != '#';
        request[6] = (char)byte;
        if (byte == ' ') /* ends the target */
            continue;

        struct verdict verdict =
            judge(HTTP_RAW_REQUEST, limits, slice_of(request, sizeof request - 1), 100);

        cr_assert(eq(int, verdict.status, is_fine ? 0 : 400), "%d", byte);
    }
}

Test(http_raw_head, a_version_is_1_0_or_1_1)
{
    EXPECT_ROWS(HTTP_RAW_REQUEST, {SLICE("GET / HTTP/1.0\r\n\r\n"), ""},
                {SLICE("GET / HTTP/1.2\r\n\r\n"), "unsupported_http_version"},
                {SLICE("GET / HTTP/2.0\r\n\r\n"), "unsupported_http_version"},
                {SLICE("GET / HTTP/0.9\r\n\r\n"), "unsupported_http_version"},
                {SLICE("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), "unsupported_http_version"},
                {SLICE("GET / HTTP/1.32\r\n\r\n"), "invalid_http"},
                {SLICE("GET / HTTP/1.\r\n\r\n"), "invalid_http"},
                {SLICE("GET / HTTP/11\r\n\r\n"), "invalid_http"});
    EXPECT_ROWS(HTTP_RAW_ANSWER, {SLICE("HTTP/1.0 200 OK\r\n\r\n"), ""},
                {SLICE("HTTP/2.0 200 OK\r\n\r\n"), "upstream_protocol_error"},
                {SLICE("HTTP/1.2 200 OK\r\n\r\n"), "upstream_protocol_error"},
                {SLICE("ICY 200 OK\r\n\r\n"), "upstream_protocol_error"},
                {SLICE("SSH-2.0-OpenSSH_9\r\n"), "upstream_protocol_error"});
}

Test(http_raw_head, a_client_that_begins_with_tls_is_told_so)
{
    EXPECT_ROWS(HTTP_RAW_REQUEST,
                {SLICE("\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03"), "tls_on_plain_port"});
}

Test(http_raw_head, a_status_has_three_digits)
{
    EXPECT_ROWS(HTTP_RAW_ANSWER, {SLICE("HTTP/1.1 200 OK\r\n\r\n"), ""},
                {SLICE("HTTP/1.1 200 \r\n\r\n"), ""}, {SLICE("HTTP/1.1 200\r\n\r\n"), ""},
                {SLICE("HTTP/1.1 404 N\xc3\xb6\tt\r\n\r\n"), ""},
                {SLICE("HTTP/1.1 99 X\r\n\r\n"), "upstream_protocol_error"},
                {SLICE("HTTP/1.1 1000 X\r\n\r\n"), "upstream_protocol_error"},
                {SLICE("HTTP/1.1 2x0 X\r\n\r\n"), "upstream_protocol_error"},
                {SLICE("HTTP/1.1  200 X\r\n\r\n"), "upstream_protocol_error"},
                {SLICE("HTTP/1.1 200 O\rK\r\n\r\n"), "upstream_protocol_error"},
                {SLICE("HTTP/1.1 200 OK\n\r\n"), "upstream_protocol_error"});
}

Test(http_raw_head, lines_end_with_crlf_and_are_not_folded)
{
    EXPECT_ROWS(HTTP_RAW_REQUEST, {SLICE("GET / HTTP/1.1\nHost: a\r\n\r\n"), "invalid_http"},
                {SLICE("GET / HTTP/1.1\rHost: a\r\n\r\n"), "invalid_http"},
                {SLICE(LINE "Host: a\n\r\n"), "invalid_header"},
                {SLICE(LINE "Host: a\r\n\n"), "invalid_http"},
                {SLICE(LINE "Host: a\r\r\n\r\n"), "invalid_http"},
                {SLICE(LINE "Host: a\r\n\rX"), "invalid_http"},
                {SLICE(LINE "Host: a\r\n b: c\r\n\r\n"), "invalid_http"},
                {SLICE(LINE "Host: a\r\n\tb\r\n\r\n"), "invalid_http"},
                {SLICE(LINE " Host: a\r\n\r\n"), "invalid_http"});
}

Test(http_raw_head, a_name_is_a_token_with_its_colon_close_behind)
{
    EXPECT_ROWS(HTTP_RAW_REQUEST, {SLICE(LINE "!#$%&'*+-.^`|~09azAZ:x\r\n\r\n"), ""},
                {SLICE(LINE "X:\r\n\r\n"), ""}, {SLICE(LINE ":x\r\n\r\n"), "invalid_header"},
                {SLICE(LINE "X : y\r\n\r\n"), "invalid_header"},
                {SLICE(LINE "Content-Length 10\r\n\r\n"), "invalid_header"},
                {SLICE(LINE "X\r\n\r\n"), "invalid_header"},
                {SLICE(LINE "X[]: y\r\n\r\n"), "invalid_header"},
                {SLICE(LINE "X\x85: y\r\n\r\n"), "invalid_header"},
                {SLICE(LINE "X\0: y\r\n\r\n"), "invalid_header"},
                {SLICE(LINE "Transfer-\r\nEncoding: chunked\r\n\r\n"), "invalid_header"});
}

Test(http_raw_head, a_name_of_a_request_has_no_underscore)
{
    EXPECT_ROWS(HTTP_RAW_REQUEST, {SLICE(LINE "X_A: y\r\n\r\n"), "invalid_header"},
                {SLICE(LINE "_: y\r\n\r\n"), "invalid_header"},
                {SLICE(LINE "Content_Length: 1\r\n\r\n"), "invalid_header"});
    EXPECT_ROWS(HTTP_RAW_ANSWER, {SLICE("HTTP/1.1 200 OK\r\nx_a: y\r\n\r\n"), ""});
}

Test(http_raw_head, a_value_has_no_control_character_but_the_tab)
{
    for (int byte = 0; byte < 256; byte++) {
        char request[] = LINE "X: a?b\r\n\r\n";
        bool is_fine = byte == '\t' || (byte >= 0x20 && byte != 0x7f);
        request[sizeof LINE - 1 + 4] = (char)byte;

        struct verdict verdict =
            judge(HTTP_RAW_REQUEST, limits, slice_of(request, sizeof request - 1), 100);

        cr_assert(eq(int, verdict.status, is_fine ? 0 : 400), "%d", byte);
    }
}

Test(http_raw_head, trailers_are_headers_without_a_start_line)
{
    EXPECT_ROWS(HTTP_RAW_TRAILERS, {SLICE("\r\n"), ""}, {SLICE("A: b\r\nC:\r\n\r\n"), ""},
                {SLICE("A_B: c\r\n\r\n"), ""}, /* they are dropped: it can deceive nobody */
                {SLICE("A: b\r\n c\r\n\r\n"), "invalid_http"},
                {SLICE("A: b\n\r\n"), "invalid_header"}, {SLICE("\n"), "invalid_http"},
                {SLICE("GET / HTTP/1.1\r\n\r\n"), "invalid_header"});
}

Test(http_raw_head, every_limit_is_exact_however_the_bytes_are_split)
{
    struct slice request = SLICE(LINE "Host: a\r\n\r\n");

    for (size_t step = 1; step <= request.len; step++) {
        for (size_t max = 1; max <= request.len + 1; max++) {
            struct http_raw_limits own = {.bytes_max = max, .target_bytes_max = 256};
            struct verdict verdict = judge(HTTP_RAW_REQUEST, own, request, step);

            cr_assert(eq(int, verdict.status, max < request.len ? 431 : 0), "%zu, %zu", max, step);
        }
        cr_assert(eq(
            int, judge(HTTP_RAW_REQUEST, (struct http_raw_limits){4096, 1}, request, step).status,
            0));
        cr_assert(eq(
            int, judge(HTTP_RAW_REQUEST, (struct http_raw_limits){4096, 0}, request, step).status,
            414));
    }
}

Test(http_raw_head, there_are_so_many_headers_and_not_one_more)
{
    for (int count = HTTP_HEADER_COUNT_MAX; count <= HTTP_HEADER_COUNT_MAX + 1; count++) {
        char trailers[4096];
        size_t len = 0;
        for (int i = 0; i < count; i++)
            len += (size_t)snprintf(trailers + len, sizeof trailers - len, "X-%d: %d\r\n", i, i);
        len += (size_t)snprintf(trailers + len, sizeof trailers - len, "\r\n");

        struct verdict verdict = judge(HTTP_RAW_TRAILERS, limits, slice_of(trailers, len), 7);

        cr_assert(eq(int, verdict.status, count > HTTP_HEADER_COUNT_MAX ? 431 : 0));
    }
}
