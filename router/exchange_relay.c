/* SPDX-License-Identifier: Apache-2.0 */

#include "router/exchange.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "backends/http/http_writer.h"
#include "backends/http/worker_pool.h"
#include "backends/runtime/clock.h"
#include "router/client_conn.h"
#include "router/cors.h"
#include "router/load_share.h"
#include "router/relay.h"

/*
 * DESIGN
 *
 * One read from the worker becomes one gathered write to the client: while the read is parsed,
 * body pieces are only noted (relay->out points into the read buffer); when it is used up, they
 * leave together, within one chunk frame. Copied is what is small enough to be gathered by the
 * client's outbox, and what its socket does not take. An event is read (usage, end, text for the
 * next turn's names) as it passes.
 */
/* ---- towards the client ---- */

/* Writes the head, if it is due, and what was noted, as one chunk where the client needs chunks. */
static void flush(struct exchange *exchange, bool is_end)
{
    struct slice pieces[RELAY_OUT_SLICE_COUNT_MAX + 3];
    char chunk_head[HTTP_CHUNK_HEAD_BYTES_MAX];
    struct relay_out *out = &exchange->relay->out;
    unsigned count = 0;

    if (buf_len(&exchange->head) > 0)
        pieces[count++] = buf_slice(&exchange->head);
    if (out->bytes > 0 && exchange->is_chunked)
        pieces[count++] = slice_of(chunk_head, http_write_chunk_head(chunk_head, out->bytes));
    for (unsigned i = 0; i < out->count; i++)
        pieces[count++] = out->slices[i];
    if (exchange->is_chunked && (out->bytes > 0 || is_end)) {
        struct slice closing = SLICE("\r\n0\r\n\r\n");

        if (out->bytes == 0)
            closing = slice_skip(closing, 2);
        pieces[count++] = is_end ? closing : slice_of(closing.ptr, 2);
    }
    if (count > 0 && !exchange->is_client_lost &&
        client_conn_write(exchange->client, pieces, count) < 0)
        exchange->is_client_lost = true;
    buf_clear(&exchange->head);
    out->count = 0;
    out->bytes = 0;
}

static int note_out(void *ctx, struct slice bytes)
{
    struct exchange *exchange = ctx;
    struct relay_out *out = &exchange->relay->out;
    bool is_in_piece = bytes.ptr >= exchange->filter.piece.ptr &&
                       bytes.ptr < exchange->filter.piece.ptr + exchange->filter.piece.len;

    out->slices[out->count++] = bytes;
    out->bytes += bytes.len;
    /* What the filter held back lives only until this returns. */
    if (out->count == RELAY_OUT_SLICE_COUNT_MAX || (exchange->is_sse && !is_in_piece))
        flush(exchange, false);
    return 0;
}

/* Of an answer that is no stream. */
static int note_whole(void *ctx, struct slice bytes)
{
    struct exchange *exchange = ctx;

    /* A copy to read usage from; one that is too large is only passed on. */
    if (exchange->is_ok && !exchange->is_body_too_large &&
        api_work(exchange->api) == API_WORK_GENERATE &&
        buf_append(&exchange->answer_body, bytes) < 0) {
        exchange->is_body_too_large = true;
        buf_release(&exchange->answer_body);
    }
    return note_out(exchange, bytes);
}

static bool on_event(void *ctx, const struct sse_event *event)
{
    struct exchange *exchange = ctx;
    struct request_record *record = &exchange->client->record;
    enum answer_event_kind kind;

    exchange->has_pings |= slice_eq(event->name, SLICE("ping"));
    /* An oversize event comes without its data: the answer has a hole and teaches nothing. */
    kind = answer_stream_event(&exchange->answer, exchange->relay->scanner, event->data);
    exchange_note_response(exchange);
    if (kind == ANSWER_EVENT_CONTENT && record->token_us == 0) {
        record->token_us = clock_now_us();
        worker_mark_progress(exchange->worker, exchange->attempt_us / 1000,
                             io_loop_now_ms(exchange->relay->io));
    }
    return kind == ANSWER_EVENT_USAGE_ONLY;
}

/* ---- the answer's head ---- */

/* Whether a refusal by this worker may be asked elsewhere, or again. */
static bool may_retry(struct exchange *exchange, enum attempt_failure failure)
{
    struct retry_history history = exchange->history;

    exchange->tried[exchange->tried_count++] = exchange->worker->id;
    history.has_other_worker = exchange_has_other_worker(exchange);
    exchange->tried_count--;
    history.has_budget = retry_budget_has(&exchange->relay->retry_budget);
    return retry_decide(failure, &history) != RETRY_NO;
}

/* Retry-After in milliseconds; 0 where it is absent or a date, which nobody in this trade sends. */
static uint64_t retry_after_ms(const struct http_head *head)
{
    const struct http_header *header = http_head_find(head, SLICE("Retry-After"));
    uint64_t seconds = 0;

    for (size_t i = 0; header != NULL && i < header->value.len; i++) {
        char digit = header->value.ptr[i];

        if (digit < '0' || digit > '9')
            return 0;
        if (seconds < WORKER_BUSY_MS_MAX)
            seconds = seconds * 10 + (uint64_t)(digit - '0');
    }
    return seconds * 1000;
}

static enum answer_kind kind_of(struct exchange *exchange, const struct http_head *head)
{
    if (retry_status_is_busy(head->status) && may_retry(exchange, ATTEMPT_BUSY))
        return ANSWER_BUSY;
    if (head->status == 400 && (exchange->asks_usage || exchange->asks_ids) &&
        may_retry(exchange, ATTEMPT_USAGE_REFUSED))
        return ANSWER_REFUSED_USAGE;
    return ANSWER_RELAYED;
}

static bool has_type(const struct http_head *head, struct slice type)
{
    const struct http_header *header = http_head_find(head, SLICE("Content-Type"));

    return header != NULL && header->value.len >= type.len &&
           slice_eq_nocase(slice_of(header->value.ptr, type.len), type);
}

/* Headers of the answer that we write ourselves. */
static bool is_replaced(struct slice name)
{
    return slice_eq_nocase(name, SLICE("Content-Length")) ||
           slice_eq_nocase(name, SLICE("X-Request-Id")) ||
           slice_eq_nocase(name, SLICE("Request-Id")) ||
           slice_eq_nocase(name, SLICE("X-Samovar-Worker")) || cors_is_header(name);
}

/* Where the answer ends: by length, by chunks, or for HTTP/1.0 by the connection's end. */
static int write_framing(struct exchange *exchange, const struct http_head *head)
{
    struct client_conn *client = exchange->client;
    bool has_no_body = head->status == 204 || head->status == 304;

    if (has_no_body)
        return 0;
    if (head->content_length >= 0 && !exchange->filter.may_cut && exchange->echo == NULL)
        return http_write_header_u64(&exchange->head, SLICE("content-length"),
                                     (uint64_t)head->content_length);
    exchange->is_chunked = client->head->version_minor == 1;
    client->is_close_delimited = !exchange->is_chunked;
    return exchange->is_chunked
               ? http_write_header(&exchange->head, SLICE("transfer-encoding"), SLICE("chunked"))
               : 0;
}

/* What keeps proxies on the way from gathering a stream. */
static int write_stream_headers(struct buf *buf, const struct http_head *head)
{
    int status = 0;

    if (http_head_find(head, SLICE("Cache-Control")) == NULL)
        status = http_write_header(buf, SLICE("cache-control"), SLICE("no-cache"));
    if (status == 0 && http_head_find(head, SLICE("X-Accel-Buffering")) == NULL)
        status = http_write_header(buf, SLICE("x-accel-buffering"), SLICE("no"));
    return status;
}

static int write_client_head(struct exchange *exchange, const struct http_head *head)
{
    struct client_conn *client = exchange->client;
    struct buf *buf = &exchange->head;
    int status = buf_reserve(buf, 512);

    if (status == 0)
        status = http_write_status_line(buf, head->status);
    if (status == 0)
        status = http_write_passed_headers(buf, head, is_replaced);
    if (status == 0)
        status = client_conn_write_request_id(buf, client);
    if (status == 0)
        status = http_write_header(buf, SLICE("x-samovar-worker"),
                                   slice_of_string(exchange->worker->name));
    if (status == 0)
        status = cors_write_headers(buf, &exchange->relay->config.cors_origins, client->head);
    if (status == 0 && exchange->is_sse)
        status = write_stream_headers(buf, head);
    if (status == 0 && head->status >= 400 && exchange->history.was_begun &&
        http_head_find(head, SLICE("X-Should-Retry")) == NULL)
        status = http_write_header(buf, SLICE("x-should-retry"), SLICE("false"));
    if (status == 0)
        status = write_framing(exchange, head);
    if (status == 0 && (!client->may_live_on || exchange->relay->is_draining))
        status = http_write_header(buf, SLICE("connection"), SLICE("close"));
    return status < 0 ? status : http_write_head_end(buf);
}

/* The worker has begun to answer: it prefills for us no longer. */
static void count_first_byte(struct exchange *exchange)
{
    struct worker *worker = exchange->worker;

    if (exchange->is_decoding)
        return;
    exchange->is_decoding = true;
    worker->own.decoding++;
    worker->own.queued_tokens -= exchange->queued_tokens;
    exchange->queued_tokens = 0;
    load_share_touch(exchange->relay->loads);
    residency_guess_settle(exchange->relay->guess, exchange->making); /* its prompt is made */
}

/* The worker asks for a pause. One request gives a pause to one worker: a request that each of them
 * refuses, for what is in it or whom it is from, must not close the fleet to all others. */
static void note_refusal(struct exchange *exchange, const struct http_head *head, uint64_t now_ms)
{
    if (!exchange->has_paused)
        worker_mark_busy(exchange->worker, retry_after_ms(head), now_ms);
    exchange->has_paused = true;
}

static int on_head(void *ctx, const struct http_head *head)
{
    struct exchange *exchange = ctx;
    struct request_record *record = &exchange->client->record;
    uint64_t now_ms = io_loop_now_ms(exchange->relay->io);
    bool is_plain;

    exchange->has_answer_head = true;
    exchange->batch_us = clock_now_us();
    if (head->status < 500)
        exchange->worker->progress_ms = now_ms;
    if (retry_status_is_busy(head->status))
        note_refusal(exchange, head, now_ms);
    exchange->answer_kind = kind_of(exchange, head);
    if (exchange->answer_kind != ANSWER_RELAYED)
        return 0;

    exchange->is_sse = has_type(head, SLICE("text/event-stream"));
    exchange->is_ok = head->status == 200;
    is_plain = exchange->is_ok && http_head_find(head, SLICE("Content-Encoding")) == NULL;
    exchange->has_events = exchange->is_sse && is_plain;
    if (is_plain && exchange->asks_ids &&
        exchange_begin_echo(exchange, exchange->is_sse ? note_out : note_whole) < 0)
        exchange->has_no_memory = true;
    stream_filter_init(&exchange->filter,
                       exchange->has_events && exchange->asks_usage && !exchange->wants_usage,
                       on_event, exchange->echo != NULL ? exchange_feed_echo : note_out, exchange);
    record->status = head->status;
    exchange->history.was_begun |= retry_status_was_begun(head->status);
    if (!exchange->is_sse && exchange->is_ok)
        record->token_us = exchange->batch_us;
    if (write_client_head(exchange, head) < 0)
        exchange->has_no_memory = true;
    exchange->is_kept_alive = exchange_may_be_kept_alive(exchange);
    return 0;
}

static int on_body(void *ctx, struct slice piece)
{
    struct exchange *exchange = ctx;

    exchange->relay->stats.worker_received_bytes_total += piece.len;
    if (exchange->answer_kind != ANSWER_RELAYED)
        return 0;
    if (exchange->is_sse) {
        if (exchange->filter.sse.offset == 0)
            exchange->batch_us = clock_now_us(); /* the head was held until now */
        if (stream_filter_feed(&exchange->filter, piece) < 0)
            exchange->has_no_memory = true;
        return 0;
    }
    return exchange->echo != NULL ? exchange_feed_echo(exchange, piece)
                                  : note_whole(exchange, piece);
}

/* A stream that ends without its API's last event, and without the engine having said why it
 * stopped: whoever ended it, it was no answer. */
static bool breaks_off(const struct exchange *exchange)
{
    const struct answer_stream *answer = &exchange->answer;

    return exchange->has_events && !answer->has_done && !answer->has_finished && !answer->has_error;
}

static int on_end(void *ctx)
{
    struct exchange *exchange = ctx;

    if (exchange->answer_kind == ANSWER_RELAYED && breaks_off(exchange)) {
        exchange->has_broken_off = true;
        return 0;
    }
    exchange->has_answer_end = true;
    if (exchange->answer_kind == ANSWER_RELAYED && exchange->is_sse &&
        stream_filter_finish(&exchange->filter) < 0)
        exchange->has_no_memory = true;
    return 0;
}

/* ---- progress ---- */

/* The answer is complete and with the client, or with the kernel on its way there. */
static void finish(struct exchange *exchange)
{
    struct client_conn *client = exchange->client;
    bool keep_alive = !client->is_close_delimited;
    uint64_t now_ms = io_loop_now_ms(exchange->relay->io);
    int status = client->record.status;

    /* 4xx is the client's fault, and shows no more than that somebody answers: a server whose
     * engine is dead refuses bad requests as well as ever. An engine that died says so behind the
     * head of a stream too, to everybody who asks, until its process ends. 503 is back pressure, or
     * a dead engine: which of them, its probes find out. An engine that does not have an endpoint
     * (501) is well. */
    if (retry_status_was_begun(status) || retry_status_was_begun((int)exchange->answer.error_code))
        exchange_mark_failure(exchange);
    else if (status < 400)
        worker_mark_success(exchange->worker, exchange->attempt_us / 1000, now_ms);
    if (exchange->is_ok)
        poison_table_clear(&exchange->relay->poison, exchange->body_name);
    exchange_learn(exchange);
    exchange_destroy(exchange);
    client_conn_answer_end(client, keep_alive, END_OK);
}

/* A stream's head has come and nothing behind it: the client has not seen it, so that the request
 * may still be asked elsewhere if this worker dies in prefill. */
static bool is_head_held(const struct exchange *exchange)
{
    return exchange->state == EXCHANGE_SEND && exchange->has_answer_head && exchange->is_sse &&
           exchange->filter.sse.offset == 0 && !exchange->has_answer_end;
}

static enum attempt_failure failure_of(const struct exchange *exchange, int status)
{
    if (status == -EBADMSG)
        return ATTEMPT_PROTOCOL;
    if (!worker_conn_has_answer_bytes(exchange->conn))
        return worker_conn_is_reused(exchange->conn) ? ATTEMPT_STALE : ATTEMPT_DIED;
    /* Engines send a stream's head before they prefill: only its body is a beginning. */
    return is_head_held(exchange) ? ATTEMPT_DIED : ATTEMPT_HALF_ANSWERED;
}

/* The worker died, sent nonsense, or ended the stream in the middle of an answer. */
static void truncate_answer(struct exchange *exchange, int status)
{
    bool is_protocol = status == -EBADMSG;

    exchange_mark_failure(exchange);
    exchange->relay->stats.protocol_faults_total[FAULT_WORKER] += is_protocol;
    if (!is_protocol && !exchange->has_broken_off)
        exchange_note_death(exchange);
    exchange_learn_usage(exchange);
    exchange_fail(exchange,
                  &(struct api_error){
                      502, is_protocol ? "upstream_protocol_error" : "upstream_closed", NULL,
                      exchange->has_broken_off ? "The worker ended its answer before it was whole."
                                               : "The worker died in the middle of its answer."},
                  is_protocol ? END_UPSTREAM_PROTOCOL : END_UPSTREAM_TRUNCATED);
}

/* The answer is about to leave: no retry from here on. */
static void begin_relay(struct exchange *exchange)
{
    exchange_move(exchange, EXCHANGE_EVENT_ANSWERED);
    deadline_disarm(&exchange->silence); /* of the head, which goes now */
    exchange->history.has_answered = true;
    /* It took plain what it had refused with our splices: it is not asked for that again. Of both
     * at once, ids are what fewer engines know; if it was the usage, the next answer shows. */
    if (exchange->was_usage_refused && exchange->is_ok) {
        if (exchange->were_ids_refused)
            exchange->worker->traits.refuses_ids = true;
        else
            exchange->worker->traits.refuses_usage = true;
    }
}

/* The request's memory is not needed for an open stream. */
static void forget_request(struct exchange *exchange)
{
    if (!worker_conn_is_sent(exchange->conn))
        return;
    if (!exchange_keeps_body(exchange))
        buf_release(&exchange->body);
    buf_release(&exchange->request_head);
    buf_release(&exchange->head);
    worker_conn_forget_head(exchange->conn);
}

void exchange_pass_head(struct exchange *exchange)
{
    begin_relay(exchange);
    flush(exchange, false);
    forget_request(exchange);
}

void exchange_write_own(struct exchange *exchange, struct slice text)
{
    struct relay_out *out = &exchange->relay->out;

    assert(out->count == 0);

    out->slices[out->count++] = text;
    out->bytes = text.len;
    flush(exchange, false); /* a client that is lost is noticed by reading */
}

static void relay_batch(struct exchange *exchange, int status)
{
    struct client_conn *client = exchange->client;
    bool is_first = exchange->state == EXCHANGE_SEND;

    if (is_first)
        begin_relay(exchange);
    if (status == 0) /* behind an early head it may have died without a byte */
        count_first_byte(exchange);
    /* A worker that dies behind its [DONE] has taken nothing away. */
    if (status < 0 && exchange->is_sse && exchange->answer.has_done &&
        exchange_is_open_ended(exchange))
        exchange->has_answer_end = true;
    flush(exchange, exchange->has_answer_end);
    if (is_first)
        client->record.overhead_us += clock_now_us() - exchange->batch_us;
    if (status == 0) { /* its client comes first */
        exchange_tell_begun(exchange);
        exchange_tell_echo(exchange);
    }

    if (exchange->is_client_lost || exchange->has_no_memory) {
        enum end_reason reason = exchange->is_client_lost ? END_CLIENT_ABORT : END_INTERNAL;

        (void)exchange_abandon(exchange);
        client_conn_cut(client, reason);
    } else if (exchange->has_answer_end) {
        finish(exchange);
    } else if (status < 0) {
        truncate_answer(exchange, status);
    } else {
        if (is_first || buf_len(&exchange->body) > 0)
            forget_request(exchange);
        if (client_conn_is_congested(client)) {
            worker_conn_pause(exchange->conn);
            deadline_disarm(&exchange->deadline); /* the client's stall is waited for instead */
        } else {
            relay_wait(exchange->relay, RELAY_WAIT_UPSTREAM_IDLE, &exchange->deadline);
        }
        if (exchange->is_kept_alive)
            exchange_await_silence(exchange);
    }
}

static void on_progress(void *ctx, int status)
{
    struct exchange *exchange = ctx;
    bool has_head = exchange->has_answer_head;

    if (status == 0 && exchange->has_broken_off)
        status = -EPIPE;
    if (is_head_held(exchange)) {
        if (status < 0)
            exchange_attempt_failed(exchange, failure_of(exchange, status));
        else
            exchange_await_silence(exchange);
        return;
    }
    if (exchange->state == EXCHANGE_RELAY ||
        (has_head && exchange->answer_kind == ANSWER_RELAYED)) {
        if (exchange->client->record.status < 500)
            exchange->worker->progress_ms = io_loop_now_ms(exchange->relay->io);
        relay_batch(exchange, status);
    } else if (has_head && (exchange->has_answer_end || status < 0)) {
        /* It was read to its end so that the connection lives on. */
        exchange_attempt_failed(
            exchange, exchange->answer_kind == ANSWER_BUSY ? ATTEMPT_BUSY : ATTEMPT_USAGE_REFUSED);
    } else if (status < 0) {
        exchange_attempt_failed(exchange, failure_of(exchange, status));
    }
}

static void on_connected(void *ctx, int status)
{
    struct exchange *exchange = ctx;

    exchange->client->record.connect_us += clock_now_us() - exchange->attempt_us;
    if (status < 0)
        exchange_attempt_failed(exchange, ATTEMPT_CONNECT_FAILED);
    else
        exchange_send(exchange);
}

const struct worker_conn_callbacks exchange_worker_callbacks = {
    on_connected, on_head, on_body, on_end, on_progress,
};

void exchange_client_drained(struct exchange *exchange)
{
    if (exchange->state != EXCHANGE_RELAY || exchange->conn == NULL)
        return;
    relay_wait(exchange->relay, RELAY_WAIT_UPSTREAM_IDLE, &exchange->deadline);
    worker_conn_resume(exchange->conn);
}
