/* SPDX-License-Identifier: Apache-2.0 */

#include "router/policy/policy_random.h"

#include "backends/runtime/random.h"
#include "router/policy/policy_rank.h"

#include <assert.h>
#include <string.h>

struct policy_state {
    uint64_t generator; /* first */
    struct policy_rank ranks[POLICY_VIEW_COUNT_MAX];
};

/* A cost that says nothing. */
static double draw(struct policy_state *state)
{
    return (double)(random_next(&state->generator) >> 11);
}

static void choose(struct policy_state *state, const struct route_query *query,
                   const struct worker_view *views, size_t count, uint32_t *order,
                   struct route_terms *terms)
{
    assert(count > 0 && count <= POLICY_VIEW_COUNT_MAX);

    (void)query;
    (void)views;
    memset(terms, 0, count * sizeof *terms);
    for (size_t i = 0; i < count; i++)
        state->ranks[i] = (struct policy_rank){.cost = draw(state), .view = (uint32_t)i};
    policy_rank(state->ranks, count, 0, &state->generator, order);
}

const struct policy policy_random = {
    .name = "random",
    .help = "any of them",
    .state_bytes = sizeof(struct policy_state),
    .choose = choose,
};
