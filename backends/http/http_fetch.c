/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/http/http_fetch.h"

#include "backends/http/http_reader.h"
#include "backends/http/http_writer.h"
#include "backends/io_loop.h"
#include "backends/runtime/buf.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/*
 * DESIGN
 *
 * A connection of its own for each fetch: a probe must show that a NEW connection would be served,
 * which one kept open since an hour does not; and a few a second cost nothing.
 *
 * finish() is the only end. It closes both handles first and calls back then, so the handler finds
 * nothing half open; the memory goes with the second close callback. Inside http_reader_feed() the
 * callbacks only record: the reader must not be destroyed under its own feet.
 */

enum { HEAD_BYTES_MAX = 32 << 10, REQUEST_BYTES_MAX = 16 << 10 };

struct http_fetch {
    uv_tcp_t socket;
    uv_timer_t deadline;
    uint32_t open_handle_count; /* of these two: freed at 0 */
    uv_connect_t connect;
    uv_write_t write;
    struct http_reader *reader;
    struct buf request;
    struct buf body;
    int status;      /* of the answer */
    int start_error; /* could not even start: told by the deadline, which is 0 then */
    bool is_complete;
    bool is_finished;
    http_fetch_done_fn *on_done;
    void *ctx;
};

static void on_closed(uv_handle_t *handle)
{
    struct http_fetch *fetch = handle->data;

    assert(fetch->is_finished);
    assert(fetch->open_handle_count > 0);

    if (--fetch->open_handle_count > 0)
        return;
    http_reader_destroy(fetch->reader);
    buf_release(&fetch->request);
    buf_release(&fetch->body);
    free(fetch);
}

static void finish(struct http_fetch *fetch, int error)
{
    assert(!fetch->is_finished);

    fetch->is_finished = true;
    uv_close((uv_handle_t *)&fetch->socket, on_closed);
    uv_close((uv_handle_t *)&fetch->deadline, on_closed);
    fetch->on_done(fetch->ctx, error, fetch->status, buf_slice(&fetch->body));
}

static int on_head(void *ctx, const struct http_head *head)
{
    struct http_fetch *fetch = ctx;

    fetch->status = head->status;
    return 0;
}

static int on_body(void *ctx, struct slice piece)
{
    struct http_fetch *fetch = ctx;

    return buf_append(&fetch->body, piece);
}

static int on_end(void *ctx)
{
    struct http_fetch *fetch = ctx;

    fetch->is_complete = true;
    return 0;
}

static const struct http_reader_callbacks reader_callbacks = {on_head, on_body, on_end};

static int read_end(struct http_fetch *fetch, int error)
{
    int status = error == UV_EOF ? http_reader_feed_end(fetch->reader) : error;

    return status == 0 && !fetch->is_complete ? -EPIPE : status;
}

static void on_read(uv_stream_t *stream, ssize_t len, const uv_buf_t *buf)
{
    struct http_fetch *fetch = stream->data;
    size_t consumed;
    int status;

    if (io_read_is_nothing(len))
        return;
    if (len < 0)
        status = read_end(fetch, (int)len);
    else
        status = http_reader_feed(fetch->reader, slice_of(buf->base, (size_t)len), &consumed);
    if (status < 0 || fetch->is_complete)
        finish(fetch, status < 0 ? status : 0);
}

/* A failed write is not told: an answer may still be there to read; else reading fails too. */
static void on_written(uv_write_t *write, int status)
{
    (void)write;
    (void)status;
}

static void on_connected(uv_connect_t *connect, int status)
{
    struct http_fetch *fetch = connect->data;
    uv_stream_t *stream = (uv_stream_t *)&fetch->socket;
    uv_buf_t request = io_buf(buf_slice(&fetch->request));

    if (fetch->is_finished)
        return; /* closing: libuv reports the connect as cancelled */
    if (status == 0)
        status = uv_write(&fetch->write, stream, &request, 1, on_written);
    if (status == 0)
        status = uv_read_start(stream, io_lend_read_buffer, on_read);
    if (status < 0)
        finish(fetch, status);
}

static void on_deadline(uv_timer_t *deadline)
{
    struct http_fetch *fetch = deadline->data;

    finish(fetch, fetch->start_error < 0 ? fetch->start_error : -ETIMEDOUT);
}

/* json: the body of a POST; empty: a GET. */
static int write_request(struct buf *buf, const struct http_fetch_request *request,
                         struct slice json)
{
    const enum http_method method = json.len > 0 ? HTTP_METHOD_POST : HTTP_METHOD_GET;
    char length[24];
    const struct http_header headers[] = {
        {SLICE("Host"), slice_of_string(request->authority)},
        {SLICE("User-Agent"), SLICE("samovar/" SAMOVAR_VERSION)},
        {SLICE("Accept"), SLICE("*/*")},
        {SLICE("Connection"), SLICE("close")},
    };
    int status = http_write_request_line(buf, method, slice_of_string(request->target));

    for (size_t i = 0; status == 0 && i < array_count(headers); i++)
        status = http_write_header(buf, headers[i].name, headers[i].value);
    if (status == 0 && request->authorization != NULL)
        status =
            http_write_header(buf, SLICE("Authorization"), slice_of_string(request->authorization));
    snprintf(length, sizeof length, "%zu", json.len);
    if (status == 0 && json.len > 0)
        status = http_write_header(buf, SLICE("Content-Type"), SLICE("application/json"));
    if (status == 0 && json.len > 0)
        status = http_write_header(buf, SLICE("Content-Length"), slice_of_string(length));
    if (status == 0)
        status = http_write_head_end(buf);
    return status == 0 ? buf_append(buf, json) : status;
}

/* Everything that can fail for want of memory, before there is a handle. */
static struct http_fetch *allocate(const struct http_fetch_request *request, struct slice json)
{
    const struct http_reader_limits limits = {.head_bytes_max = HEAD_BYTES_MAX};
    struct http_fetch *fetch = calloc(1, sizeof *fetch);

    if (fetch == NULL)
        return NULL;
    buf_init(&fetch->request, REQUEST_BYTES_MAX + json.len);
    buf_init(&fetch->body, request->body_bytes_max);
    fetch->reader = http_reader_create(HTTP_READER_ANSWERS, limits, &reader_callbacks, fetch);
    if (fetch->reader == NULL || write_request(&fetch->request, request, json) < 0) {
        http_reader_destroy(fetch->reader);
        buf_release(&fetch->request);
        free(fetch);
        return NULL;
    }
    return fetch;
}

static struct http_fetch *start(uv_loop_t *loop, struct http_fetch_request request,
                                struct slice json, http_fetch_done_fn *on_done, void *ctx)
{
    struct http_fetch *fetch = allocate(&request, json);
    int status;

    if (fetch == NULL)
        return NULL;
    fetch->on_done = on_done;
    fetch->ctx = ctx;
    fetch->socket.data = fetch->deadline.data = fetch->connect.data = fetch;
    status = uv_tcp_init(loop, &fetch->socket);
    assert(status == 0); /* makes no descriptor yet, so cannot fail */
    status = uv_timer_init(loop, &fetch->deadline);
    assert(status == 0);
    fetch->open_handle_count = 2;
    fetch->start_error = uv_tcp_connect(&fetch->connect, &fetch->socket,
                                        (const struct sockaddr *)request.address, on_connected);
    /* uv_now() is of the loop's last turn: without the update a long one would shorten the wait. */
    uv_update_time(loop);
    status = uv_timer_start(&fetch->deadline, on_deadline,
                            fetch->start_error < 0 ? 0 : request.timeout_ms, 0);
    assert(status == 0);
    return fetch;
}

struct http_fetch *http_fetch_get(uv_loop_t *loop, struct http_fetch_request request,
                                  http_fetch_done_fn *on_done, void *ctx)
{
    return start(loop, request, slice_of(NULL, 0), on_done, ctx);
}

struct http_fetch *http_fetch_post(uv_loop_t *loop, struct http_fetch_request request,
                                   struct slice json, http_fetch_done_fn *on_done, void *ctx)
{
    assert(json.len > 0);

    return start(loop, request, json, on_done, ctx);
}

void http_fetch_cancel(struct http_fetch *fetch)
{
    finish(fetch, -ECANCELED);
}
