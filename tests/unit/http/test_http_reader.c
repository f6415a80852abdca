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
    expect_fault(HTTP_READER_REQUESTS, "GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n",
                 "invalid_target");
    expect_fault(HTTP_READER_REQUESTS,
                 "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
                 "unsupported_transfer_encoding");
    expect_fault(HTTP_READER_REQUESTS,
                 "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n"
                 "Transfer-Encoding: chunked\r\n\r\n",
                 "invalid_http");
    expect_fault(HTTP_READER_REQUESTS, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1001\r\n\r\n",
                 "request_too_large");
}

Test(http_reader, a_chunked_body_over_the_limit_is_refused_as_it_grows)
{
    struct reader_world world;
    struct slice head =
        SLICE("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n");
    char chunk[1001] = {0};
    size_t consumed;
    world_init(&world, HTTP_READER_REQUESTS);

    cr_assert(eq(int, http_reader_feed(world.reader, head, &consumed), 0));
    cr_assert(eq(int, http_reader_feed(world.reader, slice_of(chunk, sizeof chunk), &consumed),
                 -EBADMSG));

    cr_assert(eq(int, http_reader_fault(world.reader).status, 413));
    world_release(&world);
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
