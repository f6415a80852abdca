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

static void answer_model(struct client_conn *conn, struct slice rest)
{
    const struct worker_set *workers = conn->relay->workers;
    char id[ID_BYTES_MAX];
    const struct model *model = NULL;
    size_t len;

    if (endpoint_decode(rest, id, sizeof id, &len))
        model = worker_set_find_model(workers, slice_of(id, len));
    if (model != NULL) {
        answer_json(conn, 200, slice_of_string(model->json));
        return;
    }
    conn->relay->stats.rejected_total[REJECT_UNKNOWN_MODEL]++;
    client_conn_refuse_model(conn, slice_of(id, len), END_CLIENT_ERROR);
}

#define RELAYED(path_, api_)                                                                       \
    {                                                                                              \
        .path = (path_), .method = HTTP_METHOD_POST, .api = (api_), .handler = &exchange_handler   \
    }
#define BY_ID(method_, suffix_)                                                                    \
    {                                                                                              \
        .path = "/v1/responses/", .is_prefix = true, .suffix = (suffix_), .method = (method_),     \
        .api = API_RESPONSE_BY_ID, .handler = &exchange_handler                                    \
    }
#define LOCAL(path_, api_, answer_)                                                                \
    {                                                                                              \
        .path = (path_), .method = HTTP_METHOD_GET, .api = (api_), .answer = (answer_)             \
    }

static const struct endpoint endpoints[] = {
    RELAYED("/v1/chat/completions", API_CHAT),
    RELAYED("/v1/completions", API_COMPLETIONS),
    RELAYED("/v1/responses", API_RESPONSES),
    BY_ID(HTTP_METHOD_GET, ""),
    BY_ID(HTTP_METHOD_DELETE, ""),
    BY_ID(HTTP_METHOD_POST, "/cancel"),
    BY_ID(HTTP_METHOD_GET, "/input_items"),
    RELAYED("/v1/messages", API_MESSAGES),
    RELAYED("/v1/messages/count_tokens", API_COUNT_TOKENS),
    RELAYED("/v1/embeddings", API_EMBEDDINGS),
    RELAYED("/rerank", API_RERANK),
    RELAYED("/v1/rerank", API_RERANK),
    RELAYED("/v2/rerank", API_RERANK),
    RELAYED("/score", API_SCORE),
    RELAYED("/v1/score", API_SCORE),
    RELAYED("/tokenize", API_TOKENIZE),
    RELAYED("/v1/tokenize", API_TOKENIZE),
    RELAYED("/detokenize", API_DETOKENIZE),
    RELAYED("/v1/detokenize", API_DETOKENIZE),
    LOCAL("/v1/models", API_MODELS, answer_models),
    {.path = "/v1/models/",
     .is_prefix = true,
     .method = HTTP_METHOD_GET,
     .api = API_MODELS,
     .answer = answer_model},
    LOCAL("/health", API_OTHER, answer_health),
    LOCAL("/healthz", API_OTHER, answer_health),
    LOCAL("/live", API_OTHER, answer_health),
    LOCAL("/livez", API_OTHER, answer_health),
    LOCAL("/liveness", API_OTHER, answer_health),
    LOCAL("/ping", API_OTHER, answer_health),
    LOCAL("/ready", API_OTHER, answer_readyz),
    LOCAL("/readyz", API_OTHER, answer_readyz),
    LOCAL("/readiness", API_OTHER, answer_readyz),
    LOCAL("/version", API_OTHER, answer_version),
};

const struct endpoint_table public_endpoints = {endpoints, array_count(endpoints), false};
