/* SPDX-License-Identifier: Apache-2.0 */

#include "router/endpoint.h"

#include <stdio.h>

#include "backends/runtime/must_check.h"
#include "backends/runtime/near_name.h"

/* A shorter path is no typing error but a question: nothing is near to "/". */
enum { NEAR_PATH_BYTES_MIN = 4 };

/* Whether path is one segment and then suffix; leaves the segment in *segment. */
static bool takes_suffix(struct slice path, const char *suffix, struct slice *segment)
{
    struct slice end = slice_of_string(suffix);

    if (path.len <= end.len || !slice_eq(slice_skip(path, path.len - end.len), end) ||
        memchr(path.ptr, '/', path.len - end.len) != NULL)
        return false;
    *segment = slice_of(path.ptr, path.len - end.len);
    return true;
}

static bool is_path(const struct endpoint *endpoint, struct slice path, struct slice *rest)
{
    struct slice own = slice_of_string(endpoint->path);

    if (!endpoint->is_prefix)
        return slice_eq(path, own);
    if (path.len <= own.len || !slice_starts_with(path, own))
        return false;
    path = slice_skip(path, own.len);
    if (endpoint->suffix != NULL)
        return takes_suffix(path, endpoint->suffix, rest);
    *rest = path;
    return true;
}

static struct slice without_query(struct slice target)
{
    const char *query = target.len > 0 ? memchr(target.ptr, '?', target.len) : NULL;

    return query != NULL ? slice_of(target.ptr, (size_t)(query - target.ptr)) : target;
}

/* HEAD is GET without the body. What an engine answers we cannot promise that for. */
static bool takes_method(const struct endpoint *endpoint, enum http_method method)
{
    return endpoint->method == method ||
           (method == HTTP_METHOD_HEAD && endpoint->method == HTTP_METHOD_GET &&
            endpoint->handler == NULL);
}

enum endpoint_match endpoint_find(const struct endpoint_table *table, enum http_method method,
                                  struct slice target, const struct endpoint **endpoint,
                                  struct slice *rest)
{
    struct slice path = without_query(target);
    enum endpoint_match match = ENDPOINT_NO_PATH;

    *rest = slice_of(NULL, 0);
    for (size_t i = 0; i < table->count; i++) {
        const struct endpoint *candidate = &table->endpoints[i];

        if (!is_path(candidate, path, rest))
            continue;
        *endpoint = candidate;
        if (takes_method(candidate, method))
            return ENDPOINT_FOUND;
        match = ENDPOINT_NO_METHOD;
    }
    return match;
}

/* ---- what is allowed ---- */

/* The longest list is "GET, HEAD, POST, DELETE, OPTIONS". */
const char *endpoint_allow(const struct endpoint_table *table, struct slice target,
                           char allow[ENDPOINT_ALLOW_BYTES_MAX])
{
    static const enum http_method order[] = {HTTP_METHOD_GET, HTTP_METHOD_HEAD, HTTP_METHOD_POST,
                                             HTTP_METHOD_DELETE};
    bool is_any = slice_eq(target, SLICE("*"));
    struct slice path = without_query(target), rest;
    size_t len = 0;

    allow[0] = '\0';
    for (size_t i = 0; i < array_count(order); i++) {
        bool is_taken = false;

        for (size_t at = 0; at < table->count && !is_taken; at++)
            is_taken = takes_method(&table->endpoints[at], order[i]) &&
                       (is_any || is_path(&table->endpoints[at], path, &rest));
        if (is_taken)
            len += (size_t)snprintf(allow + len, ENDPOINT_ALLOW_BYTES_MAX - len, "%s, ",
                                    http_method_name(order[i]));
    }
    if (len > 0)
        snprintf(allow + len, ENDPOINT_ALLOW_BYTES_MAX - len, "OPTIONS");
    return allow;
}

/* ---- what was meant ---- */

/* Bytes of the whole segments at the end of both: most who err have the wrong beginning, such as
 * /v1/v1/chat/completions, or no /v1 at all. */
static size_t shared_tail(struct slice a, struct slice b)
{
    size_t tail = 0;

    for (size_t i = 1; i <= a.len && i <= b.len && a.ptr[a.len - i] == b.ptr[b.len - i]; i++) {
        if (a.ptr[a.len - i] == '/')
            tail = i;
    }
    return tail;
}

static const char *with_same_tail(const struct endpoint_table *table, struct slice path)
{
    const char *near = NULL;
    size_t best = 0;

    for (size_t i = 0; i < table->count; i++) {
        const char *own = table->endpoints[i].path;
        size_t tail = table->endpoints[i].is_prefix ? 0 : shared_tail(path, slice_of_string(own));

        if (tail < best || tail == 0)
            continue;
        if (tail > best || strlen(own) < strlen(near))
            near = own;
        best = tail;
    }
    return near;
}

static const char *with_few_edits(const struct endpoint_table *table, struct slice path)
{
    const char *near = NULL;
    size_t best = NEAR_NAME_FAR;

    for (size_t i = 0; i < table->count; i++) {
        const char *own = table->endpoints[i].path;
        size_t cost = table->endpoints[i].is_prefix ? NEAR_NAME_FAR
                                                    : near_name_cost(path, slice_of_string(own));

        if (cost < best) {
            near = own;
            best = cost;
        }
    }
    return near;
}

const char *endpoint_near(const struct endpoint_table *table, struct slice target)
{
    struct slice path = without_query(target);
    const char *near;

    while (path.len > 0 && path.ptr[path.len - 1] == '/')
        path.len--;
    if (path.len < NEAR_PATH_BYTES_MIN)
        return NULL;
    near = with_same_tail(table, path);
    return near != NULL ? near : with_few_edits(table, path);
}

/* ---- the client's part ---- */

static int hex_value(char digit)
{
    if (digit >= '0' && digit <= '9')
        return digit - '0';
    if (digit >= 'a' && digit <= 'f')
        return digit - 'a' + 10;
    return digit >= 'A' && digit <= 'F' ? digit - 'A' + 10 : -1;
}

bool endpoint_decode(struct slice rest, char *text, size_t size, size_t *len)
{
    *len = 0;
    for (size_t at = 0; at < rest.len; at++) {
        char byte = rest.ptr[at];

        if (*len == size)
            return false;
        if (byte == '%') {
            int high = at + 2 < rest.len ? hex_value(rest.ptr[at + 1]) : -1;
            int low = at + 2 < rest.len ? hex_value(rest.ptr[at + 2]) : -1;

            if (high < 0 || low < 0)
                return false;
            byte = (char)(high << 4 | low);
            at += 2;
        }
        text[(*len)++] = byte;
    }
    return true;
}
