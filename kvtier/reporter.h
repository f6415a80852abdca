/* SPDX-License-Identifier: Apache-2.0 */

/*
 * reporter: all that an agent knows of one worker, and what it tells of it: the engine's events and
 * the routers' notes go in, are joined, and come out as the report in Redis. What is not certain is
 * withdrawn: when the engine's process ends, and when messages of it are lost.
 *
 * It speaks in the name of an epoch of its own, by a lease. After a crash the lease of the process
 * before is there for up to 3 s more: one that state_dir proves to be dead (life_record.h) is
 * succeeded at once, anybody else's is waited for. Routers, which ask for leases every 500 ms, drop
 * with the first one of another epoch all that was said in the name of the one before, and read
 * what is claimed now: within a second of the agent's start. That is never more than what is there:
 * the report begins empty. It is as much as is known by then; what the engine replays, and a scan
 * of the SSD finds, follows as it comes. Loop thread only.
 */
#ifndef KVTIER_REPORTER_H
#define KVTIER_REPORTER_H

#include <stdbool.h>
#include <stdint.h>

#include "backends/io_loop.h"
#include "backends/kvevents/kv_event_source.h"
#include "backends/redis/residency_report.h"
#include "backends/runtime/must_check.h"
#include "backends/worker.h"
#include "kvtier/cache_events.h"
#include "kvtier/engine_spec.h"
#include "kvtier/identity/alignment.h"
#include "kvtier/note_intake.h"
#include "kvtier/state_keeper.h"

struct reporter;

/* A router expects a request that wants these token blocks, the first of its chain first, within so
 * many ms. Borrowed for the call. */
typedef void reporter_prefetch_fn(void *ctx, struct reporter *reporter,
                                  const struct digest_128 *names, size_t count, uint32_t within_ms);

struct reporter_config {
    const struct engine_spec *spec; /* borrowed until close */
    const uint8_t *secret;          /* DIGEST_SECRET_BYTES; borrowed */
    uint64_t fingerprint;
    const char *topic;         /* of events; borrowed */
    uint32_t token_blocks_max; /* at first */
    uint32_t text_blocks_max;
    struct redis_link *link;           /* borrowed until close */
    const char *state_dir;             /* "": nothing is kept over a restart; borrowed */
    reporter_prefetch_fn *on_prefetch; /* NULL: there are no tiers */
    void *ctx;
};

/* Starts to listen to the engine. -ENOMEM; -EINVAL: its endpoints are none; -EAGAIN: no thread. */
MUST_CHECK int reporter_create(struct io_loop *io, struct reporter_config config,
                               struct reporter **reporter);

/* The link is READY (again). */
void reporter_linked(struct reporter *reporter);

/* The field "b" of an entry that routers wrote for this worker. */
void reporter_take_entry(struct reporter *reporter, struct slice entry);

/* What the engine says of itself over HTTP. model: "" while that is not known. With the first model
 * the state of before is taken up. */
void reporter_take_probe(struct reporter *reporter, const struct worker *worker, const char *model);

/* It knows as many blocks of tokens from now on, if that is more than before. Returns how many that
 * are now: fewer where there is no memory. */
uint32_t reporter_allow_token_blocks(struct reporter *reporter, uint32_t count);

/* A block in the tiers beneath the worker's engine, absolute. A parent is told before its children.
 */
struct reporter_block {
    struct digest_128 name;   /* hashing/token_name */
    struct digest_128 parent; /* .low 0: the first of its chain */
    uint32_t token_count;     /* of the block */
    uint8_t tiers;            /* bits 1 << enum token_tier, CPU and SSD; 0: in none any more */
};
void reporter_take_block(struct reporter *reporter, const struct reporter_block *block);

/* Nothing beneath can be reached by the engine any more: its connector has gone. */
void reporter_drop_blocks(struct reporter *reporter);

/* What the engine's connector says of a request: what it calls it, how many tokens its prompt is,
 * and the name (.low) of the last full block of these; 0: none is full. */
void reporter_take_anchor(struct reporter *reporter, struct slice engine_id, uint64_t last_block,
                          uint32_t prompt_tokens);

/* What routers are told of the tiers beneath, to weigh a load against computing. All of it is
 * measured; 0: not known. */
struct reporter_tiers {
    bool has_connector; /* the engine's anchors come by reporter_take_anchor() */
    uint32_t bytes_per_token;
    uint64_t cpu_bytes_per_s;
    uint64_t ssd_bytes_per_s;
    uint32_t cpu_start_us; /* of any load, the engine's part included */
    uint32_t ssd_start_us;
    uint32_t prefill_tokens_per_s; /* of the engine */
    uint32_t cpu_queue_ms;         /* what a load begun now would wait */
    uint32_t ssd_queue_ms;
};
void reporter_set_tiers(struct reporter *reporter, const struct reporter_tiers *tiers);

/* What may be asked of it; pointers are good until it is closed. */
struct reporter_stats {
    const struct token_chain *tokens;
    const struct text_chain *text;
    const struct attempt_table *attempts;
    struct alignment_stats alignment;
    struct cache_events_stats events;
    const uint64_t *notes; /* [NOTE_RESULT_COUNT] */
    struct kv_event_source_stats source;
    struct residency_report_stats report;
    uint64_t claims_total;          /* changes told to the report */
    uint64_t anchors_total;         /* of the engine's connector, that are of a router's attempt */
    uint64_t foreign_anchors_total; /* and of requests that no router of ours sent */
    struct state_keeper_stats state;
    uint64_t epoch;
    uint32_t block_tokens; /* of the engine; 0: not known */
    bool is_connected;     /* to the engine's events */
    bool is_whole;         /* all that the engine holds is known */
};

struct reporter_stats reporter_stats(const struct reporter *reporter);

/* The worker's name. */
const char *reporter_name(const struct reporter *reporter);

/* Saves its state, stops listening, gives up the lease. NULLs *reporter, which may be NULL;
 * on_closed, which may be NULL, once, by the loop. */
void reporter_close(struct reporter **reporter, void (*on_closed)(void *ctx), void *ctx);

#endif
