/* SPDX-License-Identifier: Apache-2.0 */

#include "router/residency/claim_trust.h"

/*
 * DESIGN
 *
 * An honest agent is wrong too: blocks are evicted between the choice and the prefill, and an event
 * is on its way. Under heavy eviction that is a percent of what is claimed. A liar, or an agent
 * whose engine does not cache at all, misses everything. Half of what was claimed, averaged so that
 * four answers in a row decide, keeps far from both.
 *
 * Probation begins just below the limit: one answer that misses everything ends it, one that is
 * well clears most of it.
 */
static const double WEIGHT = 0.2;
static const double MISSING_MAX = 0.5;
static const double MISSING_PROBATION = 0.4;
static const double MISSING_FORGIVEN = 0.05;

static void quarantine(struct claim_trust *trust, uint64_t now_ms)
{
    uint64_t span_ms = CLAIM_TRUST_QUARANTINE_MS_MIN;

    for (uint32_t i = 0; i < trust->level && span_ms < CLAIM_TRUST_QUARANTINE_MS_MAX; i++)
        span_ms *= 2;
    if (span_ms > CLAIM_TRUST_QUARANTINE_MS_MAX)
        span_ms = CLAIM_TRUST_QUARANTINE_MS_MAX;
    trust->until_ms = now_ms + span_ms;
    trust->level++;
    trust->quarantine_total++;
    trust->missing = MISSING_PROBATION;
}

bool claim_trust_note(struct claim_trust *trust, double claimed, double cached, uint64_t now_ms)
{
    double missing = claimed > cached ? claimed - cached : 0;

    if (claimed < CLAIM_TRUST_TOKENS_MIN || claim_trust_is_quarantined(trust, now_ms))
        return false;
    trust->claimed_total += (uint64_t)claimed;
    trust->missing_total += (uint64_t)missing;
    trust->missing += WEIGHT * (missing / claimed - trust->missing);
    if (trust->missing > MISSING_MAX) {
        quarantine(trust, now_ms);
        return true;
    }
    if (trust->missing < MISSING_FORGIVEN)
        trust->level = 0;
    return false;
}
