/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/support/scripted_server.h"

#include "backends/runtime/buf.h"
#include "backends/runtime/list.h"
#include "backends/runtime/must_check.h"

#include <inttypes.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>

enum { REQUEST_BYTES_MAX = 64 << 20, INBOX_BYTES = 64 << 10 };

struct scripted_server {
    uv_tcp_t listener;
    struct list conns; /* all that are open */
    scripted_request_fn *on_request;
    void *ctx;
    struct scripted_stats stats;
    uint32_t open_handle_count; /* listener and connections: freed at 0 */
    struct sockaddr_storage address;
};

struct scripted_conn {
    uv_tcp_t socket;
    struct list_node node;
    struct scripted_server *server;
    struct buf in; /* bytes of requests that were not handled yet */
    char inbox[INBOX_BYTES];
};

struct pending_write {
    uv_write_t write;
    char bytes[];
};

static void must(int status, const char *what)
{
    if (status >= 0)
        return;
    fprintf(stderr, "scripted_server: %s: %s\n", what, strerror(-status));
    abort();
}

static void drop_handle(struct scripted_server *server)
{
    if (--server->open_handle_count == 0)
        free(server);
}

static void on_conn_closed(uv_handle_t *handle)
{
    struct scripted_conn *conn = handle->data;
    struct scripted_server *server = conn->server;

    buf_release(&conn->in);
    free(conn);
    drop_handle(server);
}

static void forget(struct scripted_conn *conn)
{
    list_remove(&conn->server->conns, &conn->node);
    conn->server->stats.open_count--;
}

static bool is_open(const struct scripted_conn *conn)
{
    return list_node_is_linked(&conn->node);
}

static void close_now(struct scripted_conn *conn)
{
    if (!is_open(conn))
        return;
    forget(conn);
    uv_close((uv_handle_t *)&conn->socket, on_conn_closed);
}

static void on_written(uv_write_t *write, int status)
{
    (void)status; /* the peer may have left: its right */
    free(container_of(write, struct pending_write, write));
}

void scripted_conn_send(struct scripted_conn *conn, struct slice bytes)
{
    struct pending_write *pending;
    uv_buf_t buf;

    if (!is_open(conn) || bytes.len == 0)
        return;
    pending = malloc(sizeof *pending + bytes.len);
    if (pending == NULL)
        abort();
    memcpy(pending->bytes, bytes.ptr, bytes.len);
    buf = uv_buf_init(pending->bytes, (unsigned)bytes.len);
    must(uv_write(&pending->write, (uv_stream_t *)&conn->socket, &buf, 1, on_written), "write");
}

void scripted_conn_answer(struct scripted_conn *conn, int status, struct slice body)
{
    char head[128];
    int len = snprintf(head, sizeof head, "HTTP/1.1 %d Scripted\r\nContent-Length: %zu\r\n\r\n",
                       status, body.len);

    scripted_conn_send(conn, slice_of(head, (size_t)len));
    scripted_conn_send(conn, body);
}

static void on_shut_down(uv_shutdown_t *shutdown, int status)
{
    struct scripted_conn *conn = shutdown->handle->data;

    (void)status;
    free(shutdown);
    close_now(conn);
}

void scripted_conn_close(struct scripted_conn *conn)
{
    uv_shutdown_t *shutdown;

    if (!is_open(conn) || uv_is_closing((uv_handle_t *)&conn->socket))
        return;
    shutdown = malloc(sizeof *shutdown);
    if (shutdown == NULL)
        abort();
    uv_read_stop((uv_stream_t *)&conn->socket);
    if (uv_shutdown(shutdown, (uv_stream_t *)&conn->socket, on_shut_down) < 0) {
        free(shutdown); /* the peer has gone first */
        close_now(conn);
    }
}

void scripted_conn_reset(struct scripted_conn *conn)
{
    if (!is_open(conn))
        return;
    forget(conn);
    must(uv_tcp_close_reset(&conn->socket, on_conn_closed), "reset");
}

/* The value of a Content-Length header; 0 when there is none. */
static size_t content_length(struct slice head)
{
    static const char name[] = "\r\ncontent-length:";

    for (size_t at = 0; at + sizeof name <= head.len; at++) {
        if (strncasecmp(head.ptr + at, name, sizeof name - 1) == 0)
            return strtoul(head.ptr + at + sizeof name - 1, NULL, 10);
    }
    return 0;
}

/* Up to the blank at or behind at; moves at behind it. */
static struct slice next_word(struct slice head, size_t *at)
{
    size_t start = *at;

    while (*at < head.len && head.ptr[*at] != ' ' && head.ptr[*at] != '\r')
        ++*at;
    return slice_of(head.ptr + start, (*at)++ - start);
}

/* Hands the first whole request to the handler. False when there is none yet. */
static bool handle_request(struct scripted_conn *conn)
{
    struct slice in = buf_slice(&conn->in);
    const char *end = in.len > 0 ? memmem(in.ptr, in.len, "\r\n\r\n", 4) : NULL;
    struct scripted_request request;
    size_t at = 0;

    if (end == NULL)
        return false;
    request.head = slice_of(in.ptr, (size_t)(end - in.ptr) + 4);
    request.body = slice_of(request.head.ptr + request.head.len, content_length(request.head));
    if (in.len - request.head.len < request.body.len)
        return false;
    request.method = next_word(request.head, &at);
    request.target = next_word(request.head, &at);
    conn->server->stats.request_count++;
    conn->server->on_request(conn->server->ctx, conn, &request);
    buf_consume(&conn->in, request.head.len + request.body.len);
    return true;
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    struct scripted_conn *conn = handle->data;

    (void)suggested;
    *buf = uv_buf_init(conn->inbox, sizeof conn->inbox);
}

static void on_read(uv_stream_t *stream, ssize_t len, const uv_buf_t *buf)
{
    struct scripted_conn *conn = stream->data;

    if (len < 0) {
        close_now(conn);
        return;
    }
    must(buf_append(&conn->in, slice_of(buf->base, (size_t)len)), "request too large");
    while (is_open(conn) && handle_request(conn))
        ;
}

static void on_connection(uv_stream_t *listener, int status)
{
    struct scripted_server *server = listener->data;
    struct scripted_conn *conn = calloc(1, sizeof *conn);

    must(status, "accept");
    if (conn == NULL)
        abort();
    conn->server = server;
    conn->socket.data = conn;
    buf_init(&conn->in, REQUEST_BYTES_MAX);
    list_node_init(&conn->node);
    must(uv_tcp_init(listener->loop, &conn->socket), "init");
    must(uv_accept(listener, (uv_stream_t *)&conn->socket), "accept");
    must(uv_tcp_nodelay(&conn->socket, 1), "nodelay");
    list_append(&server->conns, &conn->node);
    server->open_handle_count++;
    server->stats.accepted_count++;
    server->stats.open_count++;
    must(uv_read_start((uv_stream_t *)&conn->socket, on_alloc, on_read), "read");
}

struct scripted_server *scripted_server_create(uv_loop_t *loop, uint16_t port,
                                               scripted_request_fn *on_request, void *ctx)
{
    struct scripted_server *server = calloc(1, sizeof *server);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    int address_len = sizeof server->address;

    if (server == NULL)
        abort();
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    list_init(&server->conns);
    server->on_request = on_request;
    server->ctx = ctx;
    server->listener.data = server;
    server->open_handle_count = 1;
    must(uv_tcp_init(loop, &server->listener), "init");
    must(uv_tcp_bind(&server->listener, (const struct sockaddr *)&address, 0), "bind");
    must(uv_listen((uv_stream_t *)&server->listener, 128, on_connection), "listen");
    must(uv_tcp_getsockname(&server->listener, (struct sockaddr *)&server->address, &address_len),
         "getsockname");
    return server;
}

struct sockaddr_storage scripted_server_address(const struct scripted_server *server)
{
    return server->address;
}

uint16_t scripted_server_port(const struct scripted_server *server)
{
    struct sockaddr_in address;

    memcpy(&address, &server->address, sizeof address);
    return ntohs(address.sin_port);
}

struct scripted_stats scripted_server_stats(const struct scripted_server *server)
{
    return server->stats;
}

static void on_listener_closed(uv_handle_t *handle)
{
    drop_handle(handle->data);
}

void scripted_server_close(struct scripted_server *server)
{
    while (server->conns.count > 0)
        close_now(container_of(server->conns.head.next, struct scripted_conn, node));
    uv_close((uv_handle_t *)&server->listener, on_listener_closed);
}
