/* SPDX-License-Identifier: Apache-2.0 */

/*
 * scripted_server: an HTTP/1.1 peer inside the test's own loop that does exactly what the test
 * says: per request it calls a handler, which sends any bytes, at once or later, or nothing, and
 * closes or resets when it likes. It knows Content-Length bodies and keep-alive, and judges
 * nothing else. Loop thread only; a fault of the server itself aborts.
 */
#ifndef TESTS_SUPPORT_SCRIPTED_SERVER_H
#define TESTS_SUPPORT_SCRIPTED_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <uv.h>

#include "backends/runtime/slice.h"

struct scripted_conn;
struct scripted_server;

/* A whole request arrived: its head with the empty line, and its body. Valid during the call. */
struct scripted_request {
    struct slice method;
    struct slice target;
    struct slice head;
    struct slice body;
};

typedef void scripted_request_fn(void *ctx, struct scripted_conn *conn,
                                 const struct scripted_request *request);

struct scripted_stats {
    uint32_t accepted_count; /* connections since the start */
    uint32_t open_count;     /* of them: still open */
    uint32_t request_count;
};

/* Listens on 127.0.0.1; port 0 takes a free one. */
struct scripted_server *scripted_server_create(uv_loop_t *loop, uint16_t port,
                                               scripted_request_fn *on_request, void *ctx);
uint16_t scripted_server_port(const struct scripted_server *server);
struct sockaddr_storage scripted_server_address(const struct scripted_server *server);
struct scripted_stats scripted_server_stats(const struct scripted_server *server);

/* Appends bytes to what the peer gets. Nothing happens once the peer has left. */
void scripted_conn_send(struct scripted_conn *conn, struct slice bytes);

/* A whole answer with Content-Length; the connection stays open. */
void scripted_conn_answer(struct scripted_conn *conn, int status, struct slice body);

/* Closes after all that was sent (FIN), or at once (RST). conn is gone from the test's view. */
void scripted_conn_close(struct scripted_conn *conn);
void scripted_conn_reset(struct scripted_conn *conn);

/* Closes the listener and all connections, like a process that ends; the port refuses then. The
 * memory goes with the last handle, so let the loop run once. */
void scripted_server_close(struct scripted_server *server);

#endif
