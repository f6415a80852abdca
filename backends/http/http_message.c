/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/http/http_message.h"

#include <assert.h>

#include "backends/runtime/must_check.h"

static const char *const method_names[] = {
    [HTTP_METHOD_GET] = "GET",       [HTTP_METHOD_HEAD] = "HEAD",
    [HTTP_METHOD_POST] = "POST",     [HTTP_METHOD_OPTIONS] = "OPTIONS",
    [HTTP_METHOD_DELETE] = "DELETE", [HTTP_METHOD_CONNECT] = "CONNECT",
    [HTTP_METHOD_OTHER] = "OTHER",
};
static_assert(array_count(method_names) == HTTP_METHOD_COUNT, "every method has a name");

static const struct {
    int status;
    const char *text;
} status_texts[] = {
    {100, "Continue"},
    {200, "OK"},
    {201, "Created"},
    {202, "Accepted"},
    {204, "No Content"},
    {304, "Not Modified"},
    {400, "Bad Request"},
    {401, "Unauthorized"},
    {403, "Forbidden"},
    {404, "Not Found"},
    {405, "Method Not Allowed"},
    {408, "Request Timeout"},
    {409, "Conflict"},
    {411, "Length Required"},
    {413, "Content Too Large"},
    {414, "URI Too Long"},
    {415, "Unsupported Media Type"},
    {417, "Expectation Failed"},
    {422, "Unprocessable Content"},
    {429, "Too Many Requests"},
    {431, "Request Header Fields Too Large"},
    {500, "Internal Server Error"},
    {501, "Not Implemented"},
    {502, "Bad Gateway"},
    {503, "Service Unavailable"},
    {504, "Gateway Timeout"},
    {505, "HTTP Version Not Supported"},
};

const struct http_header *http_head_find(const struct http_head *head, struct slice name)
{
    for (size_t i = 0; i < head->header_count; i++) {
        if (slice_eq_nocase(head->headers[i].name, name))
            return &head->headers[i];
    }
    return NULL;
}

bool http_header_is_hop_by_hop(struct slice name)
{
    /* Upgrade and HTTP2-Settings belong to the connection as well; Expect is answered here. */
    switch (name.len) {
    case 2:
        return slice_eq_nocase(name, SLICE("TE"));
    case 6:
        return slice_eq_nocase(name, SLICE("Expect"));
    case 7:
        return slice_eq_nocase(name, SLICE("Trailer")) || slice_eq_nocase(name, SLICE("Upgrade"));
    case 10:
        return slice_eq_nocase(name, SLICE("Connection")) ||
               slice_eq_nocase(name, SLICE("Keep-Alive"));
    case 14:
        return slice_eq_nocase(name, SLICE("HTTP2-Settings"));
    case 16:
        return slice_eq_nocase(name, SLICE("Proxy-Connection"));
    case 17:
        return slice_eq_nocase(name, SLICE("Transfer-Encoding"));
    case 18:
        return slice_eq_nocase(name, SLICE("Proxy-Authenticate"));
    case 19:
        return slice_eq_nocase(name, SLICE("Proxy-Authorization"));
    default:
        return false;
    }
}

bool http_list_has(struct slice list, struct slice wanted)
{
    while (list.len > 0) {
        const char *comma = memchr(list.ptr, ',', list.len);
        struct slice item =
            slice_of(list.ptr, comma != NULL ? (size_t)(comma - list.ptr) : list.len);

        list = slice_skip(list, item.len + (comma != NULL));
        while (item.len > 0 && (item.ptr[0] == ' ' || item.ptr[0] == '\t'))
            item = slice_skip(item, 1);
        while (item.len > 0 && (item.ptr[item.len - 1] == ' ' || item.ptr[item.len - 1] == '\t'))
            item.len--;
        if (slice_eq_nocase(item, wanted))
            return true;
    }
    return false;
}

static bool is_end_to_end(struct slice name)
{
    static const struct slice names[] = {
        {"Authorization", 13},     {"Host", 4},
        {"X-Request-Id", 12},      {"x-api-key", 9},
        {"Retry-After", 11},       {"Content-Type", 12},
        {"Content-Length", 14},    {"Content-Encoding", 16},
        {"Forwarded", 9},          {"Via", 3},
        {"X-Forwarded-For", 15},   {"X-Forwarded-Host", 16},
        {"X-Forwarded-Proto", 17}, {"X-Real-IP", 9},
        {"traceparent", 11},       {"Cookie", 6},
    };

    for (size_t i = 0; i < array_count(names); i++) {
        if (slice_eq_nocase(name, names[i]))
            return true;
    }
    return false;
}

bool http_head_names_in_connection(const struct http_head *head, struct slice name)
{
    for (size_t i = 0; i < head->header_count; i++) {
        if (slice_eq_nocase(head->headers[i].name, SLICE("Connection")) &&
            http_list_has(head->headers[i].value, name))
            return !is_end_to_end(name);
    }
    return false;
}

const char *http_method_name(enum http_method method)
{
    assert(method < HTTP_METHOD_COUNT);

    return method_names[method];
}

const char *http_status_text(int status)
{
    for (size_t i = 0; i < array_count(status_texts); i++) {
        if (status_texts[i].status == status)
            return status_texts[i].text;
    }
    return "";
}
