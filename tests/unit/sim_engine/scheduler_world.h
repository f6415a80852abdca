/* SPDX-License-Identifier: Apache-2.0 */

/*
 * scheduler_world: a scheduler under a clock of its own: 1,000 prompt tokens a second, 10 ms + 1 ms
 * a request; and when whose tokens came.
 */
#ifndef TESTS_UNIT_SIM_ENGINE_SCHEDULER_WORLD_H
#define TESTS_UNIT_SIM_ENGINE_SCHEDULER_WORLD_H

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/sim_engine/scheduler.h"

enum { SEQUENCE_COUNT_MAX = 64, BLOCK = 16 };

struct scheduler_world {
    struct prefix_cache *cache;
    struct scheduler *scheduler;
    struct sequence sequences[SEQUENCE_COUNT_MAX];
    size_t sequence_count;
    uint64_t now_us;
    uint64_t first_us[SEQUENCE_COUNT_MAX];
    uint64_t last_us[SEQUENCE_COUNT_MAX];
    size_t token_count[SEQUENCE_COUNT_MAX];
    struct sequence *victim; /* cancelled when any token comes */
};

static inline void scheduler_world_on_token(void *ctx, struct sequence *sequence, bool is_last)
{
    struct scheduler_world *world = ctx;
    size_t i = (size_t)(sequence - world->sequences);

    if (world->token_count[i]++ == 0)
        world->first_us[i] = world->now_us;
    if (is_last)
        world->last_us[i] = world->now_us;
    if (world->victim != NULL)
        scheduler_cancel(world->scheduler, world->victim);
}

static inline void scheduler_world_init(struct scheduler_world *world, uint32_t block_count,
                                        uint32_t running_count_max)
{
    struct scheduler_config config = {
        .time = {.prefill_tokens_per_s = 1000,
                 .decode_ms = 10,
                 .decode_ms_per_request = 1,
                 .speedup = 1},
        .running_count_max = running_count_max,
    };

    *world = (struct scheduler_world){0};
    world->cache = prefix_cache_create(block_count, BLOCK);
    world->scheduler = scheduler_create(config, world->cache, scheduler_world_on_token, world);
}

static inline struct sequence *scheduler_world_add(struct scheduler_world *world,
                                                   size_t prompt_count, size_t answer_count,
                                                   uint32_t first_token)
{
    struct sequence *sequence = &world->sequences[world->sequence_count++];

    sequence_init(sequence, 0);
    for (size_t i = 0; i < prompt_count + answer_count; i++)
        token_list_append(&sequence->tokens, first_token + (uint32_t)i);
    sequence->prompt_count = prompt_count;
    sequence->answer_count = answer_count;
    scheduler_add(world->scheduler, sequence);
    return sequence;
}

/* Steps until nothing is left to do. */
static inline void scheduler_world_run(struct scheduler_world *world)
{
    uint64_t next_us;

    while ((next_us = scheduler_step(world->scheduler, world->now_us)) != 0)
        world->now_us = next_us;
}

/* All sequences leave. */
static inline void scheduler_world_clear(struct scheduler_world *world)
{
    for (size_t i = 0; i < world->sequence_count; i++) {
        scheduler_cancel(world->scheduler, &world->sequences[i]);
        sequence_release(&world->sequences[i]);
    }
    world->sequence_count = 0;
}

/* Nothing of them may be left in the cache. */
static inline void scheduler_world_release(struct scheduler_world *world)
{
    scheduler_world_clear(world);
    cr_assert(
        eq(sz, prefix_cache_free_count(world->cache), prefix_cache_usable_count(world->cache)));
    scheduler_destroy(world->scheduler);
    prefix_cache_destroy(world->cache);
}

#endif
