/* SPDX-License-Identifier: Apache-2.0 */

/*
 * metrics: what the router counts, one row each in metrics.def, and its Prometheus text. The relay
 * owns one struct router_stats and bumps plain fields; nothing is computed before a scrape. No
 * label takes a value from a request (model names are not labels), so that a client cannot make
 * series. Loop thread only.
 */
#ifndef ROUTER_METRICS_H
#define ROUTER_METRICS_H

#include <stdint.h>

#include "backends/redis/residency_feed.h"
#include "backends/runtime/buf.h"
#include "backends/runtime/histogram.h"
#include "backends/runtime/must_check.h"
#include "router/api/api.h"
#include "router/end_reason.h"
#include "router/join/note_post.h"
#include "router/join/token_asker.h"
#include "router/load_share.h"
#include "router/policy/policy.h"
#include "router/prompt/anchor_plan.h"
#include "router/residency/residency_guess.h"
#include "router/residency/residency_index.h"
#include "router/residency/residency_sync.h"
#include "router/response_table.h"

struct worker_set;

/* What is known of the map. */
struct metrics_map {
    struct residency_index_stats index;
    struct residency_sync_stats sync;
    struct residency_feed_stats feed;
};

/* The dimensions: enums whose values are label values. row(constant, name). */
/* clang-format off */
#define STATUS_CLASS_ROWS(row)                                                                     \
    row(STATUS_CLASS_NONE, "none")                /* no status was sent */                         \
    row(STATUS_CLASS_2XX, "2xx")                                                                   \
    row(STATUS_CLASS_3XX, "3xx")                                                                   \
    row(STATUS_CLASS_4XX, "4xx")                                                                   \
    row(STATUS_CLASS_5XX, "5xx")

#define RETRY_REASON_ROWS(row)                                                                     \
    row(RETRY_CONNECT_FAILED, "connect_failed")                                                    \
    row(RETRY_STALE_CONNECTION, "stale_connection") /* a reused one that died with no byte */      \
    row(RETRY_BUSY, "busy")                       /* 429 or 503 before a body */                   \
    row(RETRY_WORKER_DIED, "worker_died")         /* EOF or reset before any byte */               \
    row(RETRY_USAGE_REFUSED, "usage_refused")     /* 400 to what we had spliced in */

#define RELOAD_RESULT_ROWS(row)                                                                    \
    row(RELOAD_APPLIED, "applied")                /* all that can change without a restart */      \
    row(RELOAD_REFUSED, "refused")                /* a mistake in it: nothing changed */

#define ABORT_PHASE_ROWS(row)                                                                      \
    row(ABORT_READ, "read")                       /* head and body */                              \
    row(ABORT_PARSE, "parse")                     /* a large body, on a thread */                  \
    row(ABORT_ROUTE, "route")                     /* choice */                                     \
    row(ABORT_QUEUE, "queue")                                                                      \
    row(ABORT_CONNECT, "connect")                                                                  \
    row(ABORT_SEND, "send")                       /* until the answer's first byte */              \
    row(ABORT_RELAY, "relay")

#define FAULT_SIDE_ROWS(row)                                                                       \
    row(FAULT_CLIENT, "client")                                                                    \
    row(FAULT_WORKER, "worker")

#define MATCH_TIER_ROWS(row)                                                                       \
    row(MATCH_TIER_HBM, "hbm")                    /* at hand, or believed to be */                 \
    row(MATCH_TIER_CPU, "cpu")                                                                     \
    row(MATCH_TIER_SSD, "ssd")

#define PREFETCH_HINT_ROWS(row)                                                                    \
    row(PREFETCH_HINT_SENT, "sent")                                                                \
    row(PREFETCH_HINT_NOTHING, "nothing")         /* what was on SSD is nearer by now */           \
    row(PREFETCH_HINT_REPEATED, "repeated")       /* the same request has sent one there */        \
    row(PREFETCH_HINT_NO_AGENT, "no_agent")       /* none speaks for the worker now */             \
    row(PREFETCH_HINT_DROPPED, "dropped")         /* Redis is away, or too many notes wait */

#define REJECT_REASON_ROWS(row)                                                                    \
    row(REJECT_BAD_REQUEST, "bad_request")        /* body or head that means nothing: 400 */       \
    row(REJECT_NOT_FOUND, "not_found")            /* no such path: 404 */                          \
    row(REJECT_METHOD, "method")                  /* 405 */                                        \
    row(REJECT_UNKNOWN_MODEL, "unknown_model")    /* 404 */                                        \
    row(REJECT_UNKNOWN_RESPONSE, "unknown_response") /* 404: no worker is known to store it */     \
    row(REJECT_TOO_LARGE, "too_large")            /* 413, 431 */                                   \
    row(REJECT_TIMEOUT, "timeout")                /* head or body too slow: 408 */                 \
    row(REJECT_NO_WORKER, "no_worker")            /* 503 */                                        \
    row(REJECT_POISON, "query_of_death")          /* two workers died of it: 502 */                \
    row(REJECT_OVERLOADED, "overloaded")          /* a limit of ours: 429, 503 */                  \
    row(REJECT_DRAINING, "draining")              /* 503 */
/* clang-format on */

#define DIMENSION_CONSTANT(constant, name) constant,
enum status_class { STATUS_CLASS_ROWS(DIMENSION_CONSTANT) STATUS_CLASS_COUNT };
enum retry_reason { RETRY_REASON_ROWS(DIMENSION_CONSTANT) RETRY_REASON_COUNT };
enum reload_result { RELOAD_RESULT_ROWS(DIMENSION_CONSTANT) RELOAD_RESULT_COUNT };
enum abort_phase { ABORT_PHASE_ROWS(DIMENSION_CONSTANT) ABORT_PHASE_COUNT };
enum fault_side { FAULT_SIDE_ROWS(DIMENSION_CONSTANT) FAULT_SIDE_COUNT };
enum match_tier { MATCH_TIER_ROWS(DIMENSION_CONSTANT) MATCH_TIER_COUNT };
enum prefetch_hint_outcome { PREFETCH_HINT_ROWS(DIMENSION_CONSTANT) PREFETCH_HINT_COUNT };
enum reject_reason { REJECT_REASON_ROWS(DIMENSION_CONSTANT) REJECT_REASON_COUNT };
#undef DIMENSION_CONSTANT

/* The length of each dimension that a row of metrics.def may name. */
enum {
    METRICS_COUNT_anchor = ANCHOR_OUTCOME_COUNT,
    METRICS_COUNT_api = API_COUNT,
    METRICS_COUNT_doubt = RESIDENCY_DOUBT_COUNT,
    METRICS_COUNT_end = END_REASON_COUNT,
    METRICS_COUNT_hint = PREFETCH_HINT_COUNT,
    METRICS_COUNT_phase = ABORT_PHASE_COUNT,
    METRICS_COUNT_reject = REJECT_REASON_COUNT,
    METRICS_COUNT_result = RELOAD_RESULT_COUNT,
    METRICS_COUNT_retry = RETRY_REASON_COUNT,
    METRICS_COUNT_rung = ROUTE_RUNG_COUNT,
    METRICS_COUNT_side = FAULT_SIDE_COUNT,
    METRICS_COUNT_status = STATUS_CLASS_COUNT,
    METRICS_COUNT_tier = MATCH_TIER_COUNT,
};

/*
 * A field per row of what the relay counts: uint64_t client_connections; struct histogram
 * ttft_seconds; uint64_t requests_total[api][status][end]; ...
 */
struct router_stats {
#define COUNTER(name, help)             uint64_t name;
#define COUNTER1(name, dimension, help) uint64_t name[METRICS_COUNT_##dimension];
#define COUNTER3(name, a, b, c, help)                                                              \
    uint64_t name[METRICS_COUNT_##a][METRICS_COUNT_##b][METRICS_COUNT_##c];
#define GAUGE(name, help)             uint64_t name;
#define HISTOGRAM(name, bounds, help) struct histogram name;
#include "router/metrics.def"
};

/* What a scrape reads beside the stats. */
struct metrics_sources {
    const struct router_stats *stats;
    const struct worker_set *workers;
    struct residency_index_stats index;
    struct residency_guess_stats guess;
    struct response_table_stats responses;
    const struct metrics_map *map; /* NULL: there is none */
    struct load_share_stats loads;
    struct note_post_stats notes;
    struct token_asker_stats asker;
    uint64_t handed_over_total; /* blocks, of join */
    uint64_t handover_kept_total;
    uint32_t dns_names_failing; /* of the fleet */
    uint64_t dns_lookups_failed_total;
    uint64_t log_dropped_count;
};

/* All zero, with the histograms' bounds set. */
void router_stats_init(struct router_stats *stats);

/* 0 (nothing sent) is NONE; 1xx never ends an exchange. */
enum status_class status_class_of(int status);

const char *retry_reason_name(enum retry_reason reason);
const char *abort_phase_name(enum abort_phase phase);
const char *reject_reason_name(enum reject_reason reason);

/* The whole answer to GET /metrics, text format 0.0.4. -ENOBUFS, -ENOMEM. */
MUST_CHECK int metrics_write(struct buf *out, const struct metrics_sources *sources);

#endif
