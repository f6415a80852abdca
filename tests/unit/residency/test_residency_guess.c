/* SPDX-License-Identifier: Apache-2.0 */

#include "router/residency/residency_guess.h"

#include "tests/support/leak_check.h"
#include "tests/unit/residency/world.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <string.h>

enum { PROMPT_BLOCKS = 10, PROMPT_TOKENS = PROMPT_BLOCKS * WORLD_BLOCK_BYTES / 4 };

struct guess_world {
    struct residency_index *index;
    struct residency_guess *guess;
};

static struct guess_world guess_world(size_t index_bytes)
{
    struct residency_index *index = residency_index_create(index_bytes);

    return (struct guess_world){index, residency_guess_create(index)};
}

static void guess_world_release(struct guess_world *world)
{
    residency_guess_destroy(world->guess);
    residency_index_destroy(world->index);
}

static void learn_blocks(struct residency_guess *guess, uint32_t worker, const struct block *blocks,
                         size_t count)
{
    (void)residency_guess_learn(
        guess, worker,
        &(struct guess_prompt){.blocks = blocks, .block_count = count, .tokens_per_byte = 0.25});
}

static void learn(struct guess_world *world, uint32_t worker, uint64_t number)
{
    struct block blocks[PROMPT_BLOCKS];

    world_prompt(blocks, PROMPT_BLOCKS, number);
    learn_blocks(world->guess, worker, blocks, PROMPT_BLOCKS);
}

static uint32_t held(struct guess_world *world, uint32_t worker, uint64_t number)
{
    struct block blocks[PROMPT_BLOCKS];

    world_prompt(blocks, PROMPT_BLOCKS, number);
    return world_held(world->index, worker, blocks, PROMPT_BLOCKS);
}

TestSuite(residency_guess, .fini = leak_check);

Test(residency_guess, what_was_sent_is_held_there_and_nowhere_else)
{
    struct guess_world world = guess_world(1 << 20);

    learn(&world, 3, 1);

    cr_assert(eq(u32, held(&world, 3, 1), PROMPT_BLOCKS));
    cr_assert(eq(u32, held(&world, 2, 1), 0));
    cr_assert(eq(u64, residency_guess_stats(world.guess).block_count, PROMPT_BLOCKS));
    guess_world_release(&world);
}

Test(residency_guess, a_cache_that_is_full_loses_the_tail_of_the_oldest_prompt_first)
{
    struct guess_world world = guess_world(1 << 20);
    residency_guess_set_capacity(world.guess, 0, 2 * PROMPT_TOKENS);
    learn(&world, 0, 1);
    learn(&world, 0, 2);
    struct block half[PROMPT_BLOCKS / 2];
    world_prompt(half, PROMPT_BLOCKS / 2, 3);

    learn_blocks(world.guess, 0, half, PROMPT_BLOCKS / 2);

    cr_assert(eq(u32, held(&world, 0, 1), PROMPT_BLOCKS / 2)); /* its first blocks are left */
    cr_assert(eq(u32, held(&world, 0, 2), PROMPT_BLOCKS));
    cr_assert(eq(u64, residency_guess_stats(world.guess).evicted_total, PROMPT_BLOCKS / 2));
    guess_world_release(&world);
}

Test(residency_guess, eviction_takes_every_leaf_before_its_parent)
{
    struct guess_world world = guess_world(1 << 20);
    residency_guess_set_capacity(world.guess, 0, 3 * PROMPT_TOKENS);
    for (uint64_t number = 1; number <= 3; number++)
        learn(&world, 0, number);

    for (uint64_t tokens = 3 * PROMPT_TOKENS; tokens > 0; tokens--) {
        residency_guess_set_capacity(world.guess, 0, tokens);
        uint64_t in_runs = 0;
        for (uint64_t number = 1; number <= 3; number++)
            in_runs += held(&world, 0, number);
        /* Every block that is left is reached from its prompt's first: no orphan. */
        cr_assert(eq(u64, in_runs, residency_guess_stats(world.guess).block_count));
        cr_assert(eq(u64, in_runs, tokens / (WORLD_BLOCK_BYTES / 4)));
    }
    guess_world_release(&world);
}

Test(residency_guess, a_prefix_that_is_used_again_outlives_what_is_not)
{
    struct guess_world world = guess_world(1 << 20);
    residency_guess_set_capacity(world.guess, 0, 2 * PROMPT_TOKENS);
    learn(&world, 0, 1);
    learn(&world, 0, 2);
    learn(&world, 0, 1);

    learn(&world, 0, 3);

    cr_assert(eq(u32, held(&world, 0, 1), PROMPT_BLOCKS));
    cr_assert(eq(u32, held(&world, 0, 2), 0));
    cr_assert(eq(u32, held(&world, 0, 3), PROMPT_BLOCKS));
    guess_world_release(&world);
}

Test(residency_guess, of_a_prompt_beyond_the_cache_the_first_blocks_are_held)
{
    struct guess_world world = guess_world(1 << 20);
    residency_guess_set_capacity(world.guess, 0, PROMPT_TOKENS / 2);

    learn(&world, 0, 1);

    cr_assert(eq(u32, held(&world, 0, 1), PROMPT_BLOCKS / 2));
    guess_world_release(&world);
}

Test(residency_guess, a_cache_of_unknown_size_has_the_default)
{
    enum { TOKENS_PER_BLOCK = WORLD_BLOCK_BYTES / 4 };
    struct guess_world world = guess_world(1 << 22);
    residency_guess_set_capacity(world.guess, 0, 0);

    for (uint64_t number = 1; number <= 400; number++)
        learn(&world, 0, number);

    cr_assert(eq(u64, residency_guess_stats(world.guess).block_count, 131072 / TOKENS_PER_BLOCK));
    guess_world_release(&world);
}

Test(residency_guess, a_correction_forgets_the_tail_and_only_there)
{
    struct guess_world world = guess_world(1 << 20);
    struct block blocks[PROMPT_BLOCKS];
    world_prompt(blocks, PROMPT_BLOCKS, 1);
    learn(&world, 0, 1);
    learn(&world, 1, 1);

    residency_guess_correct(world.guess, 0, blocks, PROMPT_BLOCKS, 4);

    cr_assert(eq(u32, held(&world, 0, 1), 4));
    cr_assert(eq(u32, held(&world, 1, 1), PROMPT_BLOCKS));
    cr_assert(eq(u64, residency_guess_stats(world.guess).corrected_total, PROMPT_BLOCKS - 4));
    residency_guess_correct(world.guess, 0, blocks, PROMPT_BLOCKS, 4);
    cr_assert(eq(u64, residency_guess_stats(world.guess).corrected_total, PROMPT_BLOCKS - 4));
    guess_world_release(&world);
}

Test(residency_guess, a_run_begins_anywhere_and_ends_at_the_first_gap)
{
    struct guess_world world = guess_world(1 << 20);
    struct block blocks[PROMPT_BLOCKS + 1];
    world_prompt(blocks, PROMPT_BLOCKS + 1, 1);
    learn_blocks(world.guess, 0, blocks + 2, 3);
    learn_blocks(world.guess, 0, blocks + 6, PROMPT_BLOCKS - 6);

    cr_assert(eq(sz, residency_guess_run(world.guess, 0, blocks, 0, PROMPT_BLOCKS + 1), 0));
    cr_assert(eq(sz, residency_guess_run(world.guess, 0, blocks, 2, PROMPT_BLOCKS + 1), 3));
    cr_assert(eq(sz, residency_guess_run(world.guess, 0, blocks, 3, 4), 1));
    cr_assert(eq(sz, residency_guess_run(world.guess, 0, blocks, 6, PROMPT_BLOCKS + 1),
                 PROMPT_BLOCKS - 6));
    cr_assert(eq(sz, residency_guess_run(world.guess, 1, blocks, 2, PROMPT_BLOCKS + 1), 0));
    guess_world_release(&world);
}

Test(residency_guess, a_worker_that_restarted_holds_nothing_and_may_learn_again)
{
    struct guess_world world = guess_world(1 << 20);
    learn(&world, 0, 1);
    learn(&world, 1, 1);

    residency_guess_forget_worker(world.guess, 0);

    cr_assert(eq(u32, held(&world, 0, 1), 0));
    cr_assert(eq(u32, held(&world, 1, 1), PROMPT_BLOCKS));
    cr_assert(eq(u64, residency_index_stats(world.index).holder_count, PROMPT_BLOCKS));
    learn(&world, 0, 1);
    cr_assert(eq(u32, held(&world, 0, 1), PROMPT_BLOCKS));
    guess_world_release(&world);
}

Test(residency_guess, a_full_index_makes_the_oldest_of_the_same_worker_go)
{
    struct guess_world world = guess_world(20000);
    uint64_t last = 0;
    residency_guess_set_capacity(world.guess, 0, UINT64_MAX);
    residency_guess_set_capacity(world.guess, 1, UINT64_MAX);
    learn(&world, 1, 1);

    for (uint64_t number = 2; number <= 200; number++)
        learn(&world, 0, last = number);

    cr_assert(gt(u64, residency_index_stats(world.index).refused_total, 0));
    cr_assert(eq(u32, held(&world, 0, last), PROMPT_BLOCKS));
    cr_assert(eq(u32, held(&world, 0, 2), 0));
    cr_assert(eq(u32, held(&world, 1, 1), PROMPT_BLOCKS));
    cr_assert(eq(u64, residency_guess_stats(world.guess).block_count,
                 residency_index_stats(world.index).holder_count));
    guess_world_release(&world);
}

/* What worker was sent, the first `sent` blocks of a prompt, and its answer: the rest of them. */
static void answer(struct guess_world *world, uint32_t worker, uint64_t number, size_t sent)
{
    struct block blocks[PROMPT_BLOCKS];

    world_prompt(blocks, PROMPT_BLOCKS, number);
    learn_blocks(world->guess, worker, blocks, sent);
    residency_guess_extend(world->guess, worker, blocks[sent - 1], blocks + sent,
                           PROMPT_BLOCKS - sent, 0.25);
}

Test(residency_guess, an_answer_goes_on_from_its_prompt_and_is_evicted_before_it)
{
    struct guess_world world = guess_world(1 << 20);
    residency_guess_set_capacity(world.guess, 0, 2 * PROMPT_TOKENS);
    answer(&world, 0, 1, 4);
    cr_assert(eq(u32, held(&world, 0, 1), PROMPT_BLOCKS));

    for (uint64_t number = 2; number <= 3; number++) {
        answer(&world, 0, number, 4);
        cr_assert(eq(u32, held(&world, 0, number), PROMPT_BLOCKS));
    }
    residency_guess_set_capacity(world.guess, 0, PROMPT_TOKENS / 2);

    cr_assert(eq(u32, held(&world, 0, 1), 0));
    cr_assert(eq(u32, held(&world, 0, 3), PROMPT_BLOCKS / 2));
    guess_world_release(&world);
}

Test(residency_guess, an_answer_for_which_its_own_prompt_makes_room_is_dropped)
{
    struct guess_world world = guess_world(20000);
    struct block blocks[PROMPT_BLOCKS];
    residency_guess_set_capacity(world.guess, 0, UINT64_MAX);
    residency_guess_set_capacity(world.guess, 1, UINT64_MAX);
    world_prompt(blocks, PROMPT_BLOCKS, 1);
    learn_blocks(world.guess, 0, blocks, 3);
    for (uint64_t number = 2; number <= 200; number++)
        learn(&world, 1, number);

    residency_guess_extend(world.guess, 0, blocks[2], blocks + 3, PROMPT_BLOCKS - 3, 0.25);

    cr_assert(gt(u64, residency_index_stats(world.index).refused_total, 0));
    cr_assert(le(u32, held(&world, 0, 1), 3));
    cr_assert(eq(u64, residency_guess_stats(world.guess).block_count,
                 residency_index_stats(world.index).holder_count));
    /* and the order is whole: everything in it can be forgotten, and learned again */
    residency_guess_forget_worker(world.guess, 0);
    residency_guess_forget_worker(world.guess, 1);
    cr_assert(eq(u64, residency_guess_stats(world.guess).block_count, 0));
    cr_assert(eq(u64, residency_index_stats(world.index).holder_count, 0));
    answer(&world, 0, 1, 3);
    cr_assert(eq(u32, held(&world, 0, 1), PROMPT_BLOCKS));
    guess_world_release(&world);
}

/* The same rules over a plain array: slow, and obviously right. */
enum { MODEL_PROMPTS = 12, MODEL_CAPACITY = 45 };

struct model {
    uint64_t order[MODEL_CAPACITY + PROMPT_BLOCKS + 1]; /* oldest first */
    size_t count;
};

static void model_drop(struct model *model, uint64_t hash)
{
    for (size_t i = 0; i < model->count; i++) {
        if (model->order[i] != hash)
            continue;
        memmove(&model->order[i], &model->order[i + 1],
                (model->count - i - 1) * sizeof model->order[0]);
        model->count--;
        return;
    }
}

static void model_learn(struct model *model, const struct block *blocks, size_t count)
{
    for (size_t i = count; i-- > 0;) {
        model_drop(model, blocks[i].hash);
        model->order[model->count++] = blocks[i].hash;
    }
    while (model->count > MODEL_CAPACITY)
        model_drop(model, model->order[0]);
}

static uint32_t model_run(const struct model *model, const struct block *blocks)
{
    for (uint32_t run = 0; run < PROMPT_BLOCKS; run++) {
        size_t i = 0;

        while (i < model->count && model->order[i] != blocks[run].hash)
            i++;
        if (i == model->count)
            return run;
    }
    return PROMPT_BLOCKS;
}

Test(residency_guess, it_agrees_with_a_model_under_random_operations)
{
    static struct block prompts[MODEL_PROMPTS][PROMPT_BLOCKS];
    for (size_t p = 0; p < MODEL_PROMPTS; p++) {
        world_prompt(prompts[p], PROMPT_BLOCKS, p + 1);
        if (p % 3 != 0) /* shares its first half with the one before */
            memcpy(prompts[p], prompts[p - 1], sizeof prompts[p] / 2);
    }

    for (uint64_t seed = 1; seed <= 4; seed++) {
        struct guess_world world = guess_world(1 << 20);
        struct model model = {.count = 0};
        uint64_t random = seed;
        residency_guess_set_capacity(world.guess, 5, MODEL_CAPACITY * WORLD_BLOCK_BYTES / 4);

        for (unsigned step = 0; step < 3000; step++) {
            const struct block *prompt = prompts[world_random(&random) % MODEL_PROMPTS];
            size_t count = world_random(&random) % PROMPT_BLOCKS + 1;
            if (world_random(&random) % 4 > 0) {
                learn_blocks(world.guess, 5, prompt, count);
                model_learn(&model, prompt, count);
            } else {
                residency_guess_correct(world.guess, 5, prompt, PROMPT_BLOCKS, count);
                for (size_t i = count; i < PROMPT_BLOCKS; i++)
                    model_drop(&model, prompt[i].hash);
            }

            cr_assert(eq(u64, residency_guess_stats(world.guess).block_count, model.count));
            for (size_t p = 0; p < MODEL_PROMPTS; p++)
                cr_assert(eq(u32, world_held(world.index, 5, prompts[p], PROMPT_BLOCKS),
                             model_run(&model, prompts[p])));
        }
        guess_world_release(&world);
    }
}

/* Learns blocks[from..count) at time 0, being made until 2000. */
static uint32_t make(struct guess_world *world, const struct block *blocks, size_t from,
                     size_t count)
{
    return residency_guess_learn(world->guess, 4,
                                 &(struct guess_prompt){.blocks = blocks,
                                                        .from = from,
                                                        .block_count = count,
                                                        .tokens_per_byte = 0.25,
                                                        .pending_until_ms = 2000});
}

static uint64_t pending(struct guess_world *world, const struct block *blocks, size_t end,
                        uint64_t now_ms)
{
    return residency_guess_pending(world->guess, 4, blocks, end, now_ms);
}

Test(residency_guess, what_is_new_in_a_prompt_is_pending_until_it_is_settled_or_its_time_is_over)
{
    struct guess_world world = guess_world(1 << 20);
    struct block blocks[PROMPT_BLOCKS];
    world_prompt(blocks, PROMPT_BLOCKS, 1);
    residency_guess_settle(world.guess, make(&world, blocks, 0, 4));

    uint32_t making = make(&world, blocks, 0, PROMPT_BLOCKS);

    uint64_t new_bytes = (PROMPT_BLOCKS - 4) * WORLD_BLOCK_BYTES;
    cr_assert(eq(u64, pending(&world, blocks, PROMPT_BLOCKS, 1999), new_bytes));
    cr_assert(eq(u64, pending(&world, blocks, 4, 1999), 0));
    cr_assert(eq(u64, pending(&world, blocks, PROMPT_BLOCKS, 2000), 0));
    residency_guess_settle(world.guess, making);
    cr_assert(eq(u64, pending(&world, blocks, PROMPT_BLOCKS, 1999), 0));
    guess_world_release(&world);
}

Test(residency_guess, the_same_prompt_again_is_nothing_new_and_stays_pending_for_its_maker)
{
    struct guess_world world = guess_world(1 << 20);
    struct block blocks[PROMPT_BLOCKS];
    world_prompt(blocks, PROMPT_BLOCKS, 1);
    uint32_t making = make(&world, blocks, 0, PROMPT_BLOCKS);

    cr_assert(eq(u32, make(&world, blocks, 0, PROMPT_BLOCKS), 0));

    cr_assert(
        eq(u64, pending(&world, blocks, PROMPT_BLOCKS, 0), PROMPT_BLOCKS * WORLD_BLOCK_BYTES));
    residency_guess_settle(world.guess, making);
    cr_assert(eq(u64, pending(&world, blocks, PROMPT_BLOCKS, 0), 0));
    guess_world_release(&world);
}

Test(residency_guess, what_an_agent_claims_is_not_guessed)
{
    struct guess_world world = guess_world(1 << 20);
    struct block blocks[PROMPT_BLOCKS];
    world_prompt(blocks, PROMPT_BLOCKS, 1);

    (void)make(&world, blocks, 6, PROMPT_BLOCKS);

    cr_assert(eq(u64, residency_guess_stats(world.guess).block_count, PROMPT_BLOCKS - 6));
    cr_assert(
        eq(sz, residency_guess_run(world.guess, 4, blocks, 6, PROMPT_BLOCKS), PROMPT_BLOCKS - 6));
    cr_assert(eq(sz, residency_guess_run(world.guess, 4, blocks, 0, PROMPT_BLOCKS), 0));
    cr_assert(eq(u64, pending(&world, blocks, PROMPT_BLOCKS, 0),
                 (PROMPT_BLOCKS - 6) * WORLD_BLOCK_BYTES));
    guess_world_release(&world);
}
