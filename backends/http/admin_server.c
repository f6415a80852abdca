/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/http/admin_server.h"

#include <errno.h>
#include <stdlib.h>

#include "backends/http/http_reader.h"
#include "backends/http/http_writer.h"

/*
 * DESIGN
 *
 *   accept -> read until a request is whole, or refused -> one answer, "connection: close" -> close
 *
 * A connection that is accepted is freed in its close callback, and nowhere else; until then its
 * deadline bounds all of it.
 */

enum {
    REQUEST_HEAD_BYTES_MAX = 16 << 10,
    TARGET_BYTES_MAX = 1 << 10,
    ANSWER_HEAD_BYTES_MAX = 1 << 10,
};

struct admin_client {
    struct list_node in_server;
    struct admin_server *server;
    struct deadline deadline;
    struct http_reader *reader;
    uv_tcp_t tcp;
    uv_write_t write;
    bool is_answered;
    const struct admin_endpoint *endpoint; /* of a whole head that is served */
    int status;                            /* of the refusal, where there is none */
    struct buf head;
    struct admin_answer answer;
};

static void on_client_closed(uv_handle_t *handle)
{
    struct admin_client *client = handle->data;

    http_reader_destroy(client->reader);
    buf_release(&client->head);
    buf_release(&client->answer.body);
    free(client);
}

static void close_client(struct admin_client *client)
{
    if (uv_is_closing((uv_handle_t *)&client->tcp))
        return;
    deadline_disarm(&client->deadline);
    list_remove(&client->server->clients, &client->in_server);
    uv_close((uv_handle_t *)&client->tcp, on_client_closed);
}

static void on_expired(struct deadline *deadline)
{
    close_client(container_of(deadline, struct admin_client, deadline));
}

static void on_written(uv_write_t *write, int status)
{
    (void)status;
    close_client(write->data);
}

/* ---- answers ---- */

static int write_paths(struct admin_client *client)
{
    const struct admin_server_config *config = &client->server->config;
    int status = buf_append(&client->answer.body, SLICE("There are:"));

    for (size_t i = 0; status == 0 && i < config->endpoint_count; i++)
        status = buf_printf(&client->answer.body, " %s", config->endpoints[i].path);
    return status < 0 ? status : buf_append(&client->answer.body, SLICE("\n"));
}

static void fill_answer(struct admin_client *client)
{
    struct admin_answer *answer = &client->answer;
    int status;

    *answer = (struct admin_answer){.status = client->status, .content_type = "text/plain"};
    buf_init(&answer->body, ADMIN_ANSWER_BYTES_MAX);
    if (client->endpoint != NULL)
        status = client->endpoint->answer(client->server->config.ctx, answer);
    else if (client->status == 404)
        status = write_paths(client);
    else
        status = buf_printf(&answer->body, "%s\n", http_status_text(client->status));
    if (status == 0)
        return;
    answer->status = 503;
    buf_clear(&answer->body);
}

static int write_head(struct admin_client *client)
{
    struct buf *head = &client->head;
    const struct admin_answer *answer = &client->answer;
    int status;

    buf_init(head, ANSWER_HEAD_BYTES_MAX);
    status = http_write_status_line(head, answer->status);
    if (status == 0)
        status =
            http_write_header(head, SLICE("content-type"), slice_of_string(answer->content_type));
    if (status == 0)
        status = http_write_header_u64(head, SLICE("content-length"), buf_len(&answer->body));
    if (status == 0 && answer->status == 405)
        status = http_write_header(head, SLICE("allow"), SLICE("GET"));
    if (status == 0)
        status = http_write_header(head, SLICE("connection"), SLICE("close"));
    return status < 0 ? status : http_write_head_end(head);
}

static void answer(struct admin_client *client)
{
    uv_buf_t pieces[2];

    client->is_answered = true;
    uv_read_stop((uv_stream_t *)&client->tcp);
    fill_answer(client);
    if (write_head(client) < 0) {
        close_client(client);
        return;
    }
    pieces[0] = io_buf(buf_slice(&client->head));
    pieces[1] = io_buf(buf_slice(&client->answer.body));
    client->write.data = client;
    if (uv_write(&client->write, (uv_stream_t *)&client->tcp, pieces,
                 buf_len(&client->answer.body) > 0 ? 2 : 1, on_written) < 0)
        close_client(client);
}

/* ---- requests ---- */

static int on_head(void *ctx, const struct http_head *head)
{
    struct admin_client *client = ctx;
    const struct admin_server_config *config = &client->server->config;
    const char *query = memchr(head->target.ptr, '?', head->target.len);
    struct slice path = head->target;

    if (query != NULL)
        path.len = (size_t)(query - path.ptr);
    client->status = 404;
    for (size_t i = 0; i < config->endpoint_count; i++) {
        if (!slice_eq(path, slice_of_string(config->endpoints[i].path)))
            continue;
        client->status = head->method == HTTP_METHOD_GET ? 200 : 405;
        if (client->status == 200)
            client->endpoint = &config->endpoints[i];
    }
    return 0;
}

static int on_body(void *ctx, struct slice piece)
{
    (void)ctx;
    (void)piece;
    return 0;
}

static int on_end(void *ctx)
{
    (void)ctx;
    return 1; /* stops the reader: there is one request a connection */
}

static const struct http_reader_callbacks reader_callbacks = {on_head, on_body, on_end};

static void on_read(uv_stream_t *stream, ssize_t count, const uv_buf_t *buffer)
{
    struct admin_client *client = stream->data;
    size_t consumed;
    int status;

    if (io_read_is_nothing(count))
        return;
    if (count < 0) {
        close_client(client);
        return;
    }
    status = http_reader_feed(client->reader, slice_of(buffer->base, (size_t)count), &consumed);
    if (status == -EBADMSG) {
        client->endpoint = NULL;
        client->status = http_reader_fault(client->reader).status;
    }
    if (status == 1 || status == -EBADMSG)
        answer(client);
    else if (status < 0)
        close_client(client);
}

static void on_connection(uv_stream_t *stream, int status)
{
    struct admin_server *server = stream->data;
    const struct http_reader_limits limits = {REQUEST_HEAD_BYTES_MAX, TARGET_BYTES_MAX, 0};
    struct admin_client *client;

    if (status < 0) /* out of descriptors: libuv has closed the connection */
        return;
    client = calloc(1, sizeof *client);
    if (client == NULL)
        abort(); /* bookkeeping; and libuv hands over no further connection before this one */
    client->server = server;
    client->reader = http_reader_create(HTTP_READER_REQUESTS, limits, &reader_callbacks, client);
    list_node_init(&client->in_server);
    deadline_init(&client->deadline);
    (void)uv_tcp_init(&server->io->loop, &client->tcp);
    client->tcp.data = client;
    list_append(&server->clients, &client->in_server);
    if (client->reader == NULL || uv_accept(stream, (uv_stream_t *)&client->tcp) < 0 ||
        server->clients.count > ADMIN_CLIENT_COUNT_MAX ||
        uv_read_start((uv_stream_t *)&client->tcp, io_lend_read_buffer, on_read) < 0) {
        close_client(client);
        return;
    }
    deadline_arm(&client->deadline, &server->wait.list, io_loop_now_ms(server->io));
}

int admin_server_open(struct admin_server *server, struct io_loop *io,
                      struct admin_server_config config, char why[TCP_LISTEN_WHY_BYTES])
{
    int status;

    *server = (struct admin_server){.config = config, .io = io};
    list_init(&server->clients);
    status = tcp_listen(&server->tcp, &io->loop, config.listen, on_connection, why);
    if (status < 0)
        return status;
    server->tcp.data = server;
    server->is_open = true;
    io_deadlines_init(&server->wait, io, config.client_ms_max, on_expired);
    return 0;
}

void admin_server_close(struct admin_server *server)
{
    if (!server->is_open)
        return;
    server->is_open = false;
    while (server->clients.count > 0)
        close_client(container_of(server->clients.head.next, struct admin_client, in_server));
    uv_close((uv_handle_t *)&server->tcp, NULL);
}
