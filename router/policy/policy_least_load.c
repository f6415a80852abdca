/* SPDX-License-Identifier: Apache-2.0 */

#include "router/policy/policy_least_load.h"

#include "router/policy/policy_rank.h"

#include <assert.h>
#include <string.h>

/*
 * DESIGN
 *
 *   load = (own in flight + 1 + others' from the report) / start_weight
 *
 * Own requests count from the moment of choice, so that a burst between two reports spreads. The 1
 * is the request to be placed: an idle worker that is still warming up is not simply free.
 */

struct policy_state {
    uint64_t generator; /* first */
    struct policy_rank ranks[POLICY_VIEW_COUNT_MAX];
};

static double load(const struct worker_view *view, struct policy_foreign_load foreign)
{
    const double weight = view->start_weight > 0.05 ? view->start_weight : 0.05;

    return (view->in_flight + 1 + foreign.waiting + foreign.running) / weight;
}

static void choose(struct policy_state *state, const struct route_query *query,
                   const struct worker_view *views, size_t count, uint32_t *order,
                   struct route_terms *terms)
{
    struct policy_foreign_load usual;

    assert(count > 0 && count <= POLICY_VIEW_COUNT_MAX);

    usual = policy_foreign_usual(views, count, query->now_ms);
    memset(terms, 0, count * sizeof *terms);
    for (size_t i = 0; i < count; i++)
        state->ranks[i] = (struct policy_rank){
            .cost = load(&views[i], policy_foreign_load(&views[i], usual, query->now_ms)),
            .chosen_ms = views[i].chosen_ms,
            .chosen_count = views[i].chosen_count,
            .view = (uint32_t)i,
        };
    policy_rank(state->ranks, count, 0, &state->generator, order);
}

const struct policy policy_least_load = {
    .name = "least_load",
    .help = "fewest requests in flight, reported load included",
    .state_bytes = sizeof(struct policy_state),
    .choose = choose,
};
