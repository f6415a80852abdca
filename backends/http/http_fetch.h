/* SPDX-License-Identifier: Apache-2.0 */

/*
 * http_fetch: one small request of our own to a worker (probe, model list, metrics) and its whole
 * answer. One connection a call, closed after it; a deadline over all. Loop thread only.
 */
#ifndef BACKENDS_HTTP_HTTP_FETCH_H
#define BACKENDS_HTTP_HTTP_FETCH_H

#include <stdint.h>
#include <sys/socket.h>
#include <uv.h>

#include "backends/runtime/must_check.h"
#include "backends/runtime/slice.h"

struct http_fetch;

struct http_fetch_request {
    const struct sockaddr_storage *address;
    const char *authority; /* for the Host header */
    const char *target;
    const char *authorization; /* value of that header; NULL: none */
    uint64_t timeout_ms;
    size_t body_bytes_max; /* of the answer */
};

/*
 * Exactly once, never from within http_fetch_get(); fetch is not to be touched any more. error: 0,
 * or -ETIMEDOUT, -ECONNREFUSED and the like, -EPIPE (closed before the answer's end), -EBADMSG (not
 * HTTP), -ENOBUFS (body_bytes_max), -ECANCELED; status and body only mean something when it is 0.
 * body ends with the call. The handler may start and cancel other fetches.
 */
typedef void http_fetch_done_fn(void *ctx, int error, int status, struct slice body);

/* Starts on the loop of an io_loop. Borrows request's pointers for the call. NULL: no memory;
 * on_done will not be called. */
struct http_fetch *http_fetch_get(uv_loop_t *loop, struct http_fetch_request request,
                                  http_fetch_done_fn *on_done, void *ctx);

/* The same as a POST of json, which is not empty and borrowed for the call too. */
struct http_fetch *http_fetch_post(uv_loop_t *loop, struct http_fetch_request request,
                                   struct slice json, http_fetch_done_fn *on_done, void *ctx);

/* Ends it now: on_done gets -ECANCELED before this returns. The memory goes with the socket. */
void http_fetch_cancel(struct http_fetch *fetch);

#endif
