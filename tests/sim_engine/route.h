/* SPDX-License-Identifier: Apache-2.0 */

/* route: what a path of the engine stands for. Exact paths only. Pure. */
#ifndef TESTS_SIM_ENGINE_ROUTE_H
#define TESTS_SIM_ENGINE_ROUTE_H

#include "backends/http/http_message.h"
#include "backends/runtime/slice.h"
#include "tests/sim_engine/engine_request.h"

struct page;

enum route_kind {
    ROUTE_NONE,
    ROUTE_BODY,     /* what asks for a generation, or could: api */
    ROUTE_PAGE,     /* page */
    ROUTE_RESPONSE, /* a stored response: id */
    ROUTE_CANCEL,   /* of one: id */
};

struct route {
    enum route_kind kind;
    enum http_method method; /* the only one */
    enum engine_api api;
    const struct page *page;
    struct slice id; /* within path */
};

struct route route_find(const char *path);

#endif
