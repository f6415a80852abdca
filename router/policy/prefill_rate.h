/* SPDX-License-Identifier: Apache-2.0 */

/*
 * prefill_rate: how fast a worker reads a prompt, where nobody has measured it. For whoever fills a
 * struct worker_view. Pure.
 */
#ifndef ROUTER_POLICY_PREFILL_RATE_H
#define ROUTER_POLICY_PREFILL_RATE_H

#include <stddef.h>

#include "router/policy/policy.h"

/* Gives those of views[0..count) whose prefill_tokens_per_ms is 0 the mean of the others; where it
 * is 0 for all, the default. Workers of one model are mostly alike: a default beside a measured
 * rate would send everything to one side of them. */
void prefill_rate_fill(struct worker_view *views, size_t count);

#endif
