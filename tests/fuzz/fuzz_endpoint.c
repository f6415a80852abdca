/* SPDX-License-Identifier: Apache-2.0 */

/*
 * fuzz_endpoint: whatever a target is, who serves it does not depend on its query; a path is
 * allowed exactly what it is found with; a hint is a path that is served; what is decoded is not
 * longer than what was written.
 */

#include "router/api/public.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "router/endpoint.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void require(bool holds)
{
    if (!holds)
        abort();
}

static void check_rest(struct slice target, struct slice rest)
{
    char text[64];
    size_t len;

    require(rest.len == 0 ||
            (rest.ptr >= target.ptr && rest.ptr + rest.len <= target.ptr + target.len));
    if (endpoint_decode(rest, text, sizeof text, &len))
        require(len <= rest.len && len <= sizeof text);
}

static void check_near(struct slice target)
{
    const char *near = endpoint_near(&public_endpoints, target);
    const struct endpoint *endpoint;
    struct slice rest;

    if (near != NULL)
        require(endpoint_find(&public_endpoints, HTTP_METHOD_OTHER, slice_of_string(near),
                              &endpoint, &rest) == ENDPOINT_NO_METHOD);
}

static void check_method(struct slice target, enum http_method method, const char *allow)
{
    const char *query = target.len > 0 ? memchr(target.ptr, '?', target.len) : NULL;
    struct slice path = query != NULL ? slice_of(target.ptr, (size_t)(query - target.ptr)) : target;
    const struct endpoint *endpoint = NULL, *again = NULL;
    struct slice rest, rest_again;
    enum endpoint_match match = endpoint_find(&public_endpoints, method, target, &endpoint, &rest);

    require(match == endpoint_find(&public_endpoints, method, path, &again, &rest_again));
    require(endpoint == again && slice_eq(rest, rest_again));
    require((match == ENDPOINT_NO_PATH) == (allow[0] == '\0'));
    if (match == ENDPOINT_FOUND)
        require(strstr(allow, http_method_name(method)) != NULL);
    if (match != ENDPOINT_NO_PATH)
        check_rest(target, rest);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct slice target = slice_of(bytes, len);
    char allow[ENDPOINT_ALLOW_BYTES_MAX];

    if (len == 1 && bytes[0] == '*') /* of the server, not of a path */
        return 0;
    endpoint_allow(&public_endpoints, target, allow);
    for (int method = 0; method < HTTP_METHOD_COUNT; method++) {
        if (method != HTTP_METHOD_OPTIONS) /* allowed everywhere, served by no row */
            check_method(target, (enum http_method)method, allow);
    }
    check_near(target);
    return 0;
}
