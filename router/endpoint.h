/* SPDX-License-Identifier: Apache-2.0 */

/*
 * endpoint: which paths a listener serves, and by whom. Exact paths only. Loop thread only.
 */
#ifndef ROUTER_ENDPOINT_H
#define ROUTER_ENDPOINT_H

#include <stdbool.h>
#include <stddef.h>

#include "backends/http/http_message.h"
#include "router/api/api_request.h"
#include "router/metrics.h"

struct client_conn;
struct client_handler;

struct endpoint {
    const char *path; /* exact, or up to here when is_prefix */
    bool is_prefix;
    const char *suffix;      /* what ends it, behind one segment of the client's; NULL: anything */
    enum http_method method; /* GET also serves HEAD, of what we answer ourselves */
    enum api api;
    const struct client_handler *handler; /* that takes the body, and asks an engine; or NULL and */
    /* what answers at once, when the request is complete; rest is the path behind a prefix, without
     * the suffix. */
    void (*answer)(struct client_conn *conn, struct slice rest);
};

struct endpoint_table {
    const struct endpoint *endpoints;
    size_t count;
    bool is_admin; /* for operators: neither counted nor logged as requests */
};

/* How a lookup ended. */
enum endpoint_match { ENDPOINT_FOUND, ENDPOINT_NO_PATH, ENDPOINT_NO_METHOD };

/* Finds who serves method and target (query ignored). For NO_METHOD *endpoint is one with the same
 * path. Pure. */
enum endpoint_match endpoint_find(const struct endpoint_table *table, enum http_method method,
                                  struct slice target, const struct endpoint **endpoint,
                                  struct slice *rest);

enum { ENDPOINT_ALLOW_BYTES_MAX = 48 };

/* What target's path takes, in the words of an Allow header: "GET, HEAD, OPTIONS". Of "*": what any
 * path of the table takes. Returns allow; "" for a path that nobody serves. Pure. */
const char *endpoint_allow(const struct endpoint_table *table, struct slice target,
                           char allow[ENDPOINT_ALLOW_BYTES_MAX]);

/* The path that was most likely meant by a target that nobody serves, or NULL. Pure. */
const char *endpoint_near(const struct endpoint_table *table, struct slice target);

/* Undoes %XX in rest: an id with a slash comes in both spellings. False: broken, or longer than
 * size. Pure. */
bool endpoint_decode(struct slice rest, char *text, size_t size, size_t *len);

#endif
