/* SPDX-License-Identifier: Apache-2.0 */

#include "router/client_conn.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#include "backends/runtime/clock.h"
#include "router/api/api_error.h"
#include "router/endpoint.h"
#include "router/relay.h"

/*
 * DESIGN
 *
 *                +------------------- answer end ------------------+
 *                v                                                  |
 *   accept --> IDLE --> READING --> ANSWERING --> FLUSHING --> LINGERING --> CLOSING
 *
 * The socket is read in every state, so that a client that leaves is seen at once; a FIN while its
 * request is complete counts as leaving, since clients that give up say no more than that. Where
 * client-half-close is set, only a reset does, or a write that fails. Bytes of later requests wait
 * in ahead, up to a limit where reading stops; from there on the kernel is asked now and then
 * whether the client left.
 *
 * An answer ends before or after its request does; one that ends before (a refusal) makes the
 * connection the last of its kind, since where the next request begins is not known.
 */
enum {
    HEAD_BYTES_MAX = 32 * 1024,
    TARGET_BYTES_MAX = 8 * 1024,
    AHEAD_BYTES_MAX = 512 * 1024, /* at most one read more than this is kept */
};

/* clang-format off */
static const signed char moves[CLIENT_STATE_COUNT][CLIENT_EVENT_COUNT] = {
    /* state \ event       FIRST_BYTE      REQUEST_END       ANSWER_END   LAST_ANSWER      FLUSHED           CLOSE */
    [CLIENT_IDLE]      = { CLIENT_READING, -1,               -1,          -1,              -1,               CLIENT_CLOSING },
    [CLIENT_READING]   = { -1,             CLIENT_ANSWERING, -1,          -1,              -1,               CLIENT_CLOSING },
    [CLIENT_ANSWERING] = { -1,             -1,               CLIENT_IDLE, CLIENT_FLUSHING, -1,               CLIENT_CLOSING },
    [CLIENT_FLUSHING]  = { -1,             -1,               -1,          -1,              CLIENT_LINGERING, CLIENT_CLOSING },
    [CLIENT_LINGERING] = { -1,             -1,               -1,          -1,              -1,               CLIENT_CLOSING },
    [CLIENT_CLOSING]   = { -1,             -1,               -1,          -1,              -1,               -1             },
};
/* clang-format on */

static void feed(struct client_conn *conn, struct slice bytes);
static void read_on(struct client_conn *conn);

int client_state_after(enum client_state state, enum client_event event)
{
    assert(state < CLIENT_STATE_COUNT && event < CLIENT_EVENT_COUNT);

    return moves[state][event];
}

void client_conn_move(struct client_conn *conn, enum client_event event)
{
    int state = client_state_after(conn->state, event);

    assert(state >= 0);
    conn->state = (enum client_state)state;
}

/* ---- closing ---- */

static void on_closed(uv_handle_t *handle)
{
    struct client_conn *conn = handle->data;

    http_reader_destroy(conn->reader);
    buf_release(&conn->ahead);
    free(conn);
}

static void close_conn(struct client_conn *conn)
{
    assert(conn->work == NULL);

    if (conn->state == CLIENT_CLOSING)
        return;
    client_conn_move(conn, CLIENT_EVENT_CLOSE);
    deadline_disarm(&conn->deadline);
    deadline_disarm(&conn->hangup);
    list_remove(&conn->relay->clients, &conn->in_clients);
    conn->relay->stats.client_connections = conn->relay->clients.count;
    outbox_close(&conn->outbox);
    uv_close((uv_handle_t *)&conn->tcp, on_closed);
}

static void end_record(struct client_conn *conn, enum end_reason reason)
{
    if (conn->record.begun_us == 0)
        return;
    conn->record.end = reason;
    if (conn->endpoints->is_admin) {
        conn->record.begun_us = 0;
        return;
    }
    request_record_finish(&conn->record, conn->relay, clock_now_us());
}

/* True: the client had got all of its answer. */
bool client_conn_abandon(struct client_conn *conn)
{
    bool is_delivered = conn->work != NULL && conn->endpoint->handler->abandon(conn->work);

    assert(conn->work == NULL);
    return is_delivered;
}

/* The client left, or was too slow. */
static void lose_client(struct client_conn *conn, enum end_reason reason)
{
    bool is_delivered = client_conn_abandon(conn);

    if (conn->state == CLIENT_READING || conn->state == CLIENT_ANSWERING)
        end_record(conn, is_delivered ? END_OK : reason);
    close_conn(conn);
}

/* ---- writing ---- */

static void on_shutdown(uv_shutdown_t *shutdown, int status)
{
    (void)shutdown;
    (void)status; /* a client that is gone is noticed by reading */
}

static void flushed(struct client_conn *conn)
{
    client_conn_move(conn, CLIENT_EVENT_FLUSHED);
    if (conn->has_eof || uv_shutdown(&conn->shutdown, (uv_stream_t *)&conn->tcp, on_shutdown) < 0) {
        close_conn(conn);
        return;
    }
    relay_wait(conn->relay, RELAY_WAIT_CLIENT_LINGER, &conn->deadline);
}

/* Bytes that the client does not take are waited for, whatever else its state waits for; but a
 * request that is arriving has a wait of its own. */
void client_conn_wait_for_client(struct client_conn *conn)
{
    if (conn->state == CLIENT_READING)
        return;
    conn->is_stalled = outbox_bytes(&conn->outbox) > 0;
    if (conn->is_stalled)
        relay_wait(conn->relay, RELAY_WAIT_CLIENT_STALL, &conn->deadline);
    else if (conn->state == CLIENT_IDLE)
        relay_wait(conn->relay, RELAY_WAIT_CLIENT_IDLE, &conn->deadline);
    else
        deadline_disarm(&conn->deadline);
}

static void feed_ahead(struct client_conn *conn);

static void on_progress(void *ctx)
{
    struct client_conn *conn = ctx;
    size_t bytes = outbox_bytes(&conn->outbox);

    client_conn_wait_for_client(conn);
    if (bytes == 0 && conn->state == CLIENT_FLUSHING) {
        flushed(conn);
    } else if (conn->is_worker_paused && bytes <= CLIENT_QUEUE_LOW_BYTES && conn->work != NULL) {
        conn->is_worker_paused = false;
        conn->endpoint->handler->on_drained(conn->work);
    } else if (bytes <= CLIENT_QUEUE_LOW_BYTES && conn->state == CLIENT_IDLE &&
               conn->ahead.bytes != NULL) {
        feed_ahead(conn);
    } else if (bytes == 0 && conn->state == CLIENT_IDLE && conn->relay->is_draining) {
        close_conn(conn);
    }
}

static void on_failed(void *ctx, int status)
{
    (void)status;
    lose_client(ctx, END_CLIENT_ABORT);
}

static const struct outbox_callbacks outbox_callbacks = {on_progress, on_failed};

int client_conn_write(struct client_conn *conn, const struct slice *slices, unsigned count)
{
    size_t len = 0;
    int status;

    assert(conn->state == CLIENT_READING || conn->state == CLIENT_ANSWERING);

    for (unsigned i = 0; i < count; i++)
        len += slices[i].len;
    conn->record.bytes_out += len;
    conn->relay->stats.client_sent_bytes_total += len;
    status = outbox_write(&conn->outbox, slices, count);
    if (conn->outbox.queued_bytes > 0 && !conn->is_stalled && conn->state == CLIENT_ANSWERING) {
        conn->is_stalled = true;
        relay_wait(conn->relay, RELAY_WAIT_CLIENT_STALL, &conn->deadline);
    }
    return status;
}

bool client_conn_is_congested(struct client_conn *conn)
{
    conn->is_worker_paused = outbox_bytes(&conn->outbox) > CLIENT_QUEUE_HIGH_BYTES;
    return conn->is_worker_paused;
}

/* ---- the end of an answer ---- */

void client_conn_begin_answer(struct client_conn *conn)
{
    if (conn->state == CLIENT_READING)
        client_conn_move(conn, CLIENT_EVENT_REQUEST_END);
}

static void feed_ahead(struct client_conn *conn)
{
    struct buf ahead = conn->ahead;

    buf_init(&conn->ahead, ahead.bytes_max);
    feed(conn, buf_slice(&ahead));
    buf_release(&ahead);
}

static void forget_request(struct client_conn *conn)
{
    conn->head = NULL;
    conn->endpoint = NULL;
    conn->has_request_end = false;
    conn->is_close_delimited = false;
}

void client_conn_answer_end(struct client_conn *conn, bool keep_alive, enum end_reason reason)
{
    assert(conn->work == NULL);
    assert(conn->state == CLIENT_ANSWERING);

    end_record(conn, reason);
    if (!keep_alive || !conn->may_live_on || !conn->has_request_end || conn->relay->is_draining) {
        forget_request(conn);
        client_conn_move(conn, CLIENT_EVENT_LAST_ANSWER);
        conn->has_sent_more = conn->ahead.bytes != NULL;
        read_on(conn); /* what comes is dropped: see CLIENT_LINGERING */
        if (outbox_bytes(&conn->outbox) == 0)
            flushed(conn);
        else
            client_conn_wait_for_client(conn);
        return;
    }
    forget_request(conn);
    client_conn_move(conn, CLIENT_EVENT_ANSWER_END);
    http_reader_next(conn->reader);
    client_conn_wait_for_client(conn);
    if (conn->ahead.bytes != NULL && !conn->is_in_feed)
        feed_ahead(conn);
}

void client_conn_cut(struct client_conn *conn, enum end_reason reason)
{
    end_record(conn, reason);
    if (conn->is_close_delimited) {
        /* A FIN would look like this answer's regular end; zero linger makes close() a reset. */
        struct linger linger = {.l_onoff = 1};
        uv_os_fd_t fd;

        if (uv_fileno((uv_handle_t *)&conn->tcp, &fd) == 0)
            (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
    }
    close_conn(conn);
}

/* ---- reading ---- */

/* Feeds one request's worth; returns what is left of bytes. */
static struct slice feed_request(struct client_conn *conn, struct slice bytes)
{
    size_t consumed;
    int status;

    if (conn->state == CLIENT_IDLE)
        client_conn_begin_request(conn);
    status = http_reader_feed(conn->reader, bytes, &consumed);
    conn->record.bytes_in += consumed;
    if (status == -ECANCELED)
        client_conn_refuse_target(conn);
    else if (status == -EBADMSG || status == -ENOMEM || status == -EMSGSIZE)
        client_conn_refuse_fault(conn, status);
    else if (status < 0) /* of a write: "100 Continue" did not reach it */
        lose_client(conn, END_CLIENT_ABORT);
    else if (conn->has_request_end)
        client_conn_answer_request(conn);
    return slice_skip(bytes, consumed);
}

static void keep_ahead(struct client_conn *conn, struct slice bytes)
{
    if (buf_append(&conn->ahead, bytes) < 0) {
        lose_client(conn, END_INTERNAL);
        return;
    }
    if (buf_len(&conn->ahead) >= AHEAD_BYTES_MAX && conn->is_reading) {
        uv_read_stop((uv_stream_t *)&conn->tcp);
        conn->is_reading = false;
        relay_wait(conn->relay, RELAY_WAIT_CLIENT_HANGUP, &conn->hangup);
    }
}

void client_conn_check_hangup(struct deadline *hangup)
{
    struct client_conn *conn = container_of(hangup, struct client_conn, hangup);
    struct pollfd look = {.events = conn->has_eof ? 0 : POLLRDHUP}; /* a reset is always told */

    if (conn->is_reading || uv_fileno((uv_handle_t *)&conn->tcp, &look.fd) < 0)
        return;
    if (poll(&look, 1, 0) > 0)
        lose_client(conn, END_CLIENT_ABORT);
    else
        relay_wait(conn->relay, RELAY_WAIT_CLIENT_HANGUP, &conn->hangup);
}

static void on_read(uv_stream_t *stream, ssize_t count, const uv_buf_t *buffer);

/* Who does not take its answers has no further request answered: each would be kept for it. */
static bool takes_request_bytes(const struct client_conn *conn)
{
    return conn->state == CLIENT_READING ||
           (conn->state == CLIENT_IDLE && outbox_bytes(&conn->outbox) <= CLIENT_QUEUE_HIGH_BYTES);
}

static void read_on(struct client_conn *conn)
{
    if (conn->is_reading || conn->state == CLIENT_CLOSING)
        return;
    if (uv_read_start((uv_stream_t *)&conn->tcp, io_lend_read_buffer, on_read) == 0)
        conn->is_reading = true;
}

static void feed(struct client_conn *conn, struct slice bytes)
{
    assert(!conn->is_in_feed);

    conn->is_in_feed = true;
    while (bytes.len > 0 && takes_request_bytes(conn))
        bytes = feed_request(conn, bytes);
    conn->is_in_feed = false;

    if (bytes.len > 0 && (conn->state == CLIENT_ANSWERING || conn->state == CLIENT_IDLE)) {
        keep_ahead(conn, bytes);
    } else {
        conn->has_sent_more |= bytes.len > 0;
        read_on(conn);
    }
}

static void read_end(struct client_conn *conn, ssize_t status)
{
    conn->has_eof = true;
    if (conn->state == CLIENT_FLUSHING && status == UV_EOF)
        return; /* it waits for the rest of its answer */
    if (conn->state == CLIENT_ANSWERING && status == UV_EOF &&
        conn->relay->config.client_half_close) {
        conn->may_live_on = false;
        uv_read_stop((uv_stream_t *)&conn->tcp);
        conn->is_reading = false;
        relay_wait(conn->relay, RELAY_WAIT_CLIENT_HANGUP, &conn->hangup);
        return;
    }
    lose_client(conn, END_CLIENT_ABORT);
}

static void on_read(uv_stream_t *stream, ssize_t count, const uv_buf_t *buffer)
{
    struct client_conn *conn = stream->data;
    struct slice bytes;

    if (io_read_is_nothing(count) || conn->state == CLIENT_CLOSING)
        return;
    if (count < 0) {
        read_end(conn, count);
        return;
    }
    conn->relay->stats.client_received_bytes_total += (uint64_t)count;
    bytes = slice_of(buffer->base, (size_t)count);
    if (conn->state == CLIENT_ANSWERING ||
        (conn->state == CLIENT_IDLE && conn->ahead.bytes != NULL))
        keep_ahead(conn, bytes);
    else if (conn->state == CLIENT_IDLE || conn->state == CLIENT_READING)
        feed(conn, bytes);
    else
        conn->has_sent_more = true;
}

/* ---- life ---- */

static struct client_conn *create(struct relay *relay, const struct endpoint_table *endpoints)
{
    struct http_reader_limits limits = {
        .head_bytes_max = HEAD_BYTES_MAX,
        .target_bytes_max = TARGET_BYTES_MAX,
        .body_bytes_max = (int64_t)relay->config.body_bytes_max,
    };
    struct client_conn *conn = calloc(1, sizeof *conn);

    if (conn == NULL)
        return NULL;
    conn->relay = relay;
    conn->endpoints = endpoints;
    conn->reader =
        http_reader_create(HTTP_READER_REQUESTS, limits, &client_conn_reader_callbacks, conn);
    if (conn->reader == NULL) {
        free(conn);
        return NULL;
    }
    list_node_init(&conn->in_clients);
    deadline_init(&conn->deadline);
    deadline_init(&conn->hangup);
    buf_init(&conn->ahead, AHEAD_BYTES_MAX + IO_READ_BYTES);
    return conn;
}

struct client_conn *client_conn_accept(struct relay *relay, const struct endpoint_table *endpoints,
                                       uv_stream_t *listener)
{
    struct client_conn *conn = create(relay, endpoints);

    if (conn == NULL)
        return NULL;
    if (uv_tcp_init(listener->loop, &conn->tcp) < 0) {
        http_reader_destroy(conn->reader);
        free(conn);
        return NULL;
    }
    conn->tcp.data = conn;
    outbox_init(&conn->outbox, &relay->outboxes, (uv_stream_t *)&conn->tcp, &outbox_callbacks,
                conn);
    list_append(&relay->clients, &conn->in_clients);
    relay->stats.client_connections = relay->clients.count;
    relay->stats.client_connections_total++;
    relay_wait(relay, RELAY_WAIT_CLIENT_IDLE, &conn->deadline);
    if (uv_accept(listener, (uv_stream_t *)&conn->tcp) < 0 ||
        uv_read_start((uv_stream_t *)&conn->tcp, io_lend_read_buffer, on_read) < 0) {
        close_conn(conn);
        return conn;
    }
    conn->is_reading = true;
    uv_tcp_nodelay(&conn->tcp, 1);
    return conn;
}

void client_conn_drain(struct client_conn *conn)
{
    conn->may_live_on = false;
    if (conn->state == CLIENT_IDLE && outbox_bytes(&conn->outbox) == 0)
        close_conn(conn);
}

bool client_conn_is_owed(const struct client_conn *conn)
{
    return outbox_bytes(&conn->outbox) > 0 ||
           (conn->state == CLIENT_LINGERING && conn->has_sent_more);
}

void client_conn_kill(struct client_conn *conn)
{
    if (conn->work != NULL && conn->state == CLIENT_ANSWERING)
        conn->endpoint->handler->drain(conn->work);
    if (conn->state != CLIENT_CLOSING)
        lose_client(conn, END_DRAINED);
}

void client_conn_expired(struct deadline *deadline)
{
    struct client_conn *conn = container_of(deadline, struct client_conn, deadline);
    struct client_answer more = {.must_close = true};

    if (conn->state != CLIENT_READING) {
        lose_client(conn, END_CLIENT_TIMEOUT);
        return;
    }
    (void)client_conn_abandon(conn);
    conn->relay->stats.rejected_total[REJECT_TIMEOUT]++;
    conn->record.phase = ABORT_READ;
    client_conn_answer_error(
        conn,
        conn->head == NULL
            ? &(struct api_error){408, "client_header_timeout", NULL,
                                  "The request's head took too long to arrive (option "
                                  "--client-header-ms)."}
            : &(struct api_error){408, "client_body_timeout", NULL,
                                  "The request's body paused for too long (option "
                                  "--client-body-ms)."},
        &more, END_CLIENT_TIMEOUT);
}
