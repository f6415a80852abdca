/* SPDX-License-Identifier: Apache-2.0 */

#include "router/policy/prefill_rate.h"

#include "router/policy/policy_defaults.h"

void prefill_rate_fill(struct worker_view *views, size_t count)
{
    double sum = 0, usual = POLICY_PREFILL_TOKENS_PER_MS_DEFAULT;
    size_t known = 0;

    for (size_t i = 0; i < count; i++) {
        sum += views[i].prefill_tokens_per_ms;
        known += views[i].prefill_tokens_per_ms > 0;
    }
    if (known > 0)
        usual = sum / (double)known;
    for (size_t i = 0; i < count; i++) {
        if (views[i].prefill_tokens_per_ms <= 0)
            views[i].prefill_tokens_per_ms = usual;
    }
}
