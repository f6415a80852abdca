/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/http/sse.h"
#include "tests/support/leak_check.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EVENT_COUNT_MAX = 16, TEXT_LEN_MAX = 256 };

struct seen_event {
    char data[TEXT_LEN_MAX];
    char name[TEXT_LEN_MAX];
    size_t data_len;
    bool is_oversize;
    bool is_in_place;
    uint64_t start;
    uint64_t end;
};

/* A reader, and what it reported. */
struct sse_world {
    struct sse_reader reader;
    struct seen_event events[EVENT_COUNT_MAX];
    size_t event_count;
    struct slice piece;
};

static void on_event(void *ctx, const struct sse_event *event)
{
    struct sse_world *world = ctx;
    struct seen_event *seen = &world->events[world->event_count++];
    size_t kept = event->data.len < TEXT_LEN_MAX - 1 ? event->data.len : TEXT_LEN_MAX - 1;

    cr_assert(le(sz, world->event_count, EVENT_COUNT_MAX));
    *seen = (struct seen_event){
        .data_len = event->data.len,
        .is_oversize = event->is_oversize,
        .is_in_place = event->data.ptr >= world->piece.ptr &&
                       event->data.ptr < world->piece.ptr + world->piece.len,
        .start = event->start,
        .end = event->end,
    };
    if (kept > 0)
        memcpy(seen->data, event->data.ptr, kept);
    if (event->name.len > 0)
        memcpy(seen->name, event->name.ptr, event->name.len);
}

static void world_init(struct sse_world *world)
{
    memset(world, 0, sizeof *world);
    sse_reader_init(&world->reader);
}

/* Each piece in memory of its own, so that a read past it is seen. */
static void feed(struct sse_world *world, const char *bytes, size_t len)
{
    char *copy = calloc(1, len + BUF_PADDING);

    memcpy(copy, bytes, len);
    world->piece = slice_of(copy, len);
    sse_reader_feed(&world->reader, world->piece, on_event, world);
    free(copy);
}

TestSuite(sse, .fini = leak_check);

static const struct stream {
    const char *text;
    size_t event_count;
    const char *data[4];
    const char *names[4];
} streams[] = {
    {"data: a\n\ndata: b\n\n", 2, {"a", "b"}, {"", ""}},
    {"data: a\r\n\r\ndata: b\r\n\r\n", 2, {"a", "b"}, {"", ""}},
    {"data: a\r\rdata: b\r\r", 2, {"a", "b"}, {"", ""}},
    {"data: a\rdata: b\n\ndata: c\r\n\rdata: d\n\r", 3, {"a\nb", "c", "d"}, {"", "", ""}},
    {"data:a\n\n", 1, {"a"}, {""}},
    {"data:  a\n\n", 1, {" a"}, {""}},
    {"data: a\ndata: b\ndata:\ndata: c\n\n", 1, {"a\nb\n\nc"}, {""}},
    {"data:\ndata: b\n\n", 1, {"\nb"}, {""}},
    {"event: add\ndata: 73\n\n", 1, {"73"}, {"add"}},
    {"data: x\nevent: late\n\ndata: y\n\n", 2, {"x", "y"}, {"late", ""}},
    {": hello\n\ndata: a\n: inside\ndata: b\n\n:\n", 1, {"a\nb"}, {""}},
    {"\xEF\xBB\xBF"
     "data: a\n\n",
     1,
     {"a"},
     {""}},
    {"id: 7\nretry: 10\n\ndata: a\n\n", 1, {"a"}, {""}},
    {"data\n\n", 1, {""}, {""}},
    {"database: no\ndata: yes\n\n", 1, {"yes"}, {""}},
    {"\n\n\r\n\ndata: a\n\r\n", 1, {"a"}, {""}},
    {"data: [DONE]\n\ndata: unfinished\n", 1, {"[DONE]"}, {""}},
};

static void check_stream(const struct sse_world *world, const struct stream *stream)
{
    cr_assert(eq(sz, world->event_count, stream->event_count), "%s", stream->text);
    for (size_t i = 0; i < world->event_count; i++) {
        cr_assert(eq(str, (char *)world->events[i].data, (char *)stream->data[i]));
        cr_assert(eq(str, (char *)world->events[i].name, (char *)stream->names[i]));
    }
}

Test(sse, events_are_the_same_at_every_pair_of_split_positions)
{
    for (size_t row = 0; row < array_count(streams); row++) {
        const char *text = streams[row].text;
        size_t len = strlen(text);

        for (size_t first = 0; first <= len; first++) {
            for (size_t second = first; second <= len; second++) {
                struct sse_world world;
                world_init(&world);

                feed(&world, text, first);
                feed(&world, text + first, second - first);
                feed(&world, text + second, len - second);

                check_stream(&world, &streams[row]);
                sse_reader_release(&world.reader);
            }
        }
    }
}

Test(sse, events_are_the_same_byte_by_byte)
{
    for (size_t row = 0; row < array_count(streams); row++) {
        struct sse_world world;
        world_init(&world);

        for (size_t at = 0; at < strlen(streams[row].text); at++)
            feed(&world, streams[row].text + at, 1);

        check_stream(&world, &streams[row]);
        sse_reader_release(&world.reader);
    }
}

Test(sse, cutting_by_offsets_takes_out_exactly_one_event)
{
    const char text[] = "\n: note\ndata: a\r\n\r\n: note\nevent: x\r\ndata: b\r\n\r\ndata: c\n\n";
    const char b[] = "event: x\r\ndata: b\r\n\r\n";
    size_t b_start = (size_t)(strstr(text, b) - text);

    for (size_t split = 0; split <= strlen(text); split++) {
        struct sse_world world;
        world_init(&world);

        feed(&world, text, split);
        feed(&world, text + split, strlen(text) - split);

        /* The LF of a CRLF that was split stays outside. */
        bool is_split_crlf = split == b_start + strlen(b) - 1;
        cr_assert(eq(sz, world.event_count, 3));
        cr_assert(eq(u64, world.events[0].start, 8));
        cr_assert(eq(u64, world.events[1].start, b_start));
        cr_assert(eq(u64, world.events[1].end, b_start + strlen(b) - is_split_crlf));
        cr_assert(eq(u64, world.events[2].end, strlen(text)));
        sse_reader_release(&world.reader);
    }
}

Test(sse, a_whole_event_is_given_in_place_and_takes_no_memory)
{
    struct sse_world world;
    world_init(&world);

    feed(&world, "data: {\"x\":1}\n\nevent: e\ndata: 2\n\n", 33);

    cr_assert(eq(sz, world.event_count, 2));
    cr_assert(world.events[0].is_in_place);
    cr_assert(world.events[1].is_in_place);
    cr_assert(world.reader.carry.bytes == NULL);
    sse_reader_release(&world.reader);
}

Test(sse, boundary_means_a_new_event_may_be_written_here)
{
    static const struct {
        const char *text;
        bool is_boundary;
    } rows[] = {
        {"", true},           {"data: a\n\n", true},   {"d", false},
        {"data: a\n", false}, {"data: a\n\r", true},   {": note\n", true},
        {": no", false},      {"data: a\n\n\n", true}, {"id: 1\n", false},
        {"id: 1\n\n", true},
    };

    for (size_t i = 0; i < array_count(rows); i++) {
        struct sse_world world;
        world_init(&world);

        feed(&world, rows[i].text, strlen(rows[i].text));

        cr_assert(eq(int, sse_reader_is_at_boundary(&world.reader), rows[i].is_boundary), "%s",
                  rows[i].text);
        sse_reader_release(&world.reader);
    }
}

/* One event whose data is data_len bytes, in pieces of piece_len. */
static void feed_long_event(struct sse_world *world, size_t data_len, size_t piece_len)
{
    size_t len = data_len + 8;
    char *text = malloc(len + BUF_PADDING);
    memcpy(text, "data: ", 6);
    memset(text + 6, 'x', data_len);
    memcpy(text + 6 + data_len, "\n\n", 2);
    memset(text + len, 0, BUF_PADDING);

    for (size_t at = 0; at < len; at += piece_len) {
        size_t n = len - at < piece_len ? len - at : piece_len;
        world->piece = slice_of(text + at, n);
        sse_reader_feed(&world->reader, world->piece, on_event, world);
    }
    free(text);
}

Test(sse, the_limit_of_data_is_exact_however_it_is_split)
{
    const size_t piece_lens[] = {2 * SSE_DATA_BYTES_MAX, 65536, 4097};

    for (size_t i = 0; i < array_count(piece_lens); i++) {
        struct sse_world world;
        world_init(&world);

        feed_long_event(&world, SSE_DATA_BYTES_MAX, piece_lens[i]);
        feed_long_event(&world, SSE_DATA_BYTES_MAX + 1, piece_lens[i]);
        feed(&world, "data: after\n\n", 13);

        cr_assert(eq(sz, world.event_count, 3));
        cr_assert(not(world.events[0].is_oversize));
        cr_assert(eq(sz, world.events[0].data_len, SSE_DATA_BYTES_MAX));
        cr_assert(world.events[1].is_oversize);
        cr_assert(eq(sz, world.events[1].data_len, 0));
        cr_assert(eq(u64, world.events[1].end, 2 * (SSE_DATA_BYTES_MAX + 8) + 1));
        cr_assert(not(world.events[2].is_oversize));
        cr_assert(eq(str, world.events[2].data, "after"));
        sse_reader_release(&world.reader);
    }
}

Test(sse, eight_mebibytes_in_single_bytes_are_linear_work, .timeout = 20)
{
    struct sse_world world;
    world_init(&world);

    feed_long_event(&world, 8 << 20, 1);

    cr_assert(eq(sz, world.event_count, 1));
    cr_assert(world.events[0].is_oversize);
    sse_reader_release(&world.reader);
}

Test(sse, many_data_lines_add_up_to_oversize)
{
    struct sse_world world;
    char line[4096];
    world_init(&world);
    memset(line, 'y', sizeof line);
    memcpy(line, "data: ", 6);
    line[sizeof line - 1] = '\n';

    for (size_t i = 0; i < 300; i++)
        feed(&world, line, sizeof line);
    feed(&world, "\n", 1);

    cr_assert(eq(sz, world.event_count, 1));
    cr_assert(world.events[0].is_oversize);
    cr_assert(sse_reader_is_at_boundary(&world.reader));
    sse_reader_release(&world.reader);
}

Test(sse, a_long_comment_is_neither_kept_nor_an_event)
{
    struct sse_world world;
    char comment[65536];
    world_init(&world);
    memset(comment, ':', sizeof comment);

    for (size_t i = 0; i < 64; i++)
        feed(&world, comment, sizeof comment);
    feed(&world, "\ndata: a\n\n", 10);

    cr_assert(eq(sz, world.event_count, 1));
    cr_assert(eq(str, world.events[0].data, "a"));
    cr_assert(not(world.events[0].is_oversize));
    sse_reader_release(&world.reader);
}
