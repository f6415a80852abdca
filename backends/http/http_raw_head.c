/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/http/http_raw_head.h"

#include <assert.h>
#include <errno.h>

/*
 * DESIGN
 *
 * Parsers of HTTP/1 differ in what they let through: a folded line, a bare CR or LF, two blanks, a
 * blank before the colon, a tab for a blank. A message that two readers on its way cut at different
 * places is how requests are smuggled. So before a parser sees a head, each of its bytes must be
 * the only one that the grammar of RFC 9112 allows there, without any of its leniences:
 *
 *   request   *( CRLF ) method SP target SP "HTTP/1.x" CRLF  *( name ":" value CRLF ) CRLF
 *   answer    "HTTP/1.x" SP 3DIGIT [ SP reason ] CRLF        *( name ":" value CRLF ) CRLF
 *   trailers                                                 *( name ":" value CRLF ) CRLF
 *
 * A state says what the next byte belongs to; within a state runs of bytes of one class are skipped
 * in one go. What is too large is refused at the first byte too many.
 */
enum {
    IN_TOKEN = 1,  /* of methods and names (RFC 9110, 5.6.2) */
    IN_NAME = 2,   /* the same without '_', which engines that read CGI style names take for '-' */
    IN_TARGET = 4, /* visible ASCII but '#': no client may send a fragment */
    IN_VALUE = 8,  /* blank, tab, visible ASCII, bytes above it */
};

/* clang-format off */
#define NO 0
#define BL IN_VALUE
#define TG (IN_VALUE | IN_TARGET)
#define TK (IN_VALUE | IN_TARGET | IN_TOKEN | IN_NAME)
#define US (IN_VALUE | IN_TARGET | IN_TOKEN)
#define HASH (IN_VALUE | IN_TOKEN | IN_NAME)
#define LOW16 NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO
#define HIGH16 BL, BL, BL, BL, BL, BL, BL, BL, BL, BL, BL, BL, BL, BL, BL, BL
static const unsigned char classes[256] = {
    NO, NO, NO, NO, NO, NO, NO, NO, NO, BL, NO, NO, NO, NO, NO, NO, /* but the tab */
    LOW16,
    /*    !   "     #   $   %   &   '   (   )   *   +   ,   -   .   / */
    BL, TK, TG, HASH, TK, TK, TK, TK, TG, TG, TK, TK, TG, TK, TK, TG,
    /* 0-9                                  :   ;   <   =   >   ? */
    TK, TK, TK, TK, TK, TK, TK, TK, TK, TK, TG, TG, TG, TG, TG, TG,
    /* @  A-Z                                                     */
    TG, TK, TK, TK, TK, TK, TK, TK, TK, TK, TK, TK, TK, TK, TK, TK,
    /*                                          [   \   ]   ^   _ */
    TK, TK, TK, TK, TK, TK, TK, TK, TK, TK, TK, TG, TG, TG, TK, US,
    /* `  a-z                                                     */
    TK, TK, TK, TK, TK, TK, TK, TK, TK, TK, TK, TK, TK, TK, TK, TK,
    /*                                          {   |   }   ~ DEL */
    TK, TK, TK, TK, TK, TK, TK, TK, TK, TK, TK, TG, TK, TG, TK, NO,
    HIGH16, HIGH16, HIGH16, HIGH16, HIGH16, HIGH16, HIGH16, HIGH16,
};
/* clang-format on */

typedef const struct http_fault *verdict; /* NULL: go on */

static const struct http_fault fault_line = {
    400, "invalid_http",
    "The head is not HTTP/1.1: a folded line, a bare CR or LF, a control character, or a start "
    "line "
    "that is not 'METHOD target HTTP/1.1' with one blank between them."};
static const struct http_fault fault_name = {
    400, "invalid_header",
    "A header name is empty, ends in a blank, or holds a byte that names cannot have. Underscores "
    "are refused as well, since many servers take '_' for '-'."};
static const struct http_fault fault_value = {
    400, "invalid_header",
    "A header value holds a control character, or its line does not end with CRLF."};
static const struct http_fault fault_version = {505, "unsupported_http_version",
                                                "Speak HTTP/1.1 or HTTP/1.0."};
static const struct http_fault fault_version_2 = {
    505, "unsupported_http_version",
    "This port speaks HTTP/1.1, not HTTP/2. Connect without prior knowledge of HTTP/2."};
static const struct http_fault fault_tls = {
    400, "tls_on_plain_port",
    "This port speaks plain HTTP, and the client began with TLS. Use "
    "http:// instead of https://."};
static const struct http_fault fault_size = {
    431, "headers_too_large",
    "The head is larger than this router accepts, or has more than 100 headers."};
static const struct http_fault fault_target_size = {
    414, "uri_too_long", "The request target is longer than this router accepts."};
static const struct http_fault fault_not_http = {502, "upstream_protocol_error",
                                                 "The worker does not speak HTTP/1."};
static const struct http_fault fault_answer = {502, "upstream_protocol_error",
                                               "The head of the worker's answer is malformed."};
static const struct http_fault fault_answer_size = {
    502, "upstream_protocol_error", "The head of the worker's answer is larger than the limit."};

static verdict malformed(const struct http_raw_head *head, const struct http_fault *of_request)
{
    return head->kind == HTTP_RAW_ANSWER ? &fault_answer : of_request;
}

static verdict too_large(const struct http_raw_head *head)
{
    return head->kind == HTTP_RAW_ANSWER ? &fault_answer_size : &fault_size;
}

/* Skips what is of class; returns how much that was. */
static size_t skip_run(struct slice *bytes, unsigned char class)
{
    size_t len = 0;

    while (len < bytes->len && (classes[(unsigned char)bytes->ptr[len]] & class) != 0)
        len++;
    *bytes = slice_skip(*bytes, len);
    return len;
}

static bool is_digit(char byte)
{
    return byte >= '0' && byte <= '9';
}

/* ---- the start line; each takes at least one byte or ends bytes ---- */

static verdict step_empty(struct http_raw_head *head, struct slice *bytes)
{
    char byte = bytes->ptr[0];

    if (byte == 0x16) /* a TLS record with a handshake */
        return &fault_tls;
    if (byte == '\r') {
        *bytes = slice_skip(*bytes, 1);
        head->state = RAW_EMPTY_LF;
        return NULL;
    }
    head->state = RAW_METHOD;
    return (classes[(unsigned char)byte] & IN_TOKEN) != 0 ? NULL : &fault_line;
}

static verdict step_method(struct http_raw_head *head, struct slice *bytes)
{
    skip_run(bytes, IN_TOKEN);
    if (bytes->len == 0)
        return NULL;
    if (bytes->ptr[0] != ' ')
        return &fault_line;
    *bytes = slice_skip(*bytes, 1);
    head->state = RAW_TARGET;
    return NULL;
}

static verdict step_target(struct http_raw_head *head, struct slice *bytes)
{
    head->target_len += skip_run(bytes, IN_TARGET);
    if (head->target_len > head->limits.target_bytes_max)
        return &fault_target_size;
    if (bytes->len == 0)
        return NULL;
    if (bytes->ptr[0] != ' ' || head->target_len == 0)
        return &fault_line;
    *bytes = slice_skip(*bytes, 1);
    head->state = RAW_VERSION;
    return NULL;
}

static verdict step_version(struct http_raw_head *head, struct slice *bytes)
{
    static const char pattern[] = "HTTP/0.0"; /* 0: any digit */

    for (; bytes->len > 0 && head->matched < sizeof pattern - 1; head->matched++) {
        char wanted = pattern[head->matched], byte = bytes->ptr[0];

        if (wanted == '0' ? !is_digit(byte) : byte != wanted)
            return head->kind == HTTP_RAW_ANSWER ? &fault_not_http : &fault_line;
        head->major = head->matched == 5 ? byte : head->major;
        head->minor = byte;
        *bytes = slice_skip(*bytes, 1);
    }
    if (head->matched == sizeof pattern - 1)
        head->state = RAW_VERSION_END;
    return NULL;
}

/* The byte behind the version is looked at first: "HTTP/1.32" is no version at all. */
static verdict step_version_end(struct http_raw_head *head, struct slice *bytes)
{
    bool is_answer = head->kind == HTTP_RAW_ANSWER;

    if (bytes->ptr[0] != (is_answer ? ' ' : '\r'))
        return is_answer ? &fault_not_http : &fault_line;
    if (head->major != '1' || head->minor > '1')
        return is_answer ? &fault_not_http : head->major == '2' ? &fault_version_2 : &fault_version;
    *bytes = slice_skip(*bytes, 1);
    head->matched = 0;
    head->state = is_answer ? RAW_STATUS : RAW_LINE_LF;
    return NULL;
}

static verdict step_status(struct http_raw_head *head, struct slice *bytes)
{
    if (!is_digit(bytes->ptr[0]))
        return &fault_answer;
    *bytes = slice_skip(*bytes, 1);
    if (++head->matched == 3)
        head->state = RAW_STATUS_END;
    return NULL;
}

static verdict step_status_end(struct http_raw_head *head, struct slice *bytes)
{
    char byte = bytes->ptr[0];

    if (byte != ' ' && byte != '\r')
        return &fault_answer;
    *bytes = slice_skip(*bytes, 1);
    head->state = byte == ' ' ? RAW_REASON : RAW_LINE_LF;
    return NULL;
}

/* ---- lines ---- */

/* The rest of a line, a reason or a value, and the CR behind it. */
static verdict step_text(struct http_raw_head *head, struct slice *bytes)
{
    skip_run(bytes, IN_VALUE);
    if (bytes->len == 0)
        return NULL;
    if (bytes->ptr[0] != '\r')
        return malformed(head, &fault_value);
    *bytes = slice_skip(*bytes, 1);
    head->state = RAW_LINE_LF;
    return NULL;
}

static verdict step_lf(struct http_raw_head *head, struct slice *bytes)
{
    if (bytes->ptr[0] != '\n')
        return malformed(head, &fault_line);
    *bytes = slice_skip(*bytes, 1);
    head->state = head->state == RAW_LINE_LF    ? RAW_LINE_START
                  : head->state == RAW_EMPTY_LF ? RAW_EMPTY
                                                : RAW_DONE;
    return NULL;
}

static verdict step_line_start(struct http_raw_head *head, struct slice *bytes)
{
    char byte = bytes->ptr[0];

    if (byte == '\r') {
        *bytes = slice_skip(*bytes, 1);
        head->state = RAW_END_LF;
        return NULL;
    }
    if (byte == ' ' || byte == '\t' || byte == '\n')
        return malformed(head, &fault_line);
    if ((classes[(unsigned char)byte] & IN_TOKEN) == 0)
        return malformed(head, &fault_name);
    if (head->header_count == HTTP_HEADER_COUNT_MAX)
        return too_large(head);
    head->header_count++;
    head->state = RAW_NAME;
    return NULL;
}

static verdict step_name(struct http_raw_head *head, struct slice *bytes)
{
    skip_run(bytes, head->kind == HTTP_RAW_REQUEST ? IN_NAME : IN_TOKEN);
    if (bytes->len == 0)
        return NULL;
    if (bytes->ptr[0] != ':')
        return malformed(head, &fault_name);
    *bytes = slice_skip(*bytes, 1);
    head->state = RAW_VALUE;
    return NULL;
}

/* A switch, not a table: the steps become one function that holds its place in registers. */
static verdict step(struct http_raw_head *head, struct slice *bytes)
{
    switch (head->state) {
    case RAW_EMPTY:
        return step_empty(head, bytes);
    case RAW_METHOD:
        return step_method(head, bytes);
    case RAW_TARGET:
        return step_target(head, bytes);
    case RAW_VERSION:
        return step_version(head, bytes);
    case RAW_VERSION_END:
        return step_version_end(head, bytes);
    case RAW_STATUS:
        return step_status(head, bytes);
    case RAW_STATUS_END:
        return step_status_end(head, bytes);
    case RAW_LINE_START:
        return step_line_start(head, bytes);
    case RAW_NAME:
        return step_name(head, bytes);
    case RAW_REASON:
    case RAW_VALUE:
        return step_text(head, bytes);
    case RAW_EMPTY_LF:
    case RAW_LINE_LF:
    case RAW_END_LF:
        return step_lf(head, bytes);
    case RAW_DONE:
        break;
    }
    assert(!"nothing is read behind the end");
    return NULL;
}

void http_raw_head_begin(struct http_raw_head *head, enum http_raw_kind kind,
                         struct http_raw_limits limits)
{
    static const enum http_raw_state starts[] = {
        [HTTP_RAW_REQUEST] = RAW_EMPTY,
        [HTTP_RAW_ANSWER] = RAW_VERSION,
        [HTTP_RAW_TRAILERS] = RAW_LINE_START,
    };

    *head = (struct http_raw_head){.kind = kind, .state = starts[kind], .limits = limits};
}

int http_raw_head_feed(struct http_raw_head *head, struct slice bytes, size_t *used,
                       struct http_fault *fault)
{
    size_t room = head->limits.bytes_max - head->len;
    size_t given = bytes.len < room ? bytes.len : room;
    struct slice left = slice_of(bytes.ptr, given);
    verdict found = NULL;

    while (found == NULL && left.len > 0 && head->state != RAW_DONE)
        found = step(head, &left);
    *used = given - left.len;
    head->len += *used;
    if (found == NULL && head->state != RAW_DONE && bytes.len > given)
        found = too_large(head);
    if (found == NULL)
        return 0;
    *fault = *found;
    return -EBADMSG;
}
