/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/http/http_reader.h"

#include <llhttp.h>

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "backends/http/http_chunks.h"
#include "backends/http/http_guard.h"
#include "backends/http/http_raw_head.h"
#include "backends/runtime/buf.h"

/*
 * DESIGN
 *
 * A head is read twice, by readers who know nothing of each other. http_raw_head judges its bytes
 * as they come and says where it ends; only then does llhttp take it apart, all of it at once, and
 * both must have found the same number of headers and the same target. So nothing depends on how
 * the bytes were split, and what llhttp lets through more or less from version to version (8 and 9
 * differ in much) makes no difference: what passes the first reader, either version reads alike.
 *
 * llhttp never sees a body: its end follows from the guarded head, and chunks have a reader of
 * their own (http_chunks). Body bytes are not copied; the head is, once, since it outlives the
 * read it came with. That copy and its headers are two allocations, which an open stream gives back
 * early (http_reader_forget_head): a router holds thousands of idle streams.
 */
enum { INTERIM_COUNT_MAX = 16 }; /* 1xx before one answer */

enum reader_state {
    READER_HEAD,   /* from before the first byte to the head's end */
    READER_BODY,   /* until on_end; trailers too */
    READER_ENDED,  /* the message is complete; waits for http_reader_next() */
    READER_BROKEN, /* refused, or stopped by a callback */
};

enum body_framing { BODY_NONE, BODY_LENGTH, BODY_CHUNKS, BODY_UNTIL_CLOSE };

struct http_reader {
    enum http_reader_kind kind;
    enum reader_state state;
    struct http_reader_limits limits;
    const struct http_reader_callbacks *callbacks;
    void *ctx;
    bool has_no_body;       /* the request was HEAD */
    uint32_t interim_count; /* before the answer at hand */
    struct http_raw_head raw;
    struct buf head_bytes;       /* as they came */
    struct http_header *headers; /* slices of head_bytes */
    size_t header_capacity;
    struct http_head head;
    enum body_framing framing;
    int64_t body_left; /* of BODY_LENGTH */
    struct http_chunks chunks;
    struct http_fault fault;
};

static const struct http_fault fault_syntax = {400, "invalid_http",
                                               "This is not a well-formed HTTP/1.1 message."};
static const struct http_fault fault_body_size = {
    413, "request_too_large", "The request body is larger than this router accepts."};
static const struct http_fault fault_memory = {503, "overloaded",
                                               "The router is out of memory. Try again later."};
static const struct http_fault fault_switched = {
    502, "upstream_protocol_error", "The worker switched protocols without being asked."};
static const struct http_fault fault_interim = {502, "upstream_protocol_error",
                                                "The worker sent interim answers without end."};

static int refuse(struct http_reader *reader, const struct http_fault *fault)
{
    reader->fault = *fault;
    return -EBADMSG;
}

/* ---- llhttp: takes a complete head apart ---- */

/* What its callbacks fill. */
struct parse {
    llhttp_t parser;
    struct http_reader *reader;
    struct slice target;
    size_t header_count;
};

static struct parse *parse_of(llhttp_t *parser)
{
    return container_of(parser, struct parse, parser);
}

/* A span that llhttp gives in parts is whole again. */
static bool continues(struct slice span, const char *at)
{
    return span.ptr != NULL && span.ptr + span.len == at;
}

static int on_url(llhttp_t *parser, const char *at, size_t len)
{
    struct parse *parse = parse_of(parser);

    if (continues(parse->target, at))
        parse->target.len += len;
    else
        parse->target = slice_of(at, len);
    return 0;
}

static int on_header_field(llhttp_t *parser, const char *at, size_t len)
{
    struct parse *parse = parse_of(parser);
    struct http_header *headers = parse->reader->headers;

    if (parse->header_count > 0 && continues(headers[parse->header_count - 1].name, at)) {
        headers[parse->header_count - 1].name.len += len;
        return 0;
    }
    if (parse->header_count == parse->reader->raw.header_count)
        return HPE_USER;
    headers[parse->header_count++] = (struct http_header){.name = slice_of(at, len)};
    return 0;
}

static int on_header_value(llhttp_t *parser, const char *at, size_t len)
{
    struct parse *parse = parse_of(parser);
    struct http_header *header;

    if (parse->header_count == 0)
        return HPE_USER;
    header = &parse->reader->headers[parse->header_count - 1];
    if (continues(header->value, at))
        header->value.len += len;
    else
        header->value = slice_of(at, len);
    return 0;
}

static int on_headers_complete(llhttp_t *parser)
{
    (void)parser;
    return HPE_PAUSED; /* the rest is not llhttp's */
}

static const llhttp_settings_t settings = {
    .on_url = on_url,
    .on_header_field = on_header_field,
    .on_header_value = on_header_value,
    .on_headers_complete = on_headers_complete,
};

static int make_room_for_headers(struct http_reader *reader)
{
    size_t count = reader->raw.header_count;
    struct http_header *headers;

    if (count <= reader->header_capacity)
        return 0;
    headers = realloc(reader->headers, count * sizeof *headers);
    if (headers == NULL)
        return refuse(reader, &fault_memory);
    reader->headers = headers;
    reader->header_capacity = count;
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
    case HTTP_CONNECT:
        return HTTP_METHOD_CONNECT;
    default:
        return HTTP_METHOD_OTHER;
    }
}

static struct slice trimmed(struct slice value)
{
    while (value.len > 0 && (value.ptr[value.len - 1] == ' ' || value.ptr[value.len - 1] == '\t'))
        value.len--;
    while (value.len > 0 && (value.ptr[0] == ' ' || value.ptr[0] == '\t'))
        value = slice_skip(value, 1);
    return value;
}

/* Methods behind HTTP_SOURCE are those of RTSP and, in llhttp 9, newer ones. */
static bool is_known_method(const struct http_reader *reader, const llhttp_t *parser)
{
    return reader->kind == HTTP_READER_ANSWERS || parser->method <= HTTP_SOURCE;
}

/* Fills what of the head is written there: all that the guard looks at. */
static int parse_head(struct http_reader *reader)
{
    bool is_request = reader->kind == HTTP_READER_REQUESTS;
    struct slice bytes = buf_slice(&reader->head_bytes);
    struct parse parse = {.reader = reader};
    int status = make_room_for_headers(reader);

    if (status < 0)
        return status;
    llhttp_init(&parse.parser, is_request ? HTTP_REQUEST : HTTP_RESPONSE, &settings);
    if (llhttp_execute(&parse.parser, bytes.ptr, bytes.len) != HPE_PAUSED ||
        parse.header_count != reader->raw.header_count ||
        parse.target.len != reader->raw.target_len || !is_known_method(reader, &parse.parser))
        return refuse(reader, &fault_syntax);
    for (size_t i = 0; i < parse.header_count; i++)
        reader->headers[i].value = trimmed(reader->headers[i].value);
    reader->head = (struct http_head){
        .method = is_request ? method_of(parse.parser.method) : HTTP_METHOD_OTHER,
        .target = parse.target,
        .status = is_request ? 0 : parse.parser.status_code,
        .version_minor = reader->raw.minor - '0',
        .headers = reader->headers,
        .header_count = parse.header_count,
        .content_length = -1,
    };
    return 0;
}

/* ---- what follows from a head ---- */

static bool says_in_connection(const struct http_head *head, struct slice option)
{
    for (size_t i = 0; i < head->header_count; i++) {
        if (slice_eq_nocase(head->headers[i].name, SLICE("Connection")) &&
            http_list_has(head->headers[i].value, option))
            return true;
    }
    return false;
}

/* The guard has seen that it is one. */
static int64_t decimal_of(struct slice digits)
{
    int64_t value = 0;

    for (size_t i = 0; i < digits.len; i++)
        value = value * 10 + (digits.ptr[i] - '0');
    return value;
}

/* RFC 9112, 6.3: where the body ends, in this order. */
static enum body_framing framing_of(const struct http_reader *reader)
{
    const struct http_head *head = &reader->head;
    bool is_answer = reader->kind == HTTP_READER_ANSWERS;

    if (is_answer && (reader->has_no_body || head->status == 204 || head->status == 304))
        return BODY_NONE;
    if (head->is_chunked)
        return BODY_CHUNKS;
    if (head->content_length >= 0)
        return head->content_length > 0 ? BODY_LENGTH : BODY_NONE;
    return is_answer ? BODY_UNTIL_CLOSE : BODY_NONE;
}

static void describe(struct http_reader *reader)
{
    struct http_head *head = &reader->head;
    bool is_request = reader->kind == HTTP_READER_REQUESTS;
    const struct http_header *length = http_head_find(head, SLICE("Content-Length"));

    if (length != NULL)
        head->content_length = decimal_of(length->value);
    head->is_chunked = http_head_find(head, SLICE("Transfer-Encoding")) != NULL;
    reader->framing = framing_of(reader);
    head->has_body = reader->framing != BODY_NONE;
    head->keep_alive = reader->framing != BODY_UNTIL_CLOSE &&
                       !says_in_connection(head, SLICE("close")) &&
                       (head->version_minor == 1 || says_in_connection(head, SLICE("keep-alive")));
    if (is_request) {
        head->target = http_guard_origin_form(head->target);
        /* In HTTP/1.0 it has no meaning (RFC 9110, 10.1.1). */
        head->expects_continue =
            head->version_minor == 1 && http_head_find(head, SLICE("Expect")) != NULL;
    }
}

static struct http_raw_limits raw_limits(const struct http_reader *reader)
{
    return (struct http_raw_limits){reader->limits.head_bytes_max, reader->limits.target_bytes_max};
}

static void begin_head(struct http_reader *reader)
{
    buf_clear(&reader->head_bytes);
    http_raw_head_begin(&reader->raw,
                        reader->kind == HTTP_READER_REQUESTS ? HTTP_RAW_REQUEST : HTTP_RAW_ANSWER,
                        raw_limits(reader));
    reader->state = READER_HEAD;
}

static int begin_body(struct http_reader *reader)
{
    bool is_request = reader->kind == HTTP_READER_REQUESTS;
    uint64_t body_bytes_max = is_request ? (uint64_t)reader->limits.body_bytes_max : INT64_MAX;

    if (is_request && reader->head.content_length > reader->limits.body_bytes_max)
        return refuse(reader, &fault_body_size);
    reader->body_left = reader->head.content_length;
    if (reader->framing == BODY_CHUNKS)
        http_chunks_begin(&reader->chunks, body_bytes_max, raw_limits(reader));
    reader->state = READER_BODY;
    return 0;
}

static int end_message(struct http_reader *reader)
{
    reader->state = READER_ENDED;
    return reader->callbacks->on_end(reader->ctx);
}

static int skip_interim(struct http_reader *reader)
{
    if (reader->head.status == 101)
        return refuse(reader, &fault_switched);
    if (++reader->interim_count > INTERIM_COUNT_MAX)
        return refuse(reader, &fault_interim);
    begin_head(reader);
    return 0;
}

static int end_head(struct http_reader *reader)
{
    bool is_request = reader->kind == HTTP_READER_REQUESTS;
    int status = parse_head(reader);

    if (status < 0)
        return status;
    if (!is_request && reader->head.status / 100 == 1)
        return skip_interim(reader);
    status = is_request ? http_guard_request(&reader->head, &reader->fault)
                        : http_guard_answer(&reader->head, &reader->fault);
    if (status < 0)
        return status;
    describe(reader);
    status = reader->callbacks->on_head(reader->ctx, &reader->head);
    if (status == 0)
        status = begin_body(reader);
    if (status == 0 && reader->framing == BODY_NONE)
        status = end_message(reader);
    return status;
}

/* ---- feeding ---- */

static int feed_head(struct http_reader *reader, struct slice *bytes)
{
    size_t used;
    int status = http_raw_head_feed(&reader->raw, *bytes, &used, &reader->fault);

    if (status < 0)
        return status;
    if (buf_append(&reader->head_bytes, slice_of(bytes->ptr, used)) < 0)
        return refuse(reader, &fault_memory); /* the limit was kept by the raw head */
    *bytes = slice_skip(*bytes, used);
    return http_raw_head_is_done(&reader->raw) ? end_head(reader) : 0;
}

static int feed_chunks(struct http_reader *reader, struct slice *bytes)
{
    struct slice piece;
    int status;

    while ((status = http_chunks_next(&reader->chunks, bytes, &piece, &reader->fault)) > 0) {
        status = reader->callbacks->on_body(reader->ctx, piece);
        if (status != 0)
            return status;
    }
    return status == 0 && http_chunks_is_done(&reader->chunks) ? end_message(reader) : status;
}

static int feed_plain(struct http_reader *reader, struct slice *bytes)
{
    bool has_length = reader->framing == BODY_LENGTH;
    struct slice piece = *bytes;
    int status;

    if (has_length && (uint64_t)reader->body_left < piece.len)
        piece.len = (size_t)reader->body_left;
    *bytes = slice_skip(*bytes, piece.len);
    reader->body_left -= has_length ? (int64_t)piece.len : 0;
    status = reader->callbacks->on_body(reader->ctx, piece);
    return status == 0 && has_length && reader->body_left == 0 ? end_message(reader) : status;
}

int http_reader_feed(struct http_reader *reader, struct slice bytes, size_t *consumed)
{
    struct slice left = bytes;
    int status = 0;

    assert(reader->state != READER_ENDED);

    *consumed = 0;
    if (reader->state == READER_BROKEN)
        return -EBADMSG;
    while (status == 0 && left.len > 0 && reader->state != READER_ENDED) {
        if (reader->state == READER_HEAD)
            status = feed_head(reader, &left);
        else if (reader->framing == BODY_CHUNKS)
            status = feed_chunks(reader, &left);
        else
            status = feed_plain(reader, &left);
    }
    *consumed = bytes.len - left.len;
    if (status != 0)
        reader->state = READER_BROKEN;
    return status;
}

int http_reader_feed_end(struct http_reader *reader)
{
    if (reader->state == READER_ENDED)
        return 0;
    if (reader->state == READER_BODY && reader->framing == BODY_UNTIL_CLOSE)
        return end_message(reader);
    return http_reader_is_inside(reader) || reader->state == READER_BROKEN ? -EPIPE : 0;
}

/* ---- life ---- */

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
    begin_head(reader);
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

void http_reader_next(struct http_reader *reader)
{
    assert(reader->state == READER_ENDED || reader->state == READER_HEAD);

    begin_head(reader);
    reader->has_no_body = false;
    reader->interim_count = 0;
}

void http_reader_expect_no_body(struct http_reader *reader)
{
    reader->has_no_body = true;
}

void http_reader_forget_head(struct http_reader *reader)
{
    buf_release(&reader->head_bytes);
    free(reader->headers);
    reader->headers = NULL;
    reader->header_capacity = 0;
    reader->head.headers = NULL;
    reader->head.header_count = 0;
    reader->head.target = slice_of(NULL, 0);
}

bool http_reader_is_inside(const struct http_reader *reader)
{
    if (reader->state == READER_HEAD) /* empty lines before a request are not its beginning */
        return reader->raw.state > RAW_EMPTY_LF &&
               (reader->raw.len > 0 || reader->interim_count > 0);
    return reader->state == READER_BODY;
}

int64_t http_reader_body_bytes(const struct http_reader *reader)
{
    if (reader->framing == BODY_CHUNKS)
        return (int64_t)reader->chunks.body_bytes;
    return reader->head.content_length;
}

struct http_fault http_reader_fault(const struct http_reader *reader)
{
    return reader->fault;
}
