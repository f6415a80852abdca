/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/redis/redis_link_parts.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

/*
 * DESIGN
 *
 * Commands gather in unsent until the turn of the loop ends. Then the kernel is offered all of it,
 * which as a rule it takes; only what it leaves becomes libuv's, in a buffer that is not touched
 * until libuv calls back. There is one such write at a time: what is asked for meanwhile gathers
 * anew.
 */

enum {
    UNSENT_BYTES_KEPT = 1 << 20, /* of memory, when all was sent */
    REPLY_BYTES_MAX = 64 << 20,  /* unread: no reply of ours is nearly so long */
    LINE_BYTES_MAX = 24,         /* a mark, a number, the end of the line */
};

/* ---- sending ---- */

/* mark and number in decimal and the end of a line; returns what is behind it. */
static char *write_line(char *at, char mark, size_t number)
{
    char digits[LINE_BYTES_MAX];
    size_t count = 0;

    *at++ = mark;
    do
        digits[count++] = (char)('0' + number % 10);
    while ((number /= 10) > 0);
    while (count > 0)
        *at++ = digits[--count];
    *at++ = '\r';
    *at++ = '\n';
    return at;
}

/* Thousands of these make a flush: by hand, it takes a third of the time that printing takes. */
int link_append_command(struct buf *out, const struct slice *words, size_t count)
{
    size_t bytes_max = LINE_BYTES_MAX;
    char *at;
    int status;

    for (size_t i = 0; i < count; i++)
        bytes_max += LINE_BYTES_MAX + words[i].len + 2;
    status = buf_reserve(out, bytes_max);
    if (status < 0)
        return status;
    at = write_line(out->bytes + out->end, '*', count);
    for (size_t i = 0; i < count; i++) {
        at = write_line(at, '$', words[i].len);
        if (words[i].len > 0)
            memcpy(at, words[i].ptr, words[i].len);
        at += words[i].len;
        *at++ = '\r';
        *at++ = '\n';
    }
    out->end = (size_t)(at - out->bytes);
    return 0;
}

static void on_written(uv_write_t *write, int status);

/* A server that has closed may have said why: that is still to be read, and ends the connection
 * with its own words. */
static int sent_in_vain(int status)
{
    return status == UV_EPIPE ? 0 : status;
}

int link_send_unsent(struct link_connection *conn)
{
    uv_buf_t bytes;
    int sent;

    if (conn->is_sending || buf_len(&conn->unsent) == 0)
        return 0; /* on_written() comes back here */
    bytes = uv_buf_init(conn->unsent.bytes + conn->unsent.start, (unsigned)buf_len(&conn->unsent));
    sent = uv_try_write(&conn->socket.stream, &bytes, 1);
    if (sent < 0 && sent != UV_EAGAIN)
        return sent_in_vain(sent);
    if (sent > 0)
        buf_consume(&conn->unsent, (size_t)sent);
    if (buf_len(&conn->unsent) == 0) {
        if (conn->unsent.capacity > UNSENT_BYTES_KEPT)
            buf_release(&conn->unsent);
        return 0;
    }
    buf_release(&conn->sending);
    conn->sending = conn->unsent;
    buf_init(&conn->unsent, LINK_UNSENT_BYTES_MAX);
    bytes =
        uv_buf_init(conn->sending.bytes + conn->sending.start, (unsigned)buf_len(&conn->sending));
    conn->is_sending = true;
    return uv_write(&conn->write, &conn->socket.stream, &bytes, 1, on_written);
}

static void on_written(uv_write_t *write, int status)
{
    struct link_connection *conn = container_of(write, struct link_connection, write);
    struct redis_link *link = conn->link;

    conn->is_sending = false;
    if (conn != link->conn)
        return;
    status = status < 0 ? sent_in_vain(status) : link_send_unsent(conn);
    if (status < 0)
        link_fail_with(link, status, "send");
}

/* ---- receiving ---- */

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buffer)
{
    struct link_connection *conn = handle->data;

    (void)suggested;
    *buffer = uv_buf_init(conn->link->read_bytes, LINK_READ_BYTES);
}

/* Until there is no whole reply any more, or the link is done with this connection. */
static void take_replies(struct redis_link *link, struct link_connection *conn)
{
    while (conn == link->conn) {
        struct redis_reply *reply;
        int status = redis_reader_next(conn->reader, &reply);

        if (status < 0) {
            link_fail(link, status, redis_reader_error(conn->reader));
            return;
        }
        if (reply == NULL)
            return;
        if (link->pending_count > 0)
            link_take_reply(link, reply);
        else
            link_fail(link, -EPROTO, "the server says what nobody asked for");
        redis_reply_destroy(reply);
    }
}

static void on_read(uv_stream_t *stream, ssize_t count, const uv_buf_t *buffer)
{
    struct link_connection *conn = stream->data;
    struct redis_link *link = conn->link;

    if (count == 0 || conn != link->conn)
        return;
    if (count == UV_EOF) {
        link_fail(link, -ECONNRESET, "the server closed the connection");
    } else if (count < 0) {
        link_fail_with(link, (int)count, "receive");
    } else if (redis_reader_feed(conn->reader, slice_of(buffer->base, (size_t)count)) < 0) {
        link_fail(link, -ENOMEM, redis_reader_error(conn->reader));
    } else {
        take_replies(link, conn);
        if (conn == link->conn && redis_reader_unread(conn->reader) > REPLY_BYTES_MAX)
            link_fail(link, -EPROTO, "a reply is far longer than any that was asked for");
    }
}

int link_start_reading(struct link_connection *conn)
{
    return uv_read_start(&conn->socket.stream, on_alloc, on_read);
}
