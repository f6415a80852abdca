/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/http/worker_conn.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

/*
 * DESIGN
 *
 *   CONNECTING --> LENT <--> IDLE       any of them --> CLOSING, whose end frees the memory
 *
 * The socket is read from the moment it is open to its end, also while idle: that costs no system
 * call per exchange, and a worker that closes is noticed at once. A failed write is not reported:
 * an engine may answer (413, 401) before it has read the whole body, and that answer is still to
 * be read; when there is none, reading fails as well.
 *
 * The kernel copies megabytes in one call where it has room for them, and nobody else is served
 * meanwhile: so a large request is written part by part, each when libuv has told of the last one,
 * which it does in the next turn of the loop.
 */
enum { PART_BYTES = 256 * 1024 };

/* clang-format off */
static const bool is_legal[WORKER_CONN_STATE_COUNT][WORKER_CONN_STATE_COUNT] = {
    /* from \ to                 CONNECTING  LENT   IDLE   CLOSING */
    [WORKER_CONN_CONNECTING] = { false,      true,  false, true  },
    [WORKER_CONN_LENT]       = { false,      false, true,  true  },
    [WORKER_CONN_IDLE]       = { false,      true,  false, true  },
    [WORKER_CONN_CLOSING]    = { false,      false, false, false },
};
/* clang-format on */

bool worker_conn_may_move(enum worker_conn_state from, enum worker_conn_state to)
{
    assert(from < WORKER_CONN_STATE_COUNT && to < WORKER_CONN_STATE_COUNT);

    return is_legal[from][to];
}

static void set_state(struct worker_conn *conn, enum worker_conn_state state)
{
    assert(worker_conn_may_move(conn->state, state));

    conn->state = state;
}

static int on_head(void *ctx, const struct http_head *head)
{
    struct worker_conn *conn = ctx;

    conn->may_live_on = head->keep_alive;
    return conn->callbacks->on_head(conn->ctx, head);
}

static int on_body(void *ctx, struct slice piece)
{
    struct worker_conn *conn = ctx;

    return conn->callbacks->on_body(conn->ctx, piece);
}

static int on_end(void *ctx)
{
    struct worker_conn *conn = ctx;

    conn->has_ended = true;
    return conn->callbacks->on_end(conn->ctx);
}

static const struct http_reader_callbacks reader_callbacks = {on_head, on_body, on_end};

/* The lender hears of it once; what it does then may close the connection. */
static void fail(struct worker_conn *conn, int status)
{
    assert(status < 0);

    if (conn->has_failed)
        return;
    conn->has_failed = true;
    conn->may_live_on = false;
    conn->callbacks->on_progress(conn->ctx, status);
}

static void read_answer(struct worker_conn *conn, struct slice bytes)
{
    size_t consumed;
    int status;

    if (conn->has_ended) { /* an engine that talks on after its answer cannot be trusted */
        conn->may_live_on = false;
        return;
    }
    conn->has_answer_bytes = true;
    status = http_reader_feed(conn->reader, bytes, &consumed);
    if (status < 0) {
        fail(conn, status);
        return;
    }
    if (consumed < bytes.len)
        conn->may_live_on = false;
    conn->callbacks->on_progress(conn->ctx, 0);
}

static void read_end(struct worker_conn *conn, int status)
{
    bool was_complete = conn->has_ended;

    conn->may_live_on = false;
    if (was_complete)
        return; /* its lender knows already and is about to return it */
    if (status == UV_EOF)
        status = http_reader_feed_end(conn->reader);
    if (status == 0 && !conn->has_ended)
        status = -EPIPE; /* not one byte of an answer */
    if (status < 0)
        fail(conn, status);
    else
        conn->callbacks->on_progress(conn->ctx, 0);
}

static void on_read(uv_stream_t *stream, ssize_t count, const uv_buf_t *buffer)
{
    struct worker_conn *conn = stream->data;

    if (io_read_is_nothing(count))
        return;
    if (conn->state == WORKER_CONN_IDLE) { /* closed by the worker, or bytes nobody asked for */
        conn->owner->on_idle_lost(conn->owner_ctx, conn);
        return;
    }
    assert(conn->state == WORKER_CONN_LENT);
    if (count > 0)
        read_answer(conn, slice_of(buffer->base, (size_t)count));
    else
        read_end(conn, (int)count);
}

static int start_reading(struct worker_conn *conn)
{
    int status = uv_read_start((uv_stream_t *)&conn->tcp, io_lend_read_buffer, on_read);

    conn->is_reading = status == 0;
    return status;
}

static void on_connected(uv_connect_t *connect, int status)
{
    struct worker_conn *conn = connect->data;

    if (conn->state == WORKER_CONN_CLOSING)
        return;
    if (status == 0)
        status = start_reading(conn);
    if (status == 0)
        set_state(conn, WORKER_CONN_LENT);
    else
        conn->has_failed = true;
    conn->callbacks->on_connected(conn->ctx, status);
}

static void on_closed(uv_handle_t *handle)
{
    struct worker_conn *conn = handle->data;

    conn->owner->on_closed(conn->owner_ctx);
    http_reader_destroy(conn->reader);
    free(conn);
}

static struct worker_conn *create(const struct worker_conn_config *config)
{
    struct http_reader_limits limits = {.head_bytes_max = config->answer_head_bytes_max};
    struct worker_conn *conn = calloc(1, sizeof *conn);

    if (conn == NULL)
        return NULL;
    conn->reader = http_reader_create(HTTP_READER_ANSWERS, limits, &reader_callbacks, conn);
    if (conn->reader == NULL) {
        free(conn);
        return NULL;
    }
    conn->owner = config->owner;
    conn->owner_ctx = config->owner_ctx;
    conn->state = WORKER_CONN_CONNECTING;
    list_node_init(&conn->in_pool);
    deadline_init(&conn->idle);
    conn->tcp.data = conn;
    conn->connect.data = conn;
    conn->write.data = conn;
    return conn;
}

struct worker_conn *worker_conn_open(const struct worker_conn_config *config, bool *has_socket,
                                     int *status)
{
    struct worker_conn *conn = create(config);

    *has_socket = conn != NULL;
    *status = -ENOMEM;
    if (conn == NULL)
        return NULL;
    *status = uv_tcp_init(config->loop, &conn->tcp);
    assert(*status == 0); /* makes no descriptor yet, so cannot fail */
    *status = uv_tcp_connect(&conn->connect, &conn->tcp, (const struct sockaddr *)config->address,
                             on_connected);
    if (*status < 0) {
        worker_conn_close(conn);
        return NULL;
    }
    uv_tcp_nodelay(&conn->tcp, 1);
    return conn;
}

void worker_conn_lend(struct worker_conn *conn, const struct worker_conn_callbacks *callbacks,
                      void *ctx)
{
    conn->callbacks = callbacks;
    conn->ctx = ctx;
    if (conn->state == WORKER_CONN_CONNECTING)
        return;
    conn->is_reused = true;
    conn->has_ended = false;
    conn->has_answer_bytes = false;
    conn->may_live_on = false;
    http_reader_next(conn->reader);
    set_state(conn, WORKER_CONN_LENT);
}

bool worker_conn_take_back(struct worker_conn *conn)
{
    bool is_clean = conn->state == WORKER_CONN_LENT && conn->has_ended && conn->may_live_on &&
                    !conn->is_writing && !conn->has_failed;

    conn->callbacks = NULL;
    conn->ctx = NULL;
    if (!is_clean || (!conn->is_reading && start_reading(conn) < 0))
        return false;
    http_reader_forget_head(conn->reader);
    set_state(conn, WORKER_CONN_IDLE);
    return true;
}

void worker_conn_close(struct worker_conn *conn)
{
    if (conn->state == WORKER_CONN_CLOSING)
        return;
    set_state(conn, WORKER_CONN_CLOSING);
    deadline_disarm(&conn->idle);
    uv_close((uv_handle_t *)&conn->tcp, on_closed);
}

/* The next part of the request, at most PART_BYTES of it, taken off what is unsent. */
static unsigned take_part(struct worker_conn *conn, uv_buf_t part[WORKER_CONN_SLICE_COUNT_MAX])
{
    size_t room = PART_BYTES;
    unsigned count = 0, done_count = 0;

    while (done_count < conn->unsent_count && room > 0) {
        struct slice *slice = &conn->unsent[done_count];
        size_t len = slice->len < room ? slice->len : room;

        if (len > 0)
            part[count++] = io_buf(slice_of(slice->ptr, len));
        *slice = slice_skip(*slice, len);
        room -= len;
        done_count += slice->len == 0;
    }
    conn->unsent_count -= done_count;
    memmove(conn->unsent, conn->unsent + done_count, conn->unsent_count * sizeof *conn->unsent);
    return count;
}

/* Written are the last part or a piece of it; the next one follows. */
static void on_written(uv_write_t *write, int status)
{
    struct worker_conn *conn = write->data;
    uv_buf_t part[WORKER_CONN_SLICE_COUNT_MAX];
    unsigned count;

    if (status < 0)
        return; /* reading will say why */
    count = take_part(conn, part);
    if (count == 0)
        conn->is_writing = false;
    else
        (void)uv_write(&conn->write, (uv_stream_t *)&conn->tcp, part, count, on_written);
}

void worker_conn_send(struct worker_conn *conn, const struct slice *slices, unsigned count)
{
    uv_buf_t part[WORKER_CONN_SLICE_COUNT_MAX];
    uv_buf_t *left = part;

    assert(conn->state == WORKER_CONN_LENT);
    assert(count <= WORKER_CONN_SLICE_COUNT_MAX);

    memcpy(conn->unsent, slices, count * sizeof *slices);
    conn->unsent_count = count;
    conn->is_writing = true;
    count = take_part(conn, part);
    if (io_try_write((uv_stream_t *)&conn->tcp, &left, &count) < 0)
        return; /* reading will say why */
    if (count == 0)
        count = take_part(conn, left = part);
    if (count == 0)
        conn->is_writing = false;
    else
        (void)uv_write(&conn->write, (uv_stream_t *)&conn->tcp, left, count, on_written);
}

bool worker_conn_is_sent(const struct worker_conn *conn)
{
    return !conn->is_writing;
}

bool worker_conn_is_reused(const struct worker_conn *conn)
{
    return conn->is_reused;
}

bool worker_conn_has_answer_bytes(const struct worker_conn *conn)
{
    return conn->has_answer_bytes;
}

struct http_fault worker_conn_fault(const struct worker_conn *conn)
{
    return http_reader_fault(conn->reader);
}

void worker_conn_pause(struct worker_conn *conn)
{
    if (!conn->is_reading)
        return;
    uv_read_stop((uv_stream_t *)&conn->tcp);
    conn->is_reading = false;
}

void worker_conn_resume(struct worker_conn *conn)
{
    int status;

    if (conn->is_reading || conn->has_failed)
        return;
    status = start_reading(conn);
    if (status < 0)
        fail(conn, status);
}

void worker_conn_forget_head(struct worker_conn *conn)
{
    http_reader_forget_head(conn->reader);
}
