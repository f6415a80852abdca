/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/http/http_reader.h"

#include <llhttp.h>

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "backends/http/http_guard.h"
#include "backends/runtime/buf.h"

/*
 * DESIGN
 *
 * llhttp calls back with spans that may be split anywhere, so the head is copied once into one
 * growing buf, and headers are kept as offsets until it can no longer move; then they become
 * slices. The body is never copied. At the end of each message llhttp is paused, so that bytes of
 * the next (pipelined) message stay with the caller.
 *
 * Everything of the head lives in two allocations that an open stream gives back early
 * (http_reader_forget_head): a router holds thousands of idle streams.
 */
enum { HEADER_CAPACITY_MIN = 16 };

struct header_span { /* offsets into head_bytes */
    uint32_t name_start;
    uint32_t name_len;
    uint32_t value_start;
    uint32_t value_len;
};

enum reader_state {
    READER_IDLE,    /* between messages: nothing of the next one was seen */
    READER_IN_HEAD, /* start line and headers */
    READER_IN_BODY, /* until on_end; trailers too */
    READER_ENDED,   /* the message is complete; waits for http_reader_next() */
    READER_BROKEN,  /* refused, or stopped by a callback */
};

struct http_reader {
    llhttp_t parser;
    enum http_reader_kind kind;
    enum reader_state state;
    struct http_reader_limits limits;
    const struct http_reader_callbacks *callbacks;
    void *ctx;
    struct buf head_bytes; /* target, then names and values, one after the other */
    size_t target_len;
    struct header_span *spans;
    struct http_header *headers; /* same length as spans; filled when the head is complete */
    uint32_t header_count;
    uint32_t header_capacity;
    bool is_in_value;              /* the last header span seen was of a value */
    bool has_no_body;              /* the request was HEAD */
    struct http_raw_head raw_head; /* of a request */
    bool is_interim;               /* this message is a 1xx */
    size_t trailer_bytes;
    int64_t body_bytes;
    int callback_status; /* what a callback stopped us with */
    struct http_fault fault;
    struct http_head head;
};

static const struct http_fault fault_syntax = {400, "invalid_http",
                                               "This is not a well-formed HTTP/1.1 message."};
static const struct http_fault fault_head_size = {
    431, "headers_too_large", "The request's headers are larger than this router accepts."};
static const struct http_fault fault_target_size = {
    414, "uri_too_long", "The request target is longer than this router accepts."};
static const struct http_fault fault_body_size = {
    413, "request_too_large", "The request body is larger than this router accepts."};
static const struct http_fault fault_version = {505, "unsupported_http_version",
                                                "Speak HTTP/1.1 or HTTP/1.0."};
static const struct http_fault fault_memory = {503, "overloaded",
                                               "The router is out of memory. Try again later."};
static const struct http_fault fault_switched = {
    502, "upstream_protocol_error", "The worker switched protocols without being asked."};

static struct http_reader *reader_of(llhttp_t *parser)
{
    return container_of(parser, struct http_reader, parser);
}

/* What an llhttp callback returns to stop the parser. */
static int refuse(struct http_reader *reader, const struct http_fault *fault)
{
    reader->fault = *fault;
    return HPE_USER;
}

static int append_to_head(struct http_reader *reader, const char *at, size_t len)
{
    int status;

    if (reader->state == READER_IN_BODY) { /* a trailer: counted, dropped */
        reader->trailer_bytes += len;
        return reader->trailer_bytes > reader->limits.head_bytes_max
                   ? refuse(reader, &fault_head_size)
                   : 0;
    }
    reader->state = READER_IN_HEAD;
    status = buf_append(&reader->head_bytes, slice_of(at, len));
    if (status == -ENOBUFS)
        return refuse(reader, &fault_head_size);
    return status < 0 ? refuse(reader, &fault_memory) : 0;
}

static int on_message_begin(llhttp_t *parser)
{
    struct http_reader *reader = reader_of(parser);

    reader->state = READER_IN_HEAD;
    reader->is_interim = false;
    return 0;
}

static int on_url(llhttp_t *parser, const char *at, size_t len)
{
    struct http_reader *reader = reader_of(parser);
    int status = append_to_head(reader, at, len);

    reader->target_len += len;
    if (status == 0 && reader->target_len > reader->limits.target_bytes_max)
        return refuse(reader, &fault_target_size);
    return status;
}

static int add_header(struct http_reader *reader)
{
    struct header_span *spans;

    if (reader->header_count == HTTP_HEADER_COUNT_MAX)
        return refuse(reader, &fault_head_size);
    if (reader->header_count == reader->header_capacity) {
        uint32_t capacity =
            reader->header_capacity > 0 ? reader->header_capacity * 2 : HEADER_CAPACITY_MIN;

        spans = realloc(reader->spans, capacity * sizeof *spans);
        if (spans == NULL)
            return refuse(reader, &fault_memory);
        reader->spans = spans;
        reader->header_capacity = capacity;
    }
    reader->spans[reader->header_count++] =
        (struct header_span){.name_start = (uint32_t)reader->head_bytes.end};
    return 0;
}

static int on_header_field(llhttp_t *parser, const char *at, size_t len)
{
    struct http_reader *reader = reader_of(parser);
    int status = 0;

    if (reader->state != READER_IN_BODY && (reader->is_in_value || reader->header_count == 0)) {
        reader->is_in_value = false;
        status = add_header(reader);
    }
    if (status != 0)
        return status;
    if (reader->state != READER_IN_BODY)
        reader->spans[reader->header_count - 1].name_len += (uint32_t)len;
    return append_to_head(reader, at, len);
}

static int on_header_value(llhttp_t *parser, const char *at, size_t len)
{
    struct http_reader *reader = reader_of(parser);

    if (reader->state != READER_IN_BODY) {
        struct header_span *span = &reader->spans[reader->header_count - 1];

        if (!reader->is_in_value)
            span->value_start = (uint32_t)reader->head_bytes.end;
        reader->is_in_value = true;
        span->value_len += (uint32_t)len;
    }
    return append_to_head(reader, at, len);
}

/* llhttp gives an empty value no span at all. */
static int on_header_value_complete(llhttp_t *parser)
{
    reader_of(parser)->is_in_value = true;
    return 0;
}

static struct slice trimmed(struct slice value)
{
    while (value.len > 0 && (value.ptr[value.len - 1] == ' ' || value.ptr[value.len - 1] == '\t'))
        value.len--;
    while (value.len > 0 && (value.ptr[0] == ' ' || value.ptr[0] == '\t'))
        value = slice_skip(value, 1);
    return value;
}

static int resolve_headers(struct http_reader *reader)
{
    const char *bytes = reader->head_bytes.bytes;

    if (reader->header_count == 0)
        return 0;
    reader->headers = malloc(reader->header_count * sizeof *reader->headers);
    if (reader->headers == NULL)
        return refuse(reader, &fault_memory);
    for (uint32_t i = 0; i < reader->header_count; i++) {
        const struct header_span *span = &reader->spans[i];

        reader->headers[i] = (struct http_header){
            .name = slice_of(bytes + span->name_start, span->name_len),
            .value = trimmed(slice_of(bytes + span->value_start, span->value_len)),
        };
    }
    return 0;
}

static enum http_method method_of(uint8_t method)
{
    switch (method) {
    case HTTP_GET:
        return HTTP_METHOD_GET;
    case HTTP_HEAD:
        return HTTP_METHOD_HEAD;
    case HTTP_POST:
        return HTTP_METHOD_POST;
    case HTTP_OPTIONS:
        return HTTP_METHOD_OPTIONS;
    case HTTP_DELETE:
        return HTTP_METHOD_DELETE;
    default:
        return HTTP_METHOD_OTHER;
    }
}

static bool answer_has_body(const struct http_reader *reader, const llhttp_t *parser)
{
    if (reader->has_no_body || parser->status_code / 100 == 1 || parser->status_code == 204 ||
        parser->status_code == 304)
        return false;
    return !(parser->flags & F_CONTENT_LENGTH) || parser->content_length > 0;
}

static void describe(struct http_reader *reader, const llhttp_t *parser)
{
    bool is_request = reader->kind == HTTP_READER_REQUESTS;
    bool is_chunked = (parser->flags & F_CHUNKED) != 0;
    bool has_length = (parser->flags & F_CONTENT_LENGTH) != 0;
    const struct http_header *expect;

    reader->head = (struct http_head){
        .method = is_request ? method_of(parser->method) : HTTP_METHOD_OTHER,
        .target = slice_of(reader->head_bytes.bytes, reader->target_len),
        .status = is_request ? 0 : parser->status_code,
        .version_minor = parser->http_minor,
        .headers = reader->headers,
        .header_count = reader->header_count,
        .content_length = has_length ? (int64_t)parser->content_length : -1,
        .is_chunked = is_chunked,
        .has_body = is_request ? is_chunked || (has_length && parser->content_length > 0)
                               : answer_has_body(reader, parser),
        .keep_alive = llhttp_should_keep_alive(parser) == 1,
    };
    expect = is_request ? http_head_find(&reader->head, SLICE("Expect")) : NULL;
    reader->head.expects_continue =
        expect != NULL && slice_eq_nocase(expect->value, SLICE("100-continue"));
}

static int guard(struct http_reader *reader)
{
    bool is_request = reader->kind == HTTP_READER_REQUESTS;

    if ((is_request ? http_guard_request(&reader->head, &reader->fault)
                    : http_guard_answer(&reader->head, &reader->fault)) < 0)
        return HPE_USER;
    if (is_request && reader->head.content_length > reader->limits.body_bytes_max)
        return refuse(reader, &fault_body_size);
    return 0;
}

/* Of what llhttp drops without a word (blanks around values, empty lines before the first one) a
 * client could send as much as it likes. */
static bool is_head_too_long(const struct http_reader *reader)
{
    return reader->raw_head.len > reader->limits.head_bytes_max;
}

static int on_headers_complete(llhttp_t *parser)
{
    struct http_reader *reader = reader_of(parser);
    int status;

    if (parser->http_major != 1 || parser->http_minor > 1)
        return refuse(reader, &fault_version);
    if (is_head_too_long(reader))
        return refuse(reader, &fault_head_size);
    if (reader->kind == HTTP_READER_ANSWERS && parser->status_code == 101)
        return refuse(reader, &fault_switched);
    parser->upgrade = 0; /* never tunnel: what was asked over HTTP/1 is answered over HTTP/1 */
    if (reader->kind == HTTP_READER_ANSWERS && parser->status_code / 100 == 1) {
        reader->is_interim = true;
        return 0;
    }
    status = resolve_headers(reader);
    if (status != 0)
        return status;
    describe(reader, parser);
    status = guard(reader);
    if (status != 0)
        return status;

    reader->state = READER_IN_BODY;
    reader->callback_status = reader->callbacks->on_head(reader->ctx, &reader->head);
    if (reader->callback_status != 0)
        return HPE_USER;
    /* 1 tells llhttp that no body follows, whatever the headers say. */
    return reader->kind == HTTP_READER_ANSWERS && !reader->head.has_body ? 1 : 0;
}

static int on_body(llhttp_t *parser, const char *at, size_t len)
{
    struct http_reader *reader = reader_of(parser);

    reader->body_bytes += (int64_t)len;
    if (reader->kind == HTTP_READER_REQUESTS && reader->body_bytes > reader->limits.body_bytes_max)
        return refuse(reader, &fault_body_size);
    if (len == 0 || reader->is_interim)
        return 0;
    reader->callback_status = reader->callbacks->on_body(reader->ctx, slice_of(at, len));
    return reader->callback_status == 0 ? 0 : HPE_USER;
}

static void clear_head(struct http_reader *reader)
{
    buf_clear(&reader->head_bytes);
    free(reader->headers);
    reader->headers = NULL;
    reader->header_count = 0;
    reader->target_len = 0;
    reader->is_in_value = false;
}

static int on_message_complete(llhttp_t *parser)
{
    struct http_reader *reader = reader_of(parser);

    if (reader->is_interim) {
        clear_head(reader);
        reader->state = READER_IDLE;
        return 0;
    }
    reader->state = READER_ENDED;
    reader->callback_status = reader->callbacks->on_end(reader->ctx);
    return reader->callback_status == 0 ? HPE_PAUSED : HPE_USER;
}

static const llhttp_settings_t settings = {
    .on_message_begin = on_message_begin,
    .on_url = on_url,
    .on_header_field = on_header_field,
    .on_header_value = on_header_value,
    .on_header_value_complete = on_header_value_complete,
    .on_headers_complete = on_headers_complete,
    .on_body = on_body,
    .on_message_complete = on_message_complete,
};

struct http_reader *http_reader_create(enum http_reader_kind kind, struct http_reader_limits limits,
                                       const struct http_reader_callbacks *callbacks, void *ctx)
{
    struct http_reader *reader = calloc(1, sizeof *reader);

    if (reader == NULL)
        return NULL;
    reader->kind = kind;
    reader->limits = limits;
    reader->callbacks = callbacks;
    reader->ctx = ctx;
    buf_init(&reader->head_bytes, limits.head_bytes_max);
    llhttp_init(&reader->parser, kind == HTTP_READER_REQUESTS ? HTTP_REQUEST : HTTP_RESPONSE,
                &settings);
    return reader;
}

void http_reader_set_body_bytes_max(struct http_reader *reader, int64_t body_bytes_max)
{
    reader->limits.body_bytes_max = body_bytes_max;
}

void http_reader_destroy(struct http_reader *reader)
{
    if (reader == NULL)
        return;
    http_reader_forget_head(reader);
    free(reader);
}

/* What llhttp's verdict means to our caller. */
static int conclude(struct http_reader *reader, llhttp_errno_t error)
{
    if (error == HPE_OK || error == HPE_PAUSED)
        return 0;
    reader->state = READER_BROKEN;
    if (reader->callback_status != 0)
        return reader->callback_status;
    if (reader->fault.status == 0)
        reader->fault = fault_syntax;
    return -EBADMSG;
}

int http_reader_feed(struct http_reader *reader, struct slice bytes, size_t *consumed)
{
    llhttp_errno_t error;

    assert(reader->state != READER_ENDED);

    *consumed = 0;
    if (reader->state == READER_BROKEN)
        return -EBADMSG;
    if (reader->kind == HTTP_READER_REQUESTS &&
        http_guard_raw_head(&reader->raw_head, bytes, &reader->fault) < 0) {
        reader->state = READER_BROKEN;
        return -EBADMSG;
    }
    error = llhttp_execute(&reader->parser, bytes.ptr, bytes.len);
    *consumed =
        error == HPE_OK ? bytes.len : (size_t)(llhttp_get_error_pos(&reader->parser) - bytes.ptr);
    if (error == HPE_OK && reader->raw_head.state != RAW_HEAD_DONE && is_head_too_long(reader))
        error = (llhttp_errno_t)refuse(reader, &fault_head_size);
    return conclude(reader, error);
}

int http_reader_feed_end(struct http_reader *reader)
{
    llhttp_errno_t error;
    int status;

    if (reader->state == READER_IDLE || reader->state == READER_ENDED)
        return 0;
    if (reader->state == READER_BROKEN)
        return -EPIPE;
    error = llhttp_finish(&reader->parser);
    status = conclude(reader, error);
    if (status == -EBADMSG || (status == 0 && reader->state != READER_ENDED))
        status = -EPIPE;
    return status;
}

void http_reader_next(struct http_reader *reader)
{
    assert(reader->state == READER_ENDED || reader->state == READER_IDLE);

    clear_head(reader);
    llhttp_reset(&reader->parser);
    reader->state = READER_IDLE;
    reader->has_no_body = false;
    reader->is_interim = false;
    reader->raw_head = (struct http_raw_head){.state = RAW_HEAD_START};
    reader->trailer_bytes = 0;
    reader->body_bytes = 0;
}

void http_reader_expect_no_body(struct http_reader *reader)
{
    reader->has_no_body = true;
}

void http_reader_forget_head(struct http_reader *reader)
{
    clear_head(reader);
    buf_release(&reader->head_bytes);
    free(reader->spans);
    reader->spans = NULL;
    reader->header_capacity = 0;
    reader->head.headers = NULL;
    reader->head.header_count = 0;
    reader->head.target = slice_of(NULL, 0);
}

bool http_reader_is_inside(const struct http_reader *reader)
{
    return reader->state == READER_IN_HEAD || reader->state == READER_IN_BODY;
}

struct http_fault http_reader_fault(const struct http_reader *reader)
{
    return reader->fault;
}
