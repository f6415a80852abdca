/* SPDX-License-Identifier: Apache-2.0 */

#include "router/exchange.h"

#include <stdlib.h>

#include "backends/http/worker_conn.h"
#include "router/client_conn.h"
#include "router/join/attempt_notes.h"
#include "router/prompt/echo_strip.h"
#include "router/relay.h"

/*
 * DESIGN
 *
 * Where a worker has no endpoint that says how many tokens a prompt is, its answer can: asked with
 * return_token_ids it carries the prompt's ids, and those of the answer. This is the one case in
 * which an answer is rewritten (echo_strip), and only by --anchor-echo. The ids go from the answer
 * into the digest of their block, a block at a time, and nowhere else; what the router reads of the
 * answer, and keeps of it for a moment, is what the client gets.
 *
 * An engine that refuses the member, or that passes over it, is not asked again. A client that
 * wrote it itself gets what it asked for: its body is not added to and its answer not touched.
 */
#define ECHO_SPLICE SLICE("\"return_token_ids\":true,")

struct exchange_echo {
    struct echo_strip strip;
    struct token_anchor_maker maker;
    bool is_too_long;
    bool is_told;
};

struct slice exchange_echo_splice(struct exchange *exchange)
{
    exchange->asks_ids = exchange->may_ask_ids && exchange->relay->config.anchor_echo &&
                         exchange->worker->engine == ENGINE_VLLM &&
                         !exchange->worker->traits.refuses_ids && exchange_wants_echo(exchange);
    return exchange->asks_ids ? ECHO_SPLICE : SLICE("");
}

static void on_id(void *ctx, uint32_t id)
{
    const struct exchange *exchange = ctx;
    struct exchange_echo *echo = exchange->echo;

    echo->is_too_long |= !token_anchor_maker_add(&echo->maker, id);
}

int exchange_begin_echo(struct exchange *exchange, echo_out_fn *on_out)
{
    struct exchange_echo *echo = malloc(sizeof *echo);

    if (echo == NULL)
        return -ENOMEM;
    echo->is_too_long = false;
    echo->is_told = false;
    echo_strip_init(&echo->strip, exchange->is_sse, on_out, on_id, exchange);
    token_anchor_maker_init(&echo->maker, exchange_echo_naming(exchange));
    exchange->echo = echo;
    return 0;
}

int exchange_feed_echo(void *ctx, struct slice bytes)
{
    struct exchange *exchange = ctx;

    return echo_strip_feed(&exchange->echo->strip, bytes);
}

void exchange_tell_echo(struct exchange *exchange)
{
    struct exchange_echo *echo = exchange->echo;
    struct token_anchor anchor;

    if (echo == NULL || echo->is_told || exchange->notes == NULL ||
        echo->strip.ids != ECHO_IDS_WHOLE || echo->is_too_long)
        return;
    token_anchor_maker_finish(&echo->maker, &anchor);
    attempt_notes_echoed(exchange->notes, &anchor);
    echo->is_told = true;
}

void exchange_end_echo(struct exchange *exchange)
{
    if (exchange->echo != NULL && exchange->has_answer_end &&
        exchange->echo->strip.ids == ECHO_IDS_NONE)
        exchange->worker->traits.refuses_ids = true;
    free(exchange->echo);
    exchange->echo = NULL;
    exchange->asks_ids = false;
}
