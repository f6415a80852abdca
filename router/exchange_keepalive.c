/* SPDX-License-Identifier: Apache-2.0 */

#include "router/exchange.h"

#include <assert.h>

#include "router/client_conn.h"
#include "router/relay.h"

/*
 * DESIGN
 *
 * Proxies and clients give a silent stream up; a long prefill is silent. Two things help, both off
 * unless asked for, since the client sees them.
 *
 * The head of a stream is held until something follows, so that a worker that dies in prefill costs
 * nothing. After early-head-ms it goes out all the same: the status is the worker's own, and what
 * fails from then on is told within the stream.
 *
 * Between two events, after keepalive-ms of silence, comes what the API's clients skip. For
 * OpenAI's that is one comment line, which begins the next event: an empty line behind it would
 * make some decoders give out an empty event. Anthropic's API has an event for it. A stream of
 * responses numbers its events and has none that says nothing, and its clients do not take comments
 * for life: nothing is sent there. A worker that keeps its stream alive itself is left to do so.
 */
static const char *const keepalives[] = {
    [API_FAMILY_OPENAI] = ": keepalive\n",
    [API_FAMILY_RESPONSES] = "",
    [API_FAMILY_ANTHROPIC] = "event: ping\ndata: {\"type\": \"ping\"}\n\n",
};
static_assert(array_count(keepalives) == API_FAMILY_COUNT, "every family has its own");

static struct slice keepalive_of(const struct exchange *exchange)
{
    return slice_of_string(keepalives[api_family(exchange->api)]);
}

void exchange_await_silence(struct exchange *exchange)
{
    if (exchange->state == EXCHANGE_SEND)
        relay_wait(exchange->relay, RELAY_WAIT_EARLY_HEAD, &exchange->silence);
    else if (exchange->is_kept_alive)
        relay_wait(exchange->relay, RELAY_WAIT_KEEPALIVE, &exchange->silence);
}

bool exchange_may_be_kept_alive(const struct exchange *exchange)
{
    return exchange->relay->config.wait_ms[RELAY_WAIT_KEEPALIVE] > 0 && exchange->has_events &&
           exchange_is_open_ended(exchange) && keepalive_of(exchange).len > 0;
}

/* What is written now is read as ours, and is of use. */
static bool is_place(const struct exchange *exchange)
{
    const struct sse_reader *sse = &exchange->filter.sse;

    return !sse->has_comments && !exchange->has_pings && !exchange->answer.has_done &&
           !exchange->answer.has_error && outbox_bytes(&exchange->client->outbox) == 0 &&
           stream_filter_is_at_boundary(&exchange->filter) && !sse_reader_is_after_cr(sse);
}

void exchange_keepalive_due(struct deadline *silence)
{
    struct exchange *exchange = container_of(silence, struct exchange, silence);

    if (is_place(exchange)) {
        exchange->relay->stats.keepalives_total++;
        exchange_write_own(exchange, keepalive_of(exchange));
    }
    exchange_await_silence(exchange);
}

void exchange_early_head_due(struct deadline *silence)
{
    struct exchange *exchange = container_of(silence, struct exchange, silence);

    exchange_pass_head(exchange);
    exchange_await_silence(exchange);
}
