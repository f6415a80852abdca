/* SPDX-License-Identifier: Apache-2.0 */

#include "router/exchange.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "backends/http/worker_pool.h"
#include "backends/runtime/clock.h"
#include "backends/runtime/log.h"
#include "router/client_conn.h"
#include "router/endpoint.h"
#include "router/load_share.h"
#include "router/relay.h"

/*
 * DESIGN
 *
 *   READ --> PARSE --> ROUTE --> CONNECT --> SEND --> RELAY --> DONE
 *                        ^          |          |
 *                        +- retry --+----------+          (and from every state: --> DONE)
 *
 * Until RELAY nothing has gone to the client, so an attempt may fail and another one begin; the
 * body is kept for that long. From RELAY on the client has bytes, and the only ends are the
 * worker's own, our error event, or a cut.
 *
 * Whatever goes up for an attempt (the worker's own load, the connection's lease, the wait) comes
 * down in exchange_end_attempt(); exchange_destroy() calls it, and nothing else frees an exchange.
 */
enum {
    ARENA_BYTES_MAX = 64 * 1024 * 1024,
    REQUEST_HEAD_BYTES_MAX = 64 * 1024,
    CLIENT_HEAD_BYTES_MAX = 64 * 1024,
};

/* clang-format off */
static const signed char moves[EXCHANGE_STATE_COUNT][EXCHANGE_EVENT_COUNT] = {
    /* state \ event        READ            PARSED          CHOSEN            SENT           ANSWERED        RETRY           END */
    [EXCHANGE_READ]    = { EXCHANGE_PARSE, -1,             -1,               -1,            -1,             -1,             EXCHANGE_DONE },
    [EXCHANGE_PARSE]   = { -1,             EXCHANGE_ROUTE, -1,               -1,            -1,             -1,             EXCHANGE_DONE },
    [EXCHANGE_ROUTE]   = { -1,             -1,             EXCHANGE_CONNECT, -1,            -1,             -1,             EXCHANGE_DONE },
    [EXCHANGE_CONNECT] = { -1,             -1,             -1,               EXCHANGE_SEND, -1,             EXCHANGE_ROUTE, EXCHANGE_DONE },
    [EXCHANGE_SEND]    = { -1,             -1,             -1,               -1,            EXCHANGE_RELAY, EXCHANGE_ROUTE, EXCHANGE_DONE },
    [EXCHANGE_RELAY]   = { -1,             -1,             -1,               -1,            -1,             -1,             EXCHANGE_DONE },
    [EXCHANGE_DONE]    = { -1,             -1,             -1,               -1,            -1,             -1,             -1            },
};
/* clang-format on */

static const enum abort_phase phases[] = {
    [EXCHANGE_READ] = ABORT_READ,   [EXCHANGE_PARSE] = ABORT_PARSE,
    [EXCHANGE_ROUTE] = ABORT_ROUTE, [EXCHANGE_CONNECT] = ABORT_CONNECT,
    [EXCHANGE_SEND] = ABORT_SEND,   [EXCHANGE_RELAY] = ABORT_RELAY,
    [EXCHANGE_DONE] = ABORT_RELAY,
};
static_assert(array_count(phases) == EXCHANGE_STATE_COUNT, "every state is a phase");

int exchange_state_after(enum exchange_state state, enum exchange_event event)
{
    assert(state < EXCHANGE_STATE_COUNT && event < EXCHANGE_EVENT_COUNT);

    return moves[state][event];
}

void exchange_move(struct exchange *exchange, enum exchange_event event)
{
    int state = exchange_state_after(exchange->state, event);

    assert(state >= 0);
    exchange->state = (enum exchange_state)state;
}

/* ---- life ---- */

static void *begin(struct client_conn *client)
{
    struct exchange *exchange = calloc(1, sizeof *exchange);
    const struct http_head *head = client->head;

    if (exchange == NULL)
        return NULL;
    exchange->client = client;
    exchange->relay = client->relay;
    exchange->api = client->endpoint->api;
    deadline_init(&exchange->deadline);
    deadline_init(&exchange->silence);
    arena_init(&exchange->arena, ARENA_BYTES_MAX);
    buf_init(&exchange->body, client->relay->config.body_bytes_max);
    buf_init(&exchange->request_head, REQUEST_HEAD_BYTES_MAX);
    buf_init(&exchange->head, CLIENT_HEAD_BYTES_MAX);
    buf_init(&exchange->answer_body, EXCHANGE_ANSWER_BODY_BYTES_MAX);
    exchange->retry_after_s = 1;
    exchange->history.retry_count_max = client->relay->config.retry_count_max;
    exchange->history.is_repeatable = api_work(exchange->api) == API_WORK_COMPUTE;
    client->relay->stats.requests_in_flight++;
    retry_budget_earn(&client->relay->retry_budget);
    if (head->content_length > 0 &&
        buf_reserve(&exchange->body, (size_t)head->content_length) < 0) {
        client->work = exchange;
        exchange_destroy(exchange);
        return NULL;
    }
    return exchange;
}

void exchange_destroy(struct exchange *exchange)
{
    struct client_conn *client = exchange->client;

    if (exchange->state != EXCHANGE_DONE)
        exchange_move(exchange, EXCHANGE_EVENT_END);
    exchange_leave_parse(exchange);
    exchange_end_attempt(exchange);
    exchange->relay->stats.requests_in_flight--;
    client->work = NULL;
    if (exchange->has_answer)
        answer_stream_release(&exchange->answer);
    arena_release(&exchange->arena);
    buf_release(&exchange->body);
    buf_release(&exchange->request_head);
    buf_release(&exchange->head);
    buf_release(&exchange->answer_body);
    free(exchange);
}

static int on_body(void *work, struct slice piece)
{
    struct exchange *exchange = work;

    return buf_append(&exchange->body, piece) < 0 ? -ENOMEM : 0;
}

bool exchange_abandon(struct exchange *exchange)
{
    bool is_delivered = exchange->state == EXCHANGE_RELAY && exchange->is_sse &&
                        exchange->answer.has_done && outbox_bytes(&exchange->client->outbox) == 0 &&
                        !exchange->is_client_lost;

    if (is_delivered)
        exchange_learn(exchange);
    exchange->client->record.phase = phases[exchange->state];
    exchange_destroy(exchange);
    return is_delivered;
}

static bool abandon(void *work)
{
    return exchange_abandon(work);
}

static void drain(void *work)
{
    exchange_fail(work,
                  &(struct api_error){503, "draining", NULL,
                                      "The router is shutting down. Send the request again."},
                  END_DRAINED);
}

/* ---- errors ---- */

void exchange_refuse(struct exchange *exchange, enum reject_reason reject,
                     const struct api_error *error)
{
    bool is_ours = error->status >= 500;

    exchange->relay->stats.rejected_total[reject]++;
    exchange_fail(exchange, error,
                  reject == REJECT_NO_WORKER || reject == REJECT_POISON ? END_REFUSED
                  : is_ours                                             ? END_OVERLOADED
                                                                        : END_CLIENT_ERROR);
}

bool exchange_is_open_ended(const struct exchange *exchange)
{
    return exchange->is_chunked || exchange->client->is_close_delimited;
}

void exchange_fail(struct exchange *exchange, const struct api_error *error, enum end_reason reason)
{
    struct client_conn *client = exchange->client;
    struct client_answer more = {
        .should_not_retry = exchange->history.was_begun,
        .retry_after_s = error->status == 503 || error->status == 429 ? exchange->retry_after_s : 0,
    };
    bool takes_event = exchange->is_sse && exchange_is_open_ended(exchange) &&
                       !exchange->is_client_lost && stream_filter_is_at_boundary(&exchange->filter);
    bool was_relayed = exchange->state == EXCHANGE_RELAY;
    uint64_t sequence_number =
        exchange->answer.has_sequence_number ? exchange->answer.sequence_number + 1 : 0;

    client->record.phase = phases[exchange->state];
    exchange_destroy(exchange);
    if (!was_relayed)
        client_conn_answer_error(client, error, &more, reason);
    else if (takes_event)
        client_conn_end_stream(client, error, sequence_number, reason);
    else
        client_conn_cut(client, reason);
}

static void on_request_end(void *work)
{
    struct exchange *exchange = work;

    if (exchange->relay->is_draining)
        exchange_refuse(exchange, REJECT_DRAINING,
                        &(struct api_error){503, "draining", NULL,
                                            "The router is shutting down. Send the request "
                                            "again."});
    else if (exchange->api == API_RESPONSE_BY_ID)
        exchange_find_stored(exchange);
    else
        exchange_parse(exchange);
}

static void on_drained(void *work)
{
    exchange_client_drained(work);
}

const struct client_handler exchange_handler = {
    begin, on_body, on_request_end, on_drained, abandon, drain,
};

/* ---- the end of an attempt ---- */

/* What an attempt's answer left, none of which went to the client. */
static void forget_answer(struct exchange *exchange)
{
    exchange_end_echo(exchange);
    exchange->has_answer_head = false;
    exchange->has_answer_end = false;
    exchange->has_broken_off = false;
    exchange->has_events = false;
    exchange->is_sse = false;
    exchange->is_ok = false;
    exchange->is_chunked = false;
    exchange->is_kept_alive = false;
    exchange->has_pings = false;
    exchange->client->is_close_delimited &= exchange->history.has_answered;
    buf_clear(&exchange->head);
    buf_clear(&exchange->answer_body);
    stream_filter_release(&exchange->filter);
}

/* The worker did not read the prompt: it holds no more of it than before, and was given nothing. */
static void take_back_prompt(struct exchange *exchange)
{
    struct relay *relay = exchange->relay;
    uint32_t index = exchange->worker->index;

    residency_guess_settle(relay->guess, exchange->making);
    residency_guess_correct(relay->guess, index, exchange->blocks, exchange->block_count,
                            exchange->matched_count);
    policy_take_back(relay->policy, relay->policy_state,
                     (struct policy_gift){index, exchange->given_ms, exchange->attempt_us / 1000},
                     io_loop_now_ms(relay->io));
}

void exchange_end_attempt(struct exchange *exchange)
{
    struct worker *worker = exchange->worker;

    deadline_disarm(&exchange->deadline);
    deadline_disarm(&exchange->silence);
    exchange_end_notes(exchange);
    if (exchange->is_counted) {
        assert(worker->own.in_flight > 0);
        worker->own.in_flight--;
        if (exchange->is_decoding)
            worker->own.decoding--;
        /* It never began to answer, or refused: what it was to hold by now, it may not. */
        if (!exchange->is_decoding || !exchange->is_ok)
            take_back_prompt(exchange);
        worker->own.queued_tokens -= exchange->queued_tokens;
        if (worker->own.in_flight == 0)
            worker->own.queued_tokens = 0; /* sums of doubles leave dust */
        worker_end_attempt(worker, exchange->trial);
        exchange->is_counted = false;
        exchange->is_decoding = false;
        exchange->queued_tokens = 0;
        load_share_touch(exchange->relay->loads);
    }
    if (exchange->conn != NULL)
        worker_pool_return(&exchange->conn);
    forget_answer(exchange);
    exchange->worker = NULL;
}

static const enum retry_reason retry_reasons[] = {
    [ATTEMPT_CONNECT_FAILED] = RETRY_CONNECT_FAILED,
    [ATTEMPT_STALE] = RETRY_STALE_CONNECTION,
    [ATTEMPT_DIED] = RETRY_WORKER_DIED,
    [ATTEMPT_BUSY] = RETRY_BUSY,
    [ATTEMPT_USAGE_REFUSED] = RETRY_USAGE_REFUSED,
    [ATTEMPT_TIMEOUT] = RETRY_WORKER_DIED,
    [ATTEMPT_PROTOCOL] = RETRY_WORKER_DIED,
    [ATTEMPT_HALF_ANSWERED] = RETRY_WORKER_DIED,
};
static_assert(array_count(retry_reasons) == ATTEMPT_FAILURE_COUNT, "every failure is counted");

void exchange_mark_failure(struct exchange *exchange)
{
    struct relay *relay = exchange->relay;
    struct worker *worker = exchange->worker;
    bool may_eject = worker_set_may_eject(relay->workers, worker, relay->config.panic_percent);

    if (worker_mark_failure(worker, exchange->attempt_us / 1000, may_eject,
                            io_loop_now_ms(relay->io)) &&
        !may_eject)
        relay->stats.ejections_withheld_total++;
}

static struct poison_victim victim_of(const struct exchange *exchange)
{
    return (struct poison_victim){(uint32_t)exchange->worker->id, exchange->worker->restart_count};
}

static void note_victim(struct exchange *exchange, struct poison_victim victim)
{
    struct relay *relay = exchange->relay;
    const struct request_record *record = &exchange->client->record;

    /* What asks about a stored response has no body that could be to blame. */
    if (exchange->body_name == 0 ||
        !poison_table_add(&relay->poison, exchange->body_name, victim, io_loop_now_ms(relay->io)))
        return;
    exchange->history.death_count = POISON_VICTIM_COUNT;
    LOG(LOG_WARN, "query_of_death", log_text("request_id", record->request_id),
        log_text("worker", record->worker), log_text("model", record->model),
        log_u64("refused_ms", poison_table_wait_ms(&relay->poison, exchange->body_name,
                                                   io_loop_now_ms(relay->io))));
}

void exchange_note_death(struct exchange *exchange)
{
    note_victim(exchange, victim_of(exchange));
    if (exchange->has_stale_victim) /* that one was no accident then */
        note_victim(exchange, exchange->stale_victim);
    exchange->has_stale_victim = false;
}

/* A stale connection tells of no death by itself: it may have been closed while it lay idle. */
static void count_death(struct exchange *exchange, enum attempt_failure failure)
{
    exchange->history.death_count += retry_failure_was_begun(failure);
    if (failure == ATTEMPT_STALE) {
        exchange->has_stale_victim = true;
        exchange->stale_victim = victim_of(exchange);
    } else if ((failure == ATTEMPT_DIED || failure == ATTEMPT_HALF_ANSWERED) &&
               !exchange->has_broken_off) {
        exchange_note_death(exchange);
    }
}

static void count_failure(struct exchange *exchange, enum attempt_failure failure)
{
    count_death(exchange, failure);
    exchange->history.was_begun |= retry_failure_was_begun(failure);
    if (failure != ATTEMPT_STALE && failure != ATTEMPT_BUSY && failure != ATTEMPT_USAGE_REFUSED)
        exchange_mark_failure(exchange);
    if (failure == ATTEMPT_PROTOCOL)
        exchange->relay->stats.protocol_faults_total[FAULT_WORKER]++;
}

static void fail_attempt(struct exchange *exchange, enum attempt_failure failure)
{
    static const struct {
        struct api_error error;
        enum end_reason reason;
    } ends[] = {
        [ATTEMPT_CONNECT_FAILED] = {{502, "upstream_connect_failed", NULL,
                                     "No worker for this model took a connection. Try again."},
                                    END_CONNECT_FAILED},
        [ATTEMPT_STALE] = {{502, "upstream_closed", NULL,
                            "The worker closed the connection before it answered."},
                           END_UPSTREAM_CLOSED},
        [ATTEMPT_DIED] = {{502, "upstream_closed", NULL,
                           "The worker's connection died before it answered."},
                          END_UPSTREAM_CLOSED},
        [ATTEMPT_HALF_ANSWERED] = {{502, "upstream_closed", NULL,
                                    "The worker died while it began to answer."},
                                   END_UPSTREAM_CLOSED},
        [ATTEMPT_BUSY] = {{503, "overloaded", NULL, "All workers are busy. Try again later."},
                          END_OVERLOADED},
        [ATTEMPT_USAGE_REFUSED] = {{502, "upstream_protocol_error", NULL,
                                    "The worker refused the request."},
                                   END_UPSTREAM_PROTOCOL},
        [ATTEMPT_TIMEOUT] = {{504, "upstream_header_timeout", NULL,
                              "The worker did not begin to answer in time (option "
                              "--upstream-header-ms). It may still be working: do not retry."},
                             END_UPSTREAM_TIMEOUT},
        [ATTEMPT_PROTOCOL] = {{502, "upstream_protocol_error", NULL,
                               "The worker's answer was not valid HTTP."},
                              END_UPSTREAM_PROTOCOL},
    };
    static_assert(array_count(ends) == ATTEMPT_FAILURE_COUNT, "every failure has an end");

    struct api_error error = ends[failure].error;
    char message[512];

    if (failure == ATTEMPT_PROTOCOL) {
        snprintf(message, sizeof message, "%s %s", error.message,
                 worker_conn_fault(exchange->conn).message);
        error.message = message;
    }
    exchange_fail(exchange, &error, ends[failure].reason);
}

static void retry(struct exchange *exchange, enum retry_verdict verdict, struct worker *worker)
{
    struct relay *relay = exchange->relay;

    exchange->history.retry_count++;
    if (verdict != RETRY_SAME_PLAIN)
        retry_budget_spend(&relay->retry_budget);
    relay->stats.retries_total[retry_reasons[exchange->last_failure]]++;
    exchange_move(exchange, EXCHANGE_EVENT_RETRY);
    /* What cut one idle connection (a NAT, a restart) may have cut all of them. */
    exchange->is_fresh_only = exchange->last_failure == ATTEMPT_STALE;
    exchange->was_usage_refused = verdict == RETRY_SAME_PLAIN;
    if (verdict == RETRY_SAME_PLAIN) {
        exchange->splice = slice_of(NULL, 0);
        exchange->may_ask_ids = false;
    }
    if (verdict == RETRY_ELSEWHERE)
        exchange_route(exchange);
    else if (exchange_attempt(exchange, worker) < 0)
        exchange_route(exchange);
}

void exchange_attempt_failed(struct exchange *exchange, enum attempt_failure failure)
{
    struct worker *worker = exchange->worker;
    enum retry_verdict verdict;

    exchange->last_failure = failure;
    count_failure(exchange, failure);
    if (failure != ATTEMPT_USAGE_REFUSED)
        exchange->tried[exchange->tried_count++] = worker->id;
    exchange->history.has_other_worker = exchange_has_other_worker(exchange);
    exchange->history.has_budget = retry_budget_has(&exchange->relay->retry_budget);
    verdict = retry_decide(failure, &exchange->history);
    if (verdict == RETRY_NO) {
        fail_attempt(exchange, failure);
        return;
    }
    exchange->were_ids_refused = failure == ATTEMPT_USAGE_REFUSED && exchange->asks_ids;
    exchange_end_attempt(exchange);
    retry(exchange, verdict, worker);
}

/* In mid-answer; or behind its head, where the wait for its first byte goes on. */
static void fail_silent(struct exchange *exchange)
{
    static const struct api_error header = {504, "upstream_header_timeout", NULL,
                                            "The worker sent nothing behind its answer's head in "
                                            "time (option --upstream-header-ms)."};
    static const struct api_error idle = {504, "upstream_idle_timeout", NULL,
                                          "The worker stopped in the middle of its answer "
                                          "(option --upstream-idle-ms)."};

    exchange_mark_failure(exchange);
    exchange_fail(exchange, exchange->is_decoding ? &idle : &header, END_UPSTREAM_TIMEOUT);
}

void exchange_expired(struct deadline *deadline)
{
    struct exchange *exchange = container_of(deadline, struct exchange, deadline);

    switch (exchange->state) {
    case EXCHANGE_CONNECT:
        exchange_attempt_failed(exchange, ATTEMPT_CONNECT_FAILED);
        break;
    case EXCHANGE_SEND:
        exchange_attempt_failed(exchange, ATTEMPT_TIMEOUT);
        break;
    case EXCHANGE_RELAY:
        fail_silent(exchange);
        break;
    case EXCHANGE_READ:
    case EXCHANGE_PARSE:
    case EXCHANGE_ROUTE:
    case EXCHANGE_DONE:
    case EXCHANGE_STATE_COUNT:
        assert(!"no wait is armed in this state");
    }
}
