/* SPDX-License-Identifier: Apache-2.0 */

/*
 * worker_conn: one connection to a worker, lent by its worker_pool to one exchange at a time.
 * Sends one request, reads one answer. Loop thread only.
 */
#ifndef BACKENDS_HTTP_WORKER_CONN_H
#define BACKENDS_HTTP_WORKER_CONN_H

#include <stdbool.h>
#include <stdint.h>

#include "backends/http/http_message.h"
#include "backends/http/http_reader.h"
#include "backends/io_loop.h"
#include "backends/runtime/deadline_list.h"
#include "backends/runtime/list.h"
#include "backends/runtime/must_check.h"
#include "backends/runtime/slice.h"

struct worker_conn;

/*
 * What the lender is told. on_head, on_body and on_end come while bytes are being read: they
 * record, and must not return the connection. on_progress comes after each batch of them, and
 * when the connection failed: there the lender may do anything, worker_pool_return() included.
 */
struct worker_conn_callbacks {
    void (*on_connected)(void *ctx, int status); /* 0 or -errno; may return the connection */
    int (*on_head)(void *ctx, const struct http_head *head);
    int (*on_body)(void *ctx, struct slice piece);
    int (*on_end)(void *ctx);
    /* status 0: bytes were read. -EPIPE: closed (a FIN) before the answer's end; -ECONNRESET and
     * the like: lost; -EBADMSG: not HTTP. After < 0 nothing more comes. */
    void (*on_progress)(void *ctx, int status);
};

enum { WORKER_CONN_SLICE_COUNT_MAX = 5 };

/*
 * Sends one request, gathered from up to WORKER_CONN_SLICE_COUNT_MAX slices, whose bytes must live
 * until the lease ends or worker_conn_is_sent(). A large one leaves in parts, one a turn of the
 * loop. Failure to write is told through on_progress.
 */
void worker_conn_send(struct worker_conn *conn, const struct slice *slices, unsigned count);

/* Everything of the request is with the kernel: its slices may go. */
bool worker_conn_is_sent(const struct worker_conn *conn);

/* An earlier exchange used this connection: the worker may have closed it unnoticed. */
bool worker_conn_is_reused(const struct worker_conn *conn);

/* A byte of an answer has come. */
bool worker_conn_has_answer_bytes(const struct worker_conn *conn);

/* What was wrong with the answer, after -EBADMSG. */
struct http_fault worker_conn_fault(const struct worker_conn *conn);

/* Backpressure: stops and continues reading the answer. */
void worker_conn_pause(struct worker_conn *conn);
void worker_conn_resume(struct worker_conn *conn);

/* The head of the answer is not needed any more: gives its memory back. */
void worker_conn_forget_head(struct worker_conn *conn);

enum worker_conn_state {
    WORKER_CONN_CONNECTING, /* lent; the socket is on its way */
    WORKER_CONN_LENT,       /* an exchange uses it */
    WORKER_CONN_IDLE,       /* open, in the pool */
    WORKER_CONN_CLOSING,    /* the memory goes with the socket's close callback */
    WORKER_CONN_STATE_COUNT
};

/* The table of moves. Pure. */
bool worker_conn_may_move(enum worker_conn_state from, enum worker_conn_state to);

/* Who keeps the connection while nobody uses it: its pool. */
struct worker_conn_owner {
    /* An idle connection was closed by the worker, or talks unasked: to be closed. */
    void (*on_idle_lost)(void *ctx, struct worker_conn *conn);
    /* The socket is closed; the connection's memory goes when this returns. */
    void (*on_closed)(void *ctx);
};

struct worker_conn_config {
    uv_loop_t *loop; /* of an io_loop */
    const struct sockaddr_storage *address;
    size_t answer_head_bytes_max;
    const struct worker_conn_owner *owner;
    void *owner_ctx;
};

/* Private to worker_conn.c and worker_pool.c. */
struct worker_conn {
    uv_tcp_t tcp;
    uv_connect_t connect;
    uv_write_t write;
    struct slice unsent[WORKER_CONN_SLICE_COUNT_MAX]; /* of a large request: not written yet */
    unsigned unsent_count;
    struct list_node in_pool; /* in the pool's idle list, or unlinked */
    struct deadline idle;     /* armed while idle */
    const struct worker_conn_owner *owner;
    void *owner_ctx;
    enum worker_conn_state state;
    struct http_reader *reader;
    const struct worker_conn_callbacks *callbacks;
    void *ctx;
    bool is_reused;
    bool is_writing; /* the kernel has not taken the whole request yet */
    bool has_answer_bytes;
    bool has_ended;   /* the answer is complete */
    bool may_live_on; /* and said that the connection stays open, with nothing behind it */
    bool has_failed;  /* the lender was told */
    bool is_reading;
};

/* Starts connecting. NULL: no memory or no socket; *status says which. *has_socket: on_closed of
 * the owner will come, also where NULL is returned. */
struct worker_conn *worker_conn_open(const struct worker_conn_config *config, bool *has_socket,
                                     int *status);

/* Hands conn to its next lender. */
void worker_conn_lend(struct worker_conn *conn, const struct worker_conn_callbacks *callbacks,
                      void *ctx);

/* Takes it back. True: it is clean and now IDLE; false: the caller must close it. */
bool worker_conn_take_back(struct worker_conn *conn);

void worker_conn_close(struct worker_conn *conn);

#endif
