/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/http/http_guard.h"

#include <errno.h>

#include "backends/runtime/must_check.h"

/*
 * DESIGN
 *
 * A router stands between a client and an engine that must agree about where a message ends and
 * whom it is for. Wherever two readers could disagree, the message is refused rather than mended.
 * Each rule is a function from a head to a fault or NULL; a table runs them in order.
 */
typedef const struct http_fault *guard_rule(const struct http_head *head);

static size_t count_headers(const struct http_head *head, struct slice name)
{
    size_t count = 0;

    for (size_t i = 0; i < head->header_count; i++)
        count += slice_eq_nocase(head->headers[i].name, name);
    return count;
}

/* A control character in a value: what is left of a folded line, a bare CR or LF, a NUL. */
static const struct http_fault *values_have_no_controls(const struct http_head *head)
{
    static const struct http_fault fault = {
        400, "invalid_header",
        "A header value holds a control character or a folded line. Send each header on one line."};

    for (size_t i = 0; i < head->header_count; i++) {
        struct slice value = head->headers[i].value;

        for (size_t at = 0; at < value.len; at++) {
            unsigned char byte = (unsigned char)value.ptr[at];

            if ((byte < 0x20 && byte != '\t') || byte == 0x7f)
                return &fault;
        }
    }
    return NULL;
}

/* Engines that read CGI style names cannot tell '_' from '-'. */
static const struct http_fault *names_are_plain(const struct http_head *head)
{
    static const struct http_fault fault = {
        400, "invalid_header", "A header name is empty or holds '_'. Use '-' in header names."};

    for (size_t i = 0; i < head->header_count; i++) {
        struct slice name = head->headers[i].name;

        if (name.len == 0 || memchr(name.ptr, '_', name.len) != NULL)
            return &fault;
    }
    return NULL;
}

static const struct http_fault *framing_is_single(const struct http_head *head)
{
    static const struct http_fault fault = {
        400, "ambiguous_framing",
        "The end of the body is ambiguous. Send either one Content-Length or "
        "'Transfer-Encoding: chunked'."};
    size_t lengths = count_headers(head, SLICE("Content-Length"));
    size_t encodings = count_headers(head, SLICE("Transfer-Encoding"));

    return lengths > 1 || encodings > 1 || (lengths > 0 && encodings > 0) ? &fault : NULL;
}

static const struct http_fault *encoding_is_chunked(const struct http_head *head)
{
    static const struct http_fault fault = {
        501, "unsupported_transfer_encoding",
        "The only Transfer-Encoding understood is 'chunked', in HTTP/1.1."};
    const struct http_header *encoding = http_head_find(head, SLICE("Transfer-Encoding"));

    if (encoding == NULL)
        return NULL;
    if (head->version_minor != 1 || !slice_eq_nocase(encoding->value, SLICE("chunked")))
        return &fault;
    return NULL;
}

static const struct http_fault *length_is_decimal(const struct http_head *head)
{
    static const struct http_fault fault = {400, "invalid_content_length",
                                            "Content-Length must be a decimal number."};
    const struct http_header *length = http_head_find(head, SLICE("Content-Length"));

    if (length == NULL)
        return NULL;
    if (length->value.len == 0 || length->value.len > 15)
        return &fault;
    for (size_t i = 0; i < length->value.len; i++) {
        if (length->value.ptr[i] < '0' || length->value.ptr[i] > '9')
            return &fault;
    }
    return NULL;
}

static bool is_host_byte(char byte)
{
    return (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') ||
           (byte >= '0' && byte <= '9') || (byte != '\0' && strchr("-._~:[]%!$&'()*+,;=", byte));
}

static const struct http_fault *host_is_one(const struct http_head *head)
{
    static const struct http_fault fault = {
        400, "invalid_host", "HTTP/1.1 wants exactly one Host header of the form host[:port]."};
    const struct http_header *host = http_head_find(head, SLICE("Host"));
    size_t count = count_headers(head, SLICE("Host"));

    if (count > 1 || (count == 0 && head->version_minor == 1))
        return &fault;
    for (size_t i = 0; host != NULL && i < host->value.len; i++) {
        if (!is_host_byte(host->value.ptr[i]))
            return &fault;
    }
    return NULL;
}

static const struct http_fault *target_is_origin_form(const struct http_head *head)
{
    static const struct http_fault fault = {
        400, "invalid_target", "The request target must be a path such as /v1/chat/completions."};
    struct slice target = head->target;

    if (head->method == HTTP_METHOD_OPTIONS && slice_eq(target, SLICE("*")))
        return NULL;
    if (target.len == 0 || target.ptr[0] != '/')
        return &fault;
    for (size_t i = 0; i < target.len; i++) {
        unsigned char byte = (unsigned char)target.ptr[i];

        if (byte <= 0x20 || byte >= 0x7f || byte == '#')
            return &fault;
    }
    return NULL;
}

static const struct http_fault *status_has_a_meaning(const struct http_head *head)
{
    static const struct http_fault fault = {502, "upstream_protocol_error",
                                            "The status is not between 200 and 599."};

    return head->status < 200 || head->status > 599 ? &fault : NULL;
}

static guard_rule *const request_rules[] = {
    names_are_plain,       values_have_no_controls, framing_is_single,
    encoding_is_chunked,   length_is_decimal,       host_is_one,
    target_is_origin_form,
};

static guard_rule *const answer_rules[] = {
    status_has_a_meaning, values_have_no_controls, framing_is_single,
    encoding_is_chunked,  length_is_decimal,
};

/* The state behind byte, or -1 where it may not come. */
static int raw_step(int state, char byte)
{
    if (byte == '\0')
        return -1;
    switch (state) {
    case RAW_HEAD_START:
        return byte == '\r' ? RAW_HEAD_START_CR : byte == '\n' ? -1 : RAW_HEAD_LINE;
    case RAW_HEAD_START_CR:
        return byte == '\n' ? RAW_HEAD_START : -1;
    case RAW_HEAD_LINE:
        return byte == '\r' ? RAW_HEAD_CR : byte == '\n' ? -1 : RAW_HEAD_LINE;
    case RAW_HEAD_CR:
        return byte == '\n' ? RAW_HEAD_LINE_START : -1;
    case RAW_HEAD_LINE_START:
        if (byte == ' ' || byte == '\t' || byte == '\n')
            return -1;
        return byte == '\r' ? RAW_HEAD_END_CR : RAW_HEAD_LINE;
    default: /* RAW_HEAD_END_CR */
        return byte == '\n' ? RAW_HEAD_DONE : -1;
    }
}

int http_guard_raw_head(struct http_raw_head *head, struct slice bytes, struct http_fault *fault)
{
    int state = (int)head->state;
    size_t i;

    for (i = 0; i < bytes.len && state != RAW_HEAD_DONE; i++) {
        state = raw_step(state, bytes.ptr[i]);
        if (state < 0) {
            *fault = (struct http_fault){
                400, "invalid_http",
                "The head has a folded line, a bare CR or LF, or a NUL. End each line with CRLF."};
            return -EBADMSG;
        }
    }
    head->state = (enum http_raw_state)state;
    head->len += i;
    return 0;
}

static int run(guard_rule *const *rules, size_t count, const struct http_head *head,
               struct http_fault *fault)
{
    for (size_t i = 0; i < count; i++) {
        const struct http_fault *found = rules[i](head);

        if (found != NULL) {
            *fault = *found;
            return -EBADMSG;
        }
    }
    return 0;
}

int http_guard_request(const struct http_head *head, struct http_fault *fault)
{
    return run(request_rules, array_count(request_rules), head, fault);
}

int http_guard_answer(const struct http_head *head, struct http_fault *fault)
{
    return run(answer_rules, array_count(answer_rules), head, fault);
}
