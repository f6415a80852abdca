/* SPDX-License-Identifier: Apache-2.0 */

/*
 * client_conn: one connection from a client: reads its requests one after the other, has each
 * answered (by an exchange, or by us at once), writes answers with bounded memory, and notices in
 * every phase that the client left. Loop thread only.
 */
#ifndef ROUTER_CLIENT_CONN_H
#define ROUTER_CLIENT_CONN_H

#include <stdbool.h>
#include <stdint.h>

#include "backends/http/http_message.h"
#include "backends/http/http_reader.h"
#include "backends/io_loop.h"
#include "backends/outbox.h"
#include "backends/runtime/buf.h"
#include "backends/runtime/deadline_list.h"
#include "backends/runtime/list.h"
#include "backends/runtime/must_check.h"
#include "router/request_record.h"

struct client_conn;
struct endpoint;
struct endpoint_table;
struct api_error;
struct relay;

enum client_state {
    CLIENT_IDLE,      /* waits for the first byte of a request */
    CLIENT_READING,   /* a request's head or body is arriving; nothing was answered */
    CLIENT_ANSWERING, /* the request is complete, or refused; its answer is not */
    CLIENT_FLUSHING,  /* the last answer is complete; closes once the client has it */
    CLIENT_LINGERING, /* our side is shut; what still comes is dropped, so that the kernel's
                         reset does not take the answer from the client */
    CLIENT_CLOSING,   /* the memory goes with the socket's close callback */
    CLIENT_STATE_COUNT
};

enum client_event {
    CLIENT_EVENT_FIRST_BYTE,
    CLIENT_EVENT_REQUEST_END, /* complete, or refused before its end */
    CLIENT_EVENT_ANSWER_END,  /* and the connection may go on */
    CLIENT_EVENT_LAST_ANSWER, /* and it must not */
    CLIENT_EVENT_FLUSHED,     /* everything is with the kernel */
    CLIENT_EVENT_CLOSE,       /* the client left, a wait ended, or the answer was cut */
    CLIENT_EVENT_COUNT
};

/* The table of moves: the state after event, or -1 where it cannot happen. Pure. */
int client_state_after(enum client_state state, enum client_event event);

/* Bytes for a client that the kernel does not take yet: above the high mark the worker is not
 * read, below the low mark it is again. */
enum { CLIENT_QUEUE_HIGH_BYTES = 256 * 1024, CLIENT_QUEUE_LOW_BYTES = 64 * 1024 };

/*
 * Who answers requests that take time: what a client_conn tells it. Whatever it does with the
 * request ends in client_conn_answer_end() or _cut(), before which it sets conn->work to NULL.
 */
struct client_handler {
    /* The head is read. What is returned becomes conn->work. NULL: no memory. */
    void *(*begin)(struct client_conn *conn);
    /* The next piece of the body. -ENOMEM: answered 503. */
    int (*on_body)(void *work, struct slice piece);
    /* The request is complete. The work may be over when this returns. */
    void (*on_request_end)(void *work);
    /* The client has taken what was queued for it. */
    void (*on_drained)(void *work);
    /* The client left, or is refused while it sends: the work is given up, conn->work NULL when
     * this returns. The caller ends the request. True: the client had got the whole answer. */
    bool (*abandon)(void *work);
    /* The router stops now: the work ends as far as it came. */
    void (*drain)(void *work);
};

struct client_conn {
    uv_tcp_t tcp;
    struct list_node in_clients; /* relay->clients, from accept to close */
    struct relay *relay;
    const struct endpoint_table *endpoints;
    enum client_state state;
    struct http_reader *reader;
    const struct http_head *head; /* of the current request; NULL before and after */
    void *work;                   /* the handler's, from its begin() to its end; or NULL */
    struct buf ahead;             /* bytes of requests behind the current one (pipelining) */
    struct deadline deadline;     /* of the one wait that its state has */
    struct deadline hangup;       /* armed while it is not read: see client_conn_check_hangup() */
    struct outbox outbox;
    bool is_stalled;       /* some of its bytes wait for it: its deadline is that of a stall */
    bool is_worker_paused; /* on_drained is owed to the handler */
    const struct endpoint *endpoint; /* that serves the current request; NULL: see refusal */
    struct slice endpoint_rest;      /* of its path, behind a prefix */
    int refusal;                     /* an enum endpoint_match: why endpoint is NULL */
    uv_shutdown_t shutdown;
    bool has_request_end;    /* the reader saw the end of the current request */
    bool may_live_on;        /* the current request allows another one after it */
    bool is_close_delimited; /* only the connection's end tells where the answer ends */
    bool is_in_feed;         /* guards against feeding from within a feed */
    bool is_reading;
    bool has_sent_more; /* than the last request that is answered: it is dropped */
    bool has_eof;       /* the client sends nothing any more */
    struct request_record record;
};

/* What accepts connections hands over. Takes ownership of nothing but the accepted socket. NULL:
 * no memory; the connection is left unaccepted. */
struct client_conn *client_conn_accept(struct relay *relay, const struct endpoint_table *endpoints,
                                       uv_stream_t *listener);

/* An answer of our own begins: before the request's end it is a refusal. */
void client_conn_begin_answer(struct client_conn *conn);

/* Answers that the router gives itself: client_conn_answer.c. Each ends the current request. */

/* One answer of our own. */
struct client_answer {
    int status;
    const char *content_type; /* NULL: an answer without a body, 204 */
    struct slice body;
    const char *allow;      /* for 405 and OPTIONS: what the path takes */
    uint32_t retry_after_s; /* 0: no header */
    bool should_not_retry;  /* x-should-retry: false */
    bool must_close;        /* the rest of the request cannot be read */
};

/* Answers the current request and ends it with reason. */
void client_conn_answer(struct client_conn *conn, const struct client_answer *answer,
                        enum end_reason reason);

/* The same with an error, in the form of the request's API family; its fields and more's must
 * outlive the call. more may be NULL. */
void client_conn_answer_error(struct client_conn *conn, const struct api_error *error,
                              const struct client_answer *more, enum end_reason reason);

/* The same with 404 for a model that nobody serves, naming near ones. */
void client_conn_refuse_model(struct client_conn *conn, struct slice id, enum end_reason reason);

/* The same for a path that no endpoint serves, naming the nearest one. */
void client_conn_refuse_path(struct client_conn *conn, const struct client_answer *more);

/* Refuses the current request: counted under reject, then answered. more may be NULL. */
void client_conn_refuse(struct client_conn *conn, enum reject_reason reject,
                        const struct api_error *error, const struct client_answer *more);

/* For handlers: ends a chunked stream of events with an error event in its family's form, and no
 * [DONE]. sequence_number is that event's, where the family counts them. */
void client_conn_end_stream(struct client_conn *conn, const struct api_error *error,
                            uint64_t sequence_number, enum end_reason reason);

/* The headers that name the request to its client, in every answer's head. */
MUST_CHECK int client_conn_write_request_id(struct buf *head, const struct client_conn *conn);

/* For handlers: writes; what the kernel does not take is copied. -errno: the client is gone. */
MUST_CHECK int client_conn_write(struct client_conn *conn, const struct slice *slices,
                                 unsigned count);
/* More waits for the client than it should: on_drained will be called when it has read. */
bool client_conn_is_congested(struct client_conn *conn);

/* For handlers: the answer is complete; writes the log line and goes on to the next request.
 * keep_alive false: the client learns the answer's end from the connection's end. The
 * work must be over: conn->work is NULL. */
void client_conn_answer_end(struct client_conn *conn, bool keep_alive, enum end_reason reason);

/* For handlers: the answer is cut; the client sees a connection that ends too early. */
void client_conn_cut(struct client_conn *conn, enum end_reason reason);

/* For the drain: closes it if no request is running; a running one is the last. */
void client_conn_drain(struct client_conn *conn);

/* For the drain: what was answered is not with the client yet, or would be lost to it by a reset.
 */
bool client_conn_is_owed(const struct client_conn *conn);

/* For the drain's end: closes it whatever it does. */
void client_conn_kill(struct client_conn *conn);

/* One of its waits is over (io_deadlines). */
void client_conn_expired(struct deadline *deadline);

/* Time to look whether a client that is not being read has left. */
void client_conn_check_hangup(struct deadline *hangup);

/* Private to client_conn*.c. */

/* Moves by event; asserts that the table allows it. */
void client_conn_move(struct client_conn *conn, enum client_event event);

/* Gives the handler's work up, if there is any. True: the client had got the whole answer. */
bool client_conn_abandon(struct client_conn *conn);

/* The request is complete: from here on a client that has to read is waited for. */
void client_conn_wait_for_client(struct client_conn *conn);

/* The first byte of a request has come. */
void client_conn_begin_request(struct client_conn *conn);

/* The request is complete: hands it to who answers it, or refuses it. */
void client_conn_answer_request(struct client_conn *conn);

/* Refuses a request for its bytes, or for how many they are: status is the reader's. */
void client_conn_refuse_fault(struct client_conn *conn, int status);

/* Refuses what no endpoint serves. */
void client_conn_refuse_target(struct client_conn *conn);

extern const struct http_reader_callbacks client_conn_reader_callbacks;

#endif
