/* SPDX-License-Identifier: Apache-2.0 */

#include "router/policy/ladder.h"

/*
 * DESIGN
 *
 * An agent reports with a delay, and what we sent there a moment ago it has not seen yet. So the
 * claimed run goes on, block by block, with what was sent: a fact first, and then a guess about
 * its end. An agent that is not believed for now is looked at in the same way, because what it said
 * last is the best guess there is; only the name of the rung, and what it may be blamed for,
 * differ.
 *
 * That a believed agent claims nothing of a prompt is exact too, where it would know.
 */

static double tokens_of(const struct ladder_prompt *prompt, uint64_t bytes)
{
    return prompt->bytes > 0 ? prompt->tokens * (double)bytes / (double)prompt->bytes : 0;
}

double ladder_prompt_tokens(const struct ladder_prompt *prompt, uint64_t claimed_bytes,
                            double claimed_tokens)
{
    if (claimed_tokens <= 0 || claimed_bytes > prompt->bytes)
        return prompt->tokens;
    return claimed_tokens + tokens_of(prompt, prompt->bytes - claimed_bytes);
}

static enum route_rung rung_of(const struct ladder_facts *facts)
{
    if (facts->is_believed && facts->claimed_bytes > 0)
        return ROUTE_RUNG_EXACT;
    if (facts->claimed_bytes + facts->guessed_bytes > 0)
        return ROUTE_RUNG_GUESS;
    return facts->is_believed && facts->is_whole && facts->can_anchor ? ROUTE_RUNG_EXACT
                                                                      : ROUTE_RUNG_LOAD;
}

struct ladder_step ladder_step_of(const struct ladder_prompt *prompt,
                                  const struct ladder_facts *facts)
{
    double claimed = facts->claimed_tokens;

    return (struct ladder_step){
        .rung = rung_of(facts),
        .matched_tokens = claimed + tokens_of(prompt, facts->guessed_bytes),
        .claimed_tokens = facts->is_believed ? claimed : 0,
        .near_tokens = claimed - facts->claimed_cpu_tokens - facts->claimed_ssd_tokens,
        .cpu_tokens = facts->claimed_cpu_tokens,
        .ssd_tokens = facts->claimed_ssd_tokens,
        .pending_tokens = tokens_of(prompt, facts->pending_bytes),
    };
}
