/* SPDX-License-Identifier: Apache-2.0 */

#include "router/exchange.h"

#include "router/client_conn.h"
#include "router/relay.h"

/*
 * DESIGN
 *
 * An answer teaches four things: what the prompt cost and how much of it was cached (which checks
 * the prediction), how many tokens a byte is, what the worker holds from now on, and by which id
 * it can be asked for. Only what generates teaches the first three: a response that is read again,
 * or numbers computed from an input, leave nothing behind.
 */
#define TOKENS_PER_BYTE_WEIGHT 0.1 /* of the newest answer in the average */

static void learn_tokens_per_byte(struct exchange *exchange, const struct answer_usage *usage)
{
    struct relay *relay = exchange->relay;
    double ratio;

    if (exchange->has_exact_tokens || exchange->prompt_bytes < 256 || !exchange->has_one_prompt)
        return;
    ratio = (double)usage->prompt_tokens / (double)exchange->prompt_bytes;
    if (ratio > 0.01 && ratio < 4) /* outside of it, usage counts something else */
        relay->tokens_per_byte += TOKENS_PER_BYTE_WEIGHT * (ratio - relay->tokens_per_byte);
}

void exchange_learn_usage(struct exchange *exchange)
{
    const struct answer_usage *usage = &exchange->answer.usage;
    struct request_record *record = &exchange->client->record;
    struct worker_stats *stats = &exchange->worker->stats;
    double error;

    record->event_count = exchange->answer.event_count;
    record->is_done_missing = exchange->has_events && exchange->has_answer_end &&
                              !exchange->answer.has_done && !exchange->answer.has_error;
    /* A response that is read again was counted when it was made. */
    if (!usage->is_known || api_work(exchange->api) != API_WORK_GENERATE)
        return;
    record->has_usage = true;
    record->has_cached = usage->has_cached;
    record->prompt_tokens = usage->prompt_tokens;
    record->completion_tokens = usage->completion_tokens;
    record->cached_tokens = usage->cached_tokens;
    stats->prompt_tokens_total += usage->prompt_tokens;
    exchange_tell_usage(exchange);
    learn_tokens_per_byte(exchange, usage);
    if (!usage->has_cached || exchange->block_count == 0) /* nothing was predicted */
        return;
    /* What was predicted is a share of the prompt; its size in tokens was an estimate until now. */
    if (exchange->has_one_prompt && exchange->prompt_tokens > 0)
        record->predicted_cached_tokens *= (double)usage->prompt_tokens / exchange->prompt_tokens;
    error = record->predicted_cached_tokens - (double)usage->cached_tokens;
    stats->cached_tokens_total += usage->cached_tokens;
    stats->predicted_tokens_total += (uint64_t)record->predicted_cached_tokens;
    stats->prediction_error_tokens_total += (uint64_t)(error < 0 ? -error : error);
}

/* The answer's text is the next turn's prefix: the worker holds that too. */
static void learn_answer(struct exchange *exchange)
{
    struct block parent = {0, 0};
    size_t count;
    const struct block *blocks = answer_stream_finish(&exchange->answer, &count);

    if (count == 0)
        return;
    exchange_tell_answer(exchange, blocks, count);
    if (exchange->closed_count > 0)
        parent = exchange->blocks[exchange->closed_count - 1];
    residency_guess_extend(exchange->relay->guess, exchange->worker->index, parent, blocks, count,
                           exchange->prompt_tokens / (double)exchange->prompt_bytes);
}

void exchange_learn(struct exchange *exchange)
{
    if (!exchange->is_ok || !exchange->has_answer)
        return;
    if (exchange->api == API_RESPONSE_BY_ID)
        exchange_note_deleted(exchange);
    if (!exchange->is_sse && buf_len(&exchange->answer_body) > 0)
        (void)answer_stream_body(&exchange->answer, exchange->relay->scanner,
                                 buf_slice(&exchange->answer_body));
    exchange_note_response(exchange);
    exchange_learn_usage(exchange);
    if (exchange->prompt_bytes > 0)
        learn_answer(exchange);
}
