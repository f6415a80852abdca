/* SPDX-License-Identifier: Apache-2.0 */

#include "router/api/public.h"

#include "backends/json/json_write.h"
#include "backends/runtime/must_check.h"
#include "router/api/api_error.h"
#include "router/client_conn.h"
#include "router/exchange.h"
#include "router/relay.h"

enum { MODELS_BYTES_MAX = 4 * 1024 * 1024, ID_BYTES_MAX = 512 };

static void answer_json(struct client_conn *conn, int status, struct slice body)
{
    client_conn_answer(conn,
                       &(struct client_answer){
                           .status = status,
                           .content_type = "application/json",
                           .body = body,
                           .retry_after_s = status == 503 ? 1 : 0,
                       },
                       END_OK);
}

/* Alive: the event loop turns. Needs no worker. */
static void answer_health(struct client_conn *conn, struct slice rest)
{
    (void)rest;
    answer_json(conn, 200, SLICE("{\"status\":\"ok\"}"));
}

/* Ready: a request sent now would find a worker. */
static void answer_readyz(struct client_conn *conn, struct slice rest)
{
    (void)rest;
    if (relay_is_ready(conn->relay))
        answer_json(conn, 200, SLICE("{\"status\":\"ready\"}"));
    else if (conn->relay->is_draining)
        answer_json(conn, 503, SLICE("{\"status\":\"draining\"}"));
    else
        answer_json(conn, 503, SLICE("{\"status\":\"no worker is up\"}"));
}

static void answer_version(struct client_conn *conn, struct slice rest)
{
    (void)rest;
    answer_json(conn, 200, SLICE("{\"version\":\"" SAMOVAR_VERSION "\"}"));
}

static void answer_no_memory(struct client_conn *conn)
{
    client_conn_answer_error(
        conn,
        &(struct api_error){503, "overloaded", NULL, "The router has no memory for this answer."},
        NULL, END_INTERNAL);
}

/* Merged from the workers' own lists, those of workers that are down included. */
static void answer_models(struct client_conn *conn, struct slice rest)
{
    const struct worker_set *workers = conn->relay->workers;
    struct buf body;
    int status;

    (void)rest;
    buf_init(&body, MODELS_BYTES_MAX);
    status = buf_append(&body, SLICE("{\"object\":\"list\",\"data\":["));
    for (size_t i = 0; status == 0 && i < worker_set_model_count(workers); i++) {
        if (i > 0)
            status = buf_append(&body, SLICE(","));
        if (status == 0)
            status = buf_append(&body, slice_of_string(worker_set_model_at(workers, i)->json));
    }
    if (status == 0)
        status = buf_append(&body, SLICE("]}"));
    if (status == 0)
        answer_json(conn, 200, buf_slice(&body));
    else
        answer_no_memory(conn);
    buf_release(&body);
}

static int hex_value(char digit)
{
    if (digit >= '0' && digit <= '9')
        return digit - '0';
    if (digit >= 'a' && digit <= 'f')
        return digit - 'a' + 10;
    return digit >= 'A' && digit <= 'F' ? digit - 'A' + 10 : -1;
}

/* Undoes %XX: ids with slashes come in both spellings. False: too long, or broken. */
static bool decode_id(struct slice text, char id[ID_BYTES_MAX], size_t *len)
{
    *len = 0;
    for (size_t at = 0; at < text.len; at++) {
        char byte = text.ptr[at];

        if (*len == ID_BYTES_MAX)
            return false;
        if (byte == '%') {
            int high = at + 2 < text.len ? hex_value(text.ptr[at + 1]) : -1;
            int low = at + 2 < text.len ? hex_value(text.ptr[at + 2]) : -1;

            if (high < 0 || low < 0)
                return false;
            byte = (char)(high << 4 | low);
            at += 2;
        }
        id[(*len)++] = byte;
    }
    return true;
}

static void answer_model(struct client_conn *conn, struct slice rest)
{
    const struct worker_set *workers = conn->relay->workers;
    char id[ID_BYTES_MAX];
    const struct model *model = NULL;
    size_t len;

    if (decode_id(rest, id, &len))
        model = worker_set_find_model(workers, slice_of(id, len));
    if (model != NULL) {
        answer_json(conn, 200, slice_of_string(model->json));
        return;
    }
    conn->relay->stats.rejected_total[REJECT_UNKNOWN_MODEL]++;
    client_conn_refuse_model(conn, slice_of(id, len), END_CLIENT_ERROR);
}

static const struct endpoint endpoints[] = {
    {.path = "/v1/chat/completions",
     .method = HTTP_METHOD_POST,
     .api = API_CHAT,
     .handler = &exchange_handler},
    {.path = "/v1/completions",
     .method = HTTP_METHOD_POST,
     .api = API_COMPLETIONS,
     .handler = &exchange_handler},
    {.path = "/v1/models", .method = HTTP_METHOD_GET, .api = API_MODELS, .answer = answer_models},
    {.path = "/v1/models/",
     .is_prefix = true,
     .method = HTTP_METHOD_GET,
     .api = API_MODELS,
     .answer = answer_model},
    {.path = "/health", .method = HTTP_METHOD_GET, .api = API_OTHER, .answer = answer_health},
    {.path = "/readyz", .method = HTTP_METHOD_GET, .api = API_OTHER, .answer = answer_readyz},
    {.path = "/version", .method = HTTP_METHOD_GET, .api = API_OTHER, .answer = answer_version},
};

const struct endpoint_table public_endpoints = {endpoints, array_count(endpoints), false};
