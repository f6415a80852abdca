/* SPDX-License-Identifier: Apache-2.0 */

#include "router/policy/policy.h"

#include "router/policy/affinity.h"
#include "router/policy/tier_cost.h"
#include "tests/support/leak_check.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <string.h>

enum { WORKER_COUNT = 4 };

/* A few workers, one policy, and a caller that counts what it sends. */
struct fleet {
    const struct policy *policy;
    struct policy_state *state;
    struct worker_view views[WORKER_COUNT];
    struct route_terms terms[WORKER_COUNT];
    uint32_t order[WORKER_COUNT];
    double answer_tokens;
    uint64_t now_ms;
};

static void fleet_init(struct fleet *fleet, const char *policy, uint64_t seed)
{
    *fleet = (struct fleet){.policy = policy_find(policy), .now_ms = 1000};
    cr_assert(ne(ptr, (void *)fleet->policy, NULL));
    fleet->state = policy_state_create(fleet->policy, seed);
    for (uint32_t i = 0; i < WORKER_COUNT; i++)
        fleet->views[i] = (struct worker_view){
            .worker = i,
            .rung = ROUTE_RUNG_LOAD,
            .prefill_tokens_per_ms = 8,
            .decode_ms_per_token = 6,
            .decode_ms_per_request = 0.35,
            .start_weight = 1,
        };
}

static void fleet_release(struct fleet *fleet)
{
    policy_state_destroy(fleet->state);
}

static uint32_t fleet_choose(struct fleet *fleet, double prompt_tokens)
{
    const struct route_query query = {.prompt_tokens = prompt_tokens,
                                      .answer_tokens = fleet->answer_tokens,
                                      .now_ms = fleet->now_ms};
    uint32_t chosen;

    fleet->policy->choose(fleet->state, &query, fleet->views, WORKER_COUNT, fleet->order,
                          fleet->terms);
    chosen = fleet->order[0];
    fleet->views[chosen].chosen_ms = fleet->now_ms;
    fleet->views[chosen].chosen_count++;
    return chosen;
}

/* Sent, and not ended: what the caller does in the same breath as the choice. */
static void fleet_send(struct fleet *fleet, uint32_t worker, double prompt_tokens)
{
    struct worker_view *view = &fleet->views[worker];

    view->in_flight++;
    view->queued_tokens += prompt_tokens - view->matched_tokens;
}

TestSuite(policy_registry, .fini = leak_check);

Test(policy_registry, every_listed_policy_is_found_by_its_name_and_the_first_is_the_default)
{
    size_t count = 0;

    for (const struct policy *const *policy = policy_list(); *policy != NULL; policy++, count++) {
        cr_assert(eq(ptr, (void *)policy_find((*policy)->name), (void *)*policy));
        cr_assert(gt(sz, strlen((*policy)->help), 0));
    }

    cr_assert(eq(sz, count, 4));
    cr_assert(eq(str, (char *)policy_list()[0]->name, "ttft"));
    cr_assert(eq(ptr, (void *)policy_find("tttf"), NULL));
}

Test(policy_registry, every_rung_has_a_name_of_its_own)
{
    for (int a = 0; a < ROUTE_RUNG_COUNT; a++)
        for (int b = 0; b < a; b++)
            cr_assert(ne(str, (char *)route_rung_name((enum route_rung)a),
                         (char *)route_rung_name((enum route_rung)b)));
}

TestSuite(policy, .fini = leak_check);

Test(policy, every_order_names_each_view_once)
{
    for (const struct policy *const *policy = policy_list(); *policy != NULL; policy++) {
        struct fleet fleet;
        fleet_init(&fleet, (*policy)->name, 7);
        for (unsigned i = 0; i < 50; i++) {
            unsigned seen = 0;
            fleet_send(&fleet, fleet_choose(&fleet, 500), 500);

            for (size_t at = 0; at < WORKER_COUNT; at++)
                seen |= 1u << fleet.order[at];
            cr_assert(eq(uint, seen, (1u << WORKER_COUNT) - 1), "%s", (*policy)->name);
        }
        fleet_release(&fleet);
    }
}

Test(policy, one_seed_makes_the_same_choices_again)
{
    for (const struct policy *const *policy = policy_list(); *policy != NULL; policy++) {
        struct fleet once, again;
        fleet_init(&once, (*policy)->name, 11);
        fleet_init(&again, (*policy)->name, 11);

        for (unsigned i = 0; i < 100; i++)
            cr_assert(eq(u32, fleet_choose(&once, 700), fleet_choose(&again, 700)));
        fleet_release(&once);
        fleet_release(&again);
    }
}

/* 40 prompts that share nothing, one after another: nothing is in flight when the next comes. */
static void spread_of_sequential_prompts(const char *policy, uint64_t seed, uint64_t gap_ms)
{
    unsigned shares[WORKER_COUNT] = {0};
    struct fleet fleet;
    fleet_init(&fleet, policy, seed);

    for (unsigned i = 0; i < 40; i++, fleet.now_ms += gap_ms)
        shares[fleet_choose(&fleet, 1000)]++;

    for (size_t i = 0; i < WORKER_COUNT; i++) {
        cr_assert(ge(uint, shares[i], 6), "%s seed %zu", policy, (size_t)seed);
        cr_assert(le(uint, shares[i], 14), "%s seed %zu", policy, (size_t)seed);
    }
    fleet_release(&fleet);
}

Test(policy, sequential_unique_prompts_spread_evenly_whatever_the_seed)
{
    for (uint64_t seed = 1; seed <= 100; seed++) {
        static const uint64_t gaps_ms[] = {0, 1, 100, 3000, 60000};

        for (size_t i = 0; i < sizeof gaps_ms / sizeof gaps_ms[0]; i++) {
            spread_of_sequential_prompts("ttft", seed, gaps_ms[i]);
            spread_of_sequential_prompts("least_load", seed, gaps_ms[i]);
            spread_of_sequential_prompts("round_robin", seed, gaps_ms[i]);
        }
    }
}

Test(policy, load_of_ours_counts_before_any_report_does)
{
    static const char *const names[] = {"ttft", "least_load", "round_robin"};

    for (size_t n = 0; n < sizeof names / sizeof names[0]; n++) {
        struct fleet fleet;
        fleet_init(&fleet, names[n], 3);
        for (uint32_t i = 0; i < WORKER_COUNT; i++)
            fleet.views[i].has_report = true, fleet.views[i].reported_ms = fleet.now_ms;

        for (unsigned i = 0; i < 100; i++)
            fleet_send(&fleet, fleet_choose(&fleet, 1000), 1000);

        for (uint32_t i = 0; i < WORKER_COUNT; i++) {
            cr_assert(ge(uint, fleet.views[i].in_flight, 22), "%s", names[n]);
            cr_assert(le(uint, fleet.views[i].in_flight, 28), "%s", names[n]);
        }
        fleet_release(&fleet);
    }
}

TestSuite(policy_ttft, .fini = leak_check);

Test(policy_ttft, the_terms_are_the_formula)
{
    struct fleet fleet;
    fleet_init(&fleet, "ttft", 1);
    fleet.views[0].queued_tokens = 800;
    fleet.views[0].matched_tokens = 1000;

    fleet_choose(&fleet, 3000);

    const struct route_terms *terms = &fleet.terms[0];
    cr_assert(epsilon_eq(dbl, terms->queue_ms, 100, 1e-9));
    cr_assert(epsilon_eq(dbl, terms->prefill_ms, 2000 * (1 + 0.76e-9 / 110e-6 * 4000) / 8, 1e-9));
    cr_assert(epsilon_eq(dbl, terms->decode_ms, 0, 1e-9));
    cr_assert(epsilon_eq(dbl, terms->total_ms, terms->queue_ms + terms->prefill_ms, 1e-9));
    fleet_release(&fleet);
}

/* 8,000 tokens that have to be computed: 1055 ms. The same from CPU memory by the defaults: 57 ms,
 * from SSD: 355 ms. */
static void give_far(struct worker_view *view, double cpu_tokens, double ssd_tokens,
                     struct tier_facts facts)
{
    view->matched_tokens = view->near_tokens + cpu_tokens + ssd_tokens;
    view->cpu = tier_cost_cpu(&facts, cpu_tokens);
    view->ssd = tier_cost_ssd(&facts, ssd_tokens);
}

Test(policy_ttft, moving_costs_the_slower_tiers_start_its_queue_and_its_bytes)
{
    struct fleet fleet;
    fleet_init(&fleet, "ttft", 1);
    fleet.views[0].near_tokens = 1000;
    give_far(&fleet.views[0], 2000, 4000,
             (struct tier_facts){.bytes_per_token = 100000,
                                 .cpu_bytes_per_s = 10000000000,
                                 .ssd_bytes_per_s = 2000000000,
                                 .cpu_start_us = 4250,
                                 .ssd_start_us = 6500,
                                 .cpu_queue_ms = 3,
                                 .ssd_queue_ms = 5});

    fleet_choose(&fleet, 8000);

    const struct route_terms *terms = &fleet.terms[0];
    cr_assert(epsilon_eq(dbl, terms->move_ms, 6.5 + 5 + 200, 1e-9));
    cr_assert(epsilon_eq(dbl, terms->prefill_ms, 1000 * (1 + 0.76e-9 / 110e-6 * 15000) / 8, 1e-9));
    cr_assert(epsilon_eq(dbl, terms->total_ms, terms->move_ms + terms->prefill_ms, 1e-9));
    fleet_release(&fleet);
}

/* From CPU memory 39.25 ms, from SSD 8.3: they are read side by side. */
Test(policy_ttft, the_quicker_tier_hides_behind_the_slower_one)
{
    struct fleet fleet;
    fleet_init(&fleet, "ttft", 1);
    give_far(&fleet.views[0], 7000, 100,
             (struct tier_facts){.bytes_per_token = 100000, .cpu_start_us = 4250});

    fleet_choose(&fleet, 8000);

    cr_assert(epsilon_eq(dbl, fleet.terms[0].move_ms, 4.25 + 35, 1e-9));
    fleet_release(&fleet);
}

Test(policy_ttft, what_is_in_cpu_memory_beats_computing_it_elsewhere)
{
    for (uint64_t seed = 1; seed <= 10; seed++) {
        struct fleet fleet;
        fleet_init(&fleet, "ttft", seed);
        give_far(&fleet.views[3], 8000, 0, (struct tier_facts){0});

        cr_assert(eq(u32, fleet_choose(&fleet, 8000), 3));

        cr_assert(epsilon_eq(dbl, fleet.terms[3].move_ms, 57.4, 0.1));
        cr_assert(epsilon_eq(dbl, fleet.terms[0].prefill_ms, 1055, 1));
        fleet_release(&fleet);
    }
}

Test(policy_ttft, what_is_at_hand_beats_what_is_in_cpu_memory_and_that_what_is_on_ssd)
{
    struct fleet fleet;
    fleet_init(&fleet, "ttft", 3);
    give_far(&fleet.views[0], 0, 8000, (struct tier_facts){0});
    give_far(&fleet.views[1], 8000, 0, (struct tier_facts){0});
    fleet.views[2].matched_tokens = 8000;

    fleet_choose(&fleet, 8000);

    cr_assert(eq(u32, fleet.order[0], 2));
    cr_assert(eq(u32, fleet.order[1], 1));
    cr_assert(eq(u32, fleet.order[2], 0));
    cr_assert(eq(u32, fleet.order[3], 3));
    fleet_release(&fleet);
}

/* The queue makes SSD dearer than computing: then its worker is one like all others, and no worse:
 * what waits longer for SSD than computing takes is computed. */
Test(policy_ttft, a_queue_before_ssd_loses_to_an_idle_worker_once_its_own_worker_is_busier)
{
    for (uint64_t seed = 1; seed <= 10; seed++) {
        struct fleet fleet;
        fleet_init(&fleet, "ttft", seed);
        give_far(&fleet.views[0], 0, 8000, (struct tier_facts){.ssd_queue_ms = 600});
        fleet.views[0].queued_tokens = 1600; /* 200 ms */

        cr_assert(ne(u32, fleet_choose(&fleet, 8000), 0), "1155 ms against 1055");

        cr_assert(epsilon_eq(dbl, fleet.terms[0].total_ms, 200 + 600 + 5 + 349.5, 0.1));
        cr_assert(eq(u32, fleet.order[3], 0));
        fleet_release(&fleet);
    }
}

Test(policy_ttft, a_long_queue_before_ssd_leaves_its_worker_no_better_than_an_idle_one)
{
    struct fleet fleet;
    fleet_init(&fleet, "ttft", 5);
    give_far(&fleet.views[0], 0, 8000, (struct tier_facts){.ssd_queue_ms = 2000});
    fleet.views[0].chosen_ms = 999; /* of equals the others come first */
    fleet.views[0].chosen_count = 1;

    cr_assert(ne(u32, fleet_choose(&fleet, 8000), 0));

    cr_assert(epsilon_eq(dbl, fleet.terms[0].move_ms, 0, 1e-9));
    cr_assert(epsilon_eq(dbl, fleet.terms[0].total_ms, fleet.terms[1].total_ms, 1e-9));

    fleet_release(&fleet);
}

/* Far first: what is on SSD is left, and what is in CPU memory before it is still brought. */
Test(policy_ttft, each_tier_is_used_only_where_it_is_worth_it)
{
    struct fleet fleet;
    fleet_init(&fleet, "ttft", 1);
    fleet.views[0].near_tokens = 1000;
    give_far(&fleet.views[0], 2000, 100, (struct tier_facts){.ssd_queue_ms = 500});
    fleet.views[1].near_tokens = 1000;
    give_far(&fleet.views[1], 100, 2000, (struct tier_facts){.cpu_queue_ms = 50});

    fleet_choose(&fleet, 4000);

    cr_assert(epsilon_eq(dbl, fleet.terms[0].move_ms, 5 + 2000 * 131072 / 20e9 * 1000, 1e-9));
    cr_assert(
        epsilon_eq(dbl, fleet.terms[0].prefill_ms, 1000 * (1 + 0.76e-9 / 110e-6 * 7000) / 8, 1e-9));
    /* the few in CPU memory alone are not worth their queue, but what lies behind them is */
    cr_assert(epsilon_eq(dbl, fleet.terms[1].move_ms, 5 + 2000 * 131072 / 3e9 * 1000, 1e-9));
    fleet_release(&fleet);
}

/* To the millisecond alike: the least recently chosen one, whatever it holds. */
Test(policy_ttft, moving_and_computing_that_take_equally_long_are_a_tie)
{
    struct fleet fleet;
    fleet_init(&fleet, "ttft", 1);
    /* 0.125 ms a token: as long as to compute it, but for attention */
    give_far(&fleet.views[0], 0, 1000,
             (struct tier_facts){
                 .bytes_per_token = 125000, .ssd_bytes_per_s = 1000000000, .ssd_start_us = 1});
    fleet.views[0].chosen_ms = 999;
    fleet.views[0].chosen_count = 1;

    cr_assert(ne(u32, fleet_choose(&fleet, 1000), 0));
    cr_assert(epsilon_eq(dbl, fleet.terms[0].move_ms, 125.001, 1e-9), "the one that computes less");
    cr_assert(epsilon_eq(dbl, fleet.terms[0].prefill_ms, 0, 1e-9));
    fleet_release(&fleet);
}

Test(policy_ttft, a_long_cached_prefix_keeps_its_session_at_low_load)
{
    struct fleet fleet;
    fleet_init(&fleet, "ttft", 5);
    fleet.views[2].in_flight = 2;
    fleet.views[2].decoding = 2;

    for (unsigned turn = 0; turn < 50; turn++, fleet.now_ms += 1000) {
        fleet.views[2].matched_tokens = 8000 + turn * 300;
        cr_assert(eq(u32, fleet_choose(&fleet, fleet.views[2].matched_tokens + 300), 2));
    }
    fleet_release(&fleet);
}

/* Clients that set max_tokens set it to what the model can, not to what they expect. */
Test(policy_ttft, a_long_cached_prefix_keeps_its_session_whatever_answer_it_allows)
{
    static const double limits[] = {0, 100, 32768, 1e6, 1.8e19};

    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        struct fleet fleet;
        fleet_init(&fleet, "ttft", 5);
        fleet.answer_tokens = limits[i];
        fleet.views[2].in_flight = 2;
        fleet.views[2].decoding = 2;
        fleet.views[2].matched_tokens = 8000;

        cr_assert(eq(u32, fleet_choose(&fleet, 8300), 2), "limit %g", limits[i]);
        fleet_release(&fleet);
    }
}

Test(policy_ttft, a_hot_prefix_stays_together_first_and_spreads_once_its_queue_grows)
{
    enum { PREFIX = 8192, TAIL = 32, REQUESTS = 200 };

    for (uint64_t seed = 1; seed <= 20; seed++) {
        uint32_t maker;
        unsigned in_flight_max = 0;
        struct fleet fleet;
        fleet_init(&fleet, "ttft", seed);

        for (unsigned i = 0; i < REQUESTS; i++) {
            uint32_t chosen = fleet_choose(&fleet, PREFIX + TAIL);
            struct worker_view *view = &fleet.views[chosen];
            if (i == 0)
                maker = chosen;
            else if (i < 4)
                cr_assert(eq(u32, chosen, maker), "request %u, seed %zu", i, (size_t)seed);
            fleet_send(&fleet, chosen, PREFIX + TAIL);
            view->matched_tokens = view->pending_tokens = PREFIX;
        }

        for (size_t i = 0; i < WORKER_COUNT; i++)
            if (fleet.views[i].in_flight > in_flight_max)
                in_flight_max = fleet.views[i].in_flight;
        cr_assert(le(uint, in_flight_max, REQUESTS * 3 / (2 * WORKER_COUNT)));
        fleet_release(&fleet);
    }
}

Test(policy_ttft, fifty_requests_with_one_new_prefix_make_it_twice_at_most)
{
    enum { PREFIX = 8000, TAIL = 30, REQUESTS = 50 };

    for (uint64_t seed = 1; seed <= 20; seed++) {
        unsigned maker_count = 0;
        struct fleet fleet;
        fleet_init(&fleet, "ttft", seed);

        for (unsigned i = 0; i < REQUESTS; i++) {
            uint32_t chosen = fleet_choose(&fleet, PREFIX + TAIL);
            struct worker_view *view = &fleet.views[chosen];

            maker_count += view->pending_tokens <= 0;
            fleet_send(&fleet, chosen, PREFIX + TAIL);
            view->matched_tokens = view->pending_tokens = PREFIX;
        }

        cr_assert(le(uint, maker_count, 2), "%u, seed %zu", maker_count, (size_t)seed);
        fleet_release(&fleet);
    }
}

Test(policy_ttft, a_pending_prefix_is_a_hit_that_waits_for_its_maker)
{
    struct fleet fleet;
    fleet_init(&fleet, "ttft", 1);
    fleet.views[1].matched_tokens = fleet.views[1].pending_tokens = 4000;

    fleet_choose(&fleet, 4100);

    cr_assert(epsilon_eq(dbl, fleet.terms[1].queue_ms, 500, 1e-9));
    cr_assert(lt(dbl, fleet.terms[1].prefill_ms, 20));
    fleet_release(&fleet);
}

Test(policy_ttft, a_small_shared_prefix_does_not_draw_all_sequential_prompts)
{
    unsigned shares[WORKER_COUNT] = {0};
    struct fleet fleet;
    fleet_init(&fleet, "ttft", 9);

    for (unsigned i = 0; i < 100; i++, fleet.now_ms += 200) {
        uint32_t chosen = fleet_choose(&fleet, 900);
        shares[chosen]++;
        fleet.views[chosen].matched_tokens = 500;
    }

    for (size_t i = 0; i < WORKER_COUNT; i++)
        cr_assert(lt(uint, shares[i], 40));
    fleet_release(&fleet);
}

Test(policy_ttft, a_report_adds_only_what_is_not_ours)
{
    struct fleet fleet;
    fleet_init(&fleet, "ttft", 1);
    for (uint32_t i = 0; i < 2; i++) {
        fleet.views[i].in_flight = 6;
        fleet.views[i].decoding = 4;
    }
    fleet.views[1].has_report = true;
    fleet.views[1].reported_ms = fleet.now_ms;
    fleet.views[1].reported_running = 4;
    fleet.views[1].reported_waiting = 2;

    fleet_choose(&fleet, 1000);
    cr_assert(epsilon_eq(dbl, fleet.terms[1].total_ms, fleet.terms[0].total_ms, 1e-9));

    fleet.views[1].reported_waiting = 5;
    fleet_choose(&fleet, 1000);
    cr_assert(epsilon_eq(dbl, fleet.terms[1].queue_ms, 3 * 1024 / 8.0, 1e-9));
    fleet_release(&fleet);
}

Test(policy_ttft, an_old_report_fades_into_what_is_usual)
{
    struct fleet fleet;
    double fresh_ms;
    fleet_init(&fleet, "ttft", 1);
    fleet.views[0].has_report = true;
    fleet.views[0].reported_ms = fleet.now_ms;
    fleet.views[0].reported_waiting = 8;
    fleet_choose(&fleet, 1000);
    fresh_ms = fleet.terms[0].queue_ms;

    fleet.now_ms += 5000;
    fleet_choose(&fleet, 1000);

    cr_assert(gt(dbl, fresh_ms, 0));
    cr_assert(epsilon_eq(dbl, fleet.terms[0].queue_ms, 0.75 * fresh_ms, 1e-9));
    fleet_release(&fleet);
}

Test(policy_ttft, unknown_load_is_not_taken_for_none)
{
    struct fleet fleet;
    fleet_init(&fleet, "ttft", 1);
    for (uint32_t i = 0; i < 3; i++) {
        fleet.views[i].has_report = true;
        fleet.views[i].reported_ms = fleet.now_ms;
        fleet.views[i].reported_waiting = 2 + 2 * i;
    }

    fleet_choose(&fleet, 1000);

    cr_assert(eq(u32, fleet.order[0], 0));
    cr_assert(epsilon_eq(dbl, fleet.terms[3].queue_ms, fleet.terms[1].queue_ms, 1e-9));
    fleet_release(&fleet);
}

Test(policy_ttft, a_worker_in_slow_start_gets_less_but_not_nothing)
{
    unsigned shares[WORKER_COUNT] = {0};
    struct fleet fleet;
    fleet_init(&fleet, "ttft", 2);
    fleet.views[3].start_weight = 0.3;

    for (unsigned i = 0; i < 200; i++) {
        uint32_t chosen = fleet_choose(&fleet, 1000);
        shares[chosen]++;
        fleet_send(&fleet, chosen, 1000);
    }

    cr_assert(gt(uint, shares[3], 0));
    for (size_t i = 0; i < 3; i++)
        cr_assert(lt(uint, 2 * shares[3], shares[i]));
    fleet_release(&fleet);
}

Test(policy_ttft, even_a_huge_hit_leaves_no_worker_beyond_twice_the_mean)
{
    struct fleet fleet;
    fleet_init(&fleet, "ttft", 4);
    fleet.views[0].matched_tokens = 30000; /* done long ago: no queue, every request a full hit */

    for (unsigned i = 0; i < 1000; i++) {
        uint32_t chosen = fleet_choose(&fleet, 30001);
        fleet.views[chosen].in_flight++;
        fleet.views[chosen].decoding++;
        fleet.views[chosen].matched_tokens = 30000;
    }

    for (size_t i = 0; i < WORKER_COUNT; i++)
        cr_assert(le(uint, fleet.views[i].in_flight, 500));
    fleet_release(&fleet);
}

Test(policy_ttft, more_held_than_asked_for_is_a_full_hit)
{
    struct fleet fleet;
    fleet_init(&fleet, "ttft", 4);
    fleet.views[0].matched_tokens = 5000;

    fleet_choose(&fleet, 1000);

    cr_assert(epsilon_eq(dbl, fleet.terms[0].prefill_ms, 0, 1e-9));
    fleet_release(&fleet);
}

/* ---- affinity ---- */

/* The view that key prefers in a fleet of WORKER_COUNT; the others have their rungs back. */
static uint32_t mark(struct fleet *fleet, struct route_query *query, uint64_t session,
                     uint64_t first_block)
{
    for (uint32_t i = 0; i < WORKER_COUNT; i++) {
        fleet->views[i].rung = ROUTE_RUNG_LOAD;
        fleet->views[i].name_hash = 1000 + i;
    }
    affinity_choose(query, session, first_block);
    affinity_mark(query, fleet->views, WORKER_COUNT);
    for (uint32_t i = 0; i < WORKER_COUNT; i++) {
        if (fleet->views[i].rung == ROUTE_RUNG_AFFINITY)
            return i;
    }
    return UINT32_MAX;
}

/* Chooses for query; returns who won. */
static uint32_t choose_for(struct fleet *fleet, const struct route_query *query)
{
    fleet->policy->choose(fleet->state, query, fleet->views, WORKER_COUNT, fleet->order,
                          fleet->terms);
    return fleet->order[0];
}

TestSuite(affinity, .fini = leak_check);

Test(affinity, a_session_comes_before_a_first_block_and_short_prompts_have_none)
{
    static const struct {
        uint64_t session, first_block;
        double prompt_tokens;
        enum route_affinity affinity;
    } rows[] = {
        {7, 8, 10, ROUTE_AFFINITY_SESSION},   {7, 0, 0, ROUTE_AFFINITY_SESSION},
        {7, 8, 9000, ROUTE_AFFINITY_SESSION}, {0, 8, 9000, ROUTE_AFFINITY_FIRST_BLOCK},
        {0, 8, 100, ROUTE_AFFINITY_NONE},     {0, 0, 9000, ROUTE_AFFINITY_NONE},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct route_query query = {.prompt_tokens = rows[i].prompt_tokens};

        affinity_choose(&query, rows[i].session, rows[i].first_block);

        cr_assert(eq(int, query.affinity, rows[i].affinity), "row %zu", i);
    }
}

Test(affinity, a_session_has_one_worker_and_sessions_spread)
{
    struct fleet fleet;
    uint32_t counts[WORKER_COUNT] = {0};
    fleet_init(&fleet, "ttft", 1);

    for (uint64_t session = 1; session <= 400; session++) {
        struct route_query query = {.prompt_tokens = 10};
        uint32_t home = mark(&fleet, &query, session, 0);

        cr_assert(lt(u32, home, WORKER_COUNT));
        cr_assert(eq(u32, mark(&fleet, &query, session, 0), home));
        counts[home]++;
    }

    for (uint32_t i = 0; i < WORKER_COUNT; i++)
        cr_assert(gt(u32, counts[i], 400 / WORKER_COUNT / 2));
    fleet_release(&fleet);
}

Test(affinity, when_its_worker_goes_only_its_sessions_move)
{
    struct fleet fleet;
    fleet_init(&fleet, "ttft", 1);

    for (uint64_t session = 1; session <= 200; session++) {
        struct route_query query = {.prompt_tokens = 10};
        uint32_t home = mark(&fleet, &query, session, 0);

        for (uint32_t i = 0; i < WORKER_COUNT; i++)
            fleet.views[i].rung = ROUTE_RUNG_LOAD;
        affinity_mark(&query, fleet.views, WORKER_COUNT - 1); /* the last one is gone */

        if (home != WORKER_COUNT - 1)
            cr_assert(eq(int, fleet.views[home].rung, ROUTE_RUNG_AFFINITY));
    }
    fleet_release(&fleet);
}

Test(policy_ttft, a_session_stays_with_its_worker_whatever_the_seed)
{
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct fleet fleet;
        struct route_query query = {.prompt_tokens = 200, .now_ms = 1000};
        fleet_init(&fleet, "ttft", seed);
        uint32_t home = mark(&fleet, &query, 77, 0);

        for (int i = 0; i < 10; i++) {
            cr_assert(eq(u32, choose_for(&fleet, &query), home));
            fleet.views[home].chosen_ms = query.now_ms++;
        }
        fleet_release(&fleet);
    }
}

Test(policy_ttft, a_session_leaves_a_worker_that_is_busier_by_more_than_it_could_save)
{
    static const struct {
        double queued_tokens;
        bool stays;
    } rows[] = {{0, true}, {4000, true}, {8200, true}, {8800, false}, {80000, false}};

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct fleet fleet;
        struct route_query query = {.prompt_tokens = 8000, .now_ms = 1000}; /* 1 s and a bit */
        fleet_init(&fleet, "ttft", 1);
        uint32_t home = mark(&fleet, &query, 77, 0);
        fleet.views[home].queued_tokens = rows[i].queued_tokens;

        uint32_t chosen = choose_for(&fleet, &query);

        cr_assert(eq(int, chosen == home, rows[i].stays), "row %zu", i);
        cr_assert(gt(dbl, fleet.terms[home].affinity_ms, 1000));
        fleet_release(&fleet);
    }
}

Test(policy_ttft, a_first_block_decides_between_equals_and_no_more)
{
    struct fleet fleet;
    struct route_query query = {.prompt_tokens = 8000, .now_ms = 1000};
    fleet_init(&fleet, "ttft", 1);
    uint32_t home = mark(&fleet, &query, 0, 55);

    cr_assert(eq(u32, choose_for(&fleet, &query), home));
    fleet.views[home].queued_tokens = 4000; /* half a prompt ahead of it */

    cr_assert(ne(u32, choose_for(&fleet, &query), home));
    fleet_release(&fleet);
}

Test(policy_ttft, long_unique_prompts_spread_in_spite_of_their_first_blocks)
{
    struct fleet fleet;
    uint32_t counts[WORKER_COUNT] = {0};
    fleet_init(&fleet, "ttft", 1);

    for (uint64_t i = 0; i < 10 * WORKER_COUNT; i++) {
        struct route_query query = {.prompt_tokens = 4000, .now_ms = 1000 + 1000 * i};
        (void)mark(&fleet, &query, 0, 0x9e3779b97f4a7c15u * (i + 1));
        uint32_t chosen = choose_for(&fleet, &query);

        fleet.views[chosen].chosen_ms = query.now_ms;
        fleet.views[chosen].chosen_count++;
        counts[chosen]++;
    }

    for (uint32_t i = 0; i < WORKER_COUNT; i++) {
        cr_assert(ge(u32, counts[i], 5));
        cr_assert(le(u32, counts[i], 15));
    }
    fleet_release(&fleet);
}

Test(policy_ttft, what_a_worker_refused_was_not_given_to_it)
{
    struct fleet fleet;
    fleet_init(&fleet, "ttft", 1);
    uint32_t refuser = fleet_choose(&fleet, 80000);
    double given_ms = fleet.terms[refuser].prefill_ms;
    fleet.now_ms += 5000;

    policy_take_back(fleet.policy, fleet.state, (struct policy_gift){refuser, given_ms, 1000},
                     fleet.now_ms);

    (void)fleet_choose(&fleet, 8000);
    for (uint32_t i = 0; i < WORKER_COUNT; i++)
        cr_assert(lt(dbl, fleet.terms[i].recent_ms, 0.001));
    fleet_release(&fleet);
}

Test(policy_ttft, taking_back_more_than_was_given_leaves_nothing)
{
    struct fleet fleet;
    fleet_init(&fleet, "ttft", 1);

    policy_take_back(fleet.policy, fleet.state, (struct policy_gift){0, 500, 1000}, fleet.now_ms);

    (void)fleet_choose(&fleet, 8000);
    cr_assert(lt(dbl, fleet.terms[0].recent_ms, 0.001));
    cr_assert(ge(dbl, fleet.terms[0].recent_ms, 0));
    fleet_release(&fleet);
}

Test(policy_ttft, what_a_worker_was_given_before_it_failed_does_not_count)
{
    struct fleet fleet;
    fleet_init(&fleet, "ttft", 1);
    uint32_t given = fleet_choose(&fleet, 8000);
    fleet.now_ms += 100;
    (void)fleet_choose(&fleet, 1);
    cr_assert(gt(dbl, fleet.terms[given].recent_ms, 1));

    policy_forget(fleet.policy, fleet.state, given);

    (void)fleet_choose(&fleet, 1);
    cr_assert(lt(dbl, fleet.terms[given].recent_ms, 0.001));
    fleet_release(&fleet);
}

TestSuite(policy_round_robin, .fini = leak_check);

Test(policy_round_robin, a_worker_that_leaves_upsets_nobody_elses_turn)
{
    struct fleet fleet;
    fleet_init(&fleet, "round_robin", 1);
    cr_assert(eq(u32, fleet_choose(&fleet, 1), 0));
    const struct worker_view without_1[] = {fleet.views[0], fleet.views[2], fleet.views[3]};
    const struct route_query query = {.prompt_tokens = 1};

    fleet.policy->choose(fleet.state, &query, without_1, 3, fleet.order, fleet.terms);
    cr_assert(eq(u32, without_1[fleet.order[0]].worker, 2));

    cr_assert(eq(u32, fleet_choose(&fleet, 1), 3));
    cr_assert(eq(u32, fleet_choose(&fleet, 1), 0));
    cr_assert(eq(u32, fleet_choose(&fleet, 1), 1));
    fleet_release(&fleet);
}

TestSuite(policy_random, .fini = leak_check);

Test(policy_random, every_worker_gets_about_its_share)
{
    unsigned shares[WORKER_COUNT] = {0};
    struct fleet fleet;
    fleet_init(&fleet, "random", 6);

    for (unsigned i = 0; i < 4000; i++)
        shares[fleet_choose(&fleet, 1)]++;

    for (size_t i = 0; i < WORKER_COUNT; i++) {
        cr_assert(gt(uint, shares[i], 900));
        cr_assert(lt(uint, shares[i], 1100));
    }
    fleet_release(&fleet);
}

TestSuite(policy_least_load, .fini = leak_check);

Test(policy_least_load, reported_load_of_others_counts)
{
    struct fleet fleet;
    fleet_init(&fleet, "least_load", 1);
    for (uint32_t i = 0; i < WORKER_COUNT; i++) {
        fleet.views[i].has_report = true;
        fleet.views[i].reported_ms = fleet.now_ms;
        fleet.views[i].reported_running = i == 2 ? 1 : 5;
    }

    cr_assert(eq(u32, fleet_choose(&fleet, 1), 2));
    fleet_release(&fleet);
}
