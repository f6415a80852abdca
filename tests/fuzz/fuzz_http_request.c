/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Two more readers of whatever we let through. llhttp, on its own and over the raw bytes, must end
 * each request where we do and give the same body, or find fault with it: a place where the two
 * disagree is where a request is smuggled. And what a worker would get of it, written anew, must be
 * one request with the same body and nothing of what belonged to the connection.
 */
#include <llhttp.h>

#include "tests/fuzz/fuzz_http_message.h"

/* ---- llhttp, alone ---- */

struct second {
    llhttp_t parser;
    struct buf body;
    bool has_ended;
};

static int second_on_body(llhttp_t *parser, const char *at, size_t len)
{
    struct second *second = container_of(parser, struct second, parser);

    return buf_append(&second->body, slice_of(at, len)) < 0 ? HPE_USER : 0;
}

static int second_on_end(llhttp_t *parser)
{
    container_of(parser, struct second, parser)->has_ended = true;
    return HPE_PAUSED;
}

/* bytes is what we took for one request. */
static void expect_second_opinion(struct slice bytes, const struct message *message)
{
    static const llhttp_settings_t settings = {.on_body = second_on_body,
                                               .on_message_complete = second_on_end};
    struct second second = {0};
    llhttp_errno_t error;

    buf_init(&second.body, MESSAGE_BYTES_MAX);
    llhttp_init(&second.parser, HTTP_REQUEST, &settings);
    error = llhttp_execute(&second.parser, bytes.ptr, bytes.len);
    if (error == HPE_PAUSED) {
        assert(second.has_ended);
        assert(llhttp_get_error_pos(&second.parser) == bytes.ptr + bytes.len);
        assert(slice_eq(buf_slice(&second.body), buf_slice(&message->body)));
    } else {
        /* It may dislike a trailer or an extension, and takes an upgrade for the end; but it may
         * not want more bytes. */
        assert(error != HPE_OK);
        assert(message->head->is_chunked || error == HPE_PAUSED_UPGRADE);
    }
    buf_release(&second.body);
}

/* ---- the worker's reader ---- */

static bool is_replaced(struct slice name)
{
    return slice_eq_nocase(name, SLICE("Host")) || slice_eq_nocase(name, SLICE("Content-Length"));
}

/* As a worker gets it. */
static void write_anew(struct buf *out, const struct message *message)
{
    const struct http_head *head = message->head;
    enum http_method method =
        head->method == HTTP_METHOD_OTHER ? HTTP_METHOD_POST : head->method; /* never passed on */

    must(http_write_request_line(out, method, head->target));
    must(http_write_header(out, SLICE("Host"), SLICE("worker:8000")));
    must(http_write_passed_headers(out, head, is_replaced));
    must(http_write_header_u64(out, SLICE("Content-Length"), buf_len(&message->body)));
    must(http_write_head_end(out));
    must(buf_append(out, buf_slice(&message->body)));
}

static void expect_one_request(const struct message *message)
{
    static const struct slice kept_back[] = {{"Connection", 10}, {"Transfer-Encoding", 17},
                                             {"Upgrade", 7},     {"TE", 2},
                                             {"Trailer", 7},     {"Expect", 6}};
    struct message again;
    struct http_reader *reader = message_reader(HTTP_READER_REQUESTS, &again, MESSAGE_BYTES_MAX);
    struct buf out;
    size_t consumed;

    if (message->head->header_count + 2 > HTTP_HEADER_COUNT_MAX) {
        message_release(reader, &again);
        return;
    }
    buf_init(&out, 2 * MESSAGE_BYTES_MAX);
    write_anew(&out, message);
    assert(http_reader_feed(reader, buf_slice(&out), &consumed) == 0);
    assert(again.has_ended && consumed == buf_len(&out));
    assert(slice_eq(buf_slice(&again.body), buf_slice(&message->body)));
    assert(slice_eq(again.head->target, message->head->target));
    for (size_t i = 0; i < array_count(kept_back); i++)
        assert(http_head_find(again.head, kept_back[i]) == NULL);
    buf_release(&out);
    message_release(reader, &again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct message message;
    struct http_reader *reader = message_reader(HTTP_READER_REQUESTS, &message, 32 * 1024);
    char *bytes = fuzz_padded(data, size, 0);
    struct slice left = slice_of(bytes, size);
    int status = 0;

    while (left.len > 0 && status == 0) {
        size_t consumed;

        status = http_reader_feed(reader, left, &consumed);
        assert(status == 0 || status == -EBADMSG);
        if (status == 0 && message.has_ended) {
            expect_second_opinion(slice_of(left.ptr, consumed), &message);
            expect_one_request(&message);
            message_next(reader, &message);
        }
        left = slice_skip(left, consumed);
    }
    free(bytes);
    message_release(reader, &message);
    return 0;
}
