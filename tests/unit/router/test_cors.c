/* SPDX-License-Identifier: Apache-2.0 */

#include "router/cors.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include "backends/runtime/must_check.h"
#include "tests/support/leak_check.h"

static const char *two[] = {"https://chat.example", "http://localhost:3000"};
static const char *any[] = {"*"};
static const struct option_list none, both = {two, 2}, all = {any, 1};

static const struct http_header page[] = {
    {SLICE("Origin"), SLICE("https://chat.example")},
    {SLICE("Access-Control-Request-Method"), SLICE("POST")},
    {SLICE("Access-Control-Request-Headers"), SLICE("authorization, content-type")},
};
static const struct http_header stranger[] = {
    {SLICE("Origin"), SLICE("https://evil.example")},
    {SLICE("Access-Control-Request-Method"), SLICE("POST")},
};

#define HEAD_OF(fields) ((struct http_head){.headers = fields, .header_count = array_count(fields)})

/* head NULL: not known. */
static void expect_headers(const struct option_list *origins, const struct http_head *head,
                           const char *wanted)
{
    struct buf buf;

    buf_init(&buf, 1024);
    cr_assert(eq(int, cors_write_headers(&buf, origins, head), 0));
    cr_assert(slice_eq(buf_slice(&buf), slice_of_string(wanted)), "%.*s", (int)buf_len(&buf),
              buf.bytes);
    buf_release(&buf);
}

static void expect_preflight(const struct option_list *origins, struct http_head head,
                             const char *wanted)
{
    struct buf buf;

    buf_init(&buf, 1024);
    cr_assert(eq(int, cors_write_preflight(&buf, origins, &head, "POST, OPTIONS"), 0));
    cr_assert(slice_eq(buf_slice(&buf), slice_of_string(wanted)), "%.*s", (int)buf_len(&buf),
              buf.bytes);
    buf_release(&buf);
}

TestSuite(cors, .fini = leak_check);

Test(cors, without_the_option_nothing_is_said)
{
    struct http_head head = HEAD_OF(page);

    expect_headers(&none, &head, "");
    expect_headers(&none, NULL, "");
    expect_preflight(&none, HEAD_OF(page), "");
}

Test(cors, a_page_of_an_origin_that_may_reads_the_answer)
{
    struct http_head head = HEAD_OF(page);
    const char *wanted = "vary: Origin\r\n"
                         "access-control-allow-origin: https://chat.example\r\n"
                         "access-control-expose-headers: x-request-id, retry-after\r\n";

    expect_headers(&both, &head, wanted);
    expect_headers(&all, &head, wanted);
}

Test(cors, any_other_page_does_not_and_caches_know_it)
{
    struct http_head head = HEAD_OF(stranger);

    expect_headers(&both, &head, "vary: Origin\r\n");
    expect_headers(&both, NULL, "vary: Origin\r\n");
    expect_preflight(&both, HEAD_OF(stranger), "");
}

Test(cors, a_preflight_is_told_what_the_page_may_send)
{
    struct http_head no_question = {.headers = page, .header_count = 1};

    expect_preflight(&both, HEAD_OF(page),
                     "access-control-allow-methods: POST, OPTIONS\r\n"
                     "access-control-allow-headers: authorization, content-type\r\n"
                     "access-control-max-age: 600\r\n");
    expect_preflight(&both, no_question, "");
}

Test(cors, what_a_worker_says_of_it_is_known_by_its_name)
{
    cr_assert(cors_is_header(SLICE("access-control-allow-origin")));
    cr_assert(cors_is_header(SLICE("Access-Control-X")));
    cr_assert(not(cors_is_header(SLICE("Access-Control-"))));
    cr_assert(not(cors_is_header(SLICE("X-Access-Control-Allow-Origin"))));
}
