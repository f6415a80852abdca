/* SPDX-License-Identifier: Apache-2.0 */

/* page: the answers of the engine that need no generation: health, models, metrics and the like.
 * Loop thread only. */
#ifndef TESTS_SIM_ENGINE_PAGE_H
#define TESTS_SIM_ENGINE_PAGE_H

#include <stdint.h>

#include "backends/http/http_message.h"

struct buf;
struct engine;

struct page {
    const char *path;
    enum http_method method;
    const char *type; /* content-type; NULL: none, and no body */
    void (*put)(struct buf *body, struct engine *engine, uint64_t now_s);
};

/* NULL: there is no page at path. */
const struct page *page_find(const char *path);

#endif
