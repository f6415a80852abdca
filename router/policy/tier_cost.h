/* SPDX-License-Identifier: Apache-2.0 */

/*
 * tier_cost: what it costs a worker to bring tokens from CPU memory or SSD to its engine, from what
 * its agent has measured, or from defaults. For whoever fills a struct worker_view. Pure.
 */
#ifndef ROUTER_POLICY_TIER_COST_H
#define ROUTER_POLICY_TIER_COST_H

#include <stdint.h>

#include "router/policy/policy.h"

/* What an agent says; 0: not known. */
struct tier_facts {
    uint32_t bytes_per_token;
    uint64_t cpu_bytes_per_s;
    uint64_t ssd_bytes_per_s;
    uint32_t cpu_start_us; /* of any load */
    uint32_t ssd_start_us;
    uint32_t cpu_queue_ms;
    uint32_t ssd_queue_ms;
};

struct worker_tier tier_cost_cpu(const struct tier_facts *facts, double tokens);
struct worker_tier tier_cost_ssd(const struct tier_facts *facts, double tokens);

#endif
