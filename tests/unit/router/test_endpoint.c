/* SPDX-License-Identifier: Apache-2.0 */

#include "router/endpoint.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include "backends/runtime/must_check.h"
#include "tests/support/leak_check.h"

static const struct endpoint endpoints[] = {
    {.path = "/v1/chat", .method = HTTP_METHOD_POST},
    {.path = "/v1/models", .method = HTTP_METHOD_GET},
    {.path = "/v1/models/", .is_prefix = true, .method = HTTP_METHOD_GET},
    {.path = "/both", .method = HTTP_METHOD_GET},
    {.path = "/both", .method = HTTP_METHOD_POST},
};
static const struct endpoint_table table = {endpoints, array_count(endpoints), false};

TestSuite(endpoint, .fini = leak_check);

Test(endpoint, a_request_finds_who_serves_it)
{
    static const struct {
        enum http_method method;
        const char *target;
        enum endpoint_match match;
        size_t place; /* in endpoints, where there is one */
        const char *rest;
    } rows[] = {
        {HTTP_METHOD_POST, "/v1/chat", ENDPOINT_FOUND, 0, ""},
        {HTTP_METHOD_POST, "/v1/chat?a=b?c", ENDPOINT_FOUND, 0, ""},
        {HTTP_METHOD_POST, "/v1/chat?", ENDPOINT_FOUND, 0, ""},
        {HTTP_METHOD_GET, "/v1/chat", ENDPOINT_NO_METHOD, 0, ""},
        {HTTP_METHOD_HEAD, "/v1/chat", ENDPOINT_NO_METHOD, 0, ""},
        {HTTP_METHOD_OTHER, "/v1/chat", ENDPOINT_NO_METHOD, 0, ""},
        {HTTP_METHOD_POST, "/v1/chat/", ENDPOINT_NO_PATH, 0, ""},
        {HTTP_METHOD_POST, "/v1/cha", ENDPOINT_NO_PATH, 0, ""},
        {HTTP_METHOD_POST, "/V1/chat", ENDPOINT_NO_PATH, 0, ""},
        {HTTP_METHOD_POST, "", ENDPOINT_NO_PATH, 0, ""},
        {HTTP_METHOD_GET, "/v1/models", ENDPOINT_FOUND, 1, ""},
        {HTTP_METHOD_HEAD, "/v1/models", ENDPOINT_FOUND, 1, ""},
        {HTTP_METHOD_GET, "/v1/models/", ENDPOINT_NO_PATH, 0, ""}, /* a prefix of nothing */
        {HTTP_METHOD_GET, "/v1/models/?x", ENDPOINT_NO_PATH, 0, ""},
        {HTTP_METHOD_GET, "/v1/models/a/b?x", ENDPOINT_FOUND, 2, "a/b"},
        {HTTP_METHOD_DELETE, "/v1/models/a", ENDPOINT_NO_METHOD, 2, "a"},
        {HTTP_METHOD_GET, "/both", ENDPOINT_FOUND, 3, ""},
        {HTTP_METHOD_POST, "/both", ENDPOINT_FOUND, 4, ""},
        {HTTP_METHOD_DELETE, "/both", ENDPOINT_NO_METHOD, 4, ""},
    };

    for (size_t i = 0; i < array_count(rows); i++) {
        const struct endpoint *endpoint = NULL;
        struct slice rest;

        enum endpoint_match match = endpoint_find(
            &table, rows[i].method, slice_of_string(rows[i].target), &endpoint, &rest);

        cr_assert(eq(int, match, rows[i].match), "%s", rows[i].target);
        cr_assert(slice_eq(rest, slice_of_string(rows[i].rest)), "%s", rows[i].target);
        if (match != ENDPOINT_NO_PATH)
            cr_assert(eq(ptr, (void *)endpoint, (void *)&endpoints[rows[i].place]), "%s",
                      rows[i].target);
    }
}
