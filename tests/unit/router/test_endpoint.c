/* SPDX-License-Identifier: Apache-2.0 */

#include "router/endpoint.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include "backends/runtime/must_check.h"
#include "router/api/public.h"
#include "router/client_conn.h"
#include "tests/support/leak_check.h"

static const struct client_handler handler; /* only its address matters here */

static const struct endpoint endpoints[] = {
    {.path = "/v1/chat", .method = HTTP_METHOD_POST},
    {.path = "/v1/models", .method = HTTP_METHOD_GET},
    {.path = "/v1/models/", .is_prefix = true, .method = HTTP_METHOD_GET},
    {.path = "/both", .method = HTTP_METHOD_GET},
    {.path = "/both", .method = HTTP_METHOD_POST},
    {.path = "/r/",
     .is_prefix = true,
     .suffix = "",
     .method = HTTP_METHOD_GET,
     .handler = &handler},
    {.path = "/r/", .is_prefix = true, .suffix = "/stop", .method = HTTP_METHOD_POST},
};
static const struct endpoint_table table = {endpoints, array_count(endpoints), false};

TestSuite(endpoint, .fini = leak_check);

Test(endpoint, what_a_path_takes_is_all_of_it)
{
    static const struct {
        const char *target, *allow;
    } rows[] = {
        {"/v1/chat", "POST, OPTIONS"},
        {"/v1/models?x", "GET, HEAD, OPTIONS"},
        {"/v1/models/a", "GET, HEAD, OPTIONS"},
        {"/both", "GET, HEAD, POST, OPTIONS"},
        {"/r/a", "GET, OPTIONS"}, /* an engine's answer to HEAD is not ours to promise */
        {"/r/a/stop", "POST, OPTIONS"},
        {"*", "GET, HEAD, POST, OPTIONS"},
        {"/", ""},
        {"/v1/chat/", ""},
    };
    char allow[ENDPOINT_ALLOW_BYTES_MAX];

    for (size_t i = 0; i < array_count(rows); i++)
        cr_assert(eq(str, (char *)endpoint_allow(&table, slice_of_string(rows[i].target), allow),
                     (char *)rows[i].allow),
                  "%s", rows[i].target);
}

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
        {HTTP_METHOD_GET, "/r/a", ENDPOINT_FOUND, 5, "a"},
        {HTTP_METHOD_HEAD, "/r/a", ENDPOINT_NO_METHOD, 5, "a"}, /* an engine would answer it */
        {HTTP_METHOD_GET, "/r/stop?x=/", ENDPOINT_FOUND, 5, "stop"},
        {HTTP_METHOD_GET, "/r/", ENDPOINT_NO_PATH, 0, ""},
        {HTTP_METHOD_GET, "/r/a/", ENDPOINT_NO_PATH, 0, ""},
        {HTTP_METHOD_GET, "/r/a/b", ENDPOINT_NO_PATH, 0, ""},
        {HTTP_METHOD_POST, "/r/a/stop", ENDPOINT_FOUND, 6, "a"},
        {HTTP_METHOD_POST, "/r/a%2Fb/stop", ENDPOINT_FOUND, 6, "a%2Fb"},
        {HTTP_METHOD_GET, "/r/a/stop", ENDPOINT_NO_METHOD, 6, "a"},
        {HTTP_METHOD_POST, "/r/a/b/stop", ENDPOINT_NO_PATH, 0, ""},
        {HTTP_METHOD_POST, "/r//stop", ENDPOINT_NO_PATH, 0, ""},
        {HTTP_METHOD_POST, "/r/../stop", ENDPOINT_FOUND, 6, ".."}, /* an id like any other */
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

Test(endpoint, a_path_that_nobody_serves_names_the_one_that_was_meant)
{
    static const struct {
        const char *target;
        const char *near; /* NULL: none */
    } rows[] = {
        {"/chat/completions", "/v1/chat/completions"},
        {"/v1/v1/chat/completions", "/v1/chat/completions"},
        {"/openai/v1/completions?api-version=1", "/v1/completions"},
        {"/completions", "/v1/completions"},
        {"/v1/chat/completions/", "/v1/chat/completions"},
        {"/v1/chat/completion", "/v1/chat/completions"},
        {"/v1/chat/competions", "/v1/chat/completions"},
        {"/v1/chat", "/v1/chat/completions"},
        {"/v1/embedding", "/v1/embeddings"},
        {"/V1/models", "/v1/models"},
        {"/count_tokens", "/v1/messages/count_tokens"},
        {"/v3/rerank", "/rerank"},
        {"/helth", "/health"},
        {"/", NULL},
        {"", NULL},
        {"/v1", NULL},
        {"/v1/", NULL},
        {"///////", NULL},
        {"/wp-login.php", NULL},
        {"/v1/audio/transcriptions", NULL},
    };

    for (size_t i = 0; i < array_count(rows); i++) {
        const char *near = endpoint_near(&public_endpoints, slice_of_string(rows[i].target));

        cr_assert(rows[i].near == NULL ? near == NULL
                                       : near != NULL && strcmp(near, rows[i].near) == 0,
                  "%s: %s", rows[i].target, near != NULL ? near : "none");
    }
}

Test(endpoint, percent_signs_in_a_path_are_undone_or_refused)
{
    static const struct {
        const char *rest;
        const char *text; /* NULL: refused */
    } rows[] = {
        {"resp_1", "resp_1"},
        {"a%2Fb%2fc", "a/b/c"},
        {"%41", "A"},
        {"", ""},
        {"%", NULL},
        {"%4", NULL},
        {"%4x", NULL},
        {"a%", NULL},
        {"12345678", "12345678"},
        {"123456789", NULL},
        {"%31%32345678", "12345678"},
    };

    for (size_t i = 0; i < array_count(rows); i++) {
        char text[8];
        size_t len;

        bool is_decoded = endpoint_decode(slice_of_string(rows[i].rest), text, sizeof text, &len);

        cr_assert(eq(int, is_decoded, rows[i].text != NULL), "%s", rows[i].rest);
        if (is_decoded)
            cr_assert(slice_eq(slice_of(text, len), slice_of_string(rows[i].text)), "%s",
                      rows[i].rest);
    }
}
