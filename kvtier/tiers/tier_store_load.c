/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/tier_store_parts.h"

#include "backends/runtime/clock.h"
#include "backends/runtime/fault_point.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

/*
 * DESIGN
 *
 * Everything that a load will read is counted as read when it starts, so that from then on it needs
 * neither the hold nor luck. A block that lies in both tiers is read from CPU memory. One that lies
 * on the SSD alone passes through a CPU slot, and stays there, where one is free; nobody has to go
 * for it. The engine has use for a beginning only, so the first failure ends the load.
 *
 * What a load takes is learned from whole ones, from being asked for to being told of: a start (the
 * way to a thread and back, a device's latency) and a part for each byte, by as many threads as it
 * gets. Only those count that read one tier and had the threads to themselves: what others make a
 * load wait is the queue, which is what was asked for and has not come through yet, by the rate of
 * one thread, over all threads.
 */
static const double DEFAULT_BYTES_PER_S[BLOCK_TIER_COUNT] = {
    [BLOCK_TIER_CPU] = 8e9, /* a memcpy of one core */
    [BLOCK_TIER_SSD] = 1.5e9,
};
/* Two hand-overs between threads; from a disk some reads one behind the other. */
static const double DEFAULT_START_MS[BLOCK_TIER_COUNT] = {
    [BLOCK_TIER_CPU] = 0.2,
    [BLOCK_TIER_SSD] = 0.5,
};
static const double RATE_WEIGHT = 0.2; /* of the newest batch */

static void load_on_batch(struct tier_job *job, struct tier_batch *batch);
static void load_on_end(struct tier_job *job);

static const struct tier_job_kind load_kind = {MOVER_LOAD, load_on_batch, load_on_end};

static void measure(struct tier_store *store, const struct tier_copy *copy, size_t good_count)
{
    double *rate = &store->load_bytes_per_s[copy->source];
    double newest;

    if (good_count == 0 || copy->run_us == 0)
        return;
    newest = (double)good_count * store->config.page_bytes * 1e6 / (double)copy->run_us;
    *rate = *rate > 0 ? *rate + RATE_WEIGHT * (newest - *rate) : newest;
}

static void load_on_batch(struct tier_job *job, struct tier_batch *batch)
{
    struct tier_store *store = job->store;
    size_t good_count = 0;

    for (size_t i = 0; i < batch->copy.count; i++) {
        struct move *move = &job->moves[batch->first + i];

        if (move->state == MOVE_ARRIVED && tier_job_commit(job, move)) {
            store->stats.promoted_blocks += move->keeps_copy;
            good_count++;
        } else if (move->state == MOVE_ABORTED) {
            job->is_cancelled = true; /* what comes behind it is of no use */
        }
    }
    measure(store, &batch->copy, good_count);
}

/* All of it has been loaded. */
static void note_time(const struct tier_job *job)
{
    struct tier_store *store = job->store;
    const enum move_end source = job->moves[0].source;
    struct tier_load_timing *timing = &store->load_timings[source];
    const uint64_t us = clock_now_us() - job->begun_us;

    if (job->load_number != store->load_count) /* others came meanwhile, or were there */
        return;
    for (size_t i = 1; i < job->count; i++)
        if (job->moves[i].source != source)
            return;
    cost_line_note(&timing->cost, (double)job->count * store->config.page_bytes, (double)us / 1e3);
    timing->count++;
    timing->us += us;
}

static void load_on_end(struct tier_job *job)
{
    struct tier_store *store = job->store;
    uint32_t loaded = 0;

    while (loaded < job->count && job->moves[loaded].state == MOVE_DONE) {
        if (job->moves[loaded].source == MOVE_CPU)
            store->stats.loaded_cpu_blocks++;
        else
            store->stats.loaded_ssd_blocks++;
        loaded++;
    }
    store->stats.load_failed_blocks += job->asked - loaded;
    if (loaded > 0 && loaded == job->asked)
        note_time(job);
    fault_point_pass(FAULT_LOAD_DONE);
    job->on_loaded(job->ctx, loaded);
}

/* False: it is in no tier any more (it failed its check, or all was cleared). */
static bool plan(struct tier_job *job, uint32_t block, uint32_t engine_block)
{
    struct tier_store *store = job->store;
    const struct tier_block *at = tier_index_at(store, block);
    struct move move = {.block = block, .engine_block = engine_block, .target = MOVE_ENGINE};
    uint32_t slot = BLOCK_SLOT_NONE;

    if (tier_block_bits(at) == 0)
        return false;
    if (at->place[BLOCK_TIER_CPU] == BLOCK_HELD) {
        move.source = MOVE_CPU;
    } else {
        move.source = MOVE_SSD;
        if (at->place[BLOCK_TIER_CPU] == BLOCK_ABSENT)
            slot = block_table_take_slot(store->table, BLOCK_TIER_CPU);
        move.keeps_copy = slot != BLOCK_SLOT_NONE;
    }
    tier_job_add(job, move, slot);
    return true;
}

int tier_store_load(struct tier_store *store, struct tier_hold *hold, size_t first, size_t count,
                    struct engine_memory *memory, const uint32_t *engine_blocks,
                    tier_loaded_fn *on_done, void *ctx)
{
    const uint32_t *blocks;
    struct tier_job *job;
    int status = tier_hold_range(hold, first, count, &blocks);

    if (status < 0)
        return status;
    if (store->engine_jobs >= store->config.job_count_max)
        return -EBUSY;
    job = tier_job_create(store, &load_kind, count, memory);
    if (job == NULL)
        return -ENOMEM;
    job->hold = hold;
    job->on_loaded = on_done;
    job->ctx = ctx;
    job->asked = (uint32_t)count;
    job->begun_us = clock_now_us();
    store->load_count++;
    if (store->load_bytes[BLOCK_TIER_CPU] + store->load_bytes[BLOCK_TIER_SSD] == 0)
        job->load_number = store->load_count;
    for (size_t i = 0; i < count && plan(job, blocks[i], engine_blocks[i]); i++)
        ;
    tier_job_start(job);
    tier_demote(store, blocks, count);
    return 0;
}

/* ---- what it takes ---- */

static double rate_of(const struct tier_store *store, enum block_tier tier)
{
    return store->load_bytes_per_s[tier] > 0 ? store->load_bytes_per_s[tier]
                                             : DEFAULT_BYTES_PER_S[tier];
}

void tier_load_init(struct tier_store *store)
{
    for (int tier = 0; tier < BLOCK_TIER_COUNT; tier++)
        cost_line_init(&store->load_timings[tier].cost,
                       (struct cost){DEFAULT_START_MS[tier], 1e3 / DEFAULT_BYTES_PER_S[tier]});
}

/* What a load begun now would wait for a thread. */
static double queue_ms(const struct tier_store *store)
{
    double ms = 0;

    if (mover_is_idle(store->mover, MOVER_LOAD))
        return 0;
    for (int tier = 0; tier < BLOCK_TIER_COUNT; tier++)
        ms += (double)store->load_bytes[tier] * 1e3 / rate_of(store, (enum block_tier)tier);
    return ms / store->config.load_threads;
}

struct tier_load_stats tier_load_stats(const struct tier_store *store, enum block_tier tier)
{
    const struct tier_load_timing *timing = &store->load_timings[tier];

    return (struct tier_load_stats){.cost = cost_line_cost(&timing->cost),
                                    .is_measured = cost_line_is_known(&timing->cost),
                                    .queue_ms = queue_ms(store),
                                    .timed_count = timing->count,
                                    .timed_us = timing->us};
}

double tier_store_rising_ms(const struct tier_store *store, const struct block_key *keys,
                            size_t count)
{
    size_t rising = 0;

    for (size_t i = 0; i < count; i++) {
        const uint32_t block = block_table_find_key(store->table, keys[i]);

        if (block == 0)
            break;
        rising += tier_index_at(store, block)->place[BLOCK_TIER_CPU] == BLOCK_WRITING &&
                  tier_index_at(store, block)->place[BLOCK_TIER_SSD] == BLOCK_HELD;
    }
    return (double)rising * store->config.page_bytes * 1e3 / rate_of(store, BLOCK_TIER_SSD);
}
