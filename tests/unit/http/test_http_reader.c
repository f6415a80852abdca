/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/http/http_reader.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <stdio.h>

#include "backends/runtime/buf.h"
#include "tests/support/leak_check.h"

/* A reader whose callbacks write down what they saw. */
struct reader_world {
    struct http_reader *reader;
    struct buf seen; /* one line a head, "body:" pieces joined, "end\n" */
    bool is_in_body;
};

static int note_head(void *ctx, const struct http_head *head)
{
    struct reader_world *world = ctx;

    world->is_in_body = false;
    cr_assert(
        eq(int,
           buf_printf(&world->seen, "%s %.*s %d len=%ld chunked=%d body=%d keep=%d headers=%zu\n",
                      http_method_name(head->method), (int)head->target.len,
                      head->target.len > 0 ? head->target.ptr : "", head->status,
                      (long)head->content_length, head->is_chunked, head->has_body,
                      head->keep_alive, head->header_count),
           0));
    return 0;
}

static int note_body(void *ctx, struct slice piece)
{
    struct reader_world *world = ctx;

    if (!world->is_in_body)
        cr_assert(eq(int, buf_append(&world->seen, SLICE("body:")), 0));
    world->is_in_body = true;
    cr_assert(eq(int, buf_append(&world->seen, piece), 0));
    return 0;
}

static int note_end(void *ctx)
{
    struct reader_world *world = ctx;

    return buf_append(&world->seen, SLICE("|end\n"));
}

static const struct http_reader_callbacks note = {note_head, note_body, note_end};

static const struct http_reader_limits limits = {
    .head_bytes_max = 4096, .target_bytes_max = 256, .body_bytes_max = 1000};

static void world_init(struct reader_world *world, enum http_reader_kind kind)
{
    *world = (struct reader_world){.reader = http_reader_create(kind, limits, &note, world)};
    buf_init(&world->seen, 1 << 20);
}

static void world_release(struct reader_world *world)
{
    http_reader_destroy(world->reader);
    buf_release(&world->seen);
}

/* Feeds bytes in pieces of step, going on to the next message at each end. */
static int feed_all(struct reader_world *world, struct slice bytes, size_t step)
{
    while (bytes.len > 0) {
        struct slice piece = slice_of(bytes.ptr, bytes.len < step ? bytes.len : step);
        size_t consumed = 0;
        size_t seen = buf_len(&world->seen);
        int status = http_reader_feed(world->reader, piece, &consumed);

        if (status < 0)
            return status;
        bytes = slice_skip(bytes, consumed);
        if (consumed < piece.len ||
            (buf_len(&world->seen) > seen && world->seen.bytes[world->seen.end - 1] == '\n' &&
             world->seen.bytes[world->seen.end - 2] == 'd'))
            http_reader_next(world->reader);
    }
    return 0;
}

static void expect(enum http_reader_kind kind, const char *input, const char *seen)
{
    struct slice bytes = slice_of_string(input);

    for (size_t step = 1; step <= bytes.len; step++) {
        struct reader_world world;
        world_init(&world, kind);

        cr_assert(eq(int, feed_all(&world, bytes, step), 0), "step %zu", step);

        cr_assert(eq(int, buf_append(&world.seen, slice_of("", 1)), 0));
        cr_assert(eq(str, world.seen.bytes, (char *)seen), "step %zu", step);
        world_release(&world);
    }
}

static void expect_fault(enum http_reader_kind kind, const char *input, const char *code)
{
    struct slice bytes = slice_of_string(input);

    for (size_t step = 1; step <= bytes.len; step++) {
        struct reader_world world;
        world_init(&world, kind);

        cr_assert(eq(int, feed_all(&world, bytes, step), -EBADMSG), "%s, step %zu", input, step);
        cr_assert(eq(str, (char *)http_reader_fault(world.reader).code, (char *)code));

        world_release(&world);
    }
}

TestSuite(http_reader, .fini = leak_check);

Test(http_reader, pipelined_requests_are_read_one_by_one_however_they_are_split)
{
    expect(HTTP_READER_REQUESTS,
           "POST /v1/x?a=b HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"
           "GET / HTTP/1.1\r\nHost: a\r\nX: \r\nConnection: close\r\n\r\n",
           "POST /v1/x?a=b 0 len=5 chunked=0 body=1 keep=1 headers=2\nbody:hello|end\n"
           "GET / 0 len=-1 chunked=0 body=0 keep=0 headers=3\n|end\n");
}

Test(http_reader, a_chunked_body_is_given_without_its_frames_and_trailers_are_dropped)
{
    expect(HTTP_READER_REQUESTS,
           "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
           "3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\nT: v\r\n\r\n",
           "POST / 0 len=-1 chunked=1 body=1 keep=1 headers=2\nbody:abc0123456789|end\n");
}

Test(http_reader, interim_answers_are_skipped)
{
    expect(HTTP_READER_ANSWERS,
           "HTTP/1.1 100 Continue\r\nX: y\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
           "OTHER  200 len=2 chunked=0 body=1 keep=1 headers=1\nbody:ok|end\n");
}

Test(http_reader, an_answer_that_can_have_no_body_has_none_whatever_it_says)
{
    expect(HTTP_READER_ANSWERS, "HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n",
           "OTHER  304 len=9 chunked=0 body=0 keep=1 headers=1\n|end\n");
}

Test(http_reader, an_answer_without_length_ends_with_the_connection)
{
    struct reader_world world;
    struct slice bytes = SLICE("HTTP/1.1 200 OK\r\n\r\nabc");
    size_t consumed;
    world_init(&world, HTTP_READER_ANSWERS);

    cr_assert(eq(int, http_reader_feed(world.reader, bytes, &consumed), 0));
    cr_assert(http_reader_is_inside(world.reader));
    cr_assert(eq(int, http_reader_feed_end(world.reader), 0));

    cr_assert(eq(int, buf_append(&world.seen, slice_of("", 1)), 0));
    cr_assert(eq(str, world.seen.bytes,
                 "OTHER  200 len=-1 chunked=0 body=1 keep=0 headers=0\nbody:abc|end\n"));
    world_release(&world);
}

Test(http_reader, an_answer_cut_in_the_middle_is_an_error)
{
    static const char *const cut[] = {
        "HTTP/1.1 200 OK\r\nContent-Le", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab"};

    for (size_t i = 0; i < sizeof cut / sizeof cut[0]; i++) {
        struct reader_world world;
        size_t consumed;
        world_init(&world, HTTP_READER_ANSWERS);

        cr_assert(eq(int, http_reader_feed(world.reader, slice_of_string(cut[i]), &consumed), 0));
        cr_assert(eq(int, http_reader_feed_end(world.reader), -EPIPE));

        world_release(&world);
    }
}

Test(http_reader, what_two_readers_could_read_differently_is_refused)
{
    expect_fault(HTTP_READER_REQUESTS, "GET / HTTP/1.1\r\n\r\n", "invalid_host");
    expect_fault(HTTP_READER_REQUESTS, "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
                 "invalid_host");
    expect_fault(HTTP_READER_REQUESTS, "GET / HTTP/1.1\r\nHost: a\r\nX_Y: b\r\n\r\n",
                 "invalid_header");
    expect_fault(HTTP_READER_REQUESTS, "GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n", "invalid_host");
    expect_fault(HTTP_READER_REQUESTS,
                 "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
                 "ambiguous_framing");
    expect_fault(HTTP_READER_REQUESTS,
                 "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n"
                 "Transfer-Encoding: chunked\r\n\r\n",
                 "invalid_http");
    expect_fault(HTTP_READER_REQUESTS, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1001\r\n\r\n",
                 "request_too_large");
}

Test(http_reader, a_chunked_body_over_the_limit_is_refused_before_its_bytes_come)
{
    struct reader_world world;
    struct slice fine =
        SLICE("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n3e8\r");
    size_t consumed;
    world_init(&world, HTTP_READER_REQUESTS);

    cr_assert(eq(int, http_reader_feed(world.reader, fine, &consumed), 0));
    cr_assert(eq(int, http_reader_feed(world.reader, SLICE("\n"), &consumed), -EBADMSG));

    cr_assert(eq(int, http_reader_fault(world.reader).status, 413));
    cr_assert(eq(i64, http_reader_body_bytes(world.reader), 1001));
    world_release(&world);
}

Test(http_reader, a_refused_length_is_known)
{
    struct reader_world world;
    size_t consumed;
    world_init(&world, HTTP_READER_REQUESTS);

    cr_assert(
        eq(int,
           http_reader_feed(world.reader,
                            SLICE("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999\r\n\r\n"),
                            &consumed),
           -EBADMSG));

    cr_assert(eq(i64, http_reader_body_bytes(world.reader), 99999));
    world_release(&world);
}

Test(http_reader, interim_answers_have_an_end)
{
    for (int count = 16; count <= 17; count++) {
        struct reader_world world;
        int status = 0;
        size_t consumed;
        world_init(&world, HTTP_READER_ANSWERS);

        for (int i = 0; i < count && status == 0; i++)
            status = http_reader_feed(world.reader, SLICE("HTTP/1.1 103 Early Hints\r\n\r\n"),
                                      &consumed);
        if (status == 0)
            status =
                http_reader_feed(world.reader, SLICE("HTTP/1.1 204 No Content\r\n\r\n"), &consumed);

        cr_assert(eq(int, status, count > 16 ? -EBADMSG : 0), "%d", count);
        world_release(&world);
    }
}

Test(http_reader, an_interim_answer_is_inside)
{
    struct reader_world world;
    size_t consumed;
    world_init(&world, HTTP_READER_ANSWERS);

    cr_assert(eq(
        int, http_reader_feed(world.reader, SLICE("HTTP/1.1 100 Continue\r\n\r\n"), &consumed), 0));

    cr_assert(http_reader_is_inside(world.reader));
    cr_assert(eq(int, http_reader_feed_end(world.reader), -EPIPE));
    world_release(&world);
}

Test(http_reader, the_head_of_an_answer_has_a_limit)
{
    struct slice answer = SLICE("HTTP/1.1 204 No Content\r\nX: 12345\r\n\r\n");

    for (size_t max = answer.len - 1; max <= answer.len; max++) {
        struct http_reader_limits own = {.head_bytes_max = max};
        struct reader_world world = {
            .reader = http_reader_create(HTTP_READER_ANSWERS, own, &note, &world)};
        size_t consumed;
        buf_init(&world.seen, 4096);

        cr_assert(eq(int, http_reader_feed(world.reader, answer, &consumed),
                     max < answer.len ? -EBADMSG : 0));

        world_release(&world);
    }
}

Test(http_reader, an_absolute_target_is_given_in_origin_form)
{
    expect(HTTP_READER_REQUESTS, "GET http://a/v1?q HTTP/1.1\r\nHost: a\r\n\r\n",
           "GET /v1?q 0 len=-1 chunked=0 body=0 keep=1 headers=1\n|end\n");
}

Test(http_reader, heads_have_limits)
{
    char input[8192] = "GET /";
    memset(input + 5, 'a', 300);
    memcpy(input + 305, " HTTP/1.1\r\n", 12);
    expect_fault(HTTP_READER_REQUESTS, input, "uri_too_long");

    size_t len = (size_t)snprintf(input, sizeof input, "GET / HTTP/1.1\r\nHost: a\r\nX: ");
    memset(input + len, 'b', 5000);
    struct reader_world world;
    size_t consumed;
    world_init(&world, HTTP_READER_REQUESTS);
    cr_assert(
        eq(int, http_reader_feed(world.reader, slice_of(input, len + 5000), &consumed), -EBADMSG));
    cr_assert(eq(int, http_reader_fault(world.reader).status, 431));
    world_release(&world);
}

/* ---- limits: at, below, above ---- */

/* What a reader with those limits says of a whole request; 0 or the status of its fault. */
static int fault_status(struct http_reader_limits own, struct slice bytes)
{
    struct reader_world world;
    size_t consumed;
    int status;

    world.is_in_body = false;
    buf_init(&world.seen, 1 << 20);
    world.reader = http_reader_create(HTTP_READER_REQUESTS, own, &note, &world);
    status = http_reader_feed(world.reader, bytes, &consumed);
    cr_assert(le(sz, consumed, bytes.len));
    if (status < 0)
        status = http_reader_fault(world.reader).status;
    world_release(&world);
    return status;
}

Test(http_reader, a_target_may_be_as_long_as_its_limit)
{
    struct slice request = SLICE("GET /23456 HTTP/1.1\r\nHost: a\r\n\r\n");

    for (size_t max = 1; max <= 8; max++) {
        struct http_reader_limits own = {1000, max, 1000};

        cr_assert(eq(int, fault_status(own, request), max < 6 ? 414 : 0), "%zu", max);
    }
}

Test(http_reader, a_head_may_be_as_large_as_its_limit)
{
    struct slice request = SLICE("GET / HTTP/1.1\r\nHost: a\r\nX: 12345\r\n\r\n");

    for (size_t max = 2; max <= 2 * request.len; max++) {
        struct http_reader_limits own = {max, 256, 1000};

        cr_assert(eq(int, fault_status(own, request), max < request.len ? 431 : 0), "%zu", max);
    }
}

Test(http_reader, blanks_and_empty_lines_count_towards_the_limit)
{
    static const char *const heads[] = {
        "GET / HTTP/1.1\r\nHost: a\r\nX:", "GET / HTTP/1.1\r\nHost:", "\r\n"};
    struct http_reader_limits own = {200, 100, 1000};

    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        for (int blank_count = 100; blank_count <= 300; blank_count += 200) {
            struct buf request;
            buf_init(&request, 4096);
            cr_assert(eq(int, buf_append(&request, slice_of_string(heads[i])), 0));
            for (int blank = 0; blank < blank_count; blank += 2)
                cr_assert(eq(int, buf_append(&request, i < 2 ? SLICE("  ") : SLICE("\r\n")), 0));

            int status = fault_status(own, buf_slice(&request));

            cr_assert(eq(int, status, blank_count > 200 ? 431 : 0), "row %zu", i);
            buf_release(&request);
        }
    }
}

Test(http_reader, a_body_may_be_as_long_as_its_limit)
{
    for (int64_t max = 3; max <= 5; max++) {
        struct http_reader_limits own = {1000, 256, max};

        cr_assert(eq(int,
                     fault_status(own, SLICE("POST / HTTP/1.1\r\nHost: a\r\n"
                                             "Content-Length: 4\r\n\r\nabcd")),
                     max < 4 ? 413 : 0));
        cr_assert(eq(int,
                     fault_status(own, SLICE("POST / HTTP/1.1\r\nHost: a\r\n"
                                             "Transfer-Encoding: chunked\r\n\r\n"
                                             "2\r\nab\r\n2\r\ncd\r\n0\r\n\r\n")),
                     max < 4 ? 413 : 0));
    }
}

Test(http_reader, trailers_have_the_limit_of_a_head)
{
    struct slice request = SLICE("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
                                 "0\r\nT: "
                                 "01234567890123456789012345678901234567890123456789001234567890123"
                                 "4567890123456789012345678901234567\r\n\r\n");

    cr_assert(eq(int, fault_status((struct http_reader_limits){106, 256, 9}, request), 0));
    cr_assert(eq(int, fault_status((struct http_reader_limits){105, 256, 9}, request), 431));
}

Test(http_reader, there_are_so_many_headers_and_not_one_more)
{
    for (int count = HTTP_HEADER_COUNT_MAX - 1; count <= HTTP_HEADER_COUNT_MAX + 1; count++) {
        struct buf request;
        buf_init(&request, 1 << 16);
        cr_assert(eq(int, buf_append(&request, SLICE("GET / HTTP/1.1\r\nHost: a\r\n")), 0));
        for (int i = 1; i < count; i++)
            cr_assert(eq(int, buf_printf(&request, "X-%d: %d\r\n", i, i), 0));
        cr_assert(eq(int, buf_append(&request, SLICE("\r\n")), 0));

        int status = fault_status(limits, buf_slice(&request));

        cr_assert(eq(int, status, count > HTTP_HEADER_COUNT_MAX ? 431 : 0), "%d", count);
        buf_release(&request);
    }
}

/* ---- every split ---- */

/* All that was seen when bytes are cut at one or two places; the reader goes on to the next
 * message at each end. */
static void expect_split(enum http_reader_kind kind, struct slice bytes, const size_t cuts[2],
                         struct slice seen)
{
    size_t ends[] = {cuts[0], cuts[1], bytes.len};
    struct reader_world world;
    size_t at = 0;

    world_init(&world, kind);
    for (size_t i = 0; i < 3; i++) {
        cr_assert(eq(int, feed_all(&world, slice_of(bytes.ptr + at, ends[i] - at), bytes.len), 0),
                  "cut at %zu and %zu", cuts[0], cuts[1]);
        at = ends[i];
    }
    cr_assert(slice_eq(buf_slice(&world.seen), seen), "cut at %zu and %zu: %.*s", cuts[0], cuts[1],
              (int)buf_len(&world.seen), world.seen.bytes);
    world_release(&world);
}

static void expect_every_split(enum http_reader_kind kind, struct slice bytes, struct slice seen)
{
    for (size_t first = 0; first <= bytes.len; first++) {
        for (size_t second = first; second <= bytes.len; second++)
            expect_split(kind, bytes, (size_t[]){first, second}, seen);
    }
}

Test(http_reader, a_request_cut_at_any_two_places_reads_the_same)
{
    expect_every_split(
        HTTP_READER_REQUESTS,
        SLICE("POST /v1?a HTTP/1.1\r\nHost: a\r\nE:\r\nX:  b \t\r\n"
              "Transfer-Encoding: chunked\r\n\r\n1;e=\"f\"\r\na\r\n02\r\nbc\r\n0\r\nT: u\r\n\r\n"
              "GET / HTTP/1.0\r\n\r\n"),
        SLICE("POST /v1?a 0 len=-1 chunked=1 body=1 keep=1 headers=4\nbody:abc|end\n"
              "GET / 0 len=-1 chunked=0 body=0 keep=0 headers=0\n|end\n"));
}

Test(http_reader, answers_cut_at_any_two_places_read_the_same)
{
    expect_every_split(HTTP_READER_ANSWERS,
                       SLICE("HTTP/1.1 102 Processing\r\nA: b\r\n\r\n"
                             "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"
                             "HTTP/1.1 204 No Content\r\n\r\n"),
                       SLICE("OTHER  200 len=3 chunked=0 body=1 keep=1 headers=1\nbody:abc|end\n"
                             "OTHER  204 len=-1 chunked=0 body=0 keep=1 headers=0\n|end\n"));
}

/* ---- the head as values ---- */

/* Keeps what it was last shown: a head is valid until the next message. */
struct kept_head {
    struct http_head head;
    uint32_t head_count, end_count;
    int answer; /* of on_head */
};

static int keep_head(void *ctx, const struct http_head *head)
{
    struct kept_head *kept = ctx;

    kept->head = *head;
    kept->head_count++;
    return kept->answer;
}

static int drop_body(void *ctx, struct slice piece)
{
    (void)ctx;
    cr_assert(gt(sz, piece.len, 0));
    return 0;
}

static int count_end(void *ctx)
{
    struct kept_head *kept = ctx;

    kept->end_count++;
    return 0;
}

static const struct http_reader_callbacks keep = {keep_head, drop_body, count_end};

Test(http_reader, values_lose_the_blanks_around_them_and_keep_those_inside)
{
    struct kept_head kept = {0};
    struct http_reader *reader = http_reader_create(HTTP_READER_REQUESTS, limits, &keep, &kept);
    struct slice request = SLICE("GET / HTTP/1.1\r\nHost:a\r\nX: \t a b\t \r\nEmpty:  \r\n\r\n");
    size_t consumed;

    cr_assert(eq(int, http_reader_feed(reader, request, &consumed), 0));

    cr_assert(eq(sz, kept.head.header_count, 3));
    cr_assert(slice_eq(kept.head.headers[0].value, SLICE("a")));
    cr_assert(slice_eq(kept.head.headers[1].value, SLICE("a b")));
    cr_assert(eq(sz, kept.head.headers[2].value.len, 0));
    http_reader_destroy(reader);
}

Test(http_reader, methods_and_expectations_are_understood)
{
    static const struct {
        const char *line;
        enum http_method method;
    } rows[] = {{"GET", HTTP_METHOD_GET},        {"HEAD", HTTP_METHOD_HEAD},
                {"POST", HTTP_METHOD_POST},      {"OPTIONS", HTTP_METHOD_OPTIONS},
                {"DELETE", HTTP_METHOD_DELETE},  {"PUT", HTTP_METHOD_OTHER},
                {"PROPFIND", HTTP_METHOD_OTHER}, {"M-SEARCH", HTTP_METHOD_OTHER}};

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct kept_head kept = {0};
        struct http_reader *reader = http_reader_create(HTTP_READER_REQUESTS, limits, &keep, &kept);
        char request[128];
        size_t consumed;
        snprintf(request, sizeof request,
                 "%s / HTTP/1.1\r\nHost: a\r\nExpect: 100-Continue\r\nContent-Length: 1\r\n\r\n",
                 rows[i].line);

        cr_assert(eq(int, http_reader_feed(reader, slice_of_string(request), &consumed), 0));

        cr_assert(eq(int, kept.head.method, rows[i].method));
        cr_assert(kept.head.expects_continue);
        cr_assert(http_reader_is_inside(reader));
        http_reader_destroy(reader);
    }
}

/* Whichever version of llhttp reads: 9 knows QUERY, 8 does not. */
Test(http_reader, a_method_that_not_every_parser_knows_is_refused)
{
    static const char *const methods[] = {"get", "XXGET", "QUERY", "DESCRIBE", "GETT", "GE"};

    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        char request[64];
        snprintf(request, sizeof request, "%s / HTTP/1.1\r\nHost: a\r\n\r\n", methods[i]);

        expect_fault(HTTP_READER_REQUESTS, request, "invalid_http");
    }
}

Test(http_reader, only_http_1_0_and_1_1_are_spoken)
{
    expect_fault(HTTP_READER_REQUESTS, "GET / HTTP/2.0\r\nHost: a\r\n\r\n",
                 "unsupported_http_version");
    expect_fault(HTTP_READER_REQUESTS, "GET / HTTP/0.9\r\nHost: a\r\n\r\n",
                 "unsupported_http_version");
    expect_fault(HTTP_READER_REQUESTS, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                 "unsupported_http_version");
    expect_fault(HTTP_READER_ANSWERS, "HTTP/2.0 200 OK\r\n\r\n", "upstream_protocol_error");
}

Test(http_reader, an_upgrade_is_never_a_tunnel)
{
    expect(HTTP_READER_REQUESTS,
           "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
           "GET /2 HTTP/1.1\r\nHost: a\r\n\r\n",
           "GET / 0 len=-1 chunked=0 body=0 keep=1 headers=3\n|end\n"
           "GET /2 0 len=-1 chunked=0 body=0 keep=1 headers=1\n|end\n");
    expect_fault(HTTP_READER_ANSWERS,
                 "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n"
                 "Upgrade: websocket\r\n\r\n",
                 "upstream_protocol_error");
}

/* ---- from message to message ---- */

Test(http_reader, an_answer_to_head_has_no_body_and_the_next_one_may)
{
    struct kept_head kept = {0};
    struct http_reader *reader = http_reader_create(HTTP_READER_ANSWERS, limits, &keep, &kept);
    struct slice answer = SLICE("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n");
    size_t consumed;

    http_reader_expect_no_body(reader);
    cr_assert(eq(int, http_reader_feed(reader, answer, &consumed), 0));
    cr_assert(eq(sz, consumed, answer.len));
    cr_assert(not(kept.head.has_body));
    cr_assert(eq(i64, kept.head.content_length, 5));
    cr_assert(eq(u32, kept.end_count, 1));

    http_reader_next(reader);
    cr_assert(eq(int, http_reader_feed(reader, answer, &consumed), 0));
    cr_assert(kept.head.has_body);
    cr_assert(eq(u32, kept.end_count, 1));
    http_reader_destroy(reader);
}

Test(http_reader, a_forgotten_head_is_empty_and_the_body_goes_on)
{
    struct kept_head kept = {0};
    struct http_reader *reader = http_reader_create(HTTP_READER_ANSWERS, limits, &keep, &kept);
    struct slice answer =
        SLICE("HTTP/1.1 200 OK\r\nX: y\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n");
    size_t consumed;
    cr_assert(eq(int, http_reader_feed(reader, answer, &consumed), 0));

    http_reader_forget_head(reader);
    http_reader_forget_head(reader); /* twice is once */
    cr_assert(
        eq(int, http_reader_feed(reader, SLICE("1\r\nb\r\n0\r\nT: v\r\n\r\n"), &consumed), 0));
    cr_assert(eq(u32, kept.end_count, 1));

    http_reader_next(reader);
    cr_assert(eq(int, http_reader_feed(reader, answer, &consumed), 0));
    cr_assert(eq(u32, kept.head_count, 2));
    cr_assert(eq(sz, kept.head.header_count, 2));
    cr_assert(slice_eq(kept.head.headers[0].value, SLICE("y")));
    http_reader_destroy(reader);
}

Test(http_reader, inside_is_from_the_first_byte_to_the_end)
{
    struct kept_head kept = {0};
    struct http_reader *reader = http_reader_create(HTTP_READER_REQUESTS, limits, &keep, &kept);
    struct slice request = SLICE("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab");
    size_t consumed;

    cr_assert(not(http_reader_is_inside(reader)));
    for (size_t at = 0; at < request.len; at++) {
        cr_assert(eq(int, http_reader_feed(reader, slice_of(request.ptr + at, 1), &consumed), 0));
        cr_assert(eq(int, http_reader_is_inside(reader), at + 1 < request.len), "%zu", at);
    }
    http_reader_next(reader);
    cr_assert(not(http_reader_is_inside(reader)));
    http_reader_next(reader); /* there was nothing: nothing changes */
    cr_assert(eq(int, http_reader_feed(reader, request, &consumed), 0));
    cr_assert(eq(u32, kept.end_count, 2));
    http_reader_destroy(reader);
}

Test(http_reader, the_second_request_is_held_to_what_the_first_is)
{
    static const char first[] = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n";
    static const char *const second[] = {
        "GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n z\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n\tz\r\n\r\n",
        "GET / HTTP/1.1\nHost: a\r\n\r\n",
    };

    for (size_t i = 0; i < sizeof second / sizeof *second; i++) {
        char input[256];
        snprintf(input, sizeof input, "%s%s", first, second[i]);

        expect_fault(HTTP_READER_REQUESTS, input, "invalid_http");
    }
}

Test(http_reader, every_request_has_the_whole_limit_for_its_body)
{
    struct http_reader_limits own = {1000, 256, 4};
    struct kept_head kept = {0};
    struct http_reader *reader = http_reader_create(HTTP_READER_REQUESTS, own, &keep, &kept);
    struct slice request = SLICE("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
                                 "4\r\nabcd\r\n0\r\nT: u\r\n\r\n");
    size_t consumed;

    for (uint32_t i = 1; i <= 1000; i++) { /* trailers do not add up either */
        cr_assert(eq(int, http_reader_feed(reader, request, &consumed), 0), "%u", i);
        cr_assert(eq(u32, kept.end_count, i));
        http_reader_next(reader);
    }
    http_reader_destroy(reader);
}

Test(http_reader, a_callback_stops_the_reader_with_its_own_word)
{
    struct kept_head kept = {.answer = -ENOMEM};
    struct http_reader *reader = http_reader_create(HTTP_READER_REQUESTS, limits, &keep, &kept);
    size_t consumed;

    cr_assert(eq(int,
                 http_reader_feed(reader, SLICE("GET / HTTP/1.1\r\nHost: a\r\n\r\n"), &consumed),
                 -ENOMEM));

    cr_assert(eq(u32, kept.end_count, 0));
    cr_assert(not(http_reader_is_inside(reader)));
    http_reader_destroy(reader);
}

Test(http_reader, nothing_comes_after_a_fault)
{
    struct kept_head kept = {0};
    struct http_reader *reader = http_reader_create(HTTP_READER_REQUESTS, limits, &keep, &kept);
    struct slice request = SLICE("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    size_t consumed;
    cr_assert(eq(int, http_reader_feed(reader, SLICE("nonsense\r\n"), &consumed), -EBADMSG));

    cr_assert(eq(int, http_reader_feed(reader, request, &consumed), -EBADMSG));

    cr_assert(eq(sz, consumed, 0));
    cr_assert(eq(u32, kept.head_count, 0));
    cr_assert(eq(int, http_reader_feed_end(reader), -EPIPE));
    http_reader_destroy(reader);
}

Test(http_reader, an_end_between_messages_is_no_fault)
{
    struct kept_head kept = {0};
    struct http_reader *reader = http_reader_create(HTTP_READER_ANSWERS, limits, &keep, &kept);
    size_t consumed;

    cr_assert(eq(int, http_reader_feed_end(reader), 0));
    cr_assert(
        eq(int, http_reader_feed(reader, SLICE("HTTP/1.1 204 No Content\r\n\r\n"), &consumed), 0));
    cr_assert(eq(int, http_reader_feed_end(reader), 0));

    cr_assert(eq(u32, kept.end_count, 1));
    http_reader_destroy(reader);
}
