/* SPDX-License-Identifier: Apache-2.0 */

#include "router/client_conn.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>

#include "backends/runtime/clock.h"
#include "router/api/api_error.h"
#include "router/endpoint.h"
#include "router/relay.h"

/*
 * DESIGN
 *
 * A request is known by its head: who serves it, and whether it may come at all. Whatever is wrong
 * is told at once, before its body: nobody should send 20 MB to learn that a path does not exist.
 */

/* ---- refusals ---- */

void client_conn_refuse_fault(struct client_conn *conn, int status)
{
    struct http_fault fault = http_reader_fault(conn->reader);
    struct client_answer more = {.must_close = true};
    char message[256];

    assert(status == -EBADMSG || status == -ENOMEM || status == -EMSGSIZE);

    (void)client_conn_abandon(conn);
    if (status == -ENOMEM)
        fault = (struct http_fault){503, "overloaded", "The router is out of memory. Retry later."};
    if (status == -EMSGSIZE)
        fault = (struct http_fault){413, "request_too_large", ""};
    snprintf(message, sizeof message, "%s", fault.message);
    if (fault.status == 413)
        snprintf(message, sizeof message,
                 "The request body is larger than this router accepts: it has %llu bytes or more, "
                 "the limit is %llu bytes (option --body-bytes-max).",
                 (unsigned long long)http_reader_body_bytes(conn->reader),
                 (unsigned long long)conn->relay->config.body_bytes_max);
    if (fault.status == 503)
        more.retry_after_s = 1;
    conn->relay->stats.protocol_faults_total[FAULT_CLIENT] += fault.status == 400;
    client_conn_refuse(conn,
                       fault.status == 413 || fault.status == 431 || fault.status == 414
                           ? REJECT_TOO_LARGE
                       : fault.status == 503 ? REJECT_OVERLOADED
                                             : REJECT_BAD_REQUEST,
                       &(struct api_error){fault.status, fault.code, NULL, message}, &more);
}

/* What may be asked of this path, or of all: never passed on. */
static void answer_options(struct client_conn *conn, const char *allow)
{
    client_conn_answer(conn,
                       &(struct client_answer){
                           .status = 204,
                           .allow = allow,
                           .must_close = !conn->has_request_end,
                       },
                       END_OK);
}

void client_conn_refuse_target(struct client_conn *conn)
{
    char allow[ENDPOINT_ALLOW_BYTES_MAX];
    struct client_answer more = {.must_close = !conn->has_request_end};

    endpoint_allow(conn->endpoints, conn->head->target, allow);
    if (conn->record.method == HTTP_METHOD_OPTIONS && allow[0] != '\0') {
        answer_options(conn, allow);
        return;
    }
    if (conn->refusal == ENDPOINT_NO_METHOD) {
        more.allow = allow;
        client_conn_refuse(
            conn, REJECT_METHOD,
            &(struct api_error){405, "method_not_allowed", NULL,
                                "This path does not take that method; see the Allow header."},
            &more);
        return;
    }
    client_conn_refuse_path(conn, &more);
}

/* ---- one request ---- */

static bool is_valid_id(struct slice id)
{
    if (id.len == 0 || id.len > REQUEST_ID_BYTES_MAX)
        return false;
    for (size_t i = 0; i < id.len; i++) {
        char byte = id.ptr[i];

        if (!((byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') ||
              (byte >= '0' && byte <= '9') || byte == '.' || byte == '_' || byte == '-'))
            return false;
    }
    return true;
}

/* Every request has an id, so that each error names one. */
static void make_id(struct client_conn *conn)
{
    relay_random_id(conn->relay, conn->record.request_id, RELAY_ID_BYTES);
    conn->record.request_id[RELAY_ID_BYTES] = '\0';
}

void client_conn_begin_request(struct client_conn *conn)
{
    memset(&conn->record, 0, sizeof conn->record);
    conn->record.begun_us = clock_now_us();
    conn->record.api = API_OTHER;
    conn->record.rung = ROUTE_RUNG_LOAD;
    make_id(conn);
    conn->may_live_on = false;
    client_conn_move(conn, CLIENT_EVENT_FIRST_BYTE);
    /* The option may have changed since the connection's last request. */
    http_reader_set_body_bytes_max(conn->reader, (int64_t)conn->relay->config.body_bytes_max);
    relay_wait(conn->relay, RELAY_WAIT_CLIENT_HEADER, &conn->deadline);
}

static int begin_work(struct client_conn *conn, const struct http_head *head)
{
    conn->record.is_relayed = true;
    conn->work = conn->endpoint->handler->begin(conn);
    if (conn->work == NULL)
        return -ENOMEM;
    if (head->expects_continue && head->has_body) {
        struct slice go_on = SLICE("HTTP/1.1 100 Continue\r\n\r\n");

        return client_conn_write(conn, &go_on, 1);
    }
    return 0;
}

/* The id of a stored response opens a conversation to whoever reads it: it stays out of the log. */
static void note_path(struct client_conn *conn, const struct endpoint *endpoint)
{
    struct request_record *record = &conn->record;

    if (endpoint->suffix != NULL)
        snprintf(record->path, sizeof record->path, "%s{id}%s", endpoint->path, endpoint->suffix);
    else
        request_record_set_path(record, conn->head->target);
}

static int on_head(void *ctx, const struct http_head *head)
{
    struct client_conn *conn = ctx;
    const struct http_header *id = http_head_find(head, SLICE("X-Request-Id"));
    const struct endpoint *endpoint = NULL;

    if (id != NULL && is_valid_id(id->value))
        request_record_copy(conn->record.request_id, sizeof conn->record.request_id, id->value);
    conn->record.method = head->method;
    conn->head = head;
    conn->may_live_on = head->keep_alive && head->version_minor == 1;
    conn->refusal = (int)endpoint_find(conn->endpoints, head->method, head->target, &endpoint,
                                       &conn->endpoint_rest);
    if (endpoint != NULL) {
        conn->record.api = endpoint->api;
        note_path(conn, endpoint);
    }
    relay_wait(conn->relay, RELAY_WAIT_CLIENT_BODY, &conn->deadline);
    if (conn->refusal != ENDPOINT_FOUND) {
        return head->has_body ? -ECANCELED : 0; /* nobody will read it */
    }
    if (head->content_length > (int64_t)conn->relay->config.body_bytes_max)
        return -EMSGSIZE; /* before anybody asks for the body, or makes room for it */
    conn->endpoint = endpoint;
    return endpoint->handler != NULL ? begin_work(conn, head) : 0;
}

static int on_body(void *ctx, struct slice piece)
{
    struct client_conn *conn = ctx;

    if (conn->work == NULL)
        return 0; /* a body that no one asked for, of a GET */
    relay_wait(conn->relay, RELAY_WAIT_CLIENT_BODY, &conn->deadline);
    return conn->endpoint->handler->on_body(conn->work, piece);
}

static int on_end(void *ctx)
{
    struct client_conn *conn = ctx;

    conn->has_request_end = true;
    conn->record.read_us = clock_now_us();
    return 0;
}

const struct http_reader_callbacks client_conn_reader_callbacks = {on_head, on_body, on_end};

void client_conn_answer_request(struct client_conn *conn)
{
    deadline_disarm(&conn->deadline);
    if (conn->endpoint == NULL) {
        client_conn_refuse_target(conn);
        return;
    }
    client_conn_move(conn, CLIENT_EVENT_REQUEST_END);
    client_conn_wait_for_client(conn);
    if (conn->work != NULL)
        conn->endpoint->handler->on_request_end(conn->work);
    else
        conn->endpoint->answer(conn, conn->endpoint_rest);
}
