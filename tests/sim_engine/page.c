/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/page.h"

#include <string.h>

#include "backends/runtime/must_check.h"
#include "tests/sim_engine/engine.h"
#include "tests/sim_engine/engine_answer.h"
#include "tests/sim_engine/json_text.h"

static void put_nothing(struct buf *body, struct engine *engine, uint64_t now_s)
{
    (void)body;
    (void)engine;
    (void)now_s;
}

static void put_version(struct buf *body, struct engine *engine, uint64_t now_s)
{
    (void)engine;
    (void)now_s;
    text_put(body, SLICE("{\"version\":\"" ENGINE_VERSION "\"}"));
}

static void put_load(struct buf *body, struct engine *engine, uint64_t now_s)
{
    (void)now_s;
    text_putf(body, "{\"server_load\":%zu}", engine->active_count);
}

static void put_models(struct buf *body, struct engine *engine, uint64_t now_s)
{
    answer_put_models(body, &engine->model, now_s);
}

static void put_metrics(struct buf *body, struct engine *engine, uint64_t now_s)
{
    struct engine_metrics_input input = {
        .model = engine->model.name,
        .cache = engine->cache,
        .scheduler = engine->scheduler,
        .block_size = (uint32_t)engine->options.block_size,
        .counts = engine->counts,
        .connector = engine->connector,
        .events = engine->events,
    };

    (void)now_s;
    engine_metrics_put(body, &input);
}

static void put_reset(struct buf *body, struct engine *engine, uint64_t now_s)
{
    (void)now_s;
    text_putf(body, "{\"success\":%s}", prefix_cache_reset(engine->cache) ? "true" : "false");
}

static const struct page pages[] = {
    {"/health", HTTP_METHOD_GET, NULL, put_nothing},
    {"/load", HTTP_METHOD_GET, "application/json", put_load},
    {"/metrics", HTTP_METHOD_GET, "text/plain; version=1.0.0; charset=utf-8", put_metrics},
    {"/ping", HTTP_METHOD_GET, NULL, put_nothing},
    {"/reset_prefix_cache", HTTP_METHOD_POST, "application/json", put_reset},
    {"/v1/models", HTTP_METHOD_GET, "application/json", put_models},
    {"/version", HTTP_METHOD_GET, "application/json", put_version},
};

const struct page *page_find(const char *path)
{
    for (size_t i = 0; i < array_count(pages); i++) {
        if (strcmp(pages[i].path, path) == 0)
            return &pages[i];
    }
    return NULL;
}
