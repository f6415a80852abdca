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

enum {
    RESIDENCY_SYNC_WORKER_COUNT_MAX = 1024,
    RESIDENCY_SYNC_BELIEVED_MS = 3000, /* after the last poll that found a lease */
    RESIDENCY_SYNC_JUDGED_MS = 1000,   /* after it: what is wrong later, nobody could take back */
    RESIDENCY_SYNC_KEPT_MS = 600000,   /* a replica whose agent is silent */
    RESIDENCY_SYNC_STALLED_MS = 2000,  /* the lease may be ahead of the changes */
    RESIDENCY_SYNC_RIVALS_MS = 5000,   /* two lives that begin sooner after each other are rivals,
                                        * unless the one says that it is after the other */
    RESIDENCY_SYNC_BACK_OFF_MS = 100,  /* the first; doubles up to */
    RESIDENCY_SYNC_BACK_OFF_MS_MAX = 30000,
    RESIDENCY_SYNC_SETTLED_MS = 10000, /* exact for so long: the next back-off is the first again */
    RESIDENCY_SYNC_PAGE_COUNT_MAX = 4096, /* of one worker: 16.7 million records */
};

struct residency_sync_config {
    uint64_t fingerprint;     /* ours: what names prompts otherwise is not read */
    uint64_t index_bytes_max; /* of the index: above half of it nothing is kept twice */
    uint64_t seed;            /* jitters back-offs */
};

/* Borrows index, in which it alone stores. NULL: no memory. */
struct residency_sync *residency_sync_create(struct residency_index *index,
                                             struct residency_sync_config config);
void residency_sync_destroy(struct residency_sync *sync);

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

/* Why a replica had to be read anew. row(constant, name) */
/* clang-format off */
#define RESIDENCY_BREAK_ROWS(row)                                                                  \
    row(RESIDENCY_BREAK_GAP, "gap")                /* the change after the last was trimmed */     \
    row(RESIDENCY_BREAK_DIGEST, "digest")          /* count or digest differ: something is lost */ \
    row(RESIDENCY_BREAK_STALLED, "stalled")        /* the lease is ahead, and no change comes */   \
    row(RESIDENCY_BREAK_EXPIRED, "expired")        /* changes were made but their stream is gone */ \
    row(RESIDENCY_BREAK_UNREADABLE, "unreadable")  /* a page or change that is none */             \
    row(RESIDENCY_BREAK_FAILED, "failed")          /* Redis did not answer, or refused */          \
    row(RESIDENCY_BREAK_CAPACITY, "capacity")      /* more is claimed than can be */               \
    row(RESIDENCY_BREAK_RIVALS, "rivals")          /* lives take turns: two agents, one worker */  \
    row(RESIDENCY_BREAK_HOLDERS, "holders")        /* earlier replicas are not yet swept away */
/* clang-format on */

enum residency_break {
#define RESIDENCY_BREAK_CONSTANT(constant, name) constant,
    RESIDENCY_BREAK_ROWS(RESIDENCY_BREAK_CONSTANT)
#undef RESIDENCY_BREAK_CONSTANT
        RESIDENCY_BREAK_COUNT
};

const char *residency_break_name(enum residency_break reason);
const char *residency_doubt_name(enum residency_doubt doubt);
const char *residency_sync_state_name(enum residency_sync_state state);

/* ---- what Redis says ---- */

/* Redis has answered a poll of leases: what it says of each worker follows. */
void residency_sync_polled(struct residency_sync *sync, uint64_t now_ms);

/* worker's lease; NULL: it has none, or none that can be read. */
void residency_sync_lease(struct residency_sync *sync, uint32_t worker,
                          const struct residency_lease *lease, uint64_t now_ms);

void residency_sync_meta(struct residency_sync *sync, uint32_t worker,
                         const struct residency_meta *meta, uint64_t now_ms);

/* The last change of the life that was asked for; NULL: there is none. */
void residency_sync_last(struct residency_sync *sync, uint32_t worker, uint64_t sequence,
                         const struct residency_change *change, uint64_t now_ms);

/* A page that was asked for; empty: there is none. */
void residency_sync_page(struct residency_sync *sync, uint32_t worker, uint32_t page,
                         struct slice bytes, uint64_t now_ms);

/* A change, while catching up or following. */
void residency_sync_change(struct residency_sync *sync, uint32_t worker, uint64_t sequence,
                           const struct residency_change *change, uint64_t now_ms);

/* No more changes behind those that were asked for to catch up. */
void residency_sync_no_more(struct residency_sync *sync, uint32_t worker, uint64_t now_ms);

/* What was asked for did not come, or was none. */
void residency_sync_broken(struct residency_sync *sync, uint32_t worker,
                           enum residency_break reason, uint64_t now_ms);

/* worker is gone, or another one has its index now. */
void residency_sync_forget(struct residency_sync *sync, uint32_t worker);

/* Every 100 ms or so: back-offs that are over, replicas kept too long, leavings in the index. */
void residency_sync_tick(struct residency_sync *sync, uint64_t now_ms);

/* ---- what to ask Redis next ---- */

enum residency_wish_kind {
    RESIDENCY_WISH_NOTHING,
    RESIDENCY_WISH_LAST,    /* the last change */
    RESIDENCY_WISH_PAGE,    /* page, and up to page_count - 1 behind it */
    RESIDENCY_WISH_CHANGES, /* those from sequence on, at once */
    RESIDENCY_WISH_FOLLOW,  /* those from sequence on, as they come */
};

/* After each call above it may be another one; what was under way for the last one is moot then. */
struct residency_wish {
    enum residency_wish_kind kind;
    struct residency_life life;
    uint32_t page;
    uint32_t page_count;
    uint64_t sequence;
    uint32_t ticket; /* another one with each wish: whether it is the one that is under way */
};

struct residency_wish residency_sync_wish(const struct residency_sync *sync, uint32_t worker);

/* ---- who is believed ---- */

/* What whoever routes, or tells agents something, asks about a worker's agent. */
struct residency_agent {
    bool is_there;    /* one speaks for this worker now (it has a lease), in our fingerprint: it
                       * may be told things */
    bool is_believed; /* doubt is NONE: what it says is exact */
    bool has_claims;  /* holder may be looked at: exact, or what was exact, for a guess */
    bool is_whole;    /* the agent knows all that its engine holds, so what it does not claim is not
                       * there */
    enum residency_doubt doubt;
    uint32_t holder;          /* in the index; where has_claims */
    uint32_t block_tokens;    /* engine block; 0: not known, so no anchors can be named */
    bool has_anchors;         /* the agent hears them from the engine itself */
    uint32_t text_depth_max;  /* blocks of a prompt that the agent can take in */
    uint32_t bytes_per_token; /* this and all below as in residency_meta and residency_lease */
    uint32_t prefill_tokens_per_s;
    uint32_t cpu_start_us;
    uint32_t ssd_start_us;
    uint64_t cpu_bytes_per_s;
    uint64_t ssd_bytes_per_s;
    uint32_t cpu_queue_ms;
    uint32_t ssd_queue_ms;
};

/* Each holder of which an agent has claims is below it: a match need not ask about more. */
uint32_t residency_sync_holder_end(const struct residency_sync *sync);

/* Cheap: for each worker at each choice. now_ms is monotonic, as everywhere here. */
struct residency_agent residency_sync_agent(const struct residency_sync *sync, uint32_t worker,
                                            uint64_t now_ms);

/* An answer of worker says how many of the tokens were cached that its claims alone had promised.
 * While Redis does not answer, no agent is judged: what it would say does not reach us. True: it is
 * quarantined from now on. */
bool residency_sync_answered(struct residency_sync *sync, uint32_t worker, double claimed,
                             double cached, uint64_t now_ms);

/* ---- for people ---- */

struct residency_sync_view {
    enum residency_sync_state state;
    enum residency_doubt doubt;
    const struct residency_meta *meta; /* NULL: not known; lives until the next call */
    bool has_lease;
    struct residency_lease lease;    /* the last there was */
    uint64_t lease_age_ms;           /* since a poll found it */
    struct residency_life life;      /* that is read */
    uint64_t sequence;               /* applied */
    uint64_t lag;                    /* changes that the lease is ahead */
    uint64_t record_count;           /* of the replica that is looked at */
    uint64_t tier_counts[3];         /* of them in HBM, CPU, SSD */
    uint64_t refused_count;          /* there was no room for */
    uint64_t break_count;            /* since it was first heard of */
    enum residency_break last_break; /* where break_count > 0 */
    double missing;                  /* of claim_trust */
    uint64_t quarantine_ms;          /* left */
    uint64_t quarantine_count;
};

/* False: nothing was ever heard of worker. */
bool residency_sync_view(const struct residency_sync *sync, uint32_t worker, uint64_t now_ms,
                         struct residency_sync_view *view);

struct residency_sync_stats {
    uint64_t breaks_total[RESIDENCY_BREAK_COUNT];
    uint64_t lives_total;   /* that were begun to be read */
    uint64_t changes_total; /* applied */
    uint64_t records_total; /* in them and in pages */
    uint64_t quarantines_total;
    uint64_t claimed_tokens_total; /* of answers by which agents were judged */
    uint64_t missing_tokens_total; /* of them not cached */
    uint64_t record_count;         /* in all replicas that are looked at */
    uint64_t refused_count;        /* of them without room */
    uint32_t agent_count;          /* workers with a lease */
    uint32_t exact_count;          /* workers whose replica is exact */
    uint32_t stranger_count;       /* workers whose agent names prompts otherwise */
    uint32_t partial_count;        /* replicas that have not all, for want of room */
};

struct residency_sync_stats residency_sync_stats(const struct residency_sync *sync);

#endif
