/* SPDX-License-Identifier: Apache-2.0 */

/*
 * policy_rank: what every policy does after it has put a cost on each view: sort, and break ties
 * at random among the least recently chosen. Pure; for the files of this folder.
 */
#ifndef ROUTER_POLICY_POLICY_RANK_H
#define ROUTER_POLICY_POLICY_RANK_H

#include <stddef.h>
#include <stdint.h>

#include "router/policy/policy.h"

struct policy_rank {
    double cost; /* least is best */
    uint64_t chosen_ms;
    uint64_t chosen_count;
    uint32_t view; /* place in views[] */
};

/*
 * Sorts ranks[0..count) by cost. Of those that cost at most tie_max more than the best, one of the
 * least recently chosen half comes first. Writes the views' places into order[].
 */
void policy_rank(struct policy_rank *ranks, size_t count, double tie_max, uint64_t *generator,
                 uint32_t *order);

struct policy_foreign_load {
    double waiting; /* requests of others, before their first token */
    double running;
};

/*
 * The usual load by others, from the reports of views[0..count): what is assumed of a worker that
 * has none. Unknown is not zero, else a worker nobody hears of would look like the idle one.
 */
struct policy_foreign_load policy_foreign_usual(const struct worker_view *views, size_t count,
                                                uint64_t now_ms);

/*
 * What the worker's report says beyond our own requests, which the engine counted too. The older
 * the report, the more the usual load takes its place.
 */
struct policy_foreign_load policy_foreign_load(const struct worker_view *view,
                                               struct policy_foreign_load usual, uint64_t now_ms);

#endif
