/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/http/http_guard.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <stdio.h>

#include "tests/support/leak_check.h"

enum { HEADER_COUNT_SHOWN = 4 };

/* A head by its parts; headers end at the first without a name pointer. */
struct head_row {
    struct http_header headers[HEADER_COUNT_SHOWN];
    const char *code; /* of the fault, or NULL: it is let through */
};

#define HEADER(name, value)                                                                        \
    {                                                                                              \
        SLICE(name), SLICE(value)                                                                  \
    }
#define HOST HEADER("Host", "a")

static struct http_head head_with(const struct http_header *headers)
{
    struct http_head head = {
        .method = HTTP_METHOD_POST,
        .target = SLICE("/v1/x"),
        .status = 200,
        .version_minor = 1,
        .headers = headers,
        .content_length = -1,
    };

    while (head.header_count < HEADER_COUNT_SHOWN && headers[head.header_count].name.ptr != NULL)
        head.header_count++;
    return head;
}

typedef int guard_fn(const struct http_head *head, struct http_fault *fault);

/* code NULL: let through. */
static void expect(guard_fn *guard, const struct http_head *head, const char *code,
                   const char *which)
{
    struct http_fault fault = {0};

    int status = guard(head, &fault);

    cr_assert(eq(int, status, code != NULL ? -EBADMSG : 0), "%s", which);
    if (code == NULL)
        return;
    cr_assert(eq(str, (char *)fault.code, (char *)code), "%s", which);
    cr_assert(ge(int, fault.status, 400), "%s", which);
    cr_assert(gt(sz, strlen(fault.message), 0), "%s", which);
}

static void expect_rows(guard_fn *guard, const struct head_row *rows, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct http_head head = head_with(rows[i].headers);
        char which[32];

        snprintf(which, sizeof which, "row %zu", i);
        expect(guard, &head, rows[i].code, which);
    }
}

#define EXPECT_ROWS(guard, ...)                                                                    \
    do {                                                                                           \
        static const struct head_row rows[] = {__VA_ARGS__};                                       \
        expect_rows(guard, rows, sizeof rows / sizeof *rows);                                      \
    } while (0)

TestSuite(http_guard, .fini = leak_check);

Test(http_guard, framing_is_said_once)
{
    EXPECT_ROWS(
        http_guard_request, {{HOST, HEADER("Content-Length", "5")}, NULL},
        {{HOST, HEADER("content-length", "5"), HEADER("CONTENT-LENGTH", "5")}, "ambiguous_framing"},
        {{HOST, HEADER("Transfer-Encoding", "chunked"), HEADER("transfer-encoding", "chunked")},
         "ambiguous_framing"},
        {{HOST, HEADER("Transfer-Encoding", "chunked"), HEADER("Content-Length", "5")},
         "ambiguous_framing"},
        {{HOST, HEADER("Content-Length", "5"), HEADER("Transfer-Encoding", "chunked")},
         "ambiguous_framing"});
    EXPECT_ROWS(
        http_guard_answer,
        {{HEADER("Content-Length", "5"), HEADER("Content-Length", "5")}, "ambiguous_framing"},
        {{HEADER("Transfer-Encoding", "chunked"), HEADER("Content-Length", "5")},
         "ambiguous_framing"});
}

Test(http_guard, an_encoding_is_exactly_chunked)
{
    EXPECT_ROWS(
        http_guard_request, {{HOST, HEADER("Transfer-Encoding", "chunked")}, NULL},
        {{HOST, HEADER("Transfer-Encoding", "CHUNKED")}, NULL},
        {{HOST, HEADER("Transfer-Encoding", "identity")}, "unsupported_transfer_encoding"},
        {{HOST, HEADER("Transfer-Encoding", "gzip, chunked")}, "unsupported_transfer_encoding"},
        {{HOST, HEADER("Transfer-Encoding", "chunkedchunked")}, "unsupported_transfer_encoding"},
        {{HOST, HEADER("Transfer-Encoding", "\xa0"
                                            "chunked")},
         "unsupported_transfer_encoding"},
        {{HOST, HEADER("Transfer-Encoding", "chunked;q=1")}, "unsupported_transfer_encoding"});
    EXPECT_ROWS(http_guard_answer,
                {{HEADER("Transfer-Encoding", "gzip, chunked")}, "unsupported_transfer_encoding"});
}

Test(http_guard, an_encoding_is_neither_empty_nor_behind_chunked)
{
    EXPECT_ROWS(http_guard_request, {{HOST, HEADER("Transfer-Encoding", "")}, "ambiguous_framing"},
                {{HOST, HEADER("Transfer-Encoding", "chunked, chunked")}, "ambiguous_framing"},
                {{HOST, HEADER("Transfer-Encoding", "chunked ,identity")}, "ambiguous_framing"},
                {{HOST, HEADER("Transfer-Encoding", "chunked\tx")}, "ambiguous_framing"});
    EXPECT_ROWS(http_guard_answer,
                {{HEADER("Transfer-Encoding", "chunked, gzip")}, "ambiguous_framing"});
}

Test(http_guard, http_1_0_has_no_chunks)
{
    static const struct http_header headers[HEADER_COUNT_SHOWN] = {
        HEADER("Transfer-Encoding", "chunked")};
    struct http_head head = head_with(headers);
    head.version_minor = 0;

    expect(http_guard_request, &head, "ambiguous_framing", "request");
    expect(http_guard_answer, &head, "ambiguous_framing", "answer");
}

Test(http_guard, a_length_is_a_plain_decimal)
{
    EXPECT_ROWS(http_guard_request, {{HOST, HEADER("Content-Length", "0")}, NULL},
                {{HOST, HEADER("Content-Length", "007")}, NULL},
                {{HOST, HEADER("Content-Length", "999999999999999")}, NULL},
                {{HOST, HEADER("Content-Length", "1000000000000000")}, "invalid_content_length"},
                {{HOST, HEADER("Content-Length", "")}, "invalid_content_length"},
                {{HOST, HEADER("Content-Length", "+3")}, "invalid_content_length"},
                {{HOST, HEADER("Content-Length", "-1")}, "invalid_content_length"},
                {{HOST, HEADER("Content-Length", "3, 3")}, "invalid_content_length"},
                {{HOST, HEADER("Content-Length", "0x10")}, "invalid_content_length"},
                {{HOST, HEADER("Content-Length", "3 ")}, "invalid_content_length"},
                {{HOST, HEADER("Content-Length", "1e3")}, "invalid_content_length"});
    EXPECT_ROWS(http_guard_answer, {{HEADER("Content-Length", "3x")}, "invalid_content_length"});
}

Test(http_guard, there_is_one_host_of_host_bytes)
{
    EXPECT_ROWS(
        http_guard_request, {{HEADER("Host", "a.example:8000")}, NULL},
        {{HEADER("host", "[::1]:80")}, NULL}, {{HEADER("Host", "[::1]")}, NULL},
        {{HEADER("Host", "a:")}, NULL}, /* RFC 9110, 4.2.3: a port may be empty */
        {{HEADER("Host", "")}, NULL},   /* RFC 9112, 3.2: where the target has no authority */
        {{HEADER("X", "y")}, "invalid_host"}, {{HOST, HOST}, "invalid_host"},
        {{HOST, HEADER("HOST", "b")}, "invalid_host"}, {{HEADER("Host", "a b")}, "invalid_host"},
        {{HEADER("Host", "a/b")}, "invalid_host"}, {{HEADER("Host", "a@b")}, "invalid_host"},
        {{HEADER("Host", "a\\b")}, "invalid_host"}, {{HEADER("Host", "a#b")}, "invalid_host"},
        {{HEADER("Host", "\xc3\xa9")}, "invalid_host"},
        {{HEADER("Host", "a:80:80")}, "invalid_host"}, {{HEADER("Host", "a:8x")}, "invalid_host"},
        {{HEADER("Host", "[::1")}, "invalid_host"}, {{HEADER("Host", "[::1]a")}, "invalid_host"},
        {{HEADER("Host", "[a]:x")}, "invalid_host"});
}

Test(http_guard, http_1_0_may_have_no_host_but_not_two)
{
    static const struct http_header none[HEADER_COUNT_SHOWN] = {HEADER("X", "y")};
    static const struct http_header two[HEADER_COUNT_SHOWN] = {HOST, HOST};
    struct http_head head = head_with(none);
    head.version_minor = 0;

    expect(http_guard_request, &head, NULL, "none");
    head = head_with(two);
    head.version_minor = 0;
    expect(http_guard_request, &head, "invalid_host", "two");
}

Test(http_guard, a_target_is_a_path)
{
    static const struct {
        struct slice target;
        enum http_method method;
        const char *code;
    } rows[] = {
        {SLICE("/"), HTTP_METHOD_GET, NULL},
        {SLICE("/v1/models/a%2Fb?x=y&z"), HTTP_METHOD_GET, NULL},
        {SLICE("*"), HTTP_METHOD_OPTIONS, NULL},
        {SLICE("/"), HTTP_METHOD_OPTIONS, NULL},
        {SLICE("*"), HTTP_METHOD_GET, "invalid_target"},
        {SLICE(""), HTTP_METHOD_GET, "invalid_target"},
        {SLICE("v1"), HTTP_METHOD_GET, "invalid_target"},
        {SLICE("http:/a/"), HTTP_METHOD_GET, "invalid_target"},
        {SLICE("ftp://a/"), HTTP_METHOD_GET, "invalid_target"},
        {SLICE("a:80"), HTTP_METHOD_OTHER, "invalid_target"},
    };
    static const struct http_header headers[HEADER_COUNT_SHOWN] = {HOST};

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct http_head head = head_with(headers);
        head.target = rows[i].target;
        head.method = rows[i].method;

        expect(http_guard_request, &head, rows[i].code, rows[i].target.ptr);
    }
}

Test(http_guard, an_absolute_target_is_for_the_host_that_it_names)
{
    static const struct {
        struct slice target;
        const char *host; /* NULL: none */
        const char *code;
    } rows[] = {
        {SLICE("http://a/"), "a", NULL},
        {SLICE("HTTPS://A:80/v1?q=/"), "a:80", NULL},
        {SLICE("http://a/"), NULL, NULL},
        {SLICE("http://a/"), "b", "invalid_host"},
        {SLICE("http://a:80/"), "a", "invalid_host"},
        {SLICE("http://u@a/"), "u@a", "invalid_host"},
        {SLICE("http://u@a/"), "a", "invalid_host"},
        {SLICE("http:///"), "", "invalid_host"},
        {SLICE("http://a"), "a", "invalid_target"}, /* no client of ours asks for no path */
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct http_header host = {SLICE("Host"),
                                   slice_of_string(rows[i].host != NULL ? rows[i].host : "")};
        struct http_head head = {.method = HTTP_METHOD_GET,
                                 .target = rows[i].target,
                                 .version_minor = rows[i].host != NULL,
                                 .headers = &host,
                                 .header_count = rows[i].host != NULL};

        expect(http_guard_request, &head, rows[i].code, rows[i].target.ptr);
    }
}

Test(http_guard, an_origin_form_is_what_follows_the_authority)
{
    cr_assert(slice_eq(http_guard_origin_form(SLICE("http://a:80/v1?q=http://b/")),
                       SLICE("/v1?q=http://b/")));
    cr_assert(slice_eq(http_guard_origin_form(SLICE("/http://a/")), SLICE("/http://a/")));
    cr_assert(slice_eq(http_guard_origin_form(SLICE("*")), SLICE("*")));
}

Test(http_guard, there_is_no_tunnel)
{
    static const struct http_header headers[HEADER_COUNT_SHOWN] = {HOST};
    struct http_head head = head_with(headers);
    head.method = HTTP_METHOD_CONNECT;
    head.target = SLICE("a:443");

    expect(http_guard_request, &head, "not_implemented", "CONNECT");
}

Test(http_guard, one_expectation_is_known)
{
    EXPECT_ROWS(
        http_guard_request, {{HOST, HEADER("Expect", "100-continue")}, NULL},
        {{HOST, HEADER("expect", "100-Continue")}, NULL},
        {{HOST, HEADER("Expect", "")}, "unknown_expectation"},
        {{HOST, HEADER("Expect", "banana")}, "unknown_expectation"},
        {{HOST, HEADER("Expect", "100-continue, banana")}, "unknown_expectation"},
        {{HOST, HEADER("Expect", "100-continue"), HEADER("Expect", "x")}, "unknown_expectation"});
}

Test(http_guard, an_answer_needs_neither_host_nor_target)
{
    static const struct http_header headers[HEADER_COUNT_SHOWN] = {HEADER("x_y", "z")};
    struct http_head head = head_with(headers);
    head.target = SLICE("");

    expect(http_guard_answer, &head, NULL, "answer");
}

Test(http_guard, a_status_has_a_meaning)
{
    static const struct http_header headers[HEADER_COUNT_SHOWN];
    static const int lawless[] = {0, 99, 100, 199, 600, 999};
    static const int lawful[] = {200, 299, 404, 500, 599};
    struct http_head head = head_with(headers);

    for (size_t i = 0; i < sizeof lawless / sizeof *lawless; i++) {
        head.status = lawless[i];
        expect(http_guard_answer, &head, "upstream_protocol_error", "lawless");
    }
    for (size_t i = 0; i < sizeof lawful / sizeof *lawful; i++) {
        head.status = lawful[i];
        expect(http_guard_answer, &head, NULL, "lawful");
    }
}
