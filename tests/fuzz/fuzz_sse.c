/* SPDX-License-Identifier: Apache-2.0 */

/* However a stream is split, its events are the same, and they lie in order within it. The first
 * byte of the input chooses the splitting. */
#include "backends/http/sse.h"
#include "tests/fuzz/fuzz_input.h"

#include <assert.h>

struct digest {
    uint64_t sum;
    uint64_t count;
    uint64_t end;
};

static uint64_t add_bytes(uint64_t sum, struct slice bytes)
{
    for (size_t i = 0; i < bytes.len; i++)
        sum = (sum ^ (unsigned char)bytes.ptr[i]) * 1099511628211u;
    return (sum ^ bytes.len) * 1099511628211u;
}

static void on_event(void *ctx, const struct sse_event *event)
{
    struct digest *digest = ctx;

    assert(event->start >= digest->end);
    assert(event->end > event->start);
    digest->end = event->end;
    digest->count++;
    digest->sum = add_bytes(digest->sum, event->name);
    digest->sum = add_bytes(digest->sum, event->data);
    digest->sum = (digest->sum ^ event->start) * 1099511628211u;
}

static struct digest feed(const char *bytes, size_t size, size_t step)
{
    struct digest digest = {0};
    struct sse_reader reader;

    sse_reader_init(&reader);
    for (size_t at = 0; at < size; at += step) {
        size_t len = size - at < step ? size - at : step;
        char *piece = fuzz_padded((const uint8_t *)bytes + at, len, BUF_PADDING);

        sse_reader_feed(&reader, slice_of(piece, len), on_event, &digest);
        free(piece);
    }
    assert(reader.offset == size);
    assert(digest.end <= size);
    sse_reader_release(&reader);
    return digest;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t step = size > 0 ? 1 + data[0] % 64 : 1;
    const char *bytes = (const char *)data + (size > 0);
    struct digest whole, pieces, single;

    size -= size > 0;
    whole = feed(bytes, size, size > 0 ? size : 1);
    pieces = feed(bytes, size, step);
    single = feed(bytes, size, 1);
    assert(whole.count == pieces.count && whole.sum == pieces.sum);
    assert(whole.count == single.count && whole.sum == single.sum);
    return 0;
}
