/* SPDX-License-Identifier: Apache-2.0 */

#include "router/exchange.h"

#include "backends/http/worker_pool.h"
#include "router/client_conn.h"
#include "router/join/attempt_notes.h"
#include "router/relay.h"

/*
 * DESIGN
 *
 * An answer that has begun shows that the engine has read the prompt: from then on its blocks are
 * there to be joined with the text. The body, which nobody needs any more by then (there is no
 * retry behind an answer's first byte), goes to attempt_notes instead of being freed, since the
 * engine is asked about it once more.
 */
static struct attempt_begun begun_of(struct exchange *exchange)
{
    bool is_sent = worker_conn_is_sent(exchange->conn);

    return (struct attempt_begun){
        .worker = exchange->worker,
        .attempt_id = exchange->client->record.attempt_id,
        .model_id = exchange->model_id,
        .plan = &exchange->plan,
        .blocks = exchange->blocks,
        .block_count = exchange->block_count,
        .closed_count = exchange->closed_count,
        .exact_count = exchange->claimed_count,
        .layout = exchange->layout,
        .before_tools_count = exchange->before_tools_count,
        .before_tools_bytes = exchange->before_tools_bytes,
        .predicted_ttft_ms = exchange->client->record.predicted_ttft_ms,
        .body = is_sent ? &exchange->body : NULL,
        .splice_at = exchange->splice_at,
        .has_echo = exchange->asks_ids,
    };
}

bool exchange_wants_echo(struct exchange *exchange)
{
    struct attempt_begun begun = begun_of(exchange);

    begun.has_echo = true;
    return exchange->relay->join != NULL && !exchange->has_begun_notes &&
           attempt_notes_want_echo(exchange->relay->join, &begun);
}

struct token_naming exchange_echo_naming(struct exchange *exchange)
{
    const struct attempt_begun begun = begun_of(exchange);

    return attempt_notes_naming(exchange->relay->join, &begun);
}

static void begin_notes(struct exchange *exchange)
{
    const struct attempt_begun begun = begun_of(exchange);
    enum anchor_outcome why_not;

    exchange->has_begun_notes = true;
    exchange->notes = attempt_notes_begin(exchange->relay->join, &begun, &why_not);
    if (exchange->notes == NULL)
        exchange->client->record.anchor = anchor_outcome_name(why_not);
}

static bool is_told(const struct exchange *exchange)
{
    return exchange->relay->join != NULL && !exchange->has_begun_notes &&
           api_work(exchange->api) == API_WORK_GENERATE;
}

void exchange_tell_sent(struct exchange *exchange)
{
    if (is_told(exchange) && attempt_notes_are_due_at_send(exchange->relay->join, exchange->worker))
        begin_notes(exchange);
}

void exchange_tell_begun(struct exchange *exchange)
{
    if (is_told(exchange) && exchange->is_ok)
        begin_notes(exchange);
}

bool exchange_keeps_body(const struct exchange *exchange)
{
    return is_told(exchange) && exchange->is_ok && exchange->plan.source != ANCHOR_SOURCE_NONE;
}

void exchange_tell_usage(struct exchange *exchange)
{
    const struct answer_usage *usage = &exchange->answer.usage;
    bool has_cached = usage->has_cached && usage->cached_tokens < UINT32_MAX;

    if (exchange->notes != NULL && usage->is_known)
        attempt_notes_usage(exchange->notes, usage->prompt_tokens,
                            has_cached ? (uint32_t)usage->cached_tokens : UINT32_MAX);
}

void exchange_tell_answer(struct exchange *exchange, const struct block *blocks, size_t count)
{
    if (exchange->notes != NULL)
        attempt_notes_answer(exchange->notes, blocks, count,
                             exchange->answer.usage.completion_tokens);
}

void exchange_end_notes(struct exchange *exchange)
{
    enum anchor_outcome outcome;

    if (exchange->notes != NULL) {
        exchange->client->record.anchor = attempt_notes_outcome(exchange->notes, &outcome)
                                              ? anchor_outcome_name(outcome)
                                              : "pending";
        attempt_notes_end(&exchange->notes);
    }
    exchange->has_begun_notes = false;
}
