/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/http/worker_call.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "backends/http/http_writer.h"
#include "backends/http/worker_pool.h"
#include "backends/worker.h"

/*
 * DESIGN
 *
 * A connection that lay idle may have been closed by the worker just now: where a reused one dies
 * without a byte, the request is sent once more, over a fresh one. Whatever else goes wrong ends
 * the call; who asks decides whether to ask again.
 *
 * finish() is the only end. The connection is back in its pool before on_done, so that the handler
 * may start the next call with it.
 */
enum { HEAD_BYTES_MAX = 16 << 10 };

struct worker_call {
    struct worker *worker;
    struct worker_conn *conn;
    struct deadline deadline;
    struct buf head;
    struct slice pieces[WORKER_CALL_PIECE_COUNT_MAX];
    unsigned piece_count;
    struct buf body; /* of the answer */
    int status;
    bool is_complete;
    bool is_fresh; /* its connection was never used before, or it is the second attempt */
    worker_call_done_fn *on_done;
    void *ctx;
};

static void free_call(struct worker_call *call)
{
    deadline_disarm(&call->deadline);
    if (call->conn != NULL)
        worker_pool_return(&call->conn);
    buf_release(&call->head);
    buf_release(&call->body);
    free(call);
}

static void finish(struct worker_call *call, int error)
{
    struct buf body = call->body;
    worker_call_done_fn *on_done = call->on_done;
    void *ctx = call->ctx;
    int status = call->status;

    buf_init(&call->body, 0);
    free_call(call);
    on_done(ctx, error, status, &body);
    buf_release(&body);
}

static int on_head(void *ctx, const struct http_head *head)
{
    struct worker_call *call = ctx;

    call->status = head->status;
    /* In one piece, where its length is known and not a lie. */
    return head->content_length > 0 ? buf_reserve(&call->body, (size_t)head->content_length) : 0;
}

static int on_body(void *ctx, struct slice piece)
{
    struct worker_call *call = ctx;

    return buf_append(&call->body, piece);
}

static int on_end(void *ctx)
{
    struct worker_call *call = ctx;

    call->is_complete = true;
    return 0;
}

static void send_request(struct worker_call *call)
{
    struct slice pieces[WORKER_CALL_PIECE_COUNT_MAX + 1];

    pieces[0] = buf_slice(&call->head);
    memcpy(pieces + 1, call->pieces, call->piece_count * sizeof *pieces);
    worker_conn_send(call->conn, pieces, call->piece_count + 1);
}

static const struct worker_conn_callbacks callbacks;

/* The worker had closed the connection while it lay idle. */
static void send_again(struct worker_call *call)
{
    int status;

    call->is_fresh = true;
    worker_pool_return(&call->conn);
    status = worker_pool_acquire(call->worker->pool, true, &callbacks, call, &call->conn);
    assert(status != 1); /* a fresh one is never open already */
    if (status < 0)
        finish(call, status);
}

static void on_connected(void *ctx, int status)
{
    struct worker_call *call = ctx;

    if (status < 0)
        finish(call, status);
    else
        send_request(call);
}

static void on_progress(void *ctx, int status)
{
    struct worker_call *call = ctx;

    if (status == 0 && call->is_complete)
        finish(call, 0);
    else if (status < 0 && status != -EBADMSG && !call->is_fresh &&
             !worker_conn_has_answer_bytes(call->conn))
        send_again(call);
    else if (status < 0)
        finish(call, status);
}

static const struct worker_conn_callbacks callbacks = {
    on_connected, on_head, on_body, on_end, on_progress,
};

static int write_head(struct worker_call *call, const struct worker_call_request *request)
{
    struct buf *buf = &call->head;
    size_t body_len = 0;
    int status;

    for (unsigned i = 0; i < request->piece_count; i++)
        body_len += request->pieces[i].len;

    const struct http_header headers[] = {
        {SLICE("Host"), slice_of_string(call->worker->authority)},
        {SLICE("User-Agent"), SLICE("samovar/" SAMOVAR_VERSION)},
        {SLICE("Content-Type"), SLICE("application/json")},
        {SLICE("Accept-Encoding"), SLICE("identity")},
    };

    status = http_write_request_line(buf, HTTP_METHOD_POST, slice_of_string(request->target));
    for (size_t i = 0; status == 0 && i < array_count(headers); i++)
        status = http_write_header(buf, headers[i].name, headers[i].value);
    if (status == 0 && request->authorization != NULL)
        status =
            http_write_header(buf, SLICE("Authorization"), slice_of_string(request->authorization));
    if (status == 0)
        status = http_write_header_u64(buf, SLICE("Content-Length"), body_len);
    return status == 0 ? http_write_head_end(buf) : status;
}

static struct worker_call *allocate(struct worker *worker,
                                    const struct worker_call_request *request)
{
    struct worker_call *call = calloc(1, sizeof *call);

    assert(request->piece_count <= WORKER_CALL_PIECE_COUNT_MAX);

    if (call == NULL)
        return NULL;
    call->worker = worker;
    call->piece_count = request->piece_count;
    memcpy(call->pieces, request->pieces, sizeof call->pieces);
    deadline_init(&call->deadline);
    buf_init(&call->head, HEAD_BYTES_MAX);
    buf_init(&call->body, request->answer_bytes_max);
    if (write_head(call, request) < 0) {
        free_call(call);
        return NULL;
    }
    return call;
}

int worker_call_start(struct worker *worker, const struct worker_call_request *request,
                      worker_call_done_fn *on_done, void *ctx, struct worker_call **started)
{
    struct worker_call *call = allocate(worker, request);
    int status;

    *started = call;
    if (call == NULL)
        return -ENOMEM;
    call->on_done = on_done;
    call->ctx = ctx;
    status = worker_pool_acquire(worker->pool, false, &callbacks, call, &call->conn);
    if (status < 0) {
        *started = NULL;
        free_call(call);
        return status;
    }
    deadline_arm(&call->deadline, &request->deadlines->list, io_loop_now_ms(request->io));
    call->is_fresh = status == 0;
    if (status == 1)
        send_request(call);
    return 0;
}

void worker_call_cancel(struct worker_call *call)
{
    free_call(call);
}

void worker_call_expired(struct deadline *deadline)
{
    finish(container_of(deadline, struct worker_call, deadline), -ETIMEDOUT);
}
