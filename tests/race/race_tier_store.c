/* SPDX-License-Identifier: Apache-2.0 */

/*
 * race_tier_store: a tier_store with its real threads, while several engines save and load prompts
 * that share beginnings, let go in the middle, ask for more than there is room for, and the store
 * is cleared and closed with everything under way. Copies and the SSD take a random time, so that
 * jobs pass each other. Every page that is said to be there must be right; what two threads touch
 * at once is the sanitizer's to see. Which schedules there are besides shows tests/unit/tier_model.
 */

#include "backends/runtime/random.h"
#include "tests/support/store_world.h"

#include <stdio.h>

enum { ROUND_COUNT = 40, STEP_COUNT = 150, JOB_COUNT = 12, PATH_MAX_BLOCKS = 12, CHAIN_COUNT = 12 };

struct race_job {
    bool is_used, is_save, is_done;
    uint32_t chain;
    uint32_t count;
    struct tier_hold *hold;
};

struct race {
    struct io_loop io;
    struct world *world;
    uint64_t seed;
    struct race_job jobs[JOB_COUNT];
    unsigned loaded_blocks, done_jobs;
};

static uint64_t dice(struct race *race, uint64_t sides)
{
    return random_next(&race->seed) % sides;
}

/* Chains share their first two blocks, and go apart then. */
static uint32_t number_at(uint32_t chain, uint32_t depth)
{
    return depth < 2 ? 1 + depth : 10 + chain * PATH_MAX_BLOCKS + depth;
}

static uint32_t engine_block_of(const struct race *race, const struct race_job *job, uint32_t depth)
{
    return (uint32_t)(job - race->jobs) * PATH_MAX_BLOCKS + depth;
}

static struct race_job *new_job(struct race *race, bool is_save)
{
    for (int i = 0; i < JOB_COUNT; i++) {
        struct race_job *job = &race->jobs[i];

        if (job->is_used)
            continue;
        *job = (struct race_job){.is_used = true,
                                 .is_save = is_save,
                                 .chain = (uint32_t)dice(race, CHAIN_COUNT),
                                 .count = 1 + (uint32_t)dice(race, PATH_MAX_BLOCKS)};
        return job;
    }
    return NULL;
}

static bool may_commit(void *ctx)
{
    const struct race_job *job = ctx;

    return job->count % 5 != 0;
}

static void on_saved(void *ctx, struct tier_saved saved)
{
    struct race_job *job = ctx;

    assert(job->is_used && job->is_save && !job->is_done);
    assert(saved.saved + saved.known + saved.refused <= job->count);
    job->is_done = true;
}

static void on_loaded(void *ctx, uint32_t loaded)
{
    struct race_job *job = ctx;

    assert(job->is_used && !job->is_save && !job->is_done);
    assert(loaded <= job->count);
    job->count = loaded;
    job->is_done = true;
}

static void begin_save(struct race *race)
{
    struct race_job *job = new_job(race, true);
    struct tier_save saves[PATH_MAX_BLOCKS];

    if (job == NULL)
        return;
    for (uint32_t depth = 0; depth < job->count; depth++) {
        const uint32_t number = number_at(job->chain, depth);
        const uint32_t engine_block = engine_block_of(race, job, depth);

        world_fill(race->world->engine->pages[engine_block], number);
        saves[depth] = (struct tier_save){
            .key = world_key(number),
            .parent = world_name(depth > 0 ? number_at(job->chain, depth - 1) : 0),
            .depth = depth,
            .engine_block = engine_block,
        };
    }
    if (tier_store_save(race->world->store, saves, job->count, &race->world->engine->memory,
                        may_commit, on_saved, job) < 0)
        job->is_used = false;
}

static void begin_load(struct race *race)
{
    struct race_job *job = new_job(race, false);
    struct block_key keys[PATH_MAX_BLOCKS];
    uint32_t engine_blocks[PATH_MAX_BLOCKS];

    if (job == NULL)
        return;
    for (uint32_t depth = 0; depth < job->count; depth++) {
        keys[depth] = world_key(number_at(job->chain, depth));
        engine_blocks[depth] = engine_block_of(race, job, depth);
    }
    job->hold =
        tier_store_hold(race->world->store, keys, job->count, dice(race, 10) == 0 ? 1 : 9999);
    if (job->hold == NULL) {
        job->is_used = false;
        return;
    }
    job->count = (uint32_t)tier_hold_count(job->hold);
    tier_hold_use(job->hold, 0, job->count);
    if (tier_store_load(race->world->store, job->hold, 0, job->count, &race->world->engine->memory,
                        engine_blocks, on_loaded, job) < 0) {
        tier_hold_release(&job->hold);
        job->is_used = false;
    }
}

static void take_ended(struct race *race)
{
    for (int i = 0; i < JOB_COUNT; i++) {
        struct race_job *job = &race->jobs[i];

        if (!job->is_used || !job->is_done)
            continue;
        for (uint32_t depth = 0; !job->is_save && depth < job->count; depth++) {
            const uint32_t engine_block = engine_block_of(race, job, depth);

            assert(world_is_page(race->world->engine->pages[engine_block],
                                 number_at(job->chain, depth)));
            race->loaded_blocks++;
        }
        tier_hold_release(&job->hold);
        job->is_used = false;
        race->done_jobs++;
    }
}

static void prefetch(struct race *race)
{
    const uint32_t chain = (uint32_t)dice(race, CHAIN_COUNT);
    struct digest_128 names[PATH_MAX_BLOCKS];

    for (uint32_t depth = 0; depth < PATH_MAX_BLOCKS; depth++)
        names[depth] = world_name(number_at(chain, depth));
    (void)tier_store_prefetch(race->world->store, names, PATH_MAX_BLOCKS,
                              io_loop_now_ms(&race->io) + dice(race, 20));
}

static void take_step(struct race *race)
{
    const uint64_t choice = dice(race, 100);

    if (choice < 35)
        begin_save(race);
    else if (choice < 75)
        begin_load(race);
    else if (choice < 82)
        prefetch(race);
    else if (choice < 90)
        tier_hold_release(&race->jobs[dice(race, JOB_COUNT)].hold);
    else if (choice == 99)
        tier_store_clear(race->world->store, NULL);
    atomic_store(&race->world->device.delay_us, (unsigned)dice(race, 3) * 60);
    atomic_store(&race->world->ssd->delay_us, (unsigned)dice(race, 3) * 100);
    uv_run(&race->io.loop, dice(race, 3) == 0 ? UV_RUN_ONCE : UV_RUN_NOWAIT);
    take_ended(race);
}

/* Closed with whatever is under way; every job answers before that is over. */
static void close_world(struct race *race)
{
    for (int i = 0; i < JOB_COUNT; i++)
        race->jobs[i].hold = NULL; /* closing ends them */
    world_close(race->world);
    for (int i = 0; i < JOB_COUNT; i++)
        assert(!race->jobs[i].is_used || race->jobs[i].is_done);
    take_ended(race);
    world_destroy(race->world);
}

int main(void)
{
    static struct race race;
    int status = io_loop_init(&race.io);

    assert(status == 0);
    for (uint64_t round = 1; round <= ROUND_COUNT; round++) {
        race.seed = round;
        race.world = world_create(&race.io, (struct world_config){.cpu_slots = 40,
                                                                  .ssd_slots = 60,
                                                                  .threads = 3,
                                                                  .job_count_max = JOB_COUNT});
        for (int step = 0; step < STEP_COUNT; step++)
            take_step(&race);
        if (round % 2 == 0)
            world_settle(race.world);
        assert(block_table_is_sound(race.world->store->table));
        close_world(&race);
    }
    io_loop_stop_tick(&race.io);
    uv_run(&race.io.loop, UV_RUN_DEFAULT);
    io_loop_release(&race.io);
    assert(race.loaded_blocks > 0);
    printf("%d rounds, %u jobs, %u blocks loaded\n", ROUND_COUNT, race.done_jobs,
           race.loaded_blocks);
    return 0;
}
