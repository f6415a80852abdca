/* SPDX-License-Identifier: Apache-2.0 */

/*
 * worker_call: one request of our own to a worker, over a connection of its pool, and its whole
 * answer, under one deadline. For what is asked often or with large bodies; a probe, which must
 * show that a new connection is served, is http_fetch's. Loop thread only.
 */
#ifndef BACKENDS_HTTP_WORKER_CALL_H
#define BACKENDS_HTTP_WORKER_CALL_H

#include <stddef.h>

#include "backends/io_loop.h"
#include "backends/runtime/buf.h"
#include "backends/runtime/must_check.h"
#include "backends/runtime/slice.h"

struct worker;
struct worker_call;

enum { WORKER_CALL_PIECE_COUNT_MAX = 3 };

struct worker_call_request {
    struct io_loop *io;
    struct io_deadlines *deadlines; /* how long it may take; on_expired is worker_call_expired */
    const char *target;
    const char *authorization; /* value of that header; NULL: none */
    /* The body of a POST, a JSON text, gathered: its bytes must live until on_done. */
    struct slice pieces[WORKER_CALL_PIECE_COUNT_MAX];
    unsigned piece_count;
    size_t answer_bytes_max;
};

/*
 * Once, never from within worker_call_start(); the call is not to be touched any more. error: 0, or
 * -ETIMEDOUT, -ECONNREFUSED and the like, -EPIPE (closed before the answer's end), -EBADMSG (not
 * HTTP), -ENOBUFS (answer_bytes_max); status and body only mean something when it is 0. body, which
 * has BUF_PADDING readable bytes behind it, may be taken over (and buf_init() left in its place).
 */
typedef void worker_call_done_fn(void *ctx, int error, int status, struct buf *body);

/* The worker must have its pool until on_done. -EBUSY: no connection is free; -ENOMEM; other
 * -errno: no socket could be made. Then on_done will not be called. */
MUST_CHECK int worker_call_start(struct worker *worker, const struct worker_call_request *request,
                                 worker_call_done_fn *on_done, void *ctx,
                                 struct worker_call **call);

/* Ends it now, without on_done; closes the connection, which stops what the worker does for it. */
void worker_call_cancel(struct worker_call *call);

/* For io_deadlines_init(). */
void worker_call_expired(struct deadline *deadline);

#endif
