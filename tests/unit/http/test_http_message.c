/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/http/http_message.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include "backends/runtime/must_check.h"
#include "tests/support/leak_check.h"

TestSuite(http_message, .fini = leak_check);

Test(http_message, the_first_header_of_a_name_is_found_whatever_its_case)
{
    static const struct http_header headers[] = {
        {SLICE("X"), SLICE("1")}, {SLICE("Host"), SLICE("a")}, {SLICE("HOST"), SLICE("b")}};
    struct http_head head = {.headers = headers, .header_count = 3};

    cr_assert(eq(ptr, (void *)http_head_find(&head, SLICE("hOsT")), (void *)&headers[1]));
    cr_assert(eq(ptr, (void *)http_head_find(&head, SLICE("Hos")), NULL));
    cr_assert(eq(ptr, (void *)http_head_find(&head, SLICE("")), NULL));
}

Test(http_message, headers_of_the_connection_are_ours_and_no_other)
{
    static const char *const hop[] = {"TE",
                                      "Expect",
                                      "Trailer",
                                      "Upgrade",
                                      "Connection",
                                      "Keep-Alive",
                                      "Proxy-Connection",
                                      "Transfer-Encoding",
                                      "connection",
                                      "HTTP2-Settings",
                                      "Proxy-Authenticate",
                                      "Proxy-Authorization",
                                      "tRaIlEr"};
    static const char *const through[] = {"",
                                          "T",
                                          "Accept",
                                          "Authorization",
                                          "Host",
                                          "Content-Length",
                                          "Vary",
                                          "X-Request-Id",
                                          "Cache-Control",
                                          "Retry-After",
                                          "Trailer-",
                                          "Upgrades",
                                          "Via",
                                          "Authorization",
                                          "Idempotency-Key"};

    for (size_t i = 0; i < sizeof hop / sizeof *hop; i++)
        cr_assert(http_header_is_hop_by_hop(slice_of_string(hop[i])), "%s", hop[i]);
    for (size_t i = 0; i < sizeof through / sizeof *through; i++)
        cr_assert(not(http_header_is_hop_by_hop(slice_of_string(through[i]))), "%s", through[i]);
}

Test(http_message, a_connection_header_names_what_is_not_passed_on)
{
    static const struct {
        const char *connection;
        const char *name;
        bool is_named;
    } rows[] = {
        {"X-Private", "X-Private", true},
        {"x-private", "X-PRIVATE", true},
        {"close, X-A ,\tX-B", "X-A", true},
        {"close, X-A ,\tX-B", "X-B", true},
        {",, X-A,,", "X-A", true},
        {"X-A", "X-B", false},
        {"X-AB", "X-A", false},
        {"", "X-A", false},
        {"close", "", false},
        /* a peer cannot take away what a message means */
        {"Authorization", "Authorization", false},
        {"Host", "Host", false},
        {"Content-Length", "Content-Length", false},
        {"content-type", "Content-Type", false},
        {"X-Request-Id", "x-request-id", false},
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct http_header header = {SLICE("Connection"), slice_of_string(rows[i].connection)};
        struct http_head head = {.headers = &header, .header_count = 1};

        bool is_named = http_head_names_in_connection(&head, slice_of_string(rows[i].name));

        cr_assert(eq(int, is_named, rows[i].is_named), "row %zu", i);
    }
}

Test(http_message, what_proxies_before_us_said_cannot_be_taken_away)
{
    static const char *const names[] = {"Forwarded",         "Via",       "X-Forwarded-For",
                                        "X-Forwarded-Proto", "X-Real-IP", "traceparent"};

    for (size_t i = 0; i < array_count(names); i++) {
        struct http_header header = {SLICE("Connection"), slice_of_string(names[i])};
        struct http_head head = {.headers = &header, .header_count = 1};

        cr_assert(not(http_head_names_in_connection(&head, header.value)), "%s", names[i]);
    }
}

Test(http_message, a_list_is_parted_by_commas_and_blanks)
{
    cr_assert(http_list_has(SLICE("close"), SLICE("Close")));
    cr_assert(http_list_has(SLICE("a , close\t, b"), SLICE("close")));
    cr_assert(http_list_has(SLICE(",,b"), SLICE("b")));
    cr_assert(not(http_list_has(SLICE("closed, xclose"), SLICE("close"))));
    cr_assert(not(http_list_has(SLICE(""), SLICE("close"))));
}

Test(http_message, every_connection_header_counts)
{
    static const struct http_header headers[] = {{SLICE("Connection"), SLICE("close")},
                                                 {SLICE("connection"), SLICE("X-A")}};
    struct http_head head = {.headers = headers, .header_count = 2};

    cr_assert(http_head_names_in_connection(&head, SLICE("X-A")));
}

Test(http_message, methods_and_statuses_have_their_names)
{
    static const char *const methods[] = {"GET",    "HEAD",    "POST", "OPTIONS",
                                          "DELETE", "CONNECT", "OTHER"};

    for (int i = 0; i < HTTP_METHOD_COUNT; i++)
        cr_assert(eq(str, (char *)http_method_name((enum http_method)i), (char *)methods[i]));
    cr_assert(eq(str, (char *)http_status_text(200), "OK"));
    cr_assert(eq(str, (char *)http_status_text(404), "Not Found"));
    cr_assert(eq(str, (char *)http_status_text(504), "Gateway Timeout"));
    cr_assert(eq(str, (char *)http_status_text(599), ""));
}
