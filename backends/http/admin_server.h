/* SPDX-License-Identifier: Apache-2.0 */

/*
 * admin_server: a small HTTP server for operators: a table of paths that are read with GET, one
 * request a connection, all bounded. For programs whose business is not HTTP; it has no
 * authentication, so it belongs on a private address. Loop thread only.
 */
#ifndef BACKENDS_HTTP_ADMIN_SERVER_H
#define BACKENDS_HTTP_ADMIN_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "backends/io_loop.h"
#include "backends/runtime/buf.h"
#include "backends/runtime/list.h"
#include "backends/runtime/must_check.h"
#include "backends/tcp_listen.h"

enum { ADMIN_ANSWER_BYTES_MAX = 16 << 20, ADMIN_CLIENT_COUNT_MAX = 64 };

struct admin_answer {
    int status;               /* 200 */
    const char *content_type; /* "text/plain" */
    struct buf body;          /* empty, up to ADMIN_ANSWER_BYTES_MAX; the server releases it */
};

struct admin_endpoint {
    const char *path; /* exact; a query behind it is ignored */
    /* Fills in answer. Negative (as of a failed append): 503 is answered instead. */
    int (*answer)(void *ctx, struct admin_answer *answer);
};

struct admin_server_config {
    struct tcp_listen_config listen;
    const struct admin_endpoint *endpoints; /* borrowed */
    size_t endpoint_count;
    uint64_t client_ms_max; /* from accept to the last byte taken; 10 s */
    void *ctx;
};

struct admin_server {
    struct admin_server_config config;
    struct io_loop *io;
    struct io_deadlines wait; /* of all clients */
    uv_tcp_t tcp;
    struct list clients;
    bool is_open;
};

/* Listens. -errno, with a sentence in why. In any case server is in use until the loop has ended
 * (io_loop_release()). */
MUST_CHECK int admin_server_open(struct admin_server *server, struct io_loop *io,
                                 struct admin_server_config config, char why[TCP_LISTEN_WHY_BYTES]);

/* Closes all connections. May be called twice, and after a failed open, or on zeroed memory. */
void admin_server_close(struct admin_server *server);

#endif
