/* SPDX-License-Identifier: Apache-2.0 */

#include "router/policy/tier_cost.h"

#include "router/policy/policy_defaults.h"

/*
 * DESIGN
 *
 * What is not known gets a default and not "free" or "never": a tier that looks free would draw
 * every request to the worker that knows least about itself, one that looks unusable would throw
 * the tier away. With the defaults of policy_defaults.h a token from CPU memory costs a twentieth
 * of computing it, one from SSD a third, and some forty tokens are computed before a load begins.
 *
 * From SSD a block goes through CPU memory on its way; the two legs overlap, and the disk is the
 * slower one, so its rate alone counts.
 */

/* Of one of the two. */
struct tier_rate {
    uint64_t bytes_per_s; /* 0: not known, as start_us */
    double bytes_per_s_default;
    uint32_t start_us;
    uint32_t queue_ms;
};

static struct worker_tier tier_cost(double tokens, uint32_t bytes_per_token,
                                    const struct tier_rate *rate)
{
    const double bytes = bytes_per_token > 0 ? bytes_per_token : TIER_BYTES_PER_TOKEN_DEFAULT;
    const double bytes_per_s =
        rate->bytes_per_s > 0 ? (double)rate->bytes_per_s : rate->bytes_per_s_default;

    return (struct worker_tier){
        .tokens = tokens,
        .ms_per_token = bytes / bytes_per_s * 1000,
        .start_ms = rate->start_us > 0 ? rate->start_us / 1e3 : TIER_START_MS_DEFAULT,
        .queue_ms = rate->queue_ms,
    };
}

struct worker_tier tier_cost_cpu(const struct tier_facts *facts, double tokens)
{
    return tier_cost(tokens, facts->bytes_per_token,
                     &(struct tier_rate){facts->cpu_bytes_per_s, TIER_CPU_BYTES_PER_S_DEFAULT,
                                         facts->cpu_start_us, facts->cpu_queue_ms});
}

struct worker_tier tier_cost_ssd(const struct tier_facts *facts, double tokens)
{
    return tier_cost(tokens, facts->bytes_per_token,
                     &(struct tier_rate){facts->ssd_bytes_per_s, TIER_SSD_BYTES_PER_S_DEFAULT,
                                         facts->ssd_start_us, facts->ssd_queue_ms});
}
