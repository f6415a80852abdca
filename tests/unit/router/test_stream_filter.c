/* SPDX-License-Identifier: Apache-2.0 */

#include "router/stream_filter.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <stdlib.h>

#include "backends/runtime/must_check.h"
#include "tests/support/leak_check.h"

enum { STREAM_BYTES_MAX = 8 << 20 };

/* A filter that takes out events whose data begins with CUT, and all that left it. */
struct filter_world {
    struct stream_filter filter;
    struct buf out;
    struct buf expected; /* the stream without the events it was told to take out */
    struct slice stream;
    uint64_t expected_up_to; /* stream offset */
    uint32_t event_count;
    int out_status; /* what on_out returns */
    char *piece;    /* padded copy of the piece at hand */
};

static void expect_up_to(struct filter_world *world, uint64_t end)
{
    cr_assert(eq(int,
                 buf_append(&world->expected, slice_of(world->stream.ptr + world->expected_up_to,
                                                       (size_t)(end - world->expected_up_to))),
                 0));
    world->expected_up_to = end;
}

static bool cut_or_keep(void *ctx, const struct sse_event *event)
{
    struct filter_world *world = ctx;
    bool is_cut = slice_starts_with(event->data, SLICE("CUT"));

    world->event_count++;
    if (is_cut && world->filter.may_cut) {
        expect_up_to(world, event->start);
        world->expected_up_to = event->end;
        /* of a CRLF that is split behind the event both go */
        if (event->end < world->stream.len && world->stream.ptr[event->end - 1] == '\r' &&
            world->stream.ptr[event->end] == '\n')
            world->expected_up_to++;
    }
    return is_cut;
}

static int keep_out(void *ctx, struct slice bytes)
{
    struct filter_world *world = ctx;

    cr_assert(gt(sz, bytes.len, 0));
    cr_assert(eq(int, buf_append(&world->out, bytes), 0));
    return world->out_status;
}

static void world_init(struct filter_world *world, struct slice stream, bool may_cut)
{
    *world = (struct filter_world){.stream = stream};
    buf_init(&world->out, STREAM_BYTES_MAX);
    buf_init(&world->expected, STREAM_BYTES_MAX);
    stream_filter_init(&world->filter, may_cut, cut_or_keep, keep_out, world);
    world->piece = malloc(stream.len + BUF_PADDING);
}

static void world_release(struct filter_world *world)
{
    stream_filter_release(&world->filter);
    buf_release(&world->out);
    buf_release(&world->expected);
    free(world->piece);
}

/* Feeds the stream's bytes from start to end, behind which other bytes can be read. */
static int feed(struct filter_world *world, size_t start, size_t end)
{
    memcpy(world->piece, world->stream.ptr + start, end - start);
    memset(world->piece + (end - start), '\n', BUF_PADDING);
    return stream_filter_feed(&world->filter, slice_of(world->piece, end - start));
}

static void ignore_event(void *ctx, const struct sse_event *event)
{
    (void)ctx;
    (void)event;
}

/* Whether bytes end between two events, by a reader that has seen nothing else. */
static bool ends_at_boundary(struct slice bytes)
{
    struct sse_reader reader;
    char *padded = calloc(1, bytes.len + BUF_PADDING);
    bool is_at_boundary;

    if (bytes.len > 0)
        memcpy(padded, bytes.ptr, bytes.len);
    sse_reader_init(&reader);
    sse_reader_feed(&reader, slice_of(padded, bytes.len), ignore_event, NULL);
    is_at_boundary = sse_reader_is_at_boundary(&reader);
    sse_reader_release(&reader);
    free(padded);
    return is_at_boundary;
}

/* How much of what left a failed assertion shows. */
static int shown_len(const struct filter_world *world)
{
    return buf_len(&world->out) < 200 ? (int)buf_len(&world->out) : 200;
}

static void expect_boundary_is_true(struct filter_world *world)
{
    cr_assert(eq(int, stream_filter_is_at_boundary(&world->filter),
                 ends_at_boundary(buf_slice(&world->out))),
              "'%.*s'", shown_len(world), world->out.bytes);
}

/* The whole stream in pieces that end at ends. What leaves is what on_event did not take out. */
static void run(struct filter_world *world, const size_t *ends, size_t end_count)
{
    size_t at = 0;

    for (size_t i = 0; i < end_count; i++) {
        cr_assert(eq(int, feed(world, at, ends[i]), 0));
        expect_boundary_is_true(world);
        at = ends[i];
    }
    cr_assert(eq(int, stream_filter_finish(&world->filter), 0));
    expect_up_to(world, world->stream.len);
    cr_assert(slice_eq(buf_slice(&world->out), buf_slice(&world->expected)), "'%.*s'",
              shown_len(world), world->out.bytes);
}

/* Cut at every two places; also_out may be what leaves as well. */
static void expect_every_split(struct slice stream, struct slice out, struct slice also_out)
{
    for (size_t first = 0; first <= stream.len; first++) {
        for (size_t second = first; second <= stream.len; second++) {
            struct filter_world world;
            world_init(&world, stream, true);

            run(&world, (size_t[]){first, second, stream.len}, 3);

            cr_assert(slice_eq(buf_slice(&world.out), out) ||
                          slice_eq(buf_slice(&world.out), also_out),
                      "cut at %zu, %zu: '%.*s'", first, second, shown_len(&world), world.out.bytes);
            world_release(&world);
        }
    }
}

TestSuite(stream_filter, .fini = leak_check);

Test(stream_filter, exactly_one_event_is_taken_out_wherever_the_stream_is_split)
{
    struct slice out = SLICE("data: a\n\n: hi\ndata: b\n\n");

    expect_every_split(SLICE("data: a\n\ndata: CUT\n\n: hi\ndata: b\n\n"), out, out);
}

Test(stream_filter, lines_may_end_with_cr)
{
    struct slice out = SLICE("data: a\r\rdata: b\r\r");

    expect_every_split(SLICE("data: a\r\rid: 1\rdata: CUT\r\rdata: b\r\r"), out, out);
}

Test(stream_filter, lines_may_end_with_crlf)
{
    /* A CRLF split behind the event's end leaves its LF, an empty line, which means nothing. */
    expect_every_split(SLICE("data: a\r\n\r\ndata: CUT\r\n\r\ndata: b\r\n\r\n"),
                       SLICE("data: a\r\n\r\ndata: b\r\n\r\n"),
                       SLICE("data: a\r\n\r\n\ndata: b\r\n\r\n"));
}

Test(stream_filter, a_comment_before_the_event_stays)
{
    struct slice out = SLICE(": ping\n\n: pong\ndata: [DONE]\n\n");

    expect_every_split(SLICE(": ping\n\n: pong\ndata: CUT\n\ndata: [DONE]\n\n"), out, out);
}

Test(stream_filter, data_of_several_lines_goes_as_one)
{
    struct slice out = SLICE("data: [DONE]\n\n");

    expect_every_split(SLICE("event: e\ndata: CUT\n: c\ndata: 2\n\ndata: [DONE]\n\n"), out, out);
}

Test(stream_filter, neighbours_first_and_last_may_go)
{
    struct slice out = SLICE("data: a\n\n");

    expect_every_split(SLICE("data: CUT\n\ndata: CUT\n\ndata: a\n\ndata: CUT\n\n"), out, out);
}

Test(stream_filter, an_unfinished_event_leaves_at_the_end)
{
    struct slice out = SLICE("data: a\n\ndata: CUT\n");

    expect_every_split(SLICE("data: a\n\ndata: CUT\n"), out, out);
}

Test(stream_filter, what_is_no_event_passes_unchanged)
{
    struct slice out = SLICE("\xEF\xBB\xBF\n\nevent: x\n\nretry: 1\n\nnonsense\n\n");

    expect_every_split(out, out, out);
}

Test(stream_filter, whole_events_leave_at_once)
{
    struct slice stream = SLICE("data: a\n\ndata: b\n\ndata: c");
    struct filter_world world;
    world_init(&world, stream, true);

    cr_assert(eq(int, feed(&world, 0, 9), 0));
    cr_assert(eq(sz, buf_len(&world.out), 9));
    cr_assert(eq(int, feed(&world, 9, 22), 0));
    cr_assert(eq(sz, buf_len(&world.out), 18)); /* "data" of the third is held back */
    cr_assert(stream_filter_is_at_boundary(&world.filter));

    world_release(&world);
}

Test(stream_filter, one_that_may_not_cut_holds_nothing_back)
{
    struct slice stream = SLICE("data: a\n\ndata: CUT\n\ndata: b\n\n");
    struct filter_world world;
    world_init(&world, stream, false);

    for (size_t at = 0; at < stream.len; at++) {
        cr_assert(eq(int, feed(&world, at, at + 1), 0));
        cr_assert(eq(sz, buf_len(&world.out), at + 1));
        expect_boundary_is_true(&world);
    }

    cr_assert(eq(u32, world.event_count, 3));
    cr_assert(slice_eq(buf_slice(&world.out), stream));
    world_release(&world);
}

/* A stream with one large event between two small ones. Free it. */
static struct slice large_stream(const char *line_head, size_t len, const char *line_tail)
{
    struct buf buf;
    char fill[1000];

    memset(fill, 'x', sizeof fill);
    fill[sizeof fill - 1] = '\n';
    buf_init(&buf, STREAM_BYTES_MAX);
    cr_assert(eq(int, buf_append(&buf, SLICE("data: a\n\n")), 0));
    cr_assert(eq(int, buf_append(&buf, slice_of_string(line_head)), 0));
    while (buf_len(&buf) < len) {
        cr_assert(eq(int, buf_append(&buf, SLICE(":")), 0));
        cr_assert(eq(int, buf_append(&buf, slice_of(fill, sizeof fill)), 0));
    }
    cr_assert(eq(int, buf_append(&buf, slice_of_string(line_tail)), 0));
    cr_assert(eq(int, buf_append(&buf, SLICE("data: b\n\n")), 0));
    return buf_slice(&buf);
}

static void feed_in_reads(struct filter_world *world)
{
    enum { READ_BYTES = 64 << 10 };

    for (size_t at = 0; at < world->stream.len; at += READ_BYTES) {
        size_t end = world->stream.len - at < READ_BYTES ? world->stream.len : at + READ_BYTES;

        cr_assert(eq(int, feed(world, at, end), 0));
        cr_assert(le(sz, buf_len(&world->filter.held), SSE_DATA_BYTES_MAX));
        expect_boundary_is_true(world);
    }
    cr_assert(eq(int, stream_filter_finish(&world->filter), 0));
}

Test(stream_filter, an_event_too_large_to_be_read_passes_in_bounded_memory)
{
    struct buf big;
    struct filter_world world;
    buf_init(&big, STREAM_BYTES_MAX);
    cr_assert(eq(int, buf_append(&big, SLICE("data: CUT")), 0));
    for (int i = 0; i < 3 << 10; i++) {
        char kib[1024];
        memset(kib, 'x', sizeof kib);
        cr_assert(eq(int, buf_append(&big, slice_of(kib, sizeof kib)), 0));
    }
    cr_assert(eq(int, buf_append(&big, SLICE("\n\ndata: b\n\n")), 0));
    world_init(&world, buf_slice(&big), true);

    feed_in_reads(&world);

    cr_assert(slice_eq(buf_slice(&world.out), world.stream));
    world_release(&world);
    buf_release(&big);
}

Test(stream_filter, an_event_of_which_a_part_has_left_is_not_cut_in_two)
{
    /* Its data is small, so it is understood; but it is too long to be held for that. */
    struct slice stream = large_stream("data: CUT\n", 2 << 20, "\n");
    struct filter_world world;
    world_init(&world, stream, true);

    feed_in_reads(&world);

    cr_assert(eq(sz, buf_len(&world.out), stream.len));
    cr_assert(slice_eq(buf_slice(&world.out), stream));
    world_release(&world);
    free((char *)(uintptr_t)stream.ptr);
}

Test(stream_filter, who_cannot_take_bytes_stops_it)
{
    struct slice stream = SLICE("data: a\n\ndata: CUT\n\n");
    struct filter_world world;
    world_init(&world, stream, true);
    world.out_status = -EPIPE;

    cr_assert(eq(int, feed(&world, 0, stream.len), -EPIPE));

    cr_assert(slice_eq(buf_slice(&world.out), SLICE("data: a\n\n")));
    world_release(&world);
}

Test(stream_filter, one_that_was_never_set_up_may_be_released)
{
    struct stream_filter filter = {0};

    stream_filter_release(&filter);
    stream_filter_release(&filter);
}
