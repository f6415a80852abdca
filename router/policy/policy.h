/* SPDX-License-Identifier: Apache-2.0 */

/*
 * policy: chooses the worker for one request. A policy sees only the values in this file; the live
 * path, `samovar explain` and the replay fill the same structs and run the same code. Pure: no
 * clock, no log, no globals; randomness comes from the state's own seeded generator.
 */
#ifndef ROUTER_POLICY_POLICY_H
#define ROUTER_POLICY_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { POLICY_VIEW_COUNT_MAX = 1024 }; /* workers that one choice may be among */

/* Which kind of knowledge decided: best first. Shown in the log, the metrics and the receipt.
 * row(constant, name) */
/* clang-format off */
#define ROUTE_RUNG_ROWS(row)                                                                       \
    row(ROUTE_RUNG_EXACT, "exact")                /* the worker's own report of what it holds */   \
    row(ROUTE_RUNG_GUESS, "guess")                /* what we remember having sent there */         \
    row(ROUTE_RUNG_AFFINITY, "affinity")          /* session key or first block, by rendezvous */  \
    row(ROUTE_RUNG_LOAD, "load")                  /* nothing is known of this prefix */
/* clang-format on */

enum route_rung {
#define ROUTE_RUNG_CONSTANT(constant, name) constant,
    ROUTE_RUNG_ROWS(ROUTE_RUNG_CONSTANT)
#undef ROUTE_RUNG_CONSTANT
        ROUTE_RUNG_COUNT
};

/* What makes one worker the natural place for a prompt that nobody holds. */
enum route_affinity {
    ROUTE_AFFINITY_NONE,
    ROUTE_AFFINITY_SESSION,     /* a session that the request names */
    ROUTE_AFFINITY_FIRST_BLOCK, /* how the prompt begins */
    ROUTE_AFFINITY_COUNT
};

/* What is asked. */
struct route_query {
    double prompt_tokens; /* whole prompt, estimated from bytes or exact */
    double answer_tokens; /* at most, as the request says; 0 when it does not */
    uint64_t now_ms;
    enum route_affinity affinity; /* why a view has the rung AFFINITY, if one has (affinity.h) */
    uint64_t affinity_key;
};

/* What of a prompt lies in one tier below the engine's own memory, and what it costs to bring it
 * from there (tier_cost.h). */
struct worker_tier {
    double tokens; /* 0: nothing, and nothing else matters */
    double ms_per_token;
    double start_ms; /* of any load from it */
    double queue_ms; /* before it begins */
};

/* What may be known of one eligible worker at one moment. */
struct worker_view {
    uint32_t worker;        /* index in worker_set */
    uint64_t name_hash;     /* of its name, the same on every router */
    enum route_rung rung;   /* best knowledge about this prefix on this worker */
    double matched_tokens;  /* longest prefix believed there, in any tier */
    double pending_tokens;  /* part of matched_tokens that an earlier request is still making */
    double near_tokens;     /* of matched_tokens, those before the first that has to be moved; where
                             * none has, it does not matter */
    struct worker_tier cpu; /* of matched_tokens, behind the near ones */
    struct worker_tier ssd; /* and behind those */
    /* These three: of ours, and of the routers that share their load with us. */
    uint32_t in_flight;        /* requests sent there and not ended */
    double queued_tokens;      /* uncached prompt tokens sent there without a first byte yet */
    uint32_t decoding;         /* requests that have begun to answer */
    bool has_report;           /* the next three are known; unknown is not zero */
    uint32_t reported_running; /* by the engine, all routers together */
    uint32_t reported_waiting;
    uint64_t reported_ms;         /* monotonic, when that was true */
    double prefill_tokens_per_ms; /* of this worker, or as prefill_rate_fill() assumes */
    double decode_ms_per_token;   /* at batch 1 */
    double decode_ms_per_request; /* added to each token by each other running request */
    uint64_t chosen_ms;           /* last time it was chosen; 0: never */
    uint64_t chosen_count;
    double start_weight; /* 1, less during slow start after it came up */
};

/* Why: one per view, in the order of views[]. Milliseconds. */
struct route_terms {
    double queue_ms;
    double move_ms;
    double prefill_ms;
    double decode_ms;
    double recent_ms;   /* handicap for what it was given lately */
    double total_ms;    /* more than the sum in slow start or overload */
    double affinity_ms; /* credit of the worker with the rung AFFINITY: compared is total less it */
    double copy_ms; /* handicap for making what another one is making now: compared is with it */
};

/* Of one policy: counters, scratch. It begins with its generator of random numbers, a uint64_t. */
struct policy_state;

/* What a choice noted as given to a worker. */
struct policy_gift {
    uint32_t worker;
    double prefill_ms; /* of its terms */
    uint64_t at_ms;
};

struct policy {
    const char *name; /* as in --policy */
    const char *help; /* one line */
    size_t state_bytes;
    /*
     * Ranks views[0..count), 1 <= count <= POLICY_VIEW_COUNT_MAX, best first, into order[0..count)
     * (places in views[]) and fills terms[] (all zero where the policy does not predict). The state
     * notes that order[0] was chosen; the caller counts the request into that worker's load before
     * it asks again, and walks order[] on retries.
     */
    void (*choose)(struct policy_state *state, const struct route_query *query,
                   const struct worker_view *views, size_t count, uint32_t *order,
                   struct route_terms *terms);
    /* The gift was not taken: the worker refused, or never began. NULL where nothing is noted. */
    void (*take_back)(struct policy_state *state, const struct policy_gift *gift, uint64_t now_ms);
    /* Whatever the worker was given is lost. NULL where nothing is noted. */
    void (*forget)(struct policy_state *state, uint32_t worker);
};

/* NULL: no memory. One seed, one sequence of choices. */
struct policy_state *policy_state_create(const struct policy *policy, uint64_t seed);
void policy_state_destroy(struct policy_state *state);

/* A choice of policy came to nothing. */
static inline void policy_take_back(const struct policy *policy, struct policy_state *state,
                                    struct policy_gift gift, uint64_t now_ms)
{
    if (policy->take_back != NULL)
        policy->take_back(state, &gift, now_ms);
}

/* The worker failed: what it was given must not keep requests from it when it comes back. */
static inline void policy_forget(const struct policy *policy, struct policy_state *state,
                                 uint32_t worker)
{
    if (policy->forget != NULL)
        policy->forget(state, worker);
}

/* NULL when there is none of that name. */
const struct policy *policy_find(const char *name);

/* All of them, best default first; NULL ends the list. For help and did-you-mean. */
const struct policy *const *policy_list(void);

/* Their names, NULL behind the last: the words of an option. */
enum { POLICY_NAME_COUNT_MAX = 16 };
void policy_names(const char *names[POLICY_NAME_COUNT_MAX]);

const char *route_rung_name(enum route_rung rung);

#endif
