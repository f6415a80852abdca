/* SPDX-License-Identifier: Apache-2.0 */

#include "router/policy/policy_ttft.h"

#include "router/policy/policy_rank.h"

#include <assert.h>
#include <math.h>

/*
 * DESIGN
 *
 * The worker with the least predicted time to first token, in milliseconds:
 *
 *   total   = (queue + move + prefill + decode + recent) / start_weight * overload
 *
 *   queue   = (max(queued, pending) + waiting_f * FOREIGN_PROMPT_TOKENS) / rate
 *             What is ahead of us. queued: our own uncached tokens there, counted from the moment
 *             of choice. pending tokens are a hit, but not before their maker is done.
 *   prefill = (n - c) * (1 + QUADRATIC_PER_TOKEN * (n + c)) / rate
 *             n prompt tokens of which c are held: linear work plus attention, which grows with
 *             position: the sum of it from c to n is proportional to n^2 - c^2.
 *   move    = the longer, of CPU memory and SSD, where something is brought from it:
 *             the tier's start and queue + its tokens * ms a token. As the agent plans it: both are
 *             read at the same time, and a load begins once.
 *             A prefix is only of use from its beginning, so there are three ways: bring nothing
 *             (c = what is near), what is in CPU memory, or that and what is on SSD (c = all that
 *             matched). The one with the least move + prefill is meant; what is not brought is
 *             computed. Of equal ones the one that computes less.
 *   decode  = per_request * (steps * (decoding + running_f)
 *                            + BATCH_SHARE * answer * (in_flight + waiting_f + running_f))
 *             First part: each prefill step (CHUNK_TOKENS) of ours also carries a token for every
 *             running request. Second part: while we decode, each token of ours makes the others
 *             wait, and theirs us. It is not TTFT, so it counts as a share only: enough to choose
 *             the emptier of two batches, too little to throw a long prefix away.
 *   recent  = RECENT_WEIGHT * max(0, given lately - queue)
 *             given lately: sum of the prefill times of past choices, halved every
 *             RECENT_HALF_LIFE_MS. Between requests that come one after another all queues are
 *             empty; without memory a small advantage would win every time. What still queues is
 *             not counted twice, so requests of one new prefix stay behind its maker.
 *
 *   affinity, only where no worker holds any of the prompt: a credit for the one worker that other
 *             routers would send it to as well. compared = total - credit.
 *             session:     prefill of the whole prompt + AFFINITY_MARGIN_MS. It may hold all of it,
 *                          and wins unless it is busier than the others by more than that.
 *             first block: AFFINITY_BLOCK_SHARE of the prefill. Somebody may have sent the like, or
 *                          nobody ever: between two equal workers it decides, and no more.
 *
 *   copy, only where a worker is making some of the prompt now: a handicap for all that would make
 *             it again, COPY_SHARE of the prefill of that part. compared = total + copy. To wait
 * for the maker and to begin at the same moment elsewhere take equally long, but the second costs
 * the fleet the prefix once more: fifty requests with one new prefix would become as many copies of
 * it as there are workers.
 *
 *   rate: tokens/ms; waiting_f, running_f: requests of others, from reports (policy_foreign_load);
 *   overload: max(1, (in_flight + 1) / limit) ^ 4, with limit = max(32, 1.5 * mean
 *   in_flight; engines run hundreds in one batch): a guard for when the prediction is wrong. It
 * bends the cost instead of switching affinity off.
 *
 * Shape and constants of prefill: fitted to Mooncake (FAST '25), figure 14: 110 us a token and
 * 0.76 ns per squared position, whose quotient holds for models of that kind; only the rate is
 * learned. A hot prefix replicates by itself: once its worker's queue is longer than computing the
 * prefix elsewhere, it is computed elsewhere.
 */

static const double QUADRATIC_PER_TOKEN = 0.76e-9 / 110e-6;
static const double FOREIGN_PROMPT_TOKENS = 1024; /* of a request that we know nothing about */
static const double ANSWER_TOKENS_DEFAULT = 128;
static const double ANSWER_TOKENS_MAX = 1024; /* a limit of the request's is no expectation */
static const double CHUNK_TOKENS = 2048;
static const double BATCH_SHARE = 0.05;
static const double RECENT_WEIGHT = 0.25;
static const double RECENT_HALF_LIFE_MS = 10000;
static const double GUARD_IN_FLIGHT_MIN = 32;
static const double GUARD_FACTOR = 1.5;
static const double START_WEIGHT_MIN = 0.05;
static const double PREFILL_TOKENS_PER_MS_DEFAULT = 8;
static const double AFFINITY_MARGIN_MS = 50;
static const double COPY_SHARE = 0.5;
static const double AFFINITY_BLOCK_SHARE = 0.25; /* of a prefill: that somebody else sent it */
static const double TIE_MS_MIN = 1;
static const double TIE_FRACTION = 0.02; /* of the least total: predictions are no better */

struct recent {
    double ms;
    uint64_t at_ms;
};

/* What is the same for all views of one choice. */
struct fleet_means {
    double in_flight_limit;
    struct policy_foreign_load foreign;
    double pending_tokens; /* of this prompt, the most that one worker is making now */
};

struct policy_state {
    uint64_t generator;                           /* first */
    struct recent recents[POLICY_VIEW_COUNT_MAX]; /* by worker */
    struct policy_rank ranks[POLICY_VIEW_COUNT_MAX];
};

static double at_least(double value, double least)
{
    return value > least ? value : least;
}

static double rate(const struct worker_view *view)
{
    return view->prefill_tokens_per_ms > 0 ? view->prefill_tokens_per_ms
                                           : PREFILL_TOKENS_PER_MS_DEFAULT;
}

/* Of so many tokens from the prompt's first on, those that it has. */
static double held_tokens(double tokens, const struct route_query *query)
{
    return tokens < query->prompt_tokens ? tokens : query->prompt_tokens;
}

/* How a worker best comes by what it does not have at hand. */
struct plan {
    double held_tokens; /* at hand, or brought near */
    double move_ms;
    double prefill_ms;
};

static double queue_ms(const struct worker_view *view, struct policy_foreign_load foreign)
{
    double tokens = at_least(view->queued_tokens, view->pending_tokens);

    return (tokens + foreign.waiting * FOREIGN_PROMPT_TOKENS) / rate(view);
}

/* With the prompt's first tokens there. */
static double prefill_ms(const struct worker_view *view, const struct route_query *query,
                         double tokens)
{
    const double n = query->prompt_tokens;
    const double c = held_tokens(tokens, query);

    return (n - c) * (1 + QUADRATIC_PER_TOKEN * (n + c)) / rate(view);
}

static double tier_ms(const struct worker_tier *tier)
{
    return tier->tokens > 0 ? tier->start_ms + tier->queue_ms + tier->tokens * tier->ms_per_token
                            : 0;
}

static struct plan plan_with(const struct worker_view *view, const struct route_query *query,
                             double tokens, double move_ms)
{
    return (struct plan){held_tokens(tokens, query), move_ms, prefill_ms(view, query, tokens)};
}

static struct plan quicker(struct plan more_held, struct plan less_held)
{
    return more_held.move_ms + more_held.prefill_ms <= less_held.move_ms + less_held.prefill_ms
               ? more_held
               : less_held;
}

static struct plan plan_of(const struct worker_view *view, const struct route_query *query)
{
    const double cpu_ms = tier_ms(&view->cpu), ssd_ms = tier_ms(&view->ssd);
    struct plan plan =
        plan_with(view, query, view->matched_tokens, cpu_ms > ssd_ms ? cpu_ms : ssd_ms);

    if (view->ssd.tokens > 0)
        plan = quicker(plan, plan_with(view, query, view->near_tokens + view->cpu.tokens, cpu_ms));
    if (view->cpu.tokens > 0)
        plan = quicker(plan, plan_with(view, query, view->near_tokens, 0));
    return plan;
}

static double decode_ms(const struct worker_view *view, const struct route_query *query,
                        struct policy_foreign_load foreign, double held)
{
    const double steps = ceil((query->prompt_tokens - held) / CHUNK_TOKENS);
    const double asked = query->answer_tokens > 0 ? query->answer_tokens : ANSWER_TOKENS_DEFAULT;
    const double answer = asked < ANSWER_TOKENS_MAX ? asked : ANSWER_TOKENS_MAX;
    const double now = view->decoding + foreign.running;
    const double soon = view->in_flight + foreign.waiting + foreign.running;

    return view->decode_ms_per_request * (at_least(steps, 1) * now + BATCH_SHARE * answer * soon);
}

/* What worker was given lately, as of now. */
static double given_ms(const struct policy_state *state, uint32_t worker, uint64_t now_ms)
{
    const struct recent *recent = &state->recents[worker % POLICY_VIEW_COUNT_MAX];

    if (now_ms <= recent->at_ms || recent->ms <= 0)
        return recent->ms;
    return recent->ms * exp2(-(double)(now_ms - recent->at_ms) / RECENT_HALF_LIFE_MS);
}

static void note_choice(struct policy_state *state, uint32_t worker, double ms, uint64_t now_ms)
{
    double given = given_ms(state, worker, now_ms) + ms;

    state->recents[worker % POLICY_VIEW_COUNT_MAX] = (struct recent){given, now_ms};
}

/* What was given at at_ms has faded since like all that was given. */
static void take_back(struct policy_state *state, const struct policy_gift *gift, uint64_t now_ms)
{
    struct recent *recent = &state->recents[gift->worker % POLICY_VIEW_COUNT_MAX];
    double age_ms = now_ms > gift->at_ms ? (double)(now_ms - gift->at_ms) : 0;
    double left = gift->prefill_ms * exp2(-age_ms / RECENT_HALF_LIFE_MS);
    double given = given_ms(state, gift->worker, now_ms);

    *recent = (struct recent){at_least(given - left, 0), now_ms};
}

static void forget(struct policy_state *state, uint32_t worker)
{
    state->recents[worker % POLICY_VIEW_COUNT_MAX] = (struct recent){0};
}

static double affinity_ms(const struct worker_view *view, const struct route_query *query)
{
    if (view->rung != ROUTE_RUNG_AFFINITY)
        return 0;
    if (query->affinity == ROUTE_AFFINITY_SESSION)
        return prefill_ms(view, query, view->matched_tokens) + AFFINITY_MARGIN_MS;
    return AFFINITY_BLOCK_SHARE * prefill_ms(view, query, view->matched_tokens);
}

static double copy_ms(const struct worker_view *view, const struct route_query *query,
                      double pending_tokens)
{
    double again = pending_tokens - held_tokens(view->matched_tokens, query);

    return COPY_SHARE * at_least(again, 0) / rate(view);
}

static double most_pending(const struct worker_view *views, size_t count,
                           const struct route_query *query)
{
    double most = 0;

    for (size_t i = 0; i < count; i++) {
        if (views[i].pending_tokens > 0)
            most = at_least(held_tokens(views[i].matched_tokens, query), most);
    }
    return most;
}

static double in_flight_limit(const struct worker_view *views, size_t count)
{
    double sum = 1; /* the one to be placed */

    for (size_t i = 0; i < count; i++)
        sum += views[i].in_flight;
    return at_least(GUARD_FACTOR * sum / (double)count, GUARD_IN_FLIGHT_MIN);
}

/* 1 up to the limit; doubles the cost at 1.19 times of it. */
static double overload(const struct worker_view *view, double limit)
{
    double excess = at_least((view->in_flight + 1.0) / limit, 1);

    return excess * excess * excess * excess;
}

static struct route_terms predict(const struct policy_state *state, const struct route_query *query,
                                  const struct worker_view *view, const struct fleet_means *means)
{
    const struct policy_foreign_load foreign =
        policy_foreign_load(view, means->foreign, query->now_ms);
    const struct plan plan = plan_of(view, query);
    struct route_terms terms = {
        .queue_ms = queue_ms(view, foreign),
        .move_ms = plan.move_ms,
        .prefill_ms = plan.prefill_ms,
        .decode_ms = decode_ms(view, query, foreign, plan.held_tokens),
        .affinity_ms = affinity_ms(view, query),
        .copy_ms = copy_ms(view, query, means->pending_tokens),
    };
    double given = given_ms(state, view->worker, query->now_ms);

    terms.recent_ms = RECENT_WEIGHT * at_least(given - terms.queue_ms, 0);
    terms.total_ms =
        (terms.queue_ms + terms.move_ms + terms.prefill_ms + terms.decode_ms + terms.recent_ms) /
        at_least(view->start_weight, START_WEIGHT_MIN) * overload(view, means->in_flight_limit);
    return terms;
}

static void choose(struct policy_state *state, const struct route_query *query,
                   const struct worker_view *views, size_t count, uint32_t *order,
                   struct route_terms *terms)
{
    double least_ms = HUGE_VAL;
    struct fleet_means means;

    assert(count > 0 && count <= POLICY_VIEW_COUNT_MAX);

    means.in_flight_limit = in_flight_limit(views, count);
    means.foreign = policy_foreign_usual(views, count, query->now_ms);
    means.pending_tokens = most_pending(views, count, query);
    for (size_t i = 0; i < count; i++) {
        terms[i] = predict(state, query, &views[i], &means);
        state->ranks[i] =
            (struct policy_rank){terms[i].total_ms - terms[i].affinity_ms + terms[i].copy_ms,
                                 views[i].chosen_ms, views[i].chosen_count, (uint32_t)i};
        least_ms = state->ranks[i].cost < least_ms ? state->ranks[i].cost : least_ms;
    }
    policy_rank(state->ranks, count, at_least(TIE_FRACTION * least_ms, TIE_MS_MIN),
                &state->generator, order);
    note_choice(state, views[order[0]].worker, terms[order[0]].prefill_ms, query->now_ms);
}

const struct policy policy_ttft = {
    .name = "ttft",
    .help = "least predicted time to first token: queue, prefill of what is not cached, batch",
    .state_bytes = sizeof(struct policy_state),
    .choose = choose,
    .take_back = take_back,
    .forget = forget,
};
