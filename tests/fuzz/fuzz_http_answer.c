/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The path of an answer: whatever a worker sends, what a client gets of it is one answer with the
 * worker's body, in frames of ours, and as many bytes of it as came where it was cut. The first
 * byte of the input chooses: bit 0 that the request was HEAD, the others the splitting.
 */
#include "tests/fuzz/fuzz_http_message.h"

static bool is_replaced(struct slice name)
{
    return slice_eq_nocase(name, SLICE("Content-Length"));
}

/* As write_framing() of the relay: a length where it is known, else chunks. */
static bool write_head(struct buf *out, const struct http_head *head)
{
    bool has_length = head->content_length >= 0;
    bool has_none = head->status == 204 || head->status == 304;

    must(http_write_status_line(out, head->status));
    must(http_write_passed_headers(out, head, is_replaced));
    if (!has_none && has_length)
        must(http_write_header_u64(out, SLICE("content-length"), (uint64_t)head->content_length));
    else if (!has_none)
        must(http_write_header(out, SLICE("transfer-encoding"), SLICE("chunked")));
    must(http_write_head_end(out));
    return !has_none && !has_length;
}

/* The body as it would be relayed, read by read: here in pieces of step. */
static void write_body(struct buf *out, struct slice body, size_t step, bool is_chunked)
{
    char chunk_head[HTTP_CHUNK_HEAD_BYTES_MAX];

    while (body.len > 0) {
        struct slice piece = slice_of(body.ptr, body.len < step ? body.len : step);

        if (is_chunked)
            must(buf_append(out,
                            slice_of(chunk_head, http_write_chunk_head(chunk_head, piece.len))));
        must(buf_append(out, piece));
        if (is_chunked)
            must(buf_append(out, SLICE("\r\n")));
        body = slice_skip(body, piece.len);
    }
}

static void expect_same_answer(const struct message *message, bool is_head, size_t step)
{
    struct message again;
    struct http_reader *reader = message_reader(HTTP_READER_ANSWERS, &again, MESSAGE_BYTES_MAX);
    struct buf out;
    bool is_chunked;
    size_t consumed;

    if (message->head->header_count == HTTP_HEADER_COUNT_MAX) {
        message_release(reader, &again);
        return;
    }
    buf_init(&out, 8 * MESSAGE_BYTES_MAX);
    is_chunked = write_head(&out, message->head);
    write_body(&out, buf_slice(&message->body), step, is_chunked);
    if (is_chunked && message->has_ended && !is_head)
        must(buf_append(&out, SLICE("0\r\n\r\n")));
    if (is_head)
        http_reader_expect_no_body(reader);
    assert(http_reader_feed(reader, buf_slice(&out), &consumed) == 0);
    assert(consumed == buf_len(&out));
    assert(again.has_ended == message->has_ended);
    assert(again.head->status == message->head->status);
    assert(slice_eq(buf_slice(&again.body), buf_slice(&message->body)));
    buf_release(&out);
    message_release(reader, &again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t choice = size > 0 ? data[0] : 0;
    bool is_head = choice & 1;
    size_t step = 1 + (choice >> 1), consumed = 0;
    struct message message;
    struct http_reader *reader = message_reader(HTTP_READER_ANSWERS, &message, 32 * 1024);
    char *bytes = fuzz_padded(data + (size > 0), size - (size > 0), 0);
    int status = 0;

    size -= size > 0;
    if (is_head)
        http_reader_expect_no_body(reader);
    for (size_t at = 0; at < size && status == 0 && !message.has_ended; at += consumed)
        status = http_reader_feed(reader, slice_of(bytes + at, size - at < step ? size - at : step),
                                  &consumed);
    assert(status == 0 || status == -EBADMSG);
    if (status == 0 && !message.has_ended)
        (void)!http_reader_feed_end(reader);
    assert(message.head_count <= 1);
    if (message.has_head) {
        assert(message.head->status >= 200 && message.head->status <= 599);
        assert(!is_head || buf_len(&message.body) == 0);
        expect_same_answer(&message, is_head, step);
    }
    free(bytes);
    message_release(reader, &message);
    return 0;
}
