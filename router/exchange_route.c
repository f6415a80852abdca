/* SPDX-License-Identifier: Apache-2.0 */

#include "router/exchange.h"

#include <assert.h>
#include <errno.h>

#include "backends/http/http_writer.h"
#include "backends/http/worker_pool.h"
#include "backends/runtime/clock.h"
#include "router/client_conn.h"
#include "router/load_share.h"
#include "router/policy/affinity.h"
#include "router/policy/policy_defaults.h"
#include "router/policy/prefill_rate.h"
#include "router/policy/tier_cost.h"
#include "router/prefetch_hint.h"
#include "router/relay.h"

/*
 * DESIGN
 *
 * The choice itself is a policy's, which is pure: here its struct worker_view is filled from what
 * the router knows at this moment, and its answer is turned into an attempt. A choice counts at
 * once (own load, pending residency), so that the next request of a burst already sees it.
 */
#define SLOW_START_MS    10000.0
#define START_WEIGHT_MIN 0.2

enum { PENDING_MS_MIN = 2000 }; /* what was sent is being made so long, if nothing is heard of it */

/* ---- who may serve it ---- */

static bool was_tried(const struct exchange *exchange, uint64_t id)
{
    for (uint32_t i = 0; i < exchange->tried_count; i++) {
        if (exchange->tried[i] == id)
            return true;
    }
    return false;
}

/* Who is asked about, and under which circumstances. */
struct search {
    const struct exchange *exchange;
    const struct model *model;
    uint64_t now_ms;
    bool is_panic;        /* the ejected ones too: see worker_set.h */
    uint64_t free_ms_min; /* when the first of those that asked for a pause may be asked again; 0:
                           * none did */
};

static bool begin_search(struct search *search, const struct exchange *exchange)
{
    const struct relay *relay = exchange->relay;

    *search = (struct search){
        .exchange = exchange,
        .model = worker_set_find_model(relay->workers, slice_of_string(exchange->model_id)),
        .now_ms = io_loop_now_ms(relay->io),
    };
    if (search->model == NULL)
        return false;
    search->is_panic =
        worker_set_is_panic(relay->workers, search->model, relay->config.panic_percent);
    return true;
}

/* Whether worker, one of the model's, may be asked now. */
static bool is_eligible(struct search *search, struct worker *worker)
{
    bool takes = worker_takes_requests(worker, search->now_ms);

    if (was_tried(search->exchange, worker->id))
        return false;
    if (!worker_is_busy(worker, search->now_ms))
        return takes || (search->is_panic && worker_is_reachable(worker));
    if (worker_is_reachable(worker) &&
        (search->free_ms_min == 0 || worker->traffic.busy_until_ms < search->free_ms_min))
        search->free_ms_min = worker->traffic.busy_until_ms;
    return false;
}

bool exchange_has_other_worker(const struct exchange *exchange)
{
    const struct worker_set *workers = exchange->relay->workers;
    struct search search;

    if (exchange->is_pinned || !begin_search(&search, exchange))
        return false;
    for (size_t i = 0; i < search.model->worker_count; i++) {
        if (is_eligible(&search, worker_set_at(workers, search.model->workers[i])))
            return true;
    }
    return false;
}

/* ---- what is known of each ---- */

static double start_weight(const struct worker *worker, uint64_t now_ms)
{
    double share;

    /* At its first start nobody is warmer than it; a trial is one request. */
    if (worker->state_change_count <= 1 || worker->state != WORKER_UP)
        return 1;
    /* The loop's cached time may lie before the probe's. */
    share =
        now_ms > worker->up_since_ms ? (double)(now_ms - worker->up_since_ms) / SLOW_START_MS : 0;
    return share >= 1 ? 1 : share > START_WEIGHT_MIN ? share : START_WEIGHT_MIN;
}

static uint32_t capped(uint64_t count)
{
    return count < UINT32_MAX ? (uint32_t)count : UINT32_MAX;
}

/* Whether an agent can come to know such a prompt. */
static bool can_anchor(const struct exchange *exchange, const struct residency_agent *agent)
{
    return agent->has_anchors ||
           (agent->block_tokens > 0 && exchange->plan.source != ANCHOR_SOURCE_NONE);
}

static void note_claims(struct relay_known *known, const struct residency_match *claims,
                        const struct residency_agent *agent)
{
    const struct tier_facts tiers = {.bytes_per_token = agent->bytes_per_token,
                                     .cpu_bytes_per_s = agent->cpu_bytes_per_s,
                                     .ssd_bytes_per_s = agent->ssd_bytes_per_s,
                                     .cpu_start_us = agent->cpu_start_us,
                                     .ssd_start_us = agent->ssd_start_us,
                                     .cpu_queue_ms = agent->cpu_queue_ms,
                                     .ssd_queue_ms = agent->ssd_queue_ms};

    known->claimed_count = claims->block_count;
    known->facts.claimed_bytes = claims->bytes;
    known->facts.claimed_tokens = claims->tokens;
    known->facts.claimed_cpu_tokens = claims->cpu_tokens;
    known->facts.claimed_ssd_tokens = claims->ssd_tokens;
    known->cpu = tier_cost_cpu(&tiers, claims->cpu_tokens);
    known->ssd = tier_cost_ssd(&tiers, claims->ssd_tokens);
}

/* relay->claims and relay->matches are of this prompt. */
static struct relay_known known_of(const struct exchange *exchange, const struct worker *worker)
{
    const struct relay *relay = exchange->relay;
    const struct block *blocks = exchange->blocks;
    struct residency_agent agent = relay_agent(relay, worker);
    struct relay_known known = {.doubt = agent.doubt,
                                .prefill_tokens_per_ms = agent.prefill_tokens_per_s / 1e3};
    struct ladder_facts *facts = &known.facts;
    uint64_t end = 0;

    if (agent.has_claims)
        note_claims(&known, &relay->claims[agent.holder], &agent);
    known.matched_count = relay->matches[worker->index].block_count;
    if (known.claimed_count > 0)
        known.matched_count = known.claimed_count + (uint32_t)residency_guess_run(
                                                        relay->guess, worker->index, blocks,
                                                        known.claimed_count, exchange->block_count);
    if (known.matched_count > 0)
        end = blocks[known.matched_count - 1].end;
    facts->guessed_bytes = end - facts->claimed_bytes;
    if (facts->guessed_bytes > 0)
        facts->pending_bytes = residency_guess_pending(
            relay->guess, worker->index, blocks, known.matched_count, io_loop_now_ms(relay->io));
    facts->is_believed = agent.is_believed;
    facts->is_whole = agent.is_whole;
    facts->can_anchor = can_anchor(exchange, &agent);
    return known;
}

static struct worker_view view_of(const struct relay *relay, const struct worker *worker,
                                  const struct relay_known *known)
{
    const struct ladder_step *step = &known->step;
    struct load_sum others = load_share_find(relay->loads, worker->name_hash);

    return (struct worker_view){
        .worker = worker->index,
        .rung = step->rung,
        .matched_tokens = step->matched_tokens,
        .pending_tokens = step->pending_tokens,
        .near_tokens = step->near_tokens,
        .cpu = known->cpu,
        .ssd = known->ssd,
        .in_flight = capped(worker->own.in_flight + others.in_flight),
        .queued_tokens = worker->own.queued_tokens + (double)others.queued_tokens,
        .decoding = capped(worker->own.decoding + others.decoding),
        .has_report = worker->report.is_known,
        .reported_running = worker->report.running,
        .reported_waiting = worker->report.waiting,
        .reported_ms = worker->report.at_ms,
        .prefill_tokens_per_ms = known->prefill_tokens_per_ms,
        .decode_ms_per_token = POLICY_DECODE_MS_PER_TOKEN_DEFAULT,
        .decode_ms_per_request = POLICY_DECODE_MS_PER_REQUEST_DEFAULT,
        .chosen_ms = worker->chosen_ms,
        .chosen_count = worker->stats.chosen_total,
        .start_weight = start_weight(worker, io_loop_now_ms(relay->io)),
        .name_hash = worker->name_hash,
    };
}

/* The key of the session that a header names, or the body. 0: neither does. */
static uint64_t session_of(const struct exchange *exchange)
{
    const struct relay *relay = exchange->relay;
    const struct option_list *names = &relay->config.session_headers;

    for (size_t i = 0; i < names->count; i++) {
        const struct http_header *header =
            http_head_find(exchange->client->head, slice_of_string(names->items[i]));

        if (header != NULL && header->value.len > 0)
            return affinity_session(header->value.ptr, header->value.len);
    }
    return exchange->body_session;
}

/* Nobody holds any of it: where would another router, or this one before a restart, have sent it?
 */
static void fill_affinity(const struct exchange *exchange, struct route_query *query, size_t count)
{
    struct relay *relay = exchange->relay;
    uint64_t session = session_of(exchange);
    uint64_t first_block = exchange->block_count > 0 ? exchange->blocks[0].hash : 0;

    affinity_choose(query, session, first_block);
    affinity_mark(query, relay->views, count);
}

/* What is known of each that may serve it, by relay->knowns; their workers are noted in
 * relay->views. */
static size_t fill_knowns(const struct exchange *exchange, struct search *search)
{
    struct relay *relay = exchange->relay;
    size_t count = 0;

    residency_index_match(relay->guess_index, exchange->blocks, exchange->block_count,
                          relay->matches, worker_set_count(relay->workers));
    if (relay->index != NULL)
        residency_index_match(relay->index, exchange->blocks, exchange->block_count, relay->claims,
                              residency_sync_holder_end(relay->sync));
    for (size_t i = 0; i < search->model->worker_count; i++) {
        struct worker *worker = worker_set_at(relay->workers, search->model->workers[i]);

        if (!is_eligible(search, worker))
            continue;
        relay->views[count].worker = worker->index;
        relay->knowns[count++] = known_of(exchange, worker);
    }
    return count;
}

/* How many tokens the prompt has: of its start an agent may know it better than an estimate, the
 * more of it the better. */
static double count_tokens(const struct exchange *exchange, size_t count)
{
    struct ladder_prompt prompt = {exchange->prompt_bytes, exchange->prompt_tokens};
    const struct ladder_facts *deepest = &exchange->relay->knowns[0].facts;

    for (size_t i = 1; i < count; i++) {
        const struct ladder_facts *facts = &exchange->relay->knowns[i].facts;

        if (facts->is_believed && facts->claimed_bytes > deepest->claimed_bytes)
            deepest = facts;
    }
    if (exchange->has_exact_tokens || !deepest->is_believed)
        return prompt.tokens;
    return ladder_prompt_tokens(&prompt, deepest->claimed_bytes, deepest->claimed_tokens);
}

/* Fills relay->views, exchange->prompt_tokens and the rest of query; returns how many may serve it.
 */
static size_t fill_views(struct exchange *exchange, struct search *search,
                         struct route_query *query)
{
    struct relay *relay = exchange->relay;
    struct ladder_prompt prompt = {.bytes = exchange->prompt_bytes};
    size_t count = fill_knowns(exchange, search);
    bool is_known = false;

    if (count == 0)
        return 0;
    exchange->prompt_tokens = prompt.tokens = query->prompt_tokens = count_tokens(exchange, count);
    for (size_t i = 0; i < count; i++) {
        struct relay_known *known = &relay->knowns[i];

        known->step = ladder_step_of(&prompt, &known->facts);
        is_known |= known->matched_count > 0;
        relay->views[i] =
            view_of(relay, worker_set_at(relay->workers, relay->views[i].worker), known);
    }
    prefill_rate_fill(relay->views, count);
    /* What only computes leaves nothing behind that a session would come back for. */
    if (!is_known && count > 1 && api_work(exchange->api) == API_WORK_GENERATE)
        fill_affinity(exchange, query, count);
    return count;
}

/* ---- the attempt ---- */

static void note_choice(struct exchange *exchange, uint32_t choice)
{
    const struct relay *relay = exchange->relay;
    const struct relay_known *known = &relay->knowns[choice];
    const struct worker_view *view = &relay->views[choice];
    const struct route_terms *terms = &relay->terms[choice];
    struct request_record *record = &exchange->client->record;

    exchange->given_ms = terms->prefill_ms;
    exchange->matched_tokens = view->matched_tokens;
    exchange->matched_count = known->matched_count;
    exchange->promised_tokens = known->facts.is_believed ? known->step.near_tokens : 0;
    exchange->claimed_count = known->claimed_count;
    exchange->doubt = known->doubt;
    record->rung = view->rung;
    record->policy = relay->policy->name;
    record->matched_block_count = known->matched_count;
    record->claimed_block_count = known->claimed_count;
    record->predicted_cached_tokens = view->matched_tokens;
    record->predicted_ttft_ms = terms->total_ms;
    record->claimed_tokens = known->step.claimed_tokens;
    record->cpu_tokens = known->step.cpu_tokens;
    record->ssd_tokens = known->step.ssd_tokens;
    record->move_ms = terms->move_ms;
    record->prefill_ms = terms->prefill_ms;
}

/* What was matched: where it lies, and how it is known. */
static void count_matched(const struct request_record *record, struct router_stats *stats)
{
    const double matched = record->predicted_cached_tokens;
    const double far = record->cpu_tokens + record->ssd_tokens;

    stats->matched_tokens_total[MATCH_TIER_HBM] += (uint64_t)(matched - far);
    stats->matched_tokens_total[MATCH_TIER_CPU] += (uint64_t)record->cpu_tokens;
    stats->matched_tokens_total[MATCH_TIER_SSD] += (uint64_t)record->ssd_tokens;
    stats->matched_tokens_claimed_total += (uint64_t)record->claimed_tokens;
    stats->matched_tokens_guessed_total += (uint64_t)(matched - record->claimed_tokens);
    if (record->move_ms > 0)
        histogram_observe(&stats->predicted_move_seconds, record->move_ms / 1000);
}

/* What the worker's agent does not claim, we remember having sent; where it is not believed, what
 * it claims too, which may be forgotten. */
static void learn_prompt(struct exchange *exchange)
{
    uint64_t span_ms = (uint64_t)(2 * exchange->client->record.predicted_ttft_ms);

    exchange->making = residency_guess_learn(
        exchange->relay->guess, exchange->worker->index,
        &(struct guess_prompt){
            .blocks = exchange->blocks,
            .block_count = exchange->block_count,
            .from = exchange->doubt == RESIDENCY_DOUBT_NONE ? exchange->claimed_count : 0,
            .tokens_per_byte = exchange->prompt_tokens / (double)exchange->prompt_bytes,
            .pending_until_ms = io_loop_now_ms(exchange->relay->io) +
                                (span_ms > PENDING_MS_MIN ? span_ms : PENDING_MS_MIN),
        });
}

/* It may wait for a connection, and surely for its turn in the engine. */
static void hint_prefetch(struct exchange *exchange)
{
    const struct request_record *record = &exchange->client->record;
    struct relay *relay = exchange->relay;

    if (record->ssd_tokens <= 0 || relay->join == NULL || !relay->config.prefetch_hints)
        return;
    if (prefetch_hint_send(relay, &(struct prefetch_wish){.worker = exchange->worker,
                                                          .blocks = exchange->blocks,
                                                          .block_count = exchange->claimed_count,
                                                          .within_ms = record->predicted_ttft_ms,
                                                          .told_id = exchange->hinted_id}))
        exchange->hinted_id = exchange->worker->id;
}

static void count_attempt(struct exchange *exchange)
{
    struct worker *worker = exchange->worker;
    double uncached = exchange->prompt_tokens - exchange->matched_tokens;

    exchange->queued_tokens = uncached > 1 ? uncached : 1;
    exchange->relay->stats.choices_total[exchange->client->record.rung]++;
    count_matched(&exchange->client->record, &exchange->relay->stats);
    worker->chosen_ms = io_loop_now_ms(exchange->relay->io);
    worker->stats.chosen_total++;
    worker->own.in_flight++;
    worker->own.queued_tokens += exchange->queued_tokens;
    exchange->trial = worker_begin_attempt(worker);
    exchange->is_counted = true;
    load_share_touch(exchange->relay->loads);
    if (exchange->relay->sync != NULL && exchange->doubt != RESIDENCY_DOUBT_NONE)
        exchange->relay->stats.choices_doubted_total[exchange->doubt]++;
    if (exchange->prompt_bytes > 0) /* an empty prompt leaves nothing behind */
        learn_prompt(exchange);
    hint_prefetch(exchange);
}

static void name_attempt(struct exchange *exchange)
{
    struct request_record *record = &exchange->client->record;
    size_t len = strlen(record->request_id);

    memcpy(record->attempt_id, record->request_id, len);
    record->attempt_id[len] = '-';
    relay_random_id(exchange->relay, record->attempt_id + len + 1, 6);
    record->attempt_id[len + 7] = '\0';
    record->worker = exchange->worker->name;
    record->attempt_count++;
}

int exchange_attempt(struct exchange *exchange, struct worker *worker)
{
    int status = worker_pool_acquire(worker->pool, exchange->is_fresh_only,
                                     &exchange_worker_callbacks, exchange, &exchange->conn);

    if (status < 0)
        return status;
    exchange->worker = worker;
    exchange->attempt_us = clock_now_us();
    exchange_move(exchange, EXCHANGE_EVENT_CHOSEN);
    name_attempt(exchange);
    count_attempt(exchange);
    if (status == 0)
        relay_wait(exchange->relay, RELAY_WAIT_CONNECT, &exchange->deadline);
    else
        exchange_send(exchange);
    return 0;
}

void exchange_refuse_connection(struct exchange *exchange, int status)
{
    static const struct api_error busy = {503, "overloaded", NULL,
                                          "All connections to the workers that may serve this are "
                                          "in use (option --worker-conn-count-max). Try again "
                                          "later."};
    static const struct api_error descriptors = {
        503, "overloaded", NULL,
        "The router may open no more connections: it is at "
        "its limit of open files (ulimit -n, or LimitNOFILE "
        "of its unit). Try again later."};
    static const struct api_error memory = {503, "overloaded", NULL,
                                            "The router has no memory for another connection. Try "
                                            "again later."};
    static const struct api_error other = {
        503, "overloaded", NULL,
        "The router's system gives it no further connection to a "
        "worker. Try again later."};
    bool is_descriptors = status == -EMFILE || status == -ENFILE;

    if (is_descriptors)
        relay_warn_descriptors(exchange->relay, "worker");
    exchange_refuse(exchange, REJECT_OVERLOADED,
                    status == -EBUSY    ? &busy
                    : is_descriptors    ? &descriptors
                    : status == -ENOMEM ? &memory
                                        : &other);
}

/* No worker is eligible; some perhaps only until free_ms_min. */
static void refuse_route(struct exchange *exchange, const struct search *search)
{
    if (search->free_ms_min > 0) {
        exchange->retry_after_s = (uint32_t)((search->free_ms_min - search->now_ms + 999) / 1000);
        exchange_refuse(exchange, REJECT_OVERLOADED,
                        &(struct api_error){503, "overloaded", NULL,
                                            "All workers for this model asked for a pause. Try "
                                            "again later."});
    } else {
        exchange_refuse(exchange, REJECT_NO_WORKER,
                        &(struct api_error){503, "no_worker_available", NULL,
                                            "No worker that serves this model is up. Try again "
                                            "later."});
    }
}

/* The policy has noted its first choice, which could not be made. */
static void take_back_choice(struct exchange *exchange, uint32_t index)
{
    struct relay *relay = exchange->relay;
    uint64_t now_ms = io_loop_now_ms(relay->io);

    policy_take_back(relay->policy, relay->policy_state,
                     (struct policy_gift){index, exchange->given_ms, now_ms}, now_ms);
}

void exchange_route(struct exchange *exchange)
{
    struct relay *relay = exchange->relay;
    struct route_query query = {
        .prompt_tokens = exchange->prompt_tokens,
        .answer_tokens = (double)exchange->answer_tokens_max,
        .now_ms = io_loop_now_ms(relay->io),
    };
    struct search search;
    size_t count;
    int status = 0;

    assert(exchange->state == EXCHANGE_ROUTE);

    if (exchange->is_pinned) {
        exchange_route_pinned(exchange);
        return;
    }
    count = begin_search(&search, exchange) ? fill_views(exchange, &search, &query) : 0;
    if (count > 0)
        relay->policy->choose(relay->policy_state, &query, relay->views, count, relay->order,
                              relay->terms);
    for (size_t i = 0; i < count; i++) {
        const struct worker_view *view = &relay->views[relay->order[i]];

        note_choice(exchange, relay->order[i]);
        status = exchange_attempt(exchange, worker_set_at(relay->workers, view->worker));
        if (status == 0)
            return; /* the exchange may be gone */
        if (i == 0)
            take_back_choice(exchange, view->worker);
    }
    if (count > 0)
        exchange_refuse_connection(exchange, status);
    else
        refuse_route(exchange, &search);
}

/* ---- the request as the worker gets it ---- */

/* Headers that we write ourselves, or that would break what we promise. */
static bool is_replaced(struct slice name)
{
    return slice_eq_nocase(name, SLICE("Host")) || slice_eq_nocase(name, SLICE("Content-Length")) ||
           slice_eq_nocase(name, SLICE("X-Request-Id")) ||
           /* a compressed answer could not be read on its way */
           slice_eq_nocase(name, SLICE("Accept-Encoding"));
}

/* Which rank it goes to is our choice then, and part of what is known of its cache. */
static bool is_replaced_of_rank(struct slice name)
{
    return is_replaced(name) || slice_eq_nocase(name, SLICE("X-Data-Parallel-Rank"));
}

static int write_request_head(struct exchange *exchange, size_t body_len)
{
    const struct http_head *head = exchange->client->head;
    bool is_rank = exchange->worker->rank_count > 0;
    struct buf *buf = &exchange->request_head;
    int status;

    buf_clear(buf);
    status = buf_reserve(buf, 1024); /* most heads in one piece */
    if (status == 0)
        status = http_write_request_line(buf, head->method, head->target);
    if (status == 0)
        status =
            http_write_header(buf, SLICE("Host"), slice_of_string(exchange->worker->authority));
    if (status == 0)
        status = http_write_passed_headers(buf, head, is_rank ? is_replaced_of_rank : is_replaced);
    if (status == 0 && is_rank)
        status = http_write_header_u64(buf, SLICE("X-Data-Parallel-Rank"), exchange->worker->rank);
    if (status == 0)
        status = http_write_header(buf, SLICE("X-Request-Id"),
                                   slice_of_string(exchange->client->record.attempt_id));
    if (status == 0)
        status = http_write_header(buf, SLICE("Accept-Encoding"), SLICE("identity"));
    if (status == 0 && (body_len > 0 || head->method == HTTP_METHOD_POST))
        status = http_write_header_u64(buf, SLICE("Content-Length"), body_len);
    return status < 0 ? status : http_write_head_end(buf);
}

void exchange_send(struct exchange *exchange)
{
    struct request_record *record = &exchange->client->record;
    struct relay *relay = exchange->relay;
    struct slice body = buf_slice(&exchange->body);
    struct slice pieces[5], usage, echo;
    unsigned count = 0;
    size_t cut = 0;
    uint64_t now_us;

    exchange->asks_usage = exchange->splice.len > 0 && !exchange->worker->traits.refuses_usage;
    usage = exchange->asks_usage ? exchange->splice : slice_of(NULL, 0);
    echo = exchange_echo_splice(exchange);
    if (write_request_head(exchange, body.len + usage.len + echo.len) < 0) {
        exchange_fail(exchange,
                      &(struct api_error){503, "overloaded", NULL,
                                          "The router has no memory for this request."},
                      END_INTERNAL);
        return;
    }
    pieces[count++] = buf_slice(&exchange->request_head);
    if (usage.len + echo.len > 0) {
        cut = exchange->splice_at;
        pieces[count++] = slice_of(body.ptr, cut);
    }
    if (usage.len > 0)
        pieces[count++] = usage;
    if (echo.len > 0)
        pieces[count++] = echo;
    if (body.len > cut) /* a GET has none */
        pieces[count++] = slice_skip(body, cut);
    now_us = clock_now_us();
    record->sent_us = now_us;
    if (record->attempt_count == 1)
        record->overhead_us += now_us - record->read_us - record->connect_us;
    relay->stats.worker_sent_bytes_total += buf_len(&exchange->request_head) + body.len;
    exchange_move(exchange, EXCHANGE_EVENT_SENT);
    relay_wait(relay, RELAY_WAIT_UPSTREAM_HEADER, &exchange->deadline);
    worker_conn_send(exchange->conn, pieces, count);
    exchange_tell_sent(exchange);
}
