/* SPDX-License-Identifier: Apache-2.0 */

#include <assert.h>

#include "router/residency/residency_sync_parts.h"

/*
 * DESIGN
 *
 * What of a replica may be used, and what is to be told of it: reads only, but for trust. That a
 * worker's claims stand here does not make them true: they come from an agent, and only answers of
 * the engine show whether it is to be believed (claim_trust).
 */

#define ROW_NAME(constant, name) [constant] = name,
static const char *const doubt_names[] = {RESIDENCY_DOUBT_ROWS(ROW_NAME)};
static const char *const break_names[] = {RESIDENCY_BREAK_ROWS(ROW_NAME)};
#undef ROW_NAME
static const char *const state_names[] = {
    [RESIDENCY_SYNC_NOTHING] = "nothing",   [RESIDENCY_SYNC_BEGIN] = "begin",
    [RESIDENCY_SYNC_PAGES] = "pages",       [RESIDENCY_SYNC_END] = "end",
    [RESIDENCY_SYNC_CATCH_UP] = "catch_up", [RESIDENCY_SYNC_FOLLOW] = "follow",
    [RESIDENCY_SYNC_BACK_OFF] = "back_off",
};

const char *residency_doubt_name(enum residency_doubt doubt)
{
    assert((size_t)doubt < RESIDENCY_DOUBT_COUNT);
    return doubt_names[doubt];
}

const char *residency_break_name(enum residency_break reason)
{
    assert((size_t)reason < RESIDENCY_BREAK_COUNT);
    return break_names[reason];
}

const char *residency_sync_state_name(enum residency_sync_state state)
{
    assert((size_t)state < RESIDENCY_SYNC_STATE_COUNT);
    return state_names[state];
}

static enum residency_doubt doubt_of(const struct residency_sync *sync,
                                     const struct replica *replica, uint64_t now_ms)
{
    if (residency_sync_is_away(sync, now_ms))
        return RESIDENCY_DOUBT_NO_MAP;
    if (replica == NULL || (replica->lease_ms == 0 && !replica->has_lease))
        return RESIDENCY_DOUBT_NO_AGENT;
    if (!replica->has_lease)
        return RESIDENCY_DOUBT_NO_LEASE;
    if (replica->is_stranger)
        return RESIDENCY_DOUBT_FINGERPRINT;
    if (replica->is_over)
        return RESIDENCY_DOUBT_CAPACITY;
    if (claim_trust_is_quarantined(&replica->trust, now_ms))
        return RESIDENCY_DOUBT_TRUST;
    return replica->state == RESIDENCY_SYNC_FOLLOW ? RESIDENCY_DOUBT_NONE
                                                   : RESIDENCY_DOUBT_NOT_READ;
}

uint32_t residency_sync_holder_end(const struct residency_sync *sync)
{
    return sync->holders.end;
}

struct residency_agent residency_sync_agent(const struct residency_sync *sync, uint32_t worker,
                                            uint64_t now_ms)
{
    const struct replica *replica = sync->replicas[worker];
    struct residency_agent agent = {.doubt = doubt_of(sync, replica, now_ms)};

    if (replica == NULL)
        return agent;
    agent.is_believed = agent.doubt == RESIDENCY_DOUBT_NONE;
    agent.is_there =
        replica->has_lease && !replica->is_stranger && agent.doubt != RESIDENCY_DOUBT_NO_MAP;
    agent.has_claims = replica->shown.holder != RESIDENCY_HOLDER_NONE &&
                       !claim_trust_is_quarantined(&replica->trust, now_ms);
    agent.holder = replica->shown.holder;
    agent.is_whole = replica->lease.is_whole;
    agent.cpu_queue_ms = replica->lease.cpu_queue_ms;
    agent.ssd_queue_ms = replica->lease.ssd_queue_ms;
    if (replica->has_meta) {
        agent.block_tokens = replica->meta.block_tokens;
        agent.has_anchors = replica->meta.has_anchors;
        agent.text_depth_max = replica->meta.text_depth_max;
        agent.bytes_per_token = replica->meta.bytes_per_token;
        agent.prefill_tokens_per_s = replica->meta.prefill_tokens_per_s;
        agent.cpu_start_us = replica->meta.cpu_start_us;
        agent.ssd_start_us = replica->meta.ssd_start_us;
        agent.cpu_bytes_per_s = replica->meta.cpu_bytes_per_s;
        agent.ssd_bytes_per_s = replica->meta.ssd_bytes_per_s;
    }
    return agent;
}

bool residency_sync_answered(struct residency_sync *sync, uint32_t worker, double claimed,
                             double cached, uint64_t now_ms)
{
    struct replica *replica = sync->replicas[worker];
    struct claim_trust *trust = replica != NULL ? &replica->trust : NULL;
    struct claim_trust before;
    bool is_quarantined;

    if (trust == NULL || now_ms > sync->polled_ms + RESIDENCY_SYNC_JUDGED_MS)
        return false;
    before = *trust;
    is_quarantined = claim_trust_note(trust, claimed, cached, now_ms);
    sync->stats.quarantines_total += is_quarantined;
    sync->stats.claimed_tokens_total += trust->claimed_total - before.claimed_total;
    sync->stats.missing_tokens_total += trust->missing_total - before.missing_total;
    return is_quarantined;
}

/* ---- for people ---- */

static uint64_t age_of(uint64_t then_ms, uint64_t now_ms)
{
    return now_ms > then_ms ? now_ms - then_ms : 0;
}

bool residency_sync_view(const struct residency_sync *sync, uint32_t worker, uint64_t now_ms,
                         struct residency_sync_view *view)
{
    const struct replica *replica = sync->replicas[worker];

    *view = (struct residency_sync_view){.doubt = doubt_of(sync, replica, now_ms)};
    if (replica == NULL)
        return false;
    view->state = replica->state;
    view->meta = replica->has_meta ? &replica->meta : NULL;
    view->has_lease = replica->has_lease;
    view->lease = replica->lease;
    view->lease_age_ms = age_of(replica->lease_ms, now_ms);
    view->life = replica->life;
    view->sequence = replica->sequence;
    if (replica->state == RESIDENCY_SYNC_FOLLOW && replica->lease.sequence > replica->sequence)
        view->lag = replica->lease.sequence - replica->sequence;
    view->record_count = replica->shown.count;
    for (unsigned tier = 0; tier < RESIDENCY_TIER_COUNT; tier++)
        view->tier_counts[tier] = replica->shown.tier_counts[tier];
    view->refused_count = replica->shown.refused_count;
    view->break_count = replica->break_count;
    view->last_break = replica->last_break;
    view->missing = replica->trust.missing;
    if (claim_trust_is_quarantined(&replica->trust, now_ms))
        view->quarantine_ms = replica->trust.until_ms - now_ms;
    view->quarantine_count = replica->trust.quarantine_total;
    return true;
}

struct residency_sync_stats residency_sync_stats(const struct residency_sync *sync)
{
    struct residency_sync_stats stats = sync->stats;

    for (uint32_t i = 0; i < RESIDENCY_SYNC_WORKER_COUNT_MAX; i++) {
        const struct replica *replica = sync->replicas[i];

        if (replica == NULL)
            continue;
        stats.record_count += replica->shown.count;
        stats.refused_count += replica->shown.refused_count;
        stats.agent_count += replica->has_lease;
        stats.exact_count += replica->state == RESIDENCY_SYNC_FOLLOW;
        stats.stranger_count += replica->has_lease && replica->is_stranger;
        stats.partial_count += replica->shown.refused_count > 0;
    }
    return stats;
}
