/* SPDX-License-Identifier: Apache-2.0 */

#include "router/policy/policy_rank.h"

#include "backends/runtime/random.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

/*
 * DESIGN
 *
 * Why "at random among the least recently chosen half", not simply the least recently chosen:
 * several routers with equal views would otherwise march in step and all send to the same worker.
 * Half of them keeps the spread of a round robin within a request or two.
 *
 * A report is from the past. What it says of others fades with its age; what we sent since is in
 * our own counters, which are never late.
 */

static const double REPORT_HALF_LIFE_MS = 5000;

static int compare_cost(const void *left, const void *right)
{
    const struct policy_rank *a = left;
    const struct policy_rank *b = right;

    if (a->cost < b->cost || a->cost > b->cost)
        return a->cost < b->cost ? -1 : 1;
    return (a->view > b->view) - (a->view < b->view);
}

static int compare_chosen(const struct policy_rank *a, const struct policy_rank *b)
{
    if (a->chosen_ms != b->chosen_ms)
        return a->chosen_ms < b->chosen_ms ? -1 : 1;
    return (a->chosen_count > b->chosen_count) - (a->chosen_count < b->chosen_count);
}

static int compare_recency(const void *left, const void *right)
{
    int by_chosen = compare_chosen(left, right);

    return by_chosen != 0 ? by_chosen : compare_cost(left, right);
}

/* qsort() takes memory and six times as long for the few workers that most fleets have. */
static void sort(struct policy_rank *ranks, size_t count,
                 int (*compare)(const void *left, const void *right))
{
    enum { FEW = 16 };

    if (count > FEW) {
        qsort(ranks, count, sizeof *ranks, compare);
        return;
    }
    for (size_t i = 1; i < count; i++) {
        struct policy_rank rank = ranks[i];
        size_t at = i;

        for (; at > 0 && compare(&rank, &ranks[at - 1]) < 0; at--)
            ranks[at] = ranks[at - 1];
        ranks[at] = rank;
    }
}

static size_t count_tied(const struct policy_rank *ranks, size_t count, double tie_max)
{
    size_t tied = 1;

    while (tied < count && ranks[tied].cost - ranks[0].cost <= tie_max)
        tied++;
    return tied;
}

/* ranks[0..tied) cost the same: brings the one to be chosen to the front. */
static void break_tie(struct policy_rank *ranks, size_t tied, uint64_t *generator)
{
    size_t candidates = 1;
    size_t winner;
    struct policy_rank first;

    sort(ranks, tied, compare_recency);
    while (candidates < tied &&
           (candidates < (tied + 1) / 2 || compare_chosen(&ranks[candidates], &ranks[0]) == 0))
        candidates++;
    winner = (size_t)(random_next(generator) % candidates);
    first = ranks[winner];
    ranks[winner] = ranks[0];
    ranks[0] = first;
    sort(ranks + 1, tied - 1, compare_cost);
}

/* How much of a report is still believed: 1 fresh, 0 none. */
static double report_weight(const struct worker_view *view, uint64_t now_ms)
{
    if (!view->has_report)
        return 0;
    if (now_ms <= view->reported_ms)
        return 1;
    return exp2(-(double)(now_ms - view->reported_ms) / REPORT_HALF_LIFE_MS);
}

/* The report less what of ours it contains. */
static struct policy_foreign_load reported(const struct worker_view *view)
{
    const uint32_t own_waiting =
        view->in_flight > view->decoding ? view->in_flight - view->decoding : 0;
    double total = (double)view->reported_running + view->reported_waiting - view->in_flight;
    double waiting = (double)view->reported_waiting - own_waiting;

    if (!view->has_report || total < 0)
        total = 0;
    if (waiting < 0)
        waiting = 0;
    if (waiting > total)
        waiting = total; /* what we take for waiting may be running, and the other way round */
    return (struct policy_foreign_load){waiting, total - waiting};
}

void policy_rank(struct policy_rank *ranks, size_t count, double tie_max, uint64_t *generator,
                 uint32_t *order)
{
    assert(count > 0 && count <= POLICY_VIEW_COUNT_MAX);
    assert(tie_max >= 0);

    sort(ranks, count, compare_cost);
    break_tie(ranks, count_tied(ranks, count, tie_max), generator);
    for (size_t i = 0; i < count; i++)
        order[i] = ranks[i].view;
}

struct policy_foreign_load policy_foreign_usual(const struct worker_view *views, size_t count,
                                                uint64_t now_ms)
{
    struct policy_foreign_load sum = {0, 0};
    double weight_sum = 0;

    for (size_t i = 0; i < count; i++) {
        const struct policy_foreign_load load = reported(&views[i]);
        const double weight = report_weight(&views[i], now_ms);

        sum.waiting += weight * load.waiting;
        sum.running += weight * load.running;
        weight_sum += weight;
    }
    if (weight_sum < 1)
        weight_sum = 1; /* less than one fresh report: what is left of them fades to nothing */
    return (struct policy_foreign_load){sum.waiting / weight_sum, sum.running / weight_sum};
}

struct policy_foreign_load policy_foreign_load(const struct worker_view *view,
                                               struct policy_foreign_load usual, uint64_t now_ms)
{
    const struct policy_foreign_load load = reported(view);
    const double weight = report_weight(view, now_ms);

    return (struct policy_foreign_load){
        .waiting = weight * load.waiting + (1 - weight) * usual.waiting,
        .running = weight * load.running + (1 - weight) * usual.running,
    };
}
