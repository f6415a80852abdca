/* SPDX-License-Identifier: Apache-2.0 */

/*
 * relay: what all exchanges of a router share: workers, knowledge, limits, waits and counters. It
 * decides nothing itself. Loop thread only.
 */
#ifndef ROUTER_RELAY_H
#define ROUTER_RELAY_H

#include <stdbool.h>
#include <stdint.h>

#include "backends/io_loop.h"
#include "backends/json/json_scan.h"
#include "backends/outbox.h"
#include "backends/runtime/list.h"
#include "backends/runtime/must_check.h"
#include "backends/runtime/option.h"
#include "backends/worker_set.h"
#include "hashing/block_chain.h"
#include "router/metrics.h"
#include "router/poison_table.h"
#include "router/policy/ladder.h"
#include "router/policy/policy.h"
#include "router/residency/residency_guess.h"
#include "router/residency/residency_index.h"
#include "router/residency/residency_sync.h"
#include "router/response_table.h"
#include "router/retry.h"

struct thread_pool;

/* One kind of wait each; its length is the option of the same name. */
enum relay_wait {
    RELAY_WAIT_CLIENT_HEADER,
    RELAY_WAIT_CLIENT_BODY,
    RELAY_WAIT_CLIENT_IDLE,
    RELAY_WAIT_CLIENT_STALL,
    RELAY_WAIT_CLIENT_LINGER,
    RELAY_WAIT_CLIENT_HANGUP,
    RELAY_WAIT_CONNECT,
    RELAY_WAIT_EARLY_HEAD,
    RELAY_WAIT_KEEPALIVE,
    RELAY_WAIT_UPSTREAM_HEADER,
    RELAY_WAIT_UPSTREAM_IDLE,
    RELAY_WAIT_WORKER_IDLE,
    RELAY_WAIT_COUNT
};

enum { RELAY_OUT_SLICE_COUNT_MAX = 48 };

struct fleet;
struct join;
struct load_share;
struct place_asker;
struct residency_map;

/* What is known of one worker about the prompt at hand. */
struct relay_known {
    struct ladder_facts facts;
    struct ladder_step step;
    struct worker_tier cpu; /* what its agent claims there, and what that costs */
    struct worker_tier ssd;
    enum residency_doubt doubt;   /* why its agent is not believed */
    uint32_t claimed_count;       /* of the prompt's first blocks: its agent claims them */
    uint32_t matched_count;       /* and behind them we remember having sent it */
    double prefill_tokens_per_ms; /* as its agent says; 0: it does not */
};

/* What one batch of a worker's bytes sends to its client: noted while it is parsed, empty between
 * batches, so that all exchanges share it. */
struct relay_out {
    struct slice slices[RELAY_OUT_SLICE_COUNT_MAX];
    unsigned count;
    size_t bytes;
};

struct relay_config {
    uint64_t wait_ms[RELAY_WAIT_COUNT];
    uint64_t body_bytes_max;
    uint64_t client_count_max;
    uint32_t worker_conn_count_max;
    uint32_t retry_count_max;
    uint64_t worker_cache_tokens; /* 0: as the engine says */
    uint64_t poison_memory_ms;    /* 0: deaths are not remembered */
    bool usage_ask;
    bool prefetch_hints;
    bool anchor_echo;
    uint32_t panic_percent;             /* see worker_set.h */
    struct option_list session_headers; /* names; the first that a request has is its session */
    struct option_list cors_origins;    /* that may read answers in a browser; borrowed */
    bool client_half_close;             /* a FIN behind a request is not leaving */
};

struct relay {
    struct io_loop *io;
    struct relay_config config;
    struct io_deadlines waits[RELAY_WAIT_COUNT];
    struct worker_set *workers;
    struct fleet *fleet;                 /* brings them in and out */
    struct residency_index *index;       /* what the map says; NULL: none is read */
    struct residency_index *guess_index; /* what guess believes */
    struct residency_guess *guess;
    struct residency_sync *sync; /* who is believed, of what is in index; NULL: there is no map */
    struct residency_map *map;   /* brings it in; NULL likewise */
    struct response_table *responses;
    struct place_asker *place_asker; /* learns where tools stand in prompts */
    struct join *join;               /* tells agents of attempts; NULL: there is no map */
    struct load_share *loads;        /* what other routers have in flight; NULL: nobody says */
    const struct policy *policy;
    struct policy_state *policy_state;
    struct json_scanner *scanner;      /* of the loop thread */
    struct thread_pool *parse_threads; /* read large bodies; NULL: the loop does */
    struct router_stats stats;
    struct retry_budget retry_budget;
    struct poison_table poison;
    uint8_t secret[BLOCK_CHAIN_SECRET_BYTES];
    uint64_t fingerprint;           /* of it and of how prompts are cut: who names them alike */
    uint64_t id_state;              /* of the generator of request ids */
    struct list clients;            /* open client connections */
    uint64_t descriptors_warned_ms; /* 0: never */
    bool is_draining;               /* no new request; running ones finish */
    double tokens_per_byte;         /* learned from usage; of all models together */
    struct relay_out out;
    struct outbox_hub outboxes; /* of the clients; flushed at the end of each turn of the loop */
    /* Scratch of one choice, too large for the stack. */
    struct worker_view views[WORKER_COUNT_MAX];
    struct route_terms terms[WORKER_COUNT_MAX];
    struct residency_match matches[WORKER_COUNT_MAX];          /* of guess_index, by worker */
    struct residency_match claims[RESIDENCY_HOLDER_COUNT_MAX]; /* of index, by holder */
    struct relay_known knowns[WORKER_COUNT_MAX];               /* as views */
    uint32_t order[WORKER_COUNT_MAX];
};

/*
 * Sets up the waits and the counters; the other pointers are the caller's to fill. on_expired has
 * one function for each wait: relay knows nobody who waits.
 */
void relay_init(struct relay *relay, struct io_loop *io, struct relay_config config,
                io_expired_fn *const on_expired[RELAY_WAIT_COUNT]);

/* Another configuration from now on, for waits that run too. */
void relay_configure(struct relay *relay, struct relay_config config);

/* Arms deadline for one kind of wait, from now. */
void relay_wait(struct relay *relay, enum relay_wait wait, struct deadline *deadline);

/* The option that a wait is set by, for error texts: "upstream-header-ms". */
const char *relay_wait_name(enum relay_wait wait);

/* Says in the log, now and then, that descriptors have run out. where: "client", "worker". */
void relay_warn_descriptors(struct relay *relay, const char *where);

enum { RELAY_ID_BYTES = 16 };

/* Writes count random letters and digits. */
void relay_random_id(struct relay *relay, char *id, size_t count);

/* What worker's agent is worth now; without a map: nothing. */
struct residency_agent relay_agent(const struct relay *relay, const struct worker *worker);

/* At least one worker takes requests. */
bool relay_is_ready(const struct relay *relay);

#endif
