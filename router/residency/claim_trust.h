/* SPDX-License-Identifier: Apache-2.0 */

/*
 * claim_trust: whether one worker's agent deserves to be believed, judged by what its engine says
 * of each answer: of the tokens that were claimed to be cached, how many were missing? Who keeps
 * promising what is not there is quarantined, for longer each time, and comes back on probation.
 * Pure: a plain value.
 */
#ifndef ROUTER_RESIDENCY_CLAIM_TRUST_H
#define ROUTER_RESIDENCY_CLAIM_TRUST_H

#include <stdbool.h>
#include <stdint.h>

struct claim_trust {
    double missing;         /* share of what was claimed, an average over recent answers: 0..1 */
    uint32_t level;         /* quarantines that are not forgiven */
    uint64_t until_ms;      /* end of the last quarantine; 0: there was none */
    uint64_t claimed_total; /* tokens, of answers that were judged */
    uint64_t missing_total; /* of them */
    uint64_t quarantine_total;
};

enum {
    CLAIM_TRUST_TOKENS_MIN = 64, /* smaller claims say nothing: a template may be off by as much */
    CLAIM_TRUST_QUARANTINE_MS_MIN = 10000, /* doubles each time, up to */
    CLAIM_TRUST_QUARANTINE_MS_MAX = 600000,
};

/* An answer was predicted by claims alone and says what was cached. True: it begins a quarantine.
 * Answers during one are not judged: they were not chosen by claims. */
bool claim_trust_note(struct claim_trust *trust, double claimed, double cached, uint64_t now_ms);

static inline bool claim_trust_is_quarantined(const struct claim_trust *trust, uint64_t now_ms)
{
    return now_ms < trust->until_ms;
}

#endif
