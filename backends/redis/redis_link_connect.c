/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/redis/redis_link_parts.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * DESIGN
 *
 * A host's addresses are tried one after the other within connect_ms; a socket that failed is
 * replaced by another. So each socket has memory of its own, which goes in its close callback;
 * what is called for it after it failed sees that it is no longer the link's.
 *
 * The commands of the greeting leave together. The first that is refused ends the connection;
 * CLIENT SETNAME, which may be refused, is the last, so its reply says that all the others were
 * taken.
 */

enum { WORD_COUNT_MAX = 4 }; /* of a command of the greeting */

/* ---- a socket ---- */

static void free_connection(struct link_connection *conn)
{
    redis_reader_destroy(conn->reader);
    buf_release(&conn->unsent);
    buf_release(&conn->sending);
    free(conn);
}

static void on_socket_closed(uv_handle_t *handle)
{
    struct link_connection *conn = handle->data;
    struct redis_link *link = conn->link;

    free_connection(conn);
    link_drop_handle(link);
}

static struct link_connection *create_connection(struct redis_link *link)
{
    struct link_connection *conn = calloc(1, sizeof *conn);

    if (conn == NULL)
        return NULL;
    conn->reader = redis_reader_create();
    if (conn->reader == NULL) {
        free(conn);
        return NULL;
    }
    conn->link = link;
    buf_init(&conn->unsent, LINK_UNSENT_BYTES_MAX);
    buf_init(&conn->sending, LINK_UNSENT_BYTES_MAX);
    return conn;
}

void link_disconnect(struct redis_link *link)
{
    if (link->lookup != NULL)
        resolver_system.cancel(link->lookup);
    link->lookup = NULL;
    if (link->conn != NULL)
        uv_close(&link->conn->socket.handle, on_socket_closed);
    link->conn = NULL;
    (void)uv_prepare_stop(&link->end);
}

/* ---- greeting ---- */

static void on_greeted(void *ctx, int error, const struct redis_reply *reply)
{
    struct redis_link *link = ctx;

    if (link->state == REDIS_LINK_GREETING && error < 0)
        link_fail(link, error, redis_reply_text(reply).ptr);
}

/* Names are for people who look at the server: a user that may not set one does without. */
static void on_named(void *ctx, int error, const struct redis_reply *reply)
{
    struct redis_link *link = ctx;

    (void)error;
    (void)reply;
    if (link->state != REDIS_LINK_GREETING)
        return; /* failed, closed */
    link_set_state(link, REDIS_LINK_EVENT_GREETED);
    link->back_off_level = 0;
    link->stats.connect_count++;
    (void)uv_timer_stop(&link->timer);
    if (link->callbacks.on_ready != NULL)
        link->callbacks.on_ready(link->ctx);
}

static int greet_with(struct redis_link *link, const char *const words[WORD_COUNT_MAX],
                      redis_done_fn *on_done)
{
    struct slice slices[WORD_COUNT_MAX];
    size_t count = 0;

    for (size_t i = 0; i < WORD_COUNT_MAX && words[i] != NULL; i++)
        slices[count++] = slice_of_string(words[i]);
    return link_put_command(link, slices, count, on_done, link);
}

static int send_greeting(struct redis_link *link)
{
    const struct redis_url *url = &link->config.url;
    const char *password = link->password != NULL ? link->password : "";
    char database[16];
    int status = 0;

    if (url->user[0] != '\0')
        status = greet_with(link, (const char *[WORD_COUNT_MAX]){"AUTH", url->user, password},
                            on_greeted);
    else if (link->password != NULL)
        status = greet_with(link, (const char *[WORD_COUNT_MAX]){"AUTH", password}, on_greeted);
    snprintf(database, sizeof database, "%" PRIu32, url->database);
    if (status == 0 && url->database != 0)
        status = greet_with(link, (const char *[WORD_COUNT_MAX]){"SELECT", database}, on_greeted);
    if (status == 0)
        status = greet_with(link, (const char *[WORD_COUNT_MAX]){"PING"}, on_greeted);
    if (status == 0)
        status = greet_with(
            link, (const char *[WORD_COUNT_MAX]){"CLIENT", "SETNAME", link->config.name}, on_named);
    return status;
}

/* ---- connecting ---- */

static void connect_next(struct redis_link *link, int error);

static void on_connected(uv_connect_t *connect, int status)
{
    struct link_connection *conn = container_of(connect, struct link_connection, connect);
    struct redis_link *link = conn->link;

    if (conn != link->conn)
        return;
    if (status < 0) {
        uv_close(&conn->socket.handle, on_socket_closed);
        link->conn = NULL;
        connect_next(link, status);
        return;
    }
    link_set_state(link, REDIS_LINK_EVENT_CONNECTED);
    status = link_start_reading(conn);
    if (status == 0)
        status = send_greeting(link);
    if (status < 0)
        link_fail_with(link, status, "greet");
}

/* The next address, or the path. -errno: not even begun. */
static int start_connect(struct redis_link *link)
{
    const struct sockaddr_storage *address = &link->addresses[link->address_next++];
    struct link_connection *conn = create_connection(link);
    int status;

    if (conn == NULL)
        return -ENOMEM;
    status = link->config.url.path[0] != '\0' ? uv_pipe_init(link->loop, &conn->socket.pipe, 0)
                                              : uv_tcp_init(link->loop, &conn->socket.tcp);
    if (status < 0) {
        free_connection(conn);
        return status;
    }
    conn->socket.handle.data = conn;
    link->handle_count++;
    link->conn = conn;
    if (link->config.url.path[0] != '\0') {
        uv_pipe_connect(&conn->connect, &conn->socket.pipe, link->config.url.path, on_connected);
        return 0;
    }
    (void)uv_tcp_nodelay(&conn->socket.tcp, 1);
    status = uv_tcp_connect(&conn->connect, &conn->socket.tcp, (const struct sockaddr *)address,
                            on_connected);
    if (status < 0) {
        uv_close(&conn->socket.handle, on_socket_closed);
        link->conn = NULL;
    }
    return status;
}

/* error: of the address before. */
static void connect_next(struct redis_link *link, int error)
{
    while (link->address_next < link->address_count) {
        error = start_connect(link);
        if (error == 0)
            return;
    }
    link_fail_with(link, error, "connect");
}

static void on_resolved(void *ctx, int error, const struct sockaddr_storage *addresses,
                        size_t count)
{
    struct redis_link *link = ctx;

    link->lookup = NULL;
    if (error < 0) {
        char why[LINK_WHY_BYTES];

        snprintf(why, sizeof why, "host %.100s: %s", link->config.url.host, uv_strerror(error));
        link_fail(link, -EHOSTUNREACH, why);
        return;
    }
    link->address_count = count < LINK_ADDRESS_COUNT_MAX ? count : LINK_ADDRESS_COUNT_MAX;
    memcpy(link->addresses, addresses, link->address_count * sizeof *addresses);
    connect_next(link, -EHOSTUNREACH);
}

void link_connect(struct redis_link *link)
{
    const struct redis_url *url = &link->config.url;
    char port[8];

    link->address_next = 0;
    if (url->path[0] != '\0') {
        link->address_count = 1; /* the path */
        connect_next(link, 0);
        return;
    }
    snprintf(port, sizeof port, "%u", url->port);
    link->lookup = resolver_system.start(link->loop, url->host, port, on_resolved, link);
    if (link->lookup == NULL)
        link_fail(link, -ENOMEM, "the name of the host cannot be looked up");
}
