/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/scheduler.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include "tests/sim_engine/random.h"
#include "tests/support/leak_check.h"
#include "tests/unit/sim_engine/scheduler_world.h"

TestSuite(scheduler, .fini = leak_check);

Test(scheduler, the_first_token_comes_when_the_prompt_is_read_and_the_others_one_a_step)
{
    struct scheduler_world world;
    scheduler_world_init(&world, 100, 8);
    scheduler_world_add(&world, 200, 5, 1);

    scheduler_world_run(&world);

    cr_assert(eq(u64, world.first_us[0], 200000));            /* 200 tokens at 1,000 a second */
    cr_assert(eq(u64, world.last_us[0], 200000 + 4 * 11000)); /* 10 ms + 1 ms a step */
    cr_assert(eq(sz, world.token_count[0], 5));
    scheduler_world_release(&world);
}

Test(scheduler, a_cached_prefix_costs_no_time)
{
    struct scheduler_world world;
    scheduler_world_init(&world, 100, 8);
    scheduler_world_add(&world, 200, 1, 1);
    scheduler_world_run(&world);
    uint64_t begin_us = world.now_us;

    struct sequence *again = scheduler_world_add(&world, 200, 1, 1);
    scheduler_world_run(&world);

    cr_assert(eq(sz, again->cached_count, 192)); /* (200 - 1) / 16 blocks */
    cr_assert(eq(u64, world.first_us[1] - begin_us, 8000));
    scheduler_world_release(&world);
}

Test(scheduler, the_answer_is_cached_but_for_its_last_token)
{
    static const struct {
        size_t answer_count, cached_count;
    } cases[] = {{1, 160}, {16, 160}, {17, 176}, {33, 192}};

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct scheduler_world world;
        scheduler_world_init(&world, 100, 8);
        scheduler_world_add(&world, 160, cases[i].answer_count, 1);
        scheduler_world_run(&world);

        struct sequence *next_turn = scheduler_world_add(&world, 300, 1, 1);
        scheduler_world_run(&world);

        cr_assert(eq(sz, next_turn->cached_count, cases[i].cached_count));
        scheduler_world_release(&world);
    }
}

Test(scheduler, a_long_prompt_is_read_in_chunks_while_others_go_on)
{
    struct scheduler_world world;
    scheduler_world_init(&world, 1000, 8);
    scheduler_world_add(&world, 16, 4, 1);
    world.now_us = scheduler_step(world.scheduler, 0); /* the short one reads alone */

    scheduler_world_add(&world, 5000, 1, 100000);
    scheduler_world_run(&world);

    /* 2,047 of the long prompt beside each token of the short one's first two steps. */
    cr_assert(eq(u64, world.last_us[0], 16000 + 2 * (2047000 + 11000) + (906000 + 11000)));
    cr_assert(eq(u64, world.first_us[1], 16000 + 2 * (2047000 + 11000) + (906000 + 11000)));
    cr_assert(eq(sz, world.token_count[0], 4));
    scheduler_world_release(&world);
}

Test(scheduler, equal_prompts_of_one_step_share_what_the_first_is_reading)
{
    struct scheduler_world world;
    scheduler_world_init(&world, 100, 8);
    struct sequence *first = scheduler_world_add(&world, 100, 1, 1);
    struct sequence *second = scheduler_world_add(&world, 100, 1, 1);

    scheduler_world_run(&world);

    cr_assert(eq(sz, first->cached_count, 0));
    cr_assert(eq(sz, second->cached_count, 96));
    cr_assert(eq(u64, world.first_us[1], 104000));
    scheduler_world_release(&world);
}

Test(scheduler, no_more_run_at_once_than_allowed_and_the_rest_waits_in_order)
{
    struct scheduler_world world;
    scheduler_world_init(&world, 100, 2);
    for (uint32_t i = 0; i < 4; i++)
        scheduler_world_add(&world, 20, 3, i * 1000);

    (void)scheduler_step(world.scheduler, 0);

    cr_assert(eq(sz, scheduler_running_count(world.scheduler), 2));
    cr_assert(eq(sz, scheduler_waiting_count(world.scheduler), 2));
    scheduler_world_run(&world);
    for (size_t i = 1; i < 4; i++)
        cr_assert(ge(u64, world.first_us[i], world.first_us[i - 1]));
    scheduler_world_release(&world);
}

Test(scheduler, what_the_cache_cannot_hold_beside_others_waits)
{
    struct scheduler_world world;
    scheduler_world_init(&world, 1 + 10, 8);
    scheduler_world_add(&world, 100, 3, 1); /* seven blocks */
    struct sequence *second = scheduler_world_add(&world, 100, 3, 5000);

    (void)scheduler_step(world.scheduler, 0);

    cr_assert(eq(int, second->state, SEQUENCE_WAITING));
    scheduler_world_run(&world);
    cr_assert(eq(sz, world.token_count[1], 3));
    cr_assert(ge(u64, world.first_us[1], world.last_us[0]));
    scheduler_world_release(&world);
}

Test(scheduler, the_newest_is_preempted_when_blocks_run_out_and_loses_no_token)
{
    struct scheduler_world world;
    scheduler_world_init(&world, 1 + 8, 8);
    scheduler_world_add(&world, 48, 60, 1);     /* three blocks, grows to seven */
    scheduler_world_add(&world, 48, 60, 50000); /* the same: together they do not fit */

    scheduler_world_run(&world);

    cr_assert(gt(u64, scheduler_stats(world.scheduler).preemption_count, 0));
    cr_assert(eq(sz, world.token_count[0], 60));
    cr_assert(eq(sz, world.token_count[1], 60));
    cr_assert(lt(u64, world.last_us[0], world.last_us[1]));
    scheduler_world_release(&world);
}

Test(scheduler, a_cancelled_sequence_says_nothing_more_and_gives_its_blocks_back)
{
    struct scheduler_world world;
    scheduler_world_init(&world, 100, 8);
    scheduler_world_add(&world, 20, 50, 1);
    scheduler_world_add(&world, 20, 50, 1000);
    world.victim = &world.sequences[1]; /* goes with the first token of the first, in mid-step */

    scheduler_world_run(&world);

    cr_assert(eq(sz, world.token_count[0], 50));
    cr_assert(eq(sz, world.token_count[1], 0));
    cr_assert(eq(sz, scheduler_running_count(world.scheduler), 0));
    scheduler_world_release(&world);
}

Test(scheduler, a_late_call_loses_no_time)
{
    struct scheduler_world world;
    scheduler_world_init(&world, 100, 8);
    scheduler_world_add(&world, 100, 3, 1);
    (void)scheduler_step(world.scheduler, 0);

    uint64_t next_us = scheduler_step(world.scheduler, 100900); /* 0.9 ms late */

    cr_assert(eq(u64, next_us, 100000 + 11000));
    scheduler_world_run(&world);
    scheduler_world_release(&world);
}

Test(scheduler, the_answer_and_nothing_else_comes_over_random_loads)
{
    for (uint64_t seed = 1; seed <= 10; seed++) {
        struct scheduler_world world;
        uint64_t random = seed;
        uint64_t expected_tokens = 0;
        scheduler_world_init(&world, 1 + 60, 5);

        while (world.sequence_count < SEQUENCE_COUNT_MAX) {
            size_t prompt = 1 + random_below(&random, 500), answer = 1 + random_below(&random, 60);
            uint32_t family = (uint32_t)random_below(&random, 4) * 10000;

            scheduler_world_add(&world, prompt, answer, family);
            expected_tokens += answer;
            for (size_t i = random_below(&random, 20); i > 0; i--) {
                uint64_t next_us = scheduler_step(world.scheduler, world.now_us);
                world.now_us = next_us != 0 ? next_us : world.now_us;
            }
        }
        scheduler_world_run(&world);

        struct scheduler_stats stats = scheduler_stats(world.scheduler);
        cr_assert(eq(u64, stats.generation_tokens, expected_tokens));
        cr_assert(gt(u64, stats.cached_tokens, 0));
        for (size_t i = 0; i < world.sequence_count; i++)
            cr_assert(eq(sz, world.token_count[i], world.sequences[i].answer_count));
        scheduler_world_release(&world);
    }
}
