/* SPDX-License-Identifier: Apache-2.0 */

#include "router/policy/tier_cost.h"

#include "router/policy/policy_defaults.h"

/*
 * DESIGN
 *
 * What is not known gets a default and not "free" or "never": a tier that looks free would draw
 * every request to the worker that knows least about itself, one that looks unusable would throw
 * the tier away. With the defaults of policy_defaults.h a token from CPU memory costs a twentieth
 * of computing it, one from SSD a third.
 *
 * From SSD a block goes through CPU memory on its way; the two legs overlap, and the disk is the
 * slower one, so its rate alone counts.
 */

static struct worker_tier tier_cost(double tokens, uint32_t bytes_per_token, double bytes_per_s,
                                    uint32_t queue_ms)
{
    const double bytes = bytes_per_token > 0 ? bytes_per_token : TIER_BYTES_PER_TOKEN_DEFAULT;

    return (struct worker_tier){tokens, bytes / bytes_per_s * 1000, queue_ms};
}

struct worker_tier tier_cost_cpu(const struct tier_facts *facts, double tokens)
{
    const double rate =
        facts->cpu_bytes_per_s > 0 ? (double)facts->cpu_bytes_per_s : TIER_CPU_BYTES_PER_S_DEFAULT;

    return tier_cost(tokens, facts->bytes_per_token, rate, facts->cpu_queue_ms);
}

struct worker_tier tier_cost_ssd(const struct tier_facts *facts, double tokens)
{
    const double rate =
        facts->ssd_bytes_per_s > 0 ? (double)facts->ssd_bytes_per_s : TIER_SSD_BYTES_PER_S_DEFAULT;

    return tier_cost(tokens, facts->bytes_per_token, rate, facts->ssd_queue_ms);
}
