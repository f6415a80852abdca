/* SPDX-License-Identifier: Apache-2.0 */

/*
 * However the bytes of a connection are split, the same messages are read, and after a fault no
 * head comes any more. The first byte of the input chooses: bit 0 answers instead of requests, bit
 * 1 that the first answer is one to HEAD, the others the splitting.
 */
#include "backends/http/http_reader.h"
#include "tests/fuzz/fuzz_input.h"

#include <assert.h>
#include <errno.h>

/* What was read. How much of a body came before a fault may depend on the splitting, and nothing
 * else. */
struct digest {
    uint64_t heads; /* of all fields of all heads, in order */
    uint64_t bodies;
    uint32_t head_count;
    uint32_t end_count;
    bool is_inside;
    bool has_ended; /* the message at hand */
    int end_status; /* of feed_end */
    bool is_faulty;
    int fault_status;
    const char *fault_message;
};

static uint64_t add_u64(uint64_t sum, uint64_t value)
{
    return (sum ^ value) * 1099511628211u;
}

static uint64_t add_bytes(uint64_t sum, struct slice bytes)
{
    for (size_t i = 0; i < bytes.len; i++)
        sum = add_u64(sum, (unsigned char)bytes.ptr[i]);
    return add_u64(sum, bytes.len);
}

static int on_head(void *ctx, const struct http_head *head)
{
    struct digest *digest = ctx;

    assert(!digest->is_inside && !digest->is_faulty);
    assert(head->header_count <= HTTP_HEADER_COUNT_MAX);
    assert(head->content_length >= -1);
    assert(head->version_minor == 0 || head->version_minor == 1);
    assert(!head->is_chunked || head->content_length == -1);
    digest->is_inside = true;
    digest->head_count++;
    digest->heads = add_bytes(digest->heads, head->target);
    digest->heads = add_u64(digest->heads, (uint64_t)head->content_length);
    digest->heads =
        add_u64(digest->heads, (uint64_t)head->status << 16 | (uint64_t)head->method << 8 |
                                   (uint64_t)head->version_minor);
    digest->heads = add_u64(digest->heads, (uint64_t)head->is_chunked | head->has_body << 1 |
                                               head->keep_alive << 2 | head->expects_continue << 3);
    for (size_t i = 0; i < head->header_count; i++) {
        digest->heads = add_bytes(digest->heads, head->headers[i].name);
        digest->heads = add_bytes(digest->heads, head->headers[i].value);
    }
    return 0;
}

static int on_body(void *ctx, struct slice piece)
{
    struct digest *digest = ctx;

    assert(digest->is_inside && !digest->is_faulty);
    assert(piece.len > 0);
    for (size_t i = 0; i < piece.len; i++)
        digest->bodies = add_u64(digest->bodies, (unsigned char)piece.ptr[i]);
    return 0;
}

static int on_end(void *ctx)
{
    struct digest *digest = ctx;

    assert(digest->is_inside && !digest->is_faulty);
    digest->is_inside = false;
    digest->has_ended = true;
    digest->end_count++;
    digest->bodies = add_u64(digest->bodies, 256); /* bodies do not run into each other */
    return 0;
}

static const struct http_reader_callbacks callbacks = {on_head, on_body, on_end};

/* Nothing may come of whole messages behind a fault. */
static void expect_silence(struct http_reader *reader, struct digest *digest)
{
    size_t consumed;
    struct http_fault fault = http_reader_fault(reader);

    assert(fault.status >= 400 && fault.status <= 599);
    assert(fault.code != NULL && fault.message != NULL);
    digest->fault_status = fault.status;
    digest->fault_message = fault.message;
    assert(http_reader_feed(reader, SLICE("GET / HTTP/1.1\r\nHost: a\r\n\r\n"), &consumed) ==
           -EBADMSG);
    assert(consumed == 0);
    assert(http_reader_feed(reader, SLICE("HTTP/1.1 204 No Content\r\n\r\n"), &consumed) ==
           -EBADMSG);
    assert(!http_reader_is_inside(reader));
}

/* One piece, which may hold ends of several messages. Its bytes are on the heap, so that a read
 * behind them is found. */
static void feed_piece(struct http_reader *reader, struct digest *digest, const uint8_t *bytes,
                       size_t len)
{
    char *piece = fuzz_padded(bytes, len, 0);
    size_t at = 0;

    while (at < len && !digest->is_faulty) {
        size_t consumed;
        int status = http_reader_feed(reader, slice_of(piece + at, len - at), &consumed);

        assert(status == 0 || status == -EBADMSG);
        assert(consumed <= len - at);
        digest->is_faulty = status < 0;
        assert(digest->is_faulty || digest->has_ended || consumed == len - at);
        at += consumed;
        if (digest->has_ended && !digest->is_faulty)
            http_reader_next(reader);
        digest->has_ended = false;
    }
    free(piece);
}

static struct digest feed(uint8_t choice, const uint8_t *bytes, size_t size, size_t step)
{
    static const struct http_reader_limits limits = {
        .head_bytes_max = 1024, .target_bytes_max = 128, .body_bytes_max = 4096};
    struct digest digest = {0};
    struct http_reader *reader = http_reader_create(
        choice & 1 ? HTTP_READER_ANSWERS : HTTP_READER_REQUESTS, limits, &callbacks, &digest);

    assert(reader != NULL);
    if ((choice & 3) == 3)
        http_reader_expect_no_body(reader);
    for (size_t at = 0; at < size && !digest.is_faulty; at += step)
        feed_piece(reader, &digest, bytes + at, size - at < step ? size - at : step);
    if (digest.is_faulty)
        expect_silence(reader, &digest);
    digest.end_status = http_reader_feed_end(reader);
    assert(digest.end_status == 0 || digest.end_status == -EPIPE);
    assert(!digest.is_faulty || digest.end_status == -EPIPE);
    http_reader_destroy(reader);
    return digest;
}

static void expect_same(const struct digest *a, const struct digest *b)
{
    assert(a->is_faulty == b->is_faulty);
    assert(a->fault_status == b->fault_status && a->fault_message == b->fault_message);
    assert(a->head_count == b->head_count && a->heads == b->heads);
    assert(a->end_count == b->end_count);
    assert(a->is_faulty || a->bodies == b->bodies);
    assert(a->end_status == b->end_status);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t choice = size > 0 ? data[0] : 0;
    struct digest whole, pieces, single;

    data += size > 0;
    size -= size > 0;
    whole = feed(choice, data, size, size > 0 ? size : 1);
    pieces = feed(choice, data, size, 1 + (choice >> 2) % 64);
    single = feed(choice, data, size, 1);
    expect_same(&whole, &pieces);
    expect_same(&whole, &single);
    return 0;
}
