/* SPDX-License-Identifier: Apache-2.0 */

/*
 * residency_sync_parts: what is known of one worker's report, for the two files of residency_sync:
 * the one that reads, and the one that answers. Nobody else includes it.
 */
#ifndef ROUTER_RESIDENCY_RESIDENCY_SYNC_PARTS_H
#define ROUTER_RESIDENCY_RESIDENCY_SYNC_PARTS_H

#include "router/residency/claim_trust.h"
#include "router/residency/residency_copy.h"
#include "router/residency/residency_sync.h"

struct replica {
    enum residency_sync_state state;
    uint32_t ticket;
    /* What its agent says. */
    bool has_meta;
    bool has_lease;    /* by the last poll */
    bool is_stranger;  /* of another fingerprint */
    bool is_over;      /* it claims more than its cache can hold */
    uint64_t lease_ms; /* last poll that found one of ours; 0: none ever did */
    struct residency_lease lease;
    struct residency_meta meta;
    /* What is read. */
    struct residency_life life;
    uint64_t life_ms;        /* when it was first seen */
    uint64_t sequence;       /* of the last change that filling, or in FOLLOW shown, has */
    uint64_t end_sequence;   /* E */
    uint64_t batch_sequence; /* in CATCH_UP: sequence when the batch was asked for */
    uint32_t page;           /* the next */
    uint32_t page_end;       /* behind the last that was asked for */
    struct residency_copy shown;
    struct residency_copy filling;
    /* What went wrong. */
    uint64_t due_ms;
    uint32_t back_off_level;
    uint64_t exact_ms;   /* FOLLOW since; 0: not now */
    uint64_t stalled_ms; /* the lease has been ahead since; 0: it is not */
    uint64_t stalled_sequence;
    uint64_t break_count;
    enum residency_break last_break;
    struct claim_trust trust;
};

struct residency_sync {
    struct residency_index *index;
    struct residency_sync_config config;
    uint64_t polled_ms; /* 0: never */
    struct residency_holders holders;
    struct residency_sync_stats stats;                         /* the totals */
    struct replica *replicas[RESIDENCY_SYNC_WORKER_COUNT_MAX]; /* NULL: nothing was heard of it */
};

/* The last poll that Redis answered is too long ago to believe anybody. */
static inline bool residency_sync_is_away(const struct residency_sync *sync, uint64_t now_ms)
{
    return sync->polled_ms == 0 || now_ms > sync->polled_ms + RESIDENCY_SYNC_BELIEVED_MS;
}

#endif
