/* SPDX-License-Identifier: Apache-2.0 */

/*
 * residency_sync: this router's replica of what agents say their workers hold. Per worker: which
 * life of its agent is being read, how far, whether what was read is exact, whether the agent may
 * be believed, and if not, why. It is told what Redis answered and says what to ask next; the
 * records go into a residency_index of its own, under holder numbers that it takes and retires.
 * No loop, clock or socket: pure; loop thread only. Workers go by their index in worker_set.
 */
#ifndef ROUTER_RESIDENCY_RESIDENCY_SYNC_H
#define ROUTER_RESIDENCY_RESIDENCY_SYNC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/redis/residency_wire.h"
#include "backends/runtime/must_check.h"
#include "backends/runtime/slice.h"
#include "router/residency/residency_index.h"

struct residency_sync;

/* ---- the replica of one worker ---- */

enum residency_sync_state {
    RESIDENCY_SYNC_NOTHING,  /* no life is known: no agent, or none that we understand */
    RESIDENCY_SYNC_BEGIN,    /* asks for the last change before the pages */
    RESIDENCY_SYNC_PAGES,    /* reads the pages */
    RESIDENCY_SYNC_END,      /* asks for the last change after the pages */
    RESIDENCY_SYNC_CATCH_UP, /* takes the changes from one to the other */
    RESIDENCY_SYNC_FOLLOW,   /* exact: count and digest agree, and each change is the next one */
    RESIDENCY_SYNC_BACK_OFF, /* it did not work; anew when that is over */
    RESIDENCY_SYNC_STATE_COUNT
};

enum residency_sync_event {
    RESIDENCY_SYNC_EVENT_LIFE,   /* a lease names a life other than the one being read */
    RESIDENCY_SYNC_EVENT_DUE,    /* the back-off is over */
    RESIDENCY_SYNC_EVENT_BEGUN,  /* the last change before the pages is known */
    RESIDENCY_SYNC_EVENT_PAGED,  /* all pages are read */
    RESIDENCY_SYNC_EVENT_ENDED,  /* the last change after them is known, and is not yet applied */
    RESIDENCY_SYNC_EVENT_AGREED, /* it is applied, count and digest agree */
    RESIDENCY_SYNC_EVENT_BROKEN, /* a gap, a digest that differs, an answer that did not come */
    RESIDENCY_SYNC_EVENT_FORGET, /* the worker is gone, or its agent has been away for too long */
    RESIDENCY_SYNC_EVENT_COUNT
};

/* The table of moves: the state after event, or -1 where it cannot happen. Pure. */
int residency_sync_state_after(enum residency_sync_state state, enum residency_sync_event event);

/* Why the exact rung is not used for a worker; the first that holds. row(constant, name) */
/* clang-format off */
#define RESIDENCY_DOUBT_ROWS(row)                                                                  \
    row(RESIDENCY_DOUBT_NONE, "none")              /* believed */                                  \
    row(RESIDENCY_DOUBT_NO_MAP, "no_map")          /* Redis has not answered for too long */       \
    row(RESIDENCY_DOUBT_NO_AGENT, "no_agent")      /* nobody has ever spoken for it */             \
    row(RESIDENCY_DOUBT_FINGERPRINT, "fingerprint") /* its agent names prompts otherwise */        \
    row(RESIDENCY_DOUBT_NO_LEASE, "no_lease")      /* its agent has gone silent */                 \
    row(RESIDENCY_DOUBT_NOT_READ, "not_read")      /* it is being read, or waits to be */          \
    row(RESIDENCY_DOUBT_CAPACITY, "capacity")      /* it claims more than its cache can hold */    \
    row(RESIDENCY_DOUBT_TRUST, "trust")            /* answers have shown that its claims are wrong */
/* clang-format on */

enum residency_doubt {
#define RESIDENCY_DOUBT_CONSTANT(constant, name) constant,
    RESIDENCY_DOUBT_ROWS(RESIDENCY_DOUBT_CONSTANT)
#undef RESIDENCY_DOUBT_CONSTANT
        RESIDENCY_DOUBT_COUNT
};

const char *residency_doubt_name(enum residency_doubt doubt);
const char *residency_sync_state_name(enum residency_sync_state state);

/* What whoever routes, or tells agents something, asks about a worker's agent. */
struct residency_agent {
    bool is_there;    /* one speaks for this worker now (it has a lease), in our fingerprint: it
                       * may be told things */
    bool is_believed; /* doubt is NONE: what it says is exact */
    bool has_claims;  /* holder may be looked at: exact, or what was exact, for a guess */
    enum residency_doubt doubt;
    uint32_t holder;         /* in the index; where has_claims */
    uint32_t block_tokens;   /* engine block; 0: not known, so no anchors can be named */
    bool has_anchors;        /* the agent hears them from the engine itself */
    uint32_t text_depth_max; /* blocks of a prompt that the agent can take in */
};

/* Cheap: for each worker at each choice. now_ms is monotonic, as everywhere here. */
struct residency_agent residency_sync_agent(const struct residency_sync *sync, uint32_t worker,
                                            uint64_t now_ms);

#endif
