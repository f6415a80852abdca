/* SPDX-License-Identifier: Apache-2.0 */

/* What the scheduler asks of a connector, and what it makes of the answers: under a clock of its
 * own, with a connector that says what the test told it to say. */
#include "tests/sim_engine/connector.h"
#include "tests/sim_engine/scheduler.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <stdio.h>

#include "tests/sim_engine/random.h"
#include "tests/support/leak_check.h"
#include "tests/unit/sim_engine/scheduler_world.h"

enum { LOAD_COUNT_MAX = 64 };

struct load {
    struct sequence *sequence; /* NULL: it left */
    struct cache_sequence cache;
    size_t first, count;
    bool is_over;
};

struct world {
    struct scheduler_world engine;
    /* what the connector says */
    size_t held_tokens; /* of every prompt */
    uint32_t later_ms;  /* once */
    bool refuses_loads;
    uint64_t wait_us; /* of each save */
    /* what it was asked */
    struct load loads[LOAD_COUNT_MAX];
    size_t load_count;
    size_t lookup_count, read_blocks, open_count, saved_blocks;
    uint64_t waited_us;
    char written[1024]; /* "first+count " of each writing */
};

static void open_sequence(void *ctx, struct sequence *sequence)
{
    struct world *world = ctx;

    cr_assert(eq(ptr, sequence->connected, NULL));
    sequence->connected = sequence;
    world->open_count++;
}

static struct connector_found look_up(void *ctx, struct sequence *sequence, size_t local_count)
{
    struct world *world = ctx;
    size_t held = (sequence->prompt_count - 1) / BLOCK * BLOCK;
    struct connector_found found = {.later_ms = world->later_ms};

    world->lookup_count++;
    world->later_ms = 0;
    held = held < world->held_tokens ? held : world->held_tokens;
    if (found.later_ms == 0 && held > local_count)
        found.token_count = held - local_count;
    return found;
}

static bool load(void *ctx, struct sequence *sequence, size_t first_block, size_t block_count)
{
    struct world *world = ctx;

    if (world->refuses_loads)
        return false;
    cr_assert(le(sz, first_block + block_count, sequence->cache.block_count));
    cr_assert(lt(sz, world->load_count, LOAD_COUNT_MAX));
    world->loads[world->load_count++] = (struct load){
        .sequence = sequence,
        .first = first_block,
        .count = block_count,
    };
    return true;
}

static void write_pages(void *ctx, struct sequence *sequence, size_t first, size_t count)
{
    struct world *world = ctx;
    size_t len = strlen(world->written);

    cr_assert(le(sz, first + count, sequence->cache.named_count));
    snprintf(world->written + len, sizeof world->written - len, "%zu+%zu ", first, count);
}

static void read_pages(void *ctx, struct sequence *sequence, size_t block_count)
{
    struct world *world = ctx;

    cr_assert(le(sz, block_count, sequence->cache.named_count));
    world->read_blocks += block_count;
}

static void save(void *ctx, const struct connector_step *step)
{
    struct world *world = ctx;

    for (size_t i = 0; i < step->sequence_count; i++) {
        const struct sequence *sequence = step->sequences[i];

        if (sequence != NULL)
            world->saved_blocks += (sequence->computed_count + sequence->step_count) / BLOCK -
                                   sequence->computed_count / BLOCK;
    }
    world->waited_us += world->wait_us;
}

static void close_sequence(void *ctx, struct sequence *sequence)
{
    struct world *world = ctx;

    cr_assert(eq(ptr, sequence->connected, sequence));
    sequence->connected = NULL;
    world->open_count--;
    for (size_t i = 0; i < world->load_count; i++) {
        if (world->loads[i].sequence != sequence || world->loads[i].is_over)
            continue;
        world->loads[i].sequence = NULL;
        world->loads[i].cache = sequence->cache;
        cache_sequence_init(&sequence->cache, 0);
    }
}

static uint64_t take_wait_us(void *ctx)
{
    struct world *world = ctx;
    uint64_t waited_us = world->waited_us;

    world->waited_us = 0;
    return waited_us;
}

static const struct connector_ops ops = {
    .open = open_sequence,
    .look_up = look_up,
    .load = load,
    .write = write_pages,
    .read = read_pages,
    .save = save,
    .close = close_sequence,
    .take_wait_us = take_wait_us,
};

static void world_init(struct world *world, uint32_t block_count)
{
    *world = (struct world){0};
    scheduler_world_init(&world->engine, block_count, 8);
    scheduler_connect(world->engine.scheduler, &ops, world);
}

static struct sequence *world_add(struct world *world, size_t prompt_count, size_t answer_count,
                                  uint32_t first_token)
{
    return scheduler_world_add(&world->engine, prompt_count, answer_count, first_token);
}

static void world_run(struct world *world)
{
    scheduler_world_run(&world->engine);
}

/* Ends the load, with that many blocks of it there. */
static void world_end_load(struct world *world, size_t index, size_t count)
{
    struct load *ended = &world->loads[index];

    cr_assert(not(ended->is_over));
    ended->is_over = true;
    if (ended->sequence != NULL) {
        scheduler_loaded(world->engine.scheduler, ended->sequence, count);
    } else {
        prefix_cache_free(world->engine.cache, &ended->cache);
        cache_sequence_release(&ended->cache);
    }
}

static void world_release(struct world *world)
{
    scheduler_world_clear(&world->engine);
    for (size_t i = 0; i < world->load_count; i++) {
        if (!world->loads[i].is_over)
            world_end_load(world, i, 0);
    }
    cr_assert(eq(sz, world->open_count, 0));
    scheduler_world_release(&world->engine);
}

TestSuite(scheduler_connector, .fini = leak_check);

Test(scheduler_connector, what_was_loaded_costs_no_prefill_and_counts_as_cached)
{
    struct world world;
    world_init(&world, 100);
    world.held_tokens = 160;
    struct sequence *sequence = world_add(&world, 200, 1, 1);

    world_run(&world);
    cr_assert(eq(int, sequence->state, SEQUENCE_LOADING));
    world.engine.now_us = 5000;
    world_end_load(&world, 0, 10);
    world_run(&world);

    cr_assert(eq(u64, world.engine.first_us[0], 5000 + 40000));
    cr_assert(eq(sz, sequence->cached_count, 160));
    cr_assert(eq(sz, sequence->loaded_count, 160));
    cr_assert(eq(u64, scheduler_stats(world.engine.scheduler).loaded_tokens, 160));
    cr_assert(eq(str, world.written, "10+2 "));
    cr_assert(eq(sz, world.read_blocks, 10));
    world_release(&world);
}

Test(scheduler_connector, a_load_that_came_short_is_computed_from_where_it_ended)
{
    struct world world;
    world_init(&world, 100);
    world.held_tokens = 160;
    struct sequence *sequence = world_add(&world, 200, 1, 1);

    world_run(&world);
    world_end_load(&world, 0, 3);
    world_run(&world);

    cr_assert(eq(sz, sequence->cached_count, 48));
    cr_assert(eq(u64, world.engine.first_us[0], 152000));
    cr_assert(eq(str, world.written, "3+9 "));
    world_release(&world);
}

Test(scheduler_connector, loads_begin_behind_what_the_engine_has_itself)
{
    struct world world;
    world_init(&world, 100);
    world_add(&world, 100, 1, 1); /* six blocks */
    world_run(&world);
    world.held_tokens = 160;

    world_add(&world, 200, 1, 1);
    world_run(&world);

    cr_assert(eq(sz, world.load_count, 1));
    cr_assert(eq(sz, world.loads[0].first, 6));
    cr_assert(eq(sz, world.loads[0].count, 4));
    world_release(&world);
}

Test(scheduler_connector, others_run_while_one_loads_and_pass_one_that_is_to_ask_later)
{
    struct world world;
    world_init(&world, 100);
    world.later_ms = 500;
    struct sequence *late = world_add(&world, 200, 1, 1);
    world_add(&world, 10, 1, 5000);

    world_run(&world);

    cr_assert(eq(u64, world.engine.first_us[1], 10000));
    cr_assert(eq(u64, world.engine.first_us[0], 500000 + 200000));
    cr_assert(eq(sz, world.lookup_count, 3));
    cr_assert(eq(sz, late->cached_count, 0));
    world_release(&world);
}

Test(scheduler_connector, a_load_that_nobody_takes_is_computed_at_once)
{
    struct world world;
    world_init(&world, 100);
    world.held_tokens = 160;
    world.refuses_loads = true;

    world_add(&world, 200, 1, 1);
    world_run(&world);

    cr_assert(eq(u64, world.engine.first_us[0], 200000));
    world_release(&world);
}

Test(scheduler_connector, blocks_of_one_that_left_while_it_loaded_are_nobodys_until_it_ended)
{
    struct world world;
    world_init(&world, 1 + 13);
    world.held_tokens = 160;
    struct sequence *sequence = world_add(&world, 200, 1, 1); /* all thirteen blocks */
    world_run(&world);

    scheduler_cancel(world.engine.scheduler, sequence);
    world.held_tokens = 0;
    world_add(&world, 100, 1, 9000);
    world_run(&world);

    cr_assert(eq(sz, prefix_cache_free_count(world.engine.cache), 0));
    cr_assert(eq(sz, world.engine.token_count[1], 0));
    world_end_load(&world, 0, 10);
    world_run(&world);
    cr_assert(eq(sz, world.engine.token_count[1], 1));
    world_release(&world);
}

Test(scheduler_connector, two_that_have_loaded_never_wait_for_each_other)
{
    struct world world;
    world_init(&world, 1 + 13);
    world.held_tokens = 64;
    world_add(&world, 200, 1, 1);
    world_add(&world, 200, 1, 9000);

    world_run(&world);
    cr_assert(eq(sz, world.load_count, 1)); /* the second has no room for all it will need */
    world_end_load(&world, 0, 4);
    world_run(&world);
    cr_assert(eq(sz, world.load_count, 2));
    world_end_load(&world, 1, 4);
    world_run(&world);

    cr_assert(eq(sz, world.engine.token_count[0], 1));
    cr_assert(eq(sz, world.engine.token_count[1], 1));
    world_release(&world);
}

Test(scheduler_connector, what_a_step_waits_for_its_saves_is_time)
{
    struct world world;
    world_init(&world, 100);
    world.wait_us = 7000;

    world_add(&world, 32, 3, 1);
    world_run(&world);

    cr_assert(eq(u64, world.engine.first_us[0], 32000));
    cr_assert(eq(u64, world.engine.now_us, 32000 + 2 * (7000 + 11000)));
    cr_assert(eq(sz, world.saved_blocks, 2));
    world_release(&world);
}

Test(scheduler_connector, every_request_is_answered_over_random_loads_that_fail_and_come_late)
{
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct world world;
        uint64_t random = seed;
        size_t ended = 0;
        world_init(&world, 1 + 60);

        while (world.engine.sequence_count < SEQUENCE_COUNT_MAX || ended < world.load_count ||
               scheduler_running_count(world.engine.scheduler) > 0) {
            world.held_tokens = random_below(&random, 30) * BLOCK;
            world.later_ms = random_below(&random, 4) == 0 ? 3 : 0;
            if (world.engine.sequence_count < SEQUENCE_COUNT_MAX && random_below(&random, 3) == 0)
                world_add(&world, 1 + random_below(&random, 500), 1 + random_below(&random, 60),
                          (uint32_t)random_below(&random, 4) * 10000);
            if (ended < world.load_count && random_below(&random, 5) == 0) {
                world_end_load(&world, ended, random_below(&random, world.loads[ended].count + 1));
                ended++;
            }
            if (world.load_count == LOAD_COUNT_MAX)
                world.refuses_loads = true;
            uint64_t next_us = scheduler_step(world.engine.scheduler, world.engine.now_us);
            world.engine.now_us = next_us != 0 ? next_us : world.engine.now_us + 1000;
        }
        world.refuses_loads = true;
        world_run(&world);

        for (size_t i = 0; i < world.engine.sequence_count; i++)
            cr_assert(eq(sz, world.engine.token_count[i], world.engine.sequences[i].answer_count));
        world_release(&world);
    }
}
