/* SPDX-License-Identifier: Apache-2.0 */

#include "router/endpoint.h"

static bool is_path(const struct endpoint *endpoint, struct slice path, struct slice *rest)
{
    struct slice own = slice_of_string(endpoint->path);

    if (!endpoint->is_prefix)
        return slice_eq(path, own);
    if (path.len <= own.len || !slice_starts_with(path, own))
        return false;
    *rest = slice_skip(path, own.len);
    return true;
}

enum endpoint_match endpoint_find(const struct endpoint_table *table, enum http_method method,
                                  struct slice target, const struct endpoint **endpoint,
                                  struct slice *rest)
{
    const char *query = target.len > 0 ? memchr(target.ptr, '?', target.len) : NULL;
    struct slice path = query != NULL ? slice_of(target.ptr, (size_t)(query - target.ptr)) : target;
    enum endpoint_match match = ENDPOINT_NO_PATH;

    if (method == HTTP_METHOD_HEAD)
        method = HTTP_METHOD_GET;
    *rest = slice_of(NULL, 0);
    for (size_t i = 0; i < table->count; i++) {
        const struct endpoint *candidate = &table->endpoints[i];

        if (!is_path(candidate, path, rest))
            continue;
        *endpoint = candidate;
        if (candidate->method == method)
            return ENDPOINT_FOUND;
        match = ENDPOINT_NO_METHOD;
    }
    return match;
}
