/* SPDX-License-Identifier: Apache-2.0 */

/*
 * worker: one endpoint that requests can be routed to: its address, the state it is in, what is
 * known of its load and of its engine. With data parallelism behind one port, one rank of it.
 *
 * The state is the list it is on; both change in worker_handle() and nowhere else. Health, traffic,
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
    WORKER_TRIAL,    /* was ejected; one request is let through and decides (half-open) */
    WORKER_EJECTED,  /* its probes pass but its requests failed; waits for its trial */
    WORKER_DOWN,     /* failed its probes; probed, gets no request */
    WORKER_DRAINING, /* finishes what it has, gets nothing new; the operator or discovery said so */
    WORKER_GONE,     /* removed; freed when nothing uses it, comes back only as a new worker */
    WORKER_STATE_COUNT
};

enum worker_event {
    WORKER_EVENT_ALIVE,  /* its probes pass, and traffic holds nothing against it */
    WORKER_EVENT_DUE,    /* its probes pass, and its back-off is over */
    WORKER_EVENT_DEAD,   /* enough probes failed */
    WORKER_EVENT_FAILED, /* enough of its requests failed */
    WORKER_EVENT_SERVED, /* a request was served */
    WORKER_EVENT_DRAIN,  /* it is to get nothing new */
    WORKER_EVENT_READY,  /* the drain is taken back */
    WORKER_EVENT_REMOVE, /* nothing uses it any more */
    WORKER_EVENT_COUNT
};

/* Why a state changed: logged, counted, shown to the operator. */
enum worker_reason {
    WORKER_REASON_PROBE,     /* enough probes agreed */
    WORKER_REASON_TRAFFIC,   /* requests failed, or were served again */
    WORKER_REASON_OPERATOR,  /* drain, ready, remove */
    WORKER_REASON_DISCOVERY, /* configuration or a name's addresses came or went */
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

struct worker;

/* One list per state. A worker is on exactly one, from worker_init() to the end of its life. */
struct worker_lists {
    struct list by_state[WORKER_STATE_COUNT];
    /* Told of each change once, when it is made; NULL: nobody is. It may not change the state. */
    void (*on_change)(void *ctx, struct worker *worker);
    void *ctx;
    uint64_t random; /* state of the generator that jitters back-offs */
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
    bool refuses_ids;   /* the same of return_token_ids; or it passed over that */
};

/* What requests have said of it: the passive half of health. */
struct worker_traffic {
    uint32_t outcomes;       /* the newest requests, newest in bit 0: 1 failed */
    uint32_t failure_streak; /* failures since the last success, or since it came UP */
    uint64_t outcome_ms;     /* when the newest ended */
    uint32_t eject_level;    /* ejections not yet forgiven: each doubles the next back-off */
    uint64_t eject_until_ms; /* no trial before */
    bool is_trial_taken;     /* TRIAL: the one request is under way */
    uint64_t busy_until_ms;  /* it said 503 or 429: gets nothing new before; 0: never */
};

struct worker_stats {
    uint64_t chosen_total;
    uint64_t failure_total; /* passive marks: connect failed, died, timed out, 5xx */
    uint64_t busy_total;    /* answers 503 and 429 */
    uint64_t ejected_total;
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

    uint32_t index; /* place in its worker_set; a later worker may get it once this one is gone */
    uint64_t id;    /* never used again: what is kept beyond a turn of the loop keeps this */
    uint64_t name_hash;                    /* of name, the same on every router: for rendezvous */
    char name[WORKER_NAME_BYTES_MAX];      /* "http://host:port", "#rank" behind it if it is one */
    char authority[WORKER_NAME_BYTES_MAX]; /* "host:port", for the Host header */
    struct sockaddr_storage address;
    uint32_t rank;       /* among the data-parallel ranks of its endpoint */
    uint32_t rank_count; /* of that endpoint; 0: it is no rank */
    enum engine_kind engine;
    struct worker_pool *pool; /* owned by whoever built the worker (app) */

    struct worker_own_load own;
    struct worker_report report;
    struct worker_traits traits;
    struct worker_traffic traffic;
    struct worker_stats stats;
    uint64_t chosen_ms;    /* last time a policy chose it; 0: never */
    uint64_t up_since_ms;  /* last time it came UP: slow start counts from here */
    uint64_t progress_ms;  /* last time it gave us a byte of an answer below 500 */
    uint32_t probe_streak; /* equal probe outcomes in a row, in this state; health's own */
    bool probe_streak_is_ok;
    enum probe_result probe_result;
    uint32_t restart_count; /* times its process was seen gone and then back: its cache is empty */
};

void worker_lists_init(struct worker_lists *lists);

/* Puts worker on lists as STARTING. Borrows lists for the life of worker. */
void worker_init(struct worker *worker, struct worker_lists *lists, uint64_t now_ms);

/* The table of moves: the state after event, which is the same one where event has no meaning. */
enum worker_state worker_state_after(enum worker_state state, enum worker_event event);

/*
 * Takes note of event. True: the state changed, and the observer was told; reason is kept and shown
 * then. Coming UP starts up_since_ms and a new history of outcomes.
 */
bool worker_handle(struct worker *worker, enum worker_event event, enum worker_reason reason,
                   uint64_t now_ms);

/* Its probes pass: raises ALIVE, or DUE where requests failed and the back-off is over, or nothing
 * while it is not. */
void worker_note_alive(struct worker *worker, uint64_t now_ms);

/* Its process is another one than before: what the old one did is not held against it. */
void worker_note_restart(struct worker *worker);

/*
 * Whether it takes a request now: UP, or TRIAL while its one request is free; and not busy. An
 * EJECTED worker whose back-off is over and whose last probe passed is moved to TRIAL first, so
 * that nobody waits for the next probe.
 */
bool worker_takes_requests(struct worker *worker, uint64_t now_ms);

/* It said 503 or 429 and will again until then. */
static inline bool worker_is_busy(const struct worker *worker, uint64_t now_ms)
{
    return now_ms < worker->traffic.busy_until_ms;
}

/* Its process answers, whatever its requests said: UP, TRIAL or EJECTED. */
static inline bool worker_is_reachable(const struct worker *worker)
{
    return worker->state == WORKER_UP || worker->state == WORKER_TRIAL ||
           worker->state == WORKER_EJECTED;
}

enum {
    WORKER_FAILURE_STREAK_MAX = 3, /* failures in a row, or */
    WORKER_OUTCOME_COUNT = 16,     /* of so many requests in a window */
    WORKER_OUTCOME_FAILED_MAX = 8, /* this many: it is ejected */
    WORKER_OUTCOME_MS_MAX = 60000, /* a window without requests for so long begins anew */
    WORKER_BACKOFF_MS_MIN = 1000,  /* of the first ejection; doubles up to */
    WORKER_BACKOFF_MS_MAX = 60000,
    WORKER_FORGIVE_MS = 10000,     /* UP for so long and serving: earlier ejections are forgotten */
    WORKER_BUSY_MS_DEFAULT = 1000, /* 503 or 429 without Retry-After */
    WORKER_BUSY_MS_MAX = 60000,
};

/*
 * An attempt begins: in TRIAL it is the one that is let through. Returns a ticket for
 * worker_end_attempt(), so that only that attempt frees the place again, and only in that trial.
 */
uint32_t worker_begin_attempt(struct worker *worker);
void worker_end_attempt(struct worker *worker, uint32_t ticket);

/*
 * Passive marks of real traffic, from the exchange. What is the client's fault (4xx) says nothing
 * about a worker: the caller marks neither. begun_ms: when the attempt began; one that began before
 * the worker's last change of state says nothing about it as it is now.
 *
 * progress: the answer has content. It is a sign of life, and all that a TRIAL has to show.
 * success: the answer ended well.
 * failure: ejects the worker where its history says so and may_eject (worker_set_may_eject());
 * false keeps it in service. True: its history says so.
 */
void worker_mark_progress(struct worker *worker, uint64_t begun_ms, uint64_t now_ms);
void worker_mark_success(struct worker *worker, uint64_t begun_ms, uint64_t now_ms);
bool worker_mark_failure(struct worker *worker, uint64_t begun_ms, bool may_eject, uint64_t now_ms);

/* It answered 503 or 429, which is no failure: nothing new for wait_ms (0: it did not say). */
void worker_mark_busy(struct worker *worker, uint64_t wait_ms, uint64_t now_ms);

const char *worker_state_name(enum worker_state state);
const char *worker_reason_name(enum worker_reason reason);
const char *engine_kind_name(enum engine_kind kind);
const char *probe_result_name(enum probe_result result);

#endif
