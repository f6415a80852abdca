/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/connection.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "backends/http/http_reader.h"
#include "backends/runtime/buf.h"

/*
 * DESIGN
 *
 *   socket -> input -> http_reader -> callbacks          gathered -> sending -> socket
 *
 * Bytes behind a request stay in input until its answer is finished, so pipelining works; reading
 * goes on meanwhile, because only a read sees the client leave. What is to be done when all is
 * sent (finish, or end) is remembered and done in on_drained(), never at once: so nothing is
 * called back from within a call. Only the close callback of the last handle reports the end.
 */
enum { HANDLE_COUNT = 2, INPUT_BYTES_MAX = 256 << 20, READ_BYTES = 64 * 1024 };

static const struct http_reader_limits limits = {
    .head_bytes_max = 64 * 1024,
    .target_bytes_max = 16 * 1024,
    .body_bytes_max = 128 << 20,
};

struct connection {
    uv_tcp_t tcp;
    uv_timer_t timer; /* keep-alive between requests, or the pace within one */
    uint32_t open_handle_count;
    const struct connection_callbacks *callbacks;
    void *ctx;
    struct http_reader *reader;
    struct buf input;
    bool has_request;         /* given upwards and not finished */
    bool is_request_complete; /* seen by the reader, not given upwards yet */
    uint64_t keep_alive_ms;
    struct buf gathered;
    struct buf piece_lens; /* size_t each: gathered's pieces, where there is a pace */
    size_t open_len;       /* of gathered, behind the last piece */
    struct buf sending;
    uv_write_t write;
    bool is_writing;
    uint64_t pace_ms;
    uint64_t bytes_left; /* until death; UINT64_MAX: for ever */
    enum connection_end death;
    bool is_finished; /* and to go on when drained */
    enum connection_end end;
    uv_shutdown_t shutdown;
    bool is_closing;
    char read_bytes[READ_BYTES];
};

static void read_input(struct connection *connection);
static void send_more(struct connection *connection);

static void on_handle_closed(uv_handle_t *handle)
{
    struct connection *connection = handle->data;

    assert(connection->open_handle_count > 0);
    if (--connection->open_handle_count > 0)
        return;
    connection->callbacks->on_closed(connection->ctx);
    http_reader_destroy(connection->reader);
    buf_release(&connection->input);
    buf_release(&connection->gathered);
    buf_release(&connection->piece_lens);
    buf_release(&connection->sending);
    free(connection);
}

static void close_by(struct connection *connection, enum connection_end how)
{
    if (connection->is_closing)
        return;
    connection->is_closing = true;
    uv_close((uv_handle_t *)&connection->timer, on_handle_closed);
    if (how != CONNECTION_RST || uv_tcp_close_reset(&connection->tcp, on_handle_closed) != 0)
        uv_close((uv_handle_t *)&connection->tcp, on_handle_closed);
}

void connection_close(struct connection *connection)
{
    close_by(connection, CONNECTION_FIN);
}

static void on_shut_down(uv_shutdown_t *shutdown, int status)
{
    (void)status; /* closed either way */
    connection_close(shutdown->handle->data);
}

/* Nobody spoke for too long between two requests. */
static void on_idle(uv_timer_t *timer)
{
    connection_close(timer->data);
}

static void go_on(struct connection *connection)
{
    connection->is_finished = false;
    connection->has_request = false;
    connection->pace_ms = 0; /* both were of the request that is answered */
    connection->bytes_left = UINT64_MAX;
    http_reader_next(connection->reader);
    uv_timer_start(&connection->timer, on_idle, connection->keep_alive_ms, 0);
    read_input(connection);
}

static void on_drained(struct connection *connection)
{
    if (connection->end == CONNECTION_RST)
        close_by(connection, CONNECTION_RST);
    else if (connection->end == CONNECTION_FIN &&
             uv_shutdown(&connection->shutdown, (uv_stream_t *)&connection->tcp, on_shut_down) != 0)
        connection_close(connection);
    else if (connection->end == CONNECTION_STAYS && connection->is_finished)
        go_on(connection);
}

static void on_written(uv_write_t *write, int status)
{
    struct connection *connection = write->data;

    connection->is_writing = false;
    buf_clear(&connection->sending);
    if (connection->is_closing)
        return;
    if (status < 0)
        connection_close(connection);
    else
        send_more(connection);
}

static void on_pace(uv_timer_t *timer)
{
    send_more(timer->data);
}

/* How much of gathered may go out now. Takes a piece off its queue. */
static size_t next_len(struct connection *connection)
{
    size_t len;

    if (connection->pace_ms == 0)
        return buf_len(&connection->gathered);
    if (buf_len(&connection->piece_lens) == 0)
        return 0;
    memcpy(&len, buf_slice(&connection->piece_lens).ptr, sizeof len);
    buf_consume(&connection->piece_lens, sizeof len);
    return len;
}

static void must(int status)
{
    assert(status == 0);
}

static void send_more(struct connection *connection)
{
    size_t len;
    uv_buf_t bytes;

    if (connection->is_writing || connection->is_closing)
        return;
    if (connection->pace_ms > 0 && uv_is_active((uv_handle_t *)&connection->timer))
        return; /* the next piece's time has not come */
    len = next_len(connection);
    if (len == 0) {
        if (buf_len(&connection->gathered) == 0)
            on_drained(connection);
        return;
    }
    must(buf_append(&connection->sending, slice_of(buf_slice(&connection->gathered).ptr, len)));
    buf_consume(&connection->gathered, len);
    bytes = uv_buf_init(connection->sending.bytes, (unsigned)len);
    connection->write.data = connection;
    if (uv_write(&connection->write, (uv_stream_t *)&connection->tcp, &bytes, 1, on_written) != 0) {
        connection_close(connection);
        return;
    }
    connection->is_writing = true;
    if (connection->pace_ms > 0)
        uv_timer_start(&connection->timer, on_pace, connection->pace_ms, 0);
}

void connection_write(struct connection *connection, struct slice bytes)
{
    if (connection->is_closing || connection->end != CONNECTION_STAYS)
        return;
    if (bytes.len > connection->bytes_left)
        bytes.len = (size_t)connection->bytes_left;
    must(buf_append(&connection->gathered, bytes));
    connection->open_len += bytes.len;
    if (connection->bytes_left != UINT64_MAX)
        connection->bytes_left -= bytes.len;
    if (connection->bytes_left == 0)
        connection_end(connection, connection->death);
}

void connection_flush(struct connection *connection)
{
    size_t len = connection->open_len;

    connection->open_len = 0;
    if (connection->pace_ms > 0 && len > 0) {
        must(buf_append(&connection->piece_lens, slice_of(&len, sizeof len)));
        if (!connection->is_writing && !uv_is_active((uv_handle_t *)&connection->timer) &&
            !connection->is_closing)
            uv_timer_start(&connection->timer, on_pace, connection->pace_ms, 0);
        return;
    }
    if (len > 0)
        send_more(connection);
}

void connection_set_pace(struct connection *connection, uint64_t pace_ms)
{
    connection->pace_ms = pace_ms;
}

void connection_die_after(struct connection *connection, uint64_t byte_count,
                          enum connection_end how)
{
    connection->bytes_left = byte_count;
    connection->death = how;
    if (byte_count == 0)
        connection_end(connection, how);
}

/* Nothing more may come from outside before on_drained() has its say. */
static void drain(struct connection *connection)
{
    connection_flush(connection);
    if (!connection->is_writing && buf_len(&connection->gathered) == 0 && !connection->is_closing)
        uv_timer_start(&connection->timer, on_pace, 0, 0); /* from the loop, not from within */
}

void connection_finish(struct connection *connection, bool keep_alive)
{
    assert(connection->has_request);

    if (connection->is_closing || connection->end != CONNECTION_STAYS)
        return;
    connection->is_finished = true;
    if (!keep_alive)
        connection->end = CONNECTION_FIN;
    drain(connection);
}

void connection_end(struct connection *connection, enum connection_end how)
{
    assert(how != CONNECTION_STAYS);

    if (connection->is_closing || connection->end != CONNECTION_STAYS)
        return;
    connection->end = how;
    drain(connection);
}

static int on_head(void *ctx, const struct http_head *head)
{
    struct connection *connection = ctx;

    connection->callbacks->on_head(connection->ctx, head);
    return 0;
}

static int on_body(void *ctx, struct slice piece)
{
    struct connection *connection = ctx;

    connection->callbacks->on_body(connection->ctx, piece);
    return 0;
}

static int on_end(void *ctx)
{
    struct connection *connection = ctx;

    connection->is_request_complete = true;
    return 0;
}

static const struct http_reader_callbacks reader_callbacks = {on_head, on_body, on_end};

static bool may_read(const struct connection *connection)
{
    return !connection->has_request && !connection->is_closing &&
           connection->end == CONNECTION_STAYS && buf_len(&connection->input) > 0;
}

static void read_input(struct connection *connection)
{
    while (may_read(connection)) {
        size_t consumed = 0;
        int status;

        uv_timer_stop(&connection->timer);
        status = http_reader_feed(connection->reader, buf_slice(&connection->input), &consumed);
        buf_consume(&connection->input, consumed);
        if (status < 0) {
            connection->has_request = true;
            connection->callbacks->on_refused(connection->ctx);
        } else if (connection->is_request_complete) {
            connection->is_request_complete = false;
            connection->has_request = true;
            connection->callbacks->on_request(connection->ctx);
        }
    }
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *bytes)
{
    struct connection *connection = handle->data;

    (void)suggested;
    *bytes = uv_buf_init(connection->read_bytes, sizeof connection->read_bytes);
}

static void on_read(uv_stream_t *stream, ssize_t len, const uv_buf_t *bytes)
{
    struct connection *connection = stream->data;

    if (len == 0)
        return;
    if (len < 0 || buf_append(&connection->input, slice_of(bytes->base, (size_t)len)) < 0) {
        connection_close(connection);
        return;
    }
    read_input(connection);
}

struct connection *connection_accept(uv_stream_t *listener, uint64_t keep_alive_ms,
                                     const struct connection_callbacks *callbacks, void *ctx)
{
    struct connection *connection = calloc(1, sizeof *connection);

    assert(connection != NULL);
    connection->callbacks = callbacks;
    connection->ctx = ctx;
    connection->keep_alive_ms = keep_alive_ms;
    connection->bytes_left = UINT64_MAX;
    connection->open_handle_count = HANDLE_COUNT;
    connection->reader =
        http_reader_create(HTTP_READER_REQUESTS, limits, &reader_callbacks, connection);
    assert(connection->reader != NULL);
    buf_init(&connection->input, INPUT_BYTES_MAX);
    buf_init(&connection->gathered, SIZE_MAX);
    buf_init(&connection->piece_lens, SIZE_MAX);
    buf_init(&connection->sending, SIZE_MAX);
    must(uv_timer_init(listener->loop, &connection->timer));
    must(uv_tcp_init(listener->loop, &connection->tcp));
    connection->timer.data = connection;
    connection->tcp.data = connection;
    if (uv_accept(listener, (uv_stream_t *)&connection->tcp) != 0 ||
        uv_tcp_nodelay(&connection->tcp, 1) != 0 ||
        uv_read_start((uv_stream_t *)&connection->tcp, on_alloc, on_read) != 0)
        connection_close(connection); /* on_closed follows */
    return connection;
}
