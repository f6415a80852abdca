/* SPDX-License-Identifier: Apache-2.0 */

/*
 * worker: one endpoint that requests can be routed to: its address, the state it is in, what is
 * known of its load and of its engine.
 *
 * The state is the list it is on; both change in worker_set_state() and nowhere else. Health,
 * discovery and the operator all speak through it, so none of them needs to know the others.
 * Load counters have one writer each, named beside them. Loop thread only.
 */
#ifndef BACKENDS_WORKER_H
#define BACKENDS_WORKER_H

#include <stdbool.h>
#include <stdint.h>

#include <sys/socket.h>

#include "backends/runtime/list.h"
#include "backends/runtime/must_check.h"

struct worker_pool;

enum worker_state {
    WORKER_STARTING, /* known, never answered a probe yet; gets no request */
    WORKER_UP,       /* gets requests */
    WORKER_DRAINING, /* finishes what it has, gets nothing new; the operator or its agent said so */
    WORKER_DOWN,     /* failed its probes or its connections; probed, gets no request */
    WORKER_GONE,     /* removed; freed with its last reference, comes back only as a new worker */
    WORKER_STATE_COUNT
};

/* Why a state changed: logged, counted, shown to the operator. */
enum worker_reason {
    WORKER_REASON_PROBE,     /* enough probes agreed */
    WORKER_REASON_TRAFFIC,   /* requests failed, or made progress again */
    WORKER_REASON_OPERATOR,  /* drain, ready, eject */
    WORKER_REASON_DISCOVERY, /* lease or configuration came or went */
    WORKER_REASON_COUNT
};

/* How the last probe ended; written by health, shown to the operator of a worker that is not UP. */
enum probe_result {
    PROBE_NONE,      /* not probed yet */
    PROBE_PASSED,    /* alive, and its models are known */
    PROBE_REFUSED,   /* nobody listens there: the process is gone */
    PROBE_TIMED_OUT, /* no whole answer in time */
    PROBE_BROKEN,    /* unreachable, cut, or not HTTP */
    PROBE_NOT_READY, /* answered 5xx: loading, or its engine died */
    PROBE_NO_MODELS, /* alive, but its list of models was missing or not understood */
    PROBE_RESULT_COUNT
};

/* One list per state. A worker is on exactly one, from worker_init() to the end of its life. */
struct worker_lists {
    struct list by_state[WORKER_STATE_COUNT];
};

enum { WORKER_NAME_BYTES_MAX = 256 };

enum engine_kind { ENGINE_UNKNOWN, ENGINE_VLLM, ENGINE_SGLANG, ENGINE_KIND_COUNT };

/* What we count ourselves; written by the exchange that does it, in equal pairs of + and -. */
struct worker_own_load {
    uint32_t in_flight;   /* attempts sent and not ended */
    uint32_t decoding;    /* of them: a first byte of the answer has come */
    double queued_tokens; /* uncached prompt tokens of attempts without a first byte */
};

/* What the engine says of itself (its /metrics); written by health. Unknown is not zero. */
struct worker_report {
    bool is_known;
    uint64_t at_ms; /* monotonic time of the answer */
    uint32_t running;
    uint32_t waiting;
    double cache_usage;     /* 0..1 of its KV cache */
    uint64_t cache_tokens;  /* size of its KV cache; 0: not said */
    uint32_t block_tokens;  /* 0: not said */
    uint64_t prompt_tokens; /* processed since its process began: falls when it restarted */
};

/* Learned about what the engine takes. */
struct worker_traits {
    bool refuses_usage; /* it answered 400 to a stream_options that we had put in */
};

struct worker_stats {
    uint64_t chosen_total;
    uint64_t failure_total; /* passive marks: connect failed, died, timed out, 5xx */
    uint64_t probe_ok_total;
    uint64_t probe_failed_total;
    uint64_t prompt_tokens_total;           /* of answers with usage */
    uint64_t cached_tokens_total;           /* what the engine reported */
    uint64_t predicted_tokens_total;        /* what we had predicted for the same answers */
    uint64_t prediction_error_tokens_total; /* sum of absolute differences */
};

struct worker {
    struct list_node in_state; /* link in lists->by_state[state] */
    struct worker_lists *lists;
    enum worker_state state;
    enum worker_reason reason; /* of the last change */
    uint64_t changed_ms;       /* monotonic time of the last change */
    uint32_t state_change_count;

    uint32_t index; /* place in its worker_set, stable for its life */
    uint32_t ref_count;
    char name[WORKER_NAME_BYTES_MAX];      /* "http://host:port", as shown to people */
    char authority[WORKER_NAME_BYTES_MAX]; /* "host:port", for the Host header */
    struct sockaddr_storage address;
    enum engine_kind engine;
    struct worker_pool *pool; /* owned by whoever built the worker (app) */

    struct worker_own_load own;
    struct worker_report report;
    struct worker_traits traits;
    struct worker_stats stats;
    uint64_t chosen_ms;    /* last time a policy chose it; 0: never */
    uint64_t up_since_ms;  /* last time it came UP: slow start counts from here */
    uint64_t progress_ms;  /* last time it gave us a byte of an answer below 500 */
    uint32_t probe_streak; /* equal probe outcomes in a row; health's own */
    bool probe_streak_is_ok;
    enum probe_result probe_result;
    uint32_t restart_count;  /* times its process was seen gone and then back: its cache is empty */
    uint32_t failure_streak; /* passive failures since the last success, or since it came UP */
};

void worker_lists_init(struct worker_lists *lists);

/* Puts worker on lists as STARTING. Borrows lists for the life of worker. */
void worker_init(struct worker *worker, struct worker_lists *lists, uint64_t now_ms);

/*
 * Moves worker to state; coming UP starts up_since_ms and a new streak of failures.
 * 0 also when it is there already (nothing is counted then);
 * -EINVAL for a move that has no meaning, such as out of GONE: nothing changes.
 */
MUST_CHECK int worker_set_state(struct worker *worker, enum worker_state state,
                                enum worker_reason reason, uint64_t now_ms);

/*
 * Passive marks of real traffic, from the exchange. A success ends the streak of failures and
 * counts as a sign of life. A failure adds to it: at WORKER_FAILURE_STREAK_MAX without a success
 * in between an UP worker goes DOWN (reason TRAFFIC) until probes bring it back. What is the
 * client's fault (4xx) is no failure: the caller does not mark it.
 */
enum { WORKER_FAILURE_STREAK_MAX = 3 };
void worker_mark_success(struct worker *worker, uint64_t now_ms);
void worker_mark_failure(struct worker *worker, uint64_t now_ms);

const char *worker_state_name(enum worker_state state);
const char *worker_reason_name(enum worker_reason reason);
const char *engine_kind_name(enum engine_kind kind);
const char *probe_result_name(enum probe_result result);

#endif
