/* SPDX-License-Identifier: Apache-2.0 */

/*
 * connector: what a scheduler asks of whoever has cache blocks beneath its own cache, as a const
 * vtable: vLLM's KVConnector, scheduler's and worker's side in one. Calls may wait, never long; how
 * long they did is asked afterwards, and is time in which the engine stood still.
 */
#ifndef TESTS_SIM_ENGINE_CONNECTOR_H
#define TESTS_SIM_ENGINE_CONNECTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sequence;

struct connector_found {
    size_t token_count; /* beyond those of the engine itself; whole blocks */
    uint32_t later_ms;  /* > 0: more is on its way, ask again then; token_count is 0 */
};

/* What a step computed, and how long it took. */
struct connector_step {
    struct sequence *const *sequences; /* NULL where one was cancelled meanwhile */
    size_t sequence_count;
    size_t prefill_tokens;
    uint64_t us;
};

/* Blocks are counted from the prompt's first on; sequence->cache.blocks says which those are. */
struct connector_ops {
    /* It was queued; its tokens are known. */
    void (*open)(void *ctx, struct sequence *sequence);
    /* It is about to be admitted, and has local_count tokens in the engine. */
    struct connector_found (*look_up)(void *ctx, struct sequence *sequence, size_t local_count);
    /* It waits with room for these blocks: fill them; scheduler_loaded() when that is over. false:
     * nobody will, nothing was begun. */
    bool (*load)(void *ctx, struct sequence *sequence, size_t first_block, size_t block_count);
    /* The step that begins fills them, whatever becomes of the sequence. */
    void (*write)(void *ctx, struct sequence *sequence, size_t first_block, size_t block_count);
    /* It was admitted, and goes on from its first block_count blocks. */
    void (*read)(void *ctx, struct sequence *sequence, size_t block_count);
    /* A step is at its end; its sequences do not count it as computed yet. */
    void (*save)(void *ctx, const struct connector_step *step);
    /* It is done or was cancelled. Where a load is under way, its blocks are the connector's from
     * now on, until that is over: sequence->cache is left empty. */
    void (*close)(void *ctx, struct sequence *sequence);
    /* How long the calls since the last asking have waited. */
    uint64_t (*take_wait_us)(void *ctx);
};

/* ROW(field, type, help) */
#define CONNECTOR_STATS(ROW)                                                                       \
    ROW(registrations_total, "counter", "times that an agent took this engine")                    \
    ROW(registered, "gauge", "1: an agent serves it now")                                          \
    ROW(lookups_total, "counter", "questions for blocks")                                          \
    ROW(lookups_late_total, "counter", "of them, without an answer in time")                       \
    ROW(lookups_put_off_total, "counter", "of them, answered with: later")                         \
    ROW(loads_total, "counter", "loads begun")                                                     \
    ROW(loading, "gauge", "loads under way, those of requests that left included")                 \
    ROW(loaded_blocks_total, "counter", "blocks that came")                                        \
    ROW(missed_blocks_total, "counter", "blocks that were to be loaded and did not come")          \
    ROW(saves_total, "counter", "steps whose blocks were offered")                                 \
    ROW(saves_late_total, "counter", "of them, without an answer in time")                         \
    ROW(saved_blocks_total, "counter", "blocks that the agent took")                               \
    ROW(known_blocks_total, "counter", "blocks that it had")                                       \
    ROW(refused_blocks_total, "counter", "blocks that it would not have")                          \
    ROW(read_pages_total, "counter", "pages compared with what they must be")                      \
    ROW(wrong_pages_total, "counter", "of them, those that were something else: must stay 0")

struct connector_stats {
#define CONNECTOR_STAT_FIELD(field, type, help) uint64_t field;
    CONNECTOR_STATS(CONNECTOR_STAT_FIELD)
#undef CONNECTOR_STAT_FIELD
};

#endif
