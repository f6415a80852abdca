/* SPDX-License-Identifier: Apache-2.0 */

/*
 * retry: whether an attempt that failed may be made again, and where. Pure; any thread.
 */
#ifndef ROUTER_RETRY_H
#define ROUTER_RETRY_H

#include <stdbool.h>
#include <stdint.h>

enum attempt_failure {
    ATTEMPT_CONNECT_FAILED, /* refused, unreachable, or no answer in time: nothing was sent */
    ATTEMPT_STALE,          /* a reused connection died without one byte of an answer */
    ATTEMPT_DIED,           /* a fresh one did: the request may have killed the engine */
    ATTEMPT_HALF_ANSWERED,  /* it died with part of an answer: the engine had begun to work */
    ATTEMPT_BUSY,           /* 429 or 503 before a body: the worker refused it */
    ATTEMPT_USAGE_REFUSED,  /* 400, perhaps because of what we had spliced in */
    ATTEMPT_TIMEOUT,        /* no answer in time: the engine may still be working */
    ATTEMPT_PROTOCOL,       /* what came was not HTTP */
    ATTEMPT_FAILURE_COUNT
};

enum retry_verdict {
    RETRY_NO,
    RETRY_ELSEWHERE,  /* on a worker that this exchange has not tried */
    RETRY_SAME_FRESH, /* on the same worker, over a new connection */
    RETRY_SAME_PLAIN, /* on the same worker, with the client's own bytes only */
};

/* What has happened to one exchange so far, the failure at hand included. */
struct retry_history {
    uint32_t retry_count; /* made so far */
    uint32_t retry_count_max;
    uint32_t death_count;  /* attempts that an engine had begun on, and lost */
    bool is_repeatable;    /* a computation without side effects: once more is only work */
    bool was_begun;        /* an engine took it up and failed, or may still be at work on it */
    bool has_answered;     /* a byte of an answer went to the client */
    bool has_other_worker; /* one that may serve it and was not tried */
    bool has_budget;       /* the process may retry (retry_budget) */
};

/*
 * Nothing is retried once the client has a byte. What an engine had begun is not either, but for a
 * connection that died without one: a timeout, or half an answer, would double the work. Embeddings
 * and the like cost little and give the same again: of these, any loss is retried elsewhere. A
 * request that was lost on two workers is not given to a third: a query of death must not walk
 * through the fleet.
 */
enum retry_verdict retry_decide(enum attempt_failure failure, const struct retry_history *history);

/* A worker that says this has too much to do (529: in Anthropic's API). It is well, and it may be
 * asked elsewhere. */
bool retry_status_is_busy(int status);

/*
 * Whether an attempt that failed, or a worker's answer of that status, means that an engine began
 * on the request. Clients repeat by themselves what is answered 5xx or 429; they are told not to
 * (x-should-retry: false) once that is so: each repetition could take down an engine more.
 */
bool retry_failure_was_begun(enum attempt_failure failure);
bool retry_status_was_begun(int status);

/*
 * Retries of the whole process, as a share of its requests, so that a fleet in trouble is not
 * asked for more than it was before.
 */
struct retry_budget {
    double tokens;
};

#define RETRY_BUDGET_TOKENS_MAX 200.0 /* retries in a row, from a full budget */

void retry_budget_init(struct retry_budget *budget);
void retry_budget_earn(struct retry_budget *budget); /* once a request */
bool retry_budget_has(const struct retry_budget *budget);
void retry_budget_spend(struct retry_budget *budget); /* once a retry */

#endif
