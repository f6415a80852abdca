/* SPDX-License-Identifier: Apache-2.0 */

#include "router/policy/policy_round_robin.h"

#include "router/policy/policy_rank.h"

#include <assert.h>
#include <string.h>

/*
 * DESIGN
 *
 * The state remembers whose turn it is as a worker's index, not as a place in views[]: workers come
 * and go between two choices without anybody being skipped or served twice.
 */

struct policy_state {
    uint64_t generator; /* first */
    uint32_t next;      /* the first worker of the next round */
    struct policy_rank ranks[POLICY_VIEW_COUNT_MAX];
};

/* Turns until worker is next; indices wrap around at 2^32. */
static double turns_until(const struct policy_state *state, uint32_t worker)
{
    return (uint32_t)(worker - state->next);
}

static void choose(struct policy_state *state, const struct route_query *query,
                   const struct worker_view *views, size_t count, uint32_t *order,
                   struct route_terms *terms)
{
    assert(count > 0 && count <= POLICY_VIEW_COUNT_MAX);

    (void)query;
    memset(terms, 0, count * sizeof *terms);
    for (size_t i = 0; i < count; i++)
        state->ranks[i] =
            (struct policy_rank){.cost = turns_until(state, views[i].worker), .view = (uint32_t)i};
    policy_rank(state->ranks, count, 0, &state->generator, order);
    state->next = views[order[0]].worker + 1;
}

const struct policy policy_round_robin = {
    .name = "round_robin",
    .help = "one after the other",
    .state_bytes = sizeof(struct policy_state),
    .choose = choose,
};
