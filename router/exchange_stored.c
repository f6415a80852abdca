/* SPDX-License-Identifier: Apache-2.0 */

#include "router/exchange.h"

#include <assert.h>

#include "backends/runtime/clock.h"
#include "router/client_conn.h"
#include "router/endpoint.h"
#include "router/relay.h"

/*
 * DESIGN
 *
 * Engines remember their own responses, each by an id of its making. A request that names one (to
 * read, delete or cancel it; or to go on from it by previous_response_id) is pinned to the worker
 * that stores it: no score can make up for what no other worker has, so it goes there or nowhere.
 *
 *   answer of /v1/responses --> id --> response_table --> GET, DELETE, cancel by that id
 *                                                    '--> previous_response_id
 *
 * A client's id is looked up, never built into anything: what is unknown ends here, and what is
 * known is sent on as the client wrote it.
 *
 * Ids are read where an answer is read: in the first event of a stream, or at the end of a whole
 * answer, up to EXCHANGE_ANSWER_BODY_BYTES_MAX. A larger one is passed on and not remembered.
 */

/* ---- what is remembered ---- */

void exchange_note_response(struct exchange *exchange)
{
    struct slice id = slice_of_string(exchange->answer.response_id);

    if (!exchange->stores_response || id.len == 0)
        return;
    response_table_learn(exchange->relay->responses, id, exchange->worker->index);
    exchange->stores_response = false;
}

/* The id in the path. False: it is none that an engine could have made. */
static bool read_id(const struct exchange *exchange, char id[ANSWER_RESPONSE_ID_BYTES_MAX],
                    size_t *len)
{
    return endpoint_decode(exchange->client->endpoint_rest, id, ANSWER_RESPONSE_ID_BYTES_MAX, len);
}

void exchange_note_deleted(struct exchange *exchange)
{
    char id[ANSWER_RESPONSE_ID_BYTES_MAX];
    size_t len;

    if (exchange->client->record.method == HTTP_METHOD_DELETE && read_id(exchange, id, &len))
        response_table_forget(exchange->relay->responses, slice_of(id, len));
}

/* ---- who stores it ---- */

static bool pin(struct exchange *exchange, struct slice id)
{
    exchange->is_pinned =
        response_table_find(exchange->relay->responses, id, &exchange->pinned_worker);
    return exchange->is_pinned;
}

bool exchange_pin_to_previous(struct exchange *exchange, struct slice id)
{
    if (pin(exchange, id))
        return true;
    exchange_refuse(
        exchange, REJECT_UNKNOWN_RESPONSE,
        &(struct api_error){404, "previous_response_not_found", "previous_response_id",
                            "This router knows of no worker that stores that response. It may have "
                            "been made through another router, deleted, lost when its engine "
                            "restarted, or forgotten for newer ones (option --response-count-max). "
                            "Send the conversation so far as input instead."});
    return false;
}

void exchange_find_stored(struct exchange *exchange)
{
    char id[ANSWER_RESPONSE_ID_BYTES_MAX];
    struct request_record *record = &exchange->client->record;
    size_t len;

    exchange_move(exchange, EXCHANGE_EVENT_READ);
    if (!read_id(exchange, id, &len) || !pin(exchange, slice_of(id, len))) {
        exchange_refuse(
            exchange, REJECT_UNKNOWN_RESPONSE,
            &(struct api_error){404, "response_not_found", NULL,
                                "This router knows of no worker that stores that response. It may "
                                "have been made through another router, deleted, lost when its "
                                "engine restarted, or forgotten for newer ones (option "
                                "--response-count-max). Create it again."});
        return;
    }
    /* It may be streamed: the reader of events knows how such a stream ends. */
    answer_stream_init(&exchange->answer, &(struct api_request){.api = API_RESPONSES}, NULL);
    exchange->has_answer = true;
    record->parsed_us = clock_now_us();
    exchange_move(exchange, EXCHANGE_EVENT_PARSED);
    exchange_route(exchange);
}

/* ---- the way there ---- */

/* An ejected worker may fail again, but nobody else has what is asked for. One that is being
 * drained gets nothing new to do; but what it stores it may still give. */
static bool may_serve(const struct exchange *exchange, const struct worker *worker)
{
    return worker_is_reachable(worker) ||
           (worker->state == WORKER_DRAINING && api_work(exchange->api) == API_WORK_NONE);
}

static bool serves_model(const struct exchange *exchange, const struct worker *worker)
{
    const struct model *model;

    if (exchange->model_id == NULL) /* by id: none is named */
        return true;
    model = worker_set_find_model(exchange->relay->workers, slice_of_string(exchange->model_id));
    return model != NULL && worker_serves_model(worker, model);
}

static void refuse(struct exchange *exchange, enum reject_reason reject, int status,
                   const char *message)
{
    exchange_refuse(
        exchange, reject,
        &(struct api_error){status,
                            reject == REJECT_NO_WORKER ? "no_worker_available" : "model_mismatch",
                            reject == REJECT_BAD_REQUEST ? "model" : NULL, message});
}

void exchange_route_pinned(struct exchange *exchange)
{
    struct worker *worker = worker_set_at(exchange->relay->workers, exchange->pinned_worker);
    struct request_record *record = &exchange->client->record;
    uint64_t now_ms = io_loop_now_ms(exchange->relay->io);
    int status;

    assert(exchange->state == EXCHANGE_ROUTE);
    assert(exchange->is_pinned);

    if (worker == NULL || !may_serve(exchange, worker)) {
        refuse(exchange, REJECT_NO_WORKER, 503,
               "The worker that stores this response is not up, and no other one has it. Try again "
               "later.");
        return;
    }
    if (!serves_model(exchange, worker)) {
        refuse(exchange, REJECT_BAD_REQUEST, 400,
               "The worker that stores the previous response does not serve this model. Go on with "
               "the model that it was made with.");
        return;
    }
    if (worker_is_busy(worker, now_ms)) {
        exchange->retry_after_s = (uint32_t)((worker->traffic.busy_until_ms - now_ms + 999) / 1000);
        refuse(exchange, REJECT_OVERLOADED, 503,
               "The worker that stores this response asked for a pause. Try again later.");
        return;
    }
    record->rung = ROUTE_RUNG_AFFINITY;
    record->policy = "pinned";
    status = exchange_attempt(exchange, worker);
    if (status < 0)
        exchange_refuse_connection(exchange, status);
}
