/* SPDX-License-Identifier: Apache-2.0 */

/*
 * However a stream is split, what leaves is the stream without the events that were taken out, and
 * the filter knows whether that ends between two events. The first byte of the input chooses the
 * splitting, the bits of the second which events go.
 */
#include "backends/runtime/must_check.h"
#include "router/stream_filter.h"
#include "tests/fuzz/fuzz_input.h"

#include <assert.h>

struct world {
    struct stream_filter filter;
    const char *stream;
    size_t size;
    uint8_t cut_bits;
    uint32_t event_count;
    uint64_t kept; /* of the events that stay, in order */
    uint64_t kept_count;
    char *out;
    size_t out_len;
    struct sse_reader client; /* reads what leaves, as a client would */
    uint64_t seen;            /* of the events that it saw */
    uint64_t seen_count;
    char *expected; /* what on_event left of the stream */
    size_t expected_len;
    uint64_t expected_up_to; /* stream offset */
};

static uint64_t add_bytes(uint64_t sum, struct slice bytes)
{
    for (size_t i = 0; i < bytes.len; i++)
        sum = (sum ^ (unsigned char)bytes.ptr[i]) * 1099511628211u;
    return (sum ^ bytes.len) * 1099511628211u;
}

static uint64_t add_event(uint64_t sum, const struct sse_event *event)
{
    return add_bytes(add_bytes(sum, event->name), event->data);
}

static void expect_up_to(struct world *world, uint64_t end)
{
    size_t len = (size_t)(end - world->expected_up_to);

    memcpy(world->expected + world->expected_len, world->stream + world->expected_up_to, len);
    world->expected_len += len;
    world->expected_up_to = end;
}

static bool cut_or_keep(void *ctx, const struct sse_event *event)
{
    struct world *world = ctx;
    bool is_cut = world->cut_bits >> (world->event_count++ % 8) & 1;

    if (is_cut) {
        expect_up_to(world, event->start);
        world->expected_up_to = event->end;
        if (event->end < world->size && world->stream[event->end - 1] == '\r' &&
            world->stream[event->end] == '\n')
            world->expected_up_to++; /* of a CRLF that is split both go */
    } else {
        world->kept = add_event(world->kept, event);
        world->kept_count++;
    }
    return is_cut;
}

static void see_event(void *ctx, const struct sse_event *event)
{
    struct world *world = ctx;

    world->seen = add_event(world->seen, event);
    world->seen_count++;
}

static int keep_out(void *ctx, struct slice bytes)
{
    struct world *world = ctx;
    char *padded = fuzz_padded((const uint8_t *)bytes.ptr, bytes.len, BUF_PADDING);

    assert(bytes.len > 0);
    memcpy(world->out + world->out_len, bytes.ptr, bytes.len);
    world->out_len += bytes.len;
    sse_reader_feed(&world->client, slice_of(padded, bytes.len), see_event, world);
    free(padded);
    return 0;
}

/* A byte order mark in mid-stream is none, until what stands before it is gone: then the client
 * sees another stream than the filter did, and what it sees is not compared. */
static bool has_moved_mark(const struct world *world, size_t size)
{
    return world->out_len > 0 && world->out[0] == '\xEF' &&
           (size == 0 || world->stream[0] != '\xEF');
}

static void run(const uint8_t *stream, size_t size, uint8_t cut_bits, size_t step)
{
    struct world world = {.stream = (const char *)stream, .size = size, .cut_bits = cut_bits};

    world.out = fuzz_padded(stream, size, 1);
    world.expected = fuzz_padded(stream, size, 1);
    sse_reader_init(&world.client);
    stream_filter_init(&world.filter, true, cut_or_keep, keep_out, &world);
    for (size_t at = 0; at < size; at += step) {
        size_t len = size - at < step ? size - at : step;
        char *piece = fuzz_padded(stream + at, len, BUF_PADDING);

        assert(stream_filter_feed(&world.filter, slice_of(piece, len)) == 0);
        free(piece);
        if (!has_moved_mark(&world, size))
            assert(sse_reader_is_at_boundary(&world.client) ==
                   stream_filter_is_at_boundary(&world.filter));
    }
    assert(stream_filter_finish(&world.filter) == 0);
    expect_up_to(&world, size);
    assert(world.out_len == world.expected_len);
    assert(memcmp(world.out, world.expected, world.out_len) == 0);
    if (!has_moved_mark(&world, size))
        assert(world.seen_count == world.kept_count && world.seen == world.kept);
    sse_reader_release(&world.client);
    stream_filter_release(&world.filter);
    free(world.out);
    free(world.expected);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    run(data + 2, size - 2, data[1], size);
    run(data + 2, size - 2, data[1], 1 + data[0] % 64);
    run(data + 2, size - 2, data[1], 1);
    return 0;
}
