/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/route.h"

#include <string.h>

#include "tests/sim_engine/page.h"

static const struct {
    const char *path;
    enum engine_api api;
} bodies[] = {
    {"/detokenize", ENGINE_DETOKENIZE},
    {"/rerank", ENGINE_RERANK},
    {"/score", ENGINE_SCORE},
    {"/tokenize", ENGINE_TOKENIZE},
    {"/v1/chat/completions", ENGINE_CHAT},
    {"/v1/completions", ENGINE_COMPLETIONS},
    {"/v1/embeddings", ENGINE_EMBEDDINGS},
    {"/v1/messages", ENGINE_MESSAGES},
    {"/v1/messages/count_tokens", ENGINE_COUNT_TOKENS},
    {"/v1/rerank", ENGINE_RERANK},
    {"/v1/responses", ENGINE_RESPONSES},
    {"/v1/score", ENGINE_SCORE},
    {"/v2/rerank", ENGINE_RERANK},
};

/* "/v1/responses/<id>", and "/cancel" behind it. */
static struct route find_response(const char *path)
{
    const struct slice prefix = SLICE("/v1/responses/"), suffix = SLICE("/cancel");
    struct route route = {.kind = ROUTE_RESPONSE, .method = HTTP_METHOD_GET};
    struct slice id = slice_of_string(path);

    if (!slice_starts_with(id, prefix))
        return (struct route){.kind = ROUTE_NONE};
    id = slice_skip(id, prefix.len);
    if (id.len > suffix.len && slice_eq(slice_skip(id, id.len - suffix.len), suffix)) {
        id.len -= suffix.len;
        route.kind = ROUTE_CANCEL;
        route.method = HTTP_METHOD_POST;
    }
    if (id.len == 0 || memchr(id.ptr, '/', id.len) != NULL)
        return (struct route){.kind = ROUTE_NONE};
    route.id = id;
    return route;
}

struct route route_find(const char *path)
{
    const struct page *page = page_find(path);

    for (size_t i = 0; i < array_count(bodies); i++) {
        if (strcmp(bodies[i].path, path) == 0)
            return (struct route){
                .kind = ROUTE_BODY, .method = HTTP_METHOD_POST, .api = bodies[i].api};
    }
    if (page != NULL)
        return (struct route){.kind = ROUTE_PAGE, .method = page->method, .page = page};
    return find_response(path);
}
