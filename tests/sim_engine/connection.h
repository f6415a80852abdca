/* SPDX-License-Identifier: Apache-2.0 */

/*
 * connection: one client's socket: gives whole requests upwards one after the other and sends the
 * bytes of answers, as fast or as slowly and for as long as it is told. Loop thread only.
 */
#ifndef TESTS_SIM_ENGINE_CONNECTION_H
#define TESTS_SIM_ENGINE_CONNECTION_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "backends/http/http_message.h"
#include "backends/runtime/slice.h"

struct connection;

/* All of them may write, finish and end; none is called from within such a call. */
struct connection_callbacks {
    void (*on_head)(void *ctx, const struct http_head *head); /* slices: copy what is to stay */
    void (*on_body)(void *ctx, struct slice piece);
    void (*on_request)(void *ctx); /* complete; nothing more comes before connection_finish() */
    void (*on_refused)(void *ctx); /* these bytes are no HTTP: end the connection */
    void (*on_closed)(void *ctx);  /* once, the last: the connection is gone */
};

enum connection_end { CONNECTION_STAYS, CONNECTION_FIN, CONNECTION_RST };

/* Takes the next client of listener. NULL: there was none, or no memory; nothing is called. */
struct connection *connection_accept(uv_stream_t *listener, uint64_t keep_alive_ms,
                                     const struct connection_callbacks *callbacks, void *ctx);

/* Gathers bytes of the answer. Nothing happens once the connection ends. */
void connection_write(struct connection *connection, struct slice bytes);

/* Sends what was gathered; with a pace, as one piece. */
void connection_flush(struct connection *connection);

/* From now on one piece every pace_ms; until finish. */
void connection_set_pace(struct connection *connection, uint64_t pace_ms);

/* Ends the connection once byte_count bytes more were sent. */
void connection_die_after(struct connection *connection, uint64_t byte_count,
                          enum connection_end how);

/* The answer is complete: goes on to the next request, or ends, when all is sent. */
void connection_finish(struct connection *connection, bool keep_alive);

/* Ends it when all is sent: by FIN, or by RST. */
void connection_end(struct connection *connection, enum connection_end how);

/* Closes it now. */
void connection_close(struct connection *connection);

#endif
