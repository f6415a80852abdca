/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/load_plan.h"

#include <stdbool.h>

/*
 * DESIGN
 *
 *   load_ms(n) = max over the tiers that are read (start + queue + blocks from it * ms a block)
 *   saved(n)   = n * tokens * prefill_ms_per_token - load_ms(n)
 *
 * Tiers have links and queues of their own and are read at the same time, so the slower one counts.
 * saved() is no line: it falls where blocks lie in a slow tier and rises behind them, so every
 * prefix is looked at, which is one step a block.
 */

static double load_ms(const struct load_plan_query *query,
                      const size_t block_count[BLOCK_TIER_COUNT])
{
    double slowest = 0;

    for (int tier = 0; tier < BLOCK_TIER_COUNT; tier++) {
        const double ms = query->start_ms[tier] + query->queue_ms[tier] +
                          (double)block_count[tier] * query->ms_per_block[tier];

        if (block_count[tier] > 0 && ms > slowest)
            slowest = ms;
    }
    return slowest;
}

struct load_plan load_plan_make(const struct load_plan_query *query)
{
    const bool is_prefill_known = query->prefill_ms_per_token > 0;
    const double block_ms = query->block_tokens * query->prefill_ms_per_token;
    size_t from[BLOCK_TIER_COUNT] = {0};
    struct load_plan best = {.block_count = 0};

    for (size_t i = 0; i < query->block_count && query->tiers[i] != 0; i++) {
        const bool is_in_cpu = (query->tiers[i] & 1 << BLOCK_TIER_CPU) != 0;
        struct load_plan plan = {.block_count = i + 1};

        from[is_in_cpu ? BLOCK_TIER_CPU : BLOCK_TIER_SSD]++;
        plan.load_ms = load_ms(query, from);
        plan.saved_ms = is_prefill_known ? (double)(i + 1) * block_ms - plan.load_ms : 0;
        if (plan.saved_ms >= best.saved_ms)
            best = plan;
    }
    return best;
}
