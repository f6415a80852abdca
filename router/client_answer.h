/* SPDX-License-Identifier: Apache-2.0 */

/*
 * client_answer: answers that the router gives itself: local endpoints, refusals, errors. Each
 * ends the current request of its connection, whose state is client_conn's. Loop thread only.
 */
#ifndef ROUTER_CLIENT_ANSWER_H
#define ROUTER_CLIENT_ANSWER_H

#include <stdbool.h>
#include <stdint.h>

#include "backends/runtime/slice.h"
#include "router/end_reason.h"
#include "router/metrics.h"

struct client_conn;
struct openai_error;

/* One answer of our own. */
struct client_answer {
    int status;
    const char *content_type;
    struct slice body;
    const char *allow;      /* for 405 */
    uint32_t retry_after_s; /* 0: no header */
    bool should_not_retry;  /* x-should-retry: false */
    bool must_close;        /* the rest of the request cannot be read */
};

/* Answers the current request and ends it with reason. */
void client_conn_answer(struct client_conn *conn, const struct client_answer *answer,
                        enum end_reason reason);

/* The same with an OpenAI error object; its fields and more's must outlive the call. */
void client_conn_answer_error(struct client_conn *conn, const struct openai_error *error,
                              const struct client_answer *more, enum end_reason reason);

/* The same with 404 for a model that nobody serves, naming near ones. */
void client_conn_refuse_model(struct client_conn *conn, struct slice id, enum end_reason reason);

/* Refuses the current request: counted under reject, then answered. more may be NULL. */
void client_conn_refuse(struct client_conn *conn, enum reject_reason reject,
                        const struct openai_error *error, const struct client_answer *more);

/* For handlers: ends a chunked stream of events with an error event, and no [DONE]. */
void client_conn_end_stream(struct client_conn *conn, const struct openai_error *error,
                            enum end_reason reason);

#endif
