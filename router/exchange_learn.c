/* SPDX-License-Identifier: Apache-2.0 */

#include "router/exchange.h"

#include "backends/runtime/log.h"
#include "router/client_conn.h"
#include "router/join/place_asker.h"
#include "router/relay.h"

/*
 * DESIGN
 *
 * An answer teaches four things: what the prompt cost and how much of it was cached (which checks
 * the prediction), how many tokens a byte is, what the worker holds from now on, and by which id
 * it can be asked for. One to a prompt with tools has its worker asked where they stand. Only what
 * generates teaches the first three: a response that is read again, or numbers computed from an
 * input, leave nothing behind.
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

/* At most so many of a prompt's tokens can be cached: an engine computes the last one in any case,
 * and with it the block it is in. */
static double cached_tokens_max(const struct exchange *exchange, uint64_t prompt_tokens)
{
    uint32_t block_tokens = relay_agent(exchange->relay, exchange->worker).block_tokens;

    if (prompt_tokens == 0)
        return 0;
    return block_tokens == 0 ? (double)prompt_tokens
                             : (double)((prompt_tokens - 1) / block_tokens * block_tokens);
}

/* What an agent claims is in tokens. What was guessed beyond it is a share of the rest of the
 * prompt, whose size in tokens was an estimate until now. */
static void finish_prediction(struct exchange *exchange, const struct answer_usage *usage)
{
    struct request_record *record = &exchange->client->record;
    double claimed = record->claimed_tokens;
    double guessed = record->predicted_cached_tokens - claimed;
    double estimated_rest = exchange->prompt_tokens - claimed;
    double rest = (double)usage->prompt_tokens - claimed;
    double max = cached_tokens_max(exchange, usage->prompt_tokens);

    if (estimated_rest > 0)
        guessed *= rest > 0 ? rest / estimated_rest : 0;
    record->predicted_cached_tokens = claimed + guessed < max ? claimed + guessed : max;
    if (record->claimed_tokens > max)
        record->claimed_tokens = max;
    if (exchange->promised_tokens > max)
        exchange->promised_tokens = max;
}

/* A worker whose agent is not believed any more is what answers say it is. */
static void correct_guess(struct exchange *exchange, const struct answer_usage *usage)
{
    size_t kept = 0;

    while (kept < exchange->block_count &&
           (double)exchange->blocks[kept].end * (double)usage->prompt_tokens <=
               (double)usage->cached_tokens * (double)exchange->prompt_bytes)
        kept++;
    residency_guess_correct(exchange->relay->guess, exchange->worker->index, exchange->blocks,
                            exchange->block_count, kept);
}

/* The truth of what its agent claimed. */
static void judge_agent(struct exchange *exchange, const struct answer_usage *usage)
{
    struct relay *relay = exchange->relay;
    const struct worker *worker = exchange->worker;

    if (relay->sync == NULL)
        return;
    if (residency_sync_answered(relay->sync, worker->index, exchange->promised_tokens,
                                (double)usage->cached_tokens, io_loop_now_ms(relay->io)))
        LOG(LOG_WARN, "agent_quarantined", log_text("worker", worker->name),
            log_text("why", "its engine does not have what it claims"));
    if (relay_agent(relay, worker).doubt == RESIDENCY_DOUBT_TRUST)
        correct_guess(exchange, usage);
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
    if (exchange->has_one_prompt)
        finish_prediction(exchange, usage);
    error = record->predicted_cached_tokens - (double)usage->cached_tokens;
    stats->cached_tokens_total += usage->cached_tokens;
    stats->predicted_tokens_total += (uint64_t)record->predicted_cached_tokens;
    stats->prediction_error_tokens_total += (uint64_t)(error < 0 ? -error : error);
    if (exchange->has_one_prompt)
        judge_agent(exchange, usage);
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
    if (exchange->has_tools)
        place_asker_note(exchange->relay->place_asker, exchange->worker, exchange->model_id);
    exchange_note_response(exchange);
    exchange_learn_usage(exchange);
    if (exchange->prompt_bytes > 0)
        learn_answer(exchange);
}
