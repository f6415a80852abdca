/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/http/http_guard.h"

#include <errno.h>

#include "backends/runtime/must_check.h"

/*
 * DESIGN
 *
 * A router stands between a client and an engine that must agree about where a message ends and
 * whom it is for. Wherever two readers could disagree, the message is refused rather than mended.
 * Which bytes a head may hold at all is http_raw_head's affair; here is what they say. Each rule is
 * a function from a head to a fault or NULL; a table runs them in order.
 */
typedef const struct http_fault *guard_rule(const struct http_head *head);

enum { LENGTH_DIGIT_COUNT_MAX = 15 }; /* below 2^53: exact for whoever counts in doubles */

static size_t count_headers(const struct http_head *head, struct slice name)
{
    size_t count = 0;

    for (size_t i = 0; i < head->header_count; i++)
        count += slice_eq_nocase(head->headers[i].name, name);
    return count;
}

/* ---- framing ---- */

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

/* HTTP/1.0 has no chunks: its readers take them for the body itself (RFC 9112, 6.1). */
static const struct http_fault *encoding_fits_version(const struct http_head *head)
{
    static const struct http_fault fault = {400, "ambiguous_framing",
                                            "HTTP/1.0 has no Transfer-Encoding. Send a "
                                            "Content-Length, or speak HTTP/1.1."};

    return head->version_minor == 0 && http_head_find(head, SLICE("Transfer-Encoding")) != NULL
               ? &fault
               : NULL;
}

static const struct http_fault *encoding_is_chunked(const struct http_head *head)
{
    static const struct http_fault unknown = {
        501, "unsupported_transfer_encoding",
        "The only Transfer-Encoding understood is 'chunked', alone."};
    static const struct http_fault ambiguous = {
        400, "ambiguous_framing", "'Transfer-Encoding: chunked' must come once and last."};
    const struct http_header *encoding = http_head_find(head, SLICE("Transfer-Encoding"));
    struct slice chunked = SLICE("chunked");
    struct slice value;

    if (encoding == NULL || slice_eq_nocase(encoding->value, chunked))
        return NULL;
    value = encoding->value;
    if (value.len == 0 ||
        (value.len > chunked.len && slice_eq_nocase(slice_of(value.ptr, chunked.len), chunked) &&
         memchr(" \t,", value.ptr[chunked.len], 3) != NULL))
        return &ambiguous;
    return &unknown;
}

static const struct http_fault *length_is_decimal(const struct http_head *head)
{
    static const struct http_fault fault = {
        400, "invalid_content_length",
        "Content-Length must be a decimal number of at most 15 digits."};
    const struct http_header *length = http_head_find(head, SLICE("Content-Length"));

    if (length == NULL)
        return NULL;
    if (length->value.len == 0 || length->value.len > LENGTH_DIGIT_COUNT_MAX)
        return &fault;
    for (size_t i = 0; i < length->value.len; i++) {
        if (length->value.ptr[i] < '0' || length->value.ptr[i] > '9')
            return &fault;
    }
    return NULL;
}

/* ---- whom it is for ---- */

static bool is_host_byte(char byte)
{
    return (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') ||
           (byte >= '0' && byte <= '9') || (byte != '\0' && strchr("-._~%!$&'()*+,;=", byte));
}

/* ":" and digits, or nothing. */
static bool is_port(struct slice text)
{
    if (text.len > 0 && text.ptr[0] != ':')
        return false;
    for (size_t i = 1; i < text.len; i++) {
        if (text.ptr[i] < '0' || text.ptr[i] > '9')
            return false;
    }
    return true;
}

/* host[:port] or [address][:port] (RFC 9110, 4.2.3), without a name of a user. */
static bool is_host(struct slice host)
{
    size_t at = 0;

    if (host.len > 0 && host.ptr[0] == '[') {
        for (at = 1; at < host.len && host.ptr[at] != ']'; at++) {
            if (!is_host_byte(host.ptr[at]) && host.ptr[at] != ':')
                return false;
        }
        return at < host.len && is_port(slice_skip(host, at + 1));
    }
    while (at < host.len && is_host_byte(host.ptr[at]))
        at++;
    return is_port(slice_skip(host, at));
}

static const struct http_fault *host_is_one(const struct http_head *head)
{
    static const struct http_fault fault = {
        400, "invalid_host", "HTTP/1.1 wants exactly one Host header of the form host[:port]."};
    const struct http_header *host = http_head_find(head, SLICE("Host"));
    size_t count = count_headers(head, SLICE("Host"));

    if (count > 1 || (count == 0 && head->version_minor == 1))
        return &fault;
    return host == NULL || is_host(host->value) ? NULL : &fault;
}

/* This is no proxy: a tunnel would carry requests that nobody looked at. */
static const struct http_fault *method_is_no_tunnel(const struct http_head *head)
{
    static const struct http_fault fault = {501, "not_implemented",
                                            "CONNECT is for proxies, and this is none."};

    return head->method == HTTP_METHOD_CONNECT ? &fault : NULL;
}

/* Of "http://authority/path" the two parts; false: target has no such form. */
static bool split_absolute(struct slice target, struct slice *authority, struct slice *path)
{
    static const struct slice schemes[] = {{"http://", 7}, {"https://", 8}};

    for (size_t i = 0; i < array_count(schemes); i++) {
        struct slice scheme = schemes[i], rest;
        const char *slash;

        if (target.len < scheme.len || !slice_eq_nocase(slice_of(target.ptr, scheme.len), scheme))
            continue;
        rest = slice_skip(target, scheme.len);
        slash = memchr(rest.ptr, '/', rest.len);
        if (slash == NULL)
            return false;
        *authority = slice_of(rest.ptr, (size_t)(slash - rest.ptr));
        *path = slice_skip(rest, authority->len);
        return true;
    }
    return false;
}

static const struct http_fault *target_is_a_path(const struct http_head *head)
{
    static const struct http_fault fault = {
        400, "invalid_target", "The request target must be a path such as /v1/chat/completions."};
    struct slice authority, path;

    if (head->method == HTTP_METHOD_OPTIONS && slice_eq(head->target, SLICE("*")))
        return NULL;
    if (head->target.len > 0 && head->target.ptr[0] == '/')
        return NULL;
    return split_absolute(head->target, &authority, &path) ? NULL : &fault;
}

/* The authority of an absolute target would win over Host (RFC 9112, 3.2.2); two that differ are
 * for two different servers. */
static const struct http_fault *authority_is_host(const struct http_head *head)
{
    static const struct http_fault fault = {400, "invalid_host",
                                            "The target names another host than the Host header."};
    const struct http_header *host = http_head_find(head, SLICE("Host"));
    struct slice authority, path;

    if (!split_absolute(head->target, &authority, &path))
        return NULL;
    if (authority.len == 0 || !is_host(authority))
        return &fault;
    return host == NULL || slice_eq_nocase(host->value, authority) ? NULL : &fault;
}

static const struct http_fault *expectation_is_known(const struct http_head *head)
{
    static const struct http_fault fault = {
        417, "unknown_expectation", "The only expectation understood is 'Expect: 100-continue'."};

    for (size_t i = 0; i < head->header_count; i++) {
        if (slice_eq_nocase(head->headers[i].name, SLICE("Expect")) &&
            !slice_eq_nocase(head->headers[i].value, SLICE("100-continue")))
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
    framing_is_single, encoding_fits_version, encoding_is_chunked,
    length_is_decimal, host_is_one,           method_is_no_tunnel,
    target_is_a_path,  authority_is_host,     expectation_is_known,
};

static guard_rule *const answer_rules[] = {
    status_has_a_meaning, framing_is_single, encoding_fits_version,
    encoding_is_chunked,  length_is_decimal,
};

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

struct slice http_guard_origin_form(struct slice target)
{
    struct slice authority, path;

    return split_absolute(target, &authority, &path) ? path : target;
}
