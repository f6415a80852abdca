/* SPDX-License-Identifier: Apache-2.0 */

#include "router/residency/residency_index.h"

#include "tests/support/leak_check.h"
#include "tests/unit/residency/world.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum { ROOMY = 1 << 24 };

static void store(struct residency_index *index, uint64_t hash, uint32_t worker)
{
    cr_assert(eq(int, residency_index_store(index, hash, worker, RESIDENCY_HBM, 0), 0));
}

TestSuite(residency_index, .fini = leak_check);

Test(residency_index, a_match_is_the_unbroken_run_from_the_first_block)
{
    struct residency_index *index = residency_index_create(ROOMY);
    struct residency_match matches[4];
    struct block blocks[10];
    world_prompt(blocks, 10, 1);
    for (size_t i = 0; i < 10; i++) {
        store(index, blocks[i].hash, 0);
        if (i < 4 || i > 6) /* a gap: what follows is of no use */
            store(index, blocks[i].hash, 1);
        if (i > 0) /* the first is missing */
            store(index, blocks[i].hash, 2);
    }

    residency_index_match(index, blocks, 10, matches, 4);

    cr_assert(eq(u32, matches[0].block_count, 10));
    cr_assert(eq(u64, matches[0].bytes, blocks[9].end));
    cr_assert(eq(u32, matches[1].block_count, 4));
    cr_assert(eq(u64, matches[1].bytes, blocks[3].end));
    for (size_t worker = 2; worker < 4; worker++) {
        cr_assert(eq(u32, matches[worker].block_count, 0));
        cr_assert(eq(u64, matches[worker].bytes, 0));
    }
    residency_index_destroy(index);
}

Test(residency_index, any_tier_is_residency_and_no_store_counts_twice)
{
    struct residency_index *index = residency_index_create(ROOMY);
    struct block block = {42, 256};
    static const uint8_t tiers[] = {RESIDENCY_HBM, RESIDENCY_SSD, RESIDENCY_HBM | RESIDENCY_CPU};

    for (size_t i = 0; i < sizeof tiers; i++) {
        cr_assert(eq(int, residency_index_store(index, 42, 7, tiers[i], 0), 0));
        cr_assert(eq(u32, world_held(index, 7, &block, 1), 1));
    }

    cr_assert(eq(u64, residency_index_stats(index).block_count, 1));
    cr_assert(eq(u64, residency_index_stats(index).holder_count, 1));
    residency_index_destroy(index);
}

Test(residency_index, a_block_may_have_every_worker_as_its_holder_and_lose_them_one_by_one)
{
    static struct residency_match matches[RESIDENCY_HOLDER_COUNT_MAX];
    struct residency_index *index = residency_index_create(ROOMY);
    struct block block = {99, 256};
    for (uint32_t worker = 0; worker < RESIDENCY_HOLDER_COUNT_MAX; worker++)
        store(index, 99, worker);
    cr_assert(eq(u64, residency_index_stats(index).holder_count, RESIDENCY_HOLDER_COUNT_MAX));

    for (uint32_t gone = 0; gone < RESIDENCY_HOLDER_COUNT_MAX; gone++) {
        residency_index_remove(index, 99, gone);
        residency_index_match(index, &block, 1, matches, RESIDENCY_HOLDER_COUNT_MAX);
        for (uint32_t worker = 0; worker < RESIDENCY_HOLDER_COUNT_MAX; worker++)
            cr_assert(eq(u32, matches[worker].block_count, worker > gone));
    }

    cr_assert(eq(u64, residency_index_stats(index).block_count, 0));
    cr_assert(eq(u64, residency_index_stats(index).holder_count, 0));
    residency_index_destroy(index);
}

Test(residency_index, removing_what_is_not_there_changes_nothing)
{
    struct residency_index *index = residency_index_create(ROOMY);
    store(index, 5, 1);

    residency_index_remove(index, 5, 2);
    residency_index_remove(index, 6, 1);
    residency_index_retire(index, 3);

    cr_assert(eq(u64, residency_index_stats(index).holder_count, 1));
    residency_index_destroy(index);
}

Test(residency_index, each_holder_has_its_own_tiers_and_tokens_of_a_block)
{
    enum { COUNT = 300 };
    struct residency_index *index = residency_index_create(ROOMY);
    uint32_t tokens;

    for (uint32_t holder = 0; holder < COUNT; holder++)
        cr_assert(eq(int, residency_index_store(index, 9, 6 * holder, RESIDENCY_CPU, 64), 0));
    for (uint32_t holder = 0; holder < COUNT; holder += 2) /* they begin to disagree */
        cr_assert(eq(int, residency_index_store(index, 9, 6 * holder, RESIDENCY_HBM, holder), 0));

    for (uint32_t holder = 0; holder < COUNT; holder++) {
        uint8_t tiers = residency_index_get(index, 9, 6 * holder, &tokens);
        cr_assert(eq(u8, tiers, holder % 2 == 0 ? RESIDENCY_HBM : RESIDENCY_CPU));
        cr_assert(eq(u32, tokens, holder % 2 == 0 ? holder : 64));
    }
    cr_assert(eq(u8, residency_index_get(index, 9, 3, &tokens), 0));
    cr_assert(eq(u8, residency_index_get(index, 8, 6, &tokens), 0));
    residency_index_destroy(index);
}

Test(residency_index, a_match_has_the_tokens_of_each_holders_deepest_block)
{
    struct residency_index *index = residency_index_create(ROOMY);
    struct residency_match matches[6];
    struct block blocks[10];
    world_prompt(blocks, 10, 1);
    for (uint32_t i = 0; i < 10; i++) {
        for (uint32_t holder = 0; holder < 5 && i < 10 - holder; holder++) {
            uint32_t tokens = holder == 3 ? 61 * i + 1 : 64 * i + 1;
            cr_assert(
                eq(int, residency_index_store(index, blocks[i].hash, holder, RESIDENCY_HBM, tokens),
                   0));
        }
    }

    residency_index_match(index, blocks, 10, matches, 6);

    for (uint32_t holder = 0; holder < 5; holder++) {
        cr_assert(eq(u32, matches[holder].block_count, 10 - holder));
        cr_assert(eq(u32, matches[holder].tokens, (holder == 3 ? 61 : 64) * (9 - holder) + 1));
    }
    cr_assert(eq(u32, matches[5].tokens, 0));
    residency_index_destroy(index);
}

/* The tiers of a prompt's blocks, 64 tokens each, and what is expected of a match. */
Test(residency_index, tokens_are_told_apart_by_the_nearest_tier_that_an_engine_can_use)
{
    enum { H = RESIDENCY_HBM, C = RESIDENCY_CPU, S = RESIDENCY_SSD, COUNT = 6 };
    static const struct {
        uint8_t tiers[COUNT];
        uint32_t block_count, cpu_tokens, ssd_tokens;
    } rows[] = {
        {{H, H, H, H, H, H}, 6, 0, 0},
        {{H | C, H | C | S, H, C, C | S, S}, 6, 128, 64},
        {{S, S, S, S, S, S}, 6, 0, 384},
        {{C, S, C, S, C, C}, 6, 256, 128},
        {{H, C, H | C, H | S, S, 0}, 5, 128, 128}, /* HBM is of no use behind a gap in it */
        {{H, C, H, C, C, C}, 2, 64, 0},            /* and ends the run where it is alone */
        {{0, C, C, C, C, C}, 0, 0, 0},
    };

    for (size_t row = 0; row < sizeof rows / sizeof rows[0]; row++) {
        for (uint32_t holders = 1; holders <= 9; holders += 4) { /* inline, and in sets */
            struct residency_index *index = residency_index_create(ROOMY);
            struct residency_match matches[9];
            struct block blocks[COUNT];
            world_prompt(blocks, COUNT, 1);
            for (uint32_t i = 0; i < COUNT; i++)
                for (uint32_t holder = 0; holder < holders && rows[row].tiers[i] != 0; holder++)
                    cr_assert(eq(int,
                                 residency_index_store(index, blocks[i].hash, holder,
                                                       rows[row].tiers[i], 64 * (i + 1)),
                                 0));

            residency_index_match(index, blocks, COUNT, matches, holders);

            for (uint32_t holder = 0; holder < holders; holder++) {
                cr_assert(eq(u32, matches[holder].block_count, rows[row].block_count), "%zu", row);
                cr_assert(eq(u32, matches[holder].tokens, 64 * rows[row].block_count), "%zu", row);
                cr_assert(eq(u32, matches[holder].cpu_tokens, rows[row].cpu_tokens), "%zu", row);
                cr_assert(eq(u32, matches[holder].ssd_tokens, rows[row].ssd_tokens), "%zu", row);
            }
            residency_index_destroy(index);
        }
    }
}

/* Whoever writes the map may write anything. */
Test(residency_index, tokens_that_shrink_along_a_prompt_give_no_more_than_the_whole)
{
    static const uint32_t tokens[] = {1000, 10, 2000000, 3};
    struct residency_index *index = residency_index_create(ROOMY);
    struct residency_match match;
    struct block blocks[4];
    world_prompt(blocks, 4, 1);
    for (size_t count = 1; count <= 4; count++) {
        uint8_t tiers = count % 2 == 0 ? RESIDENCY_CPU : RESIDENCY_SSD;

        cr_assert(eq(
            int, residency_index_store(index, blocks[count - 1].hash, 0, tiers, tokens[count - 1]),
            0));

        residency_index_match(index, blocks, count, &match, 1);

        cr_assert(eq(u32, match.tokens, tokens[count - 1]));
        cr_assert(le(u32, match.cpu_tokens + match.ssd_tokens, match.tokens));
    }
    residency_index_destroy(index);
}

/* Sweeps until nothing is left to be found; fails instead of going on for ever. */
static void sweep_all(struct residency_index *index)
{
    for (unsigned i = 0; residency_index_sweep(index, 100); i++)
        cr_assert(lt(u32, i, 10000));
}

Test(residency_index, who_is_retired_is_hidden_at_once_and_free_once_it_was_swept)
{
    enum { COUNT = 3000 };
    static struct block blocks[COUNT];
    struct residency_index *index = residency_index_create(ROOMY);
    uint32_t tokens;
    world_prompt(blocks, COUNT, 1);
    for (size_t i = 0; i < COUNT; i++) {
        store(index, blocks[i].hash, 1);
        for (uint32_t holder = 2; holder < 9 && i % 2 == 0; holder++)
            store(index, blocks[i].hash, holder);
    }

    residency_index_retire(index, 1);

    cr_assert(eq(u32, world_held(index, 1, blocks, COUNT), 0));
    cr_assert(eq(u8, residency_index_get(index, blocks[0].hash, 1, &tokens), 0));
    cr_assert(eq(u32, world_held(index, 8, blocks, COUNT), 1));
    cr_assert(not(residency_index_is_free(index, 1)));
    sweep_all(index);
    cr_assert(residency_index_is_free(index, 1));
    cr_assert(not(residency_index_is_free(index, 2)));
    cr_assert(eq(u64, residency_index_stats(index).block_count, COUNT / 2));
    cr_assert(eq(u64, residency_index_stats(index).holder_count, 7 * COUNT / 2));
    store(index, blocks[0].hash, 1);
    cr_assert(eq(u32, world_held(index, 1, blocks, COUNT), 1));
    residency_index_destroy(index);
}

Test(residency_index, sweeping_goes_on_while_the_table_grows_and_changes)
{
    enum { COUNT = 20000, LIVES = 8 };
    static struct block blocks[COUNT];
    struct residency_index *index = residency_index_create((size_t)64 << 20);
    world_prompt(blocks, COUNT, 1);

    for (uint32_t life = 0; life < LIVES; life++) {
        for (size_t i = 0; i < COUNT; i++) {
            store(index, blocks[i].hash + life * (life % 2) * 1000003, life);
            if (i % 16 == 0)
                residency_index_remove(index, blocks[i / 2].hash, life);
            (void)residency_index_sweep(index, 8);
        }
        residency_index_retire(index, life);
    }

    sweep_all(index);
    cr_assert(eq(u64, residency_index_stats(index).block_count, 0));
    cr_assert(eq(u64, residency_index_stats(index).holder_count, 0));
    for (uint32_t life = 0; life < LIVES; life++)
        cr_assert(residency_index_is_free(index, life));
    residency_index_destroy(index);
}

Test(residency_index, a_sweep_looks_at_no_more_than_it_may)
{
    enum { COUNT = 1000 };
    struct residency_index *index = residency_index_create(ROOMY);
    for (uint64_t hash = 1; hash <= COUNT; hash++)
        store(index, hash, 5);
    residency_index_retire(index, 5);

    for (uint64_t left = COUNT; left > 0;) {
        uint64_t before = left;
        (void)residency_index_sweep(index, 10);
        left = residency_index_stats(index).holder_count;
        cr_assert(le(u64, before - left, 10));
    }

    cr_assert(not(residency_index_sweep(index, 10)));
    residency_index_destroy(index);
}

Test(residency_index, nothing_is_stored_for_a_retired_holder, .signal = SIGABRT)
{
    struct residency_index *index = residency_index_create(ROOMY);
    store(index, 1, 5);
    residency_index_retire(index, 5);

    store(index, 2, 5);
}

Test(residency_index, what_does_not_fit_is_refused_and_counted)
{
    enum { BYTES_MAX = 200000 };
    struct residency_index *index = residency_index_create(BYTES_MAX);
    uint64_t hash = 1;
    struct block first = {1, 256};

    while (residency_index_store(index, hash, 0, RESIDENCY_HBM, 0) == 0) {
        cr_assert(le(u64, residency_index_stats(index).bytes, BYTES_MAX));
        hash++;
    }

    cr_assert(eq(int, residency_index_store(index, hash, 0, RESIDENCY_HBM, 0), -ENOBUFS));
    cr_assert(eq(u64, residency_index_stats(index).refused_total, 2));
    cr_assert(eq(u64, residency_index_stats(index).block_count, hash - 1));
    cr_assert(eq(u32, world_held(index, 0, &first, 1), 1));
    residency_index_remove(index, 1, 0);
    cr_assert(eq(int, residency_index_store(index, hash, 0, RESIDENCY_HBM, 0), 0));
    residency_index_destroy(index);
}

Test(residency_index, holders_beyond_the_inline_ones_are_bounded_too)
{
    enum { BYTES_MAX = 100000 };
    struct residency_index *index = residency_index_create(BYTES_MAX);
    uint64_t stored = 0;

    for (uint64_t hash = 1; hash <= 400; hash++)
        for (uint32_t worker = 0; worker < RESIDENCY_HOLDER_COUNT_MAX; worker++)
            stored += residency_index_store(index, hash, worker, RESIDENCY_HBM, 0) == 0;

    cr_assert(le(u64, residency_index_stats(index).bytes, BYTES_MAX));
    cr_assert(eq(u64, residency_index_stats(index).holder_count, stored));
    cr_assert(eq(u64, residency_index_stats(index).refused_total,
                 400 * RESIDENCY_HOLDER_COUNT_MAX - stored));
    residency_index_destroy(index);
}

enum { MODEL_HASHES = 60, MODEL_HOLDERS = 150, MODEL_SPREAD = 13 };

/* The same knowledge as a plain table: slow, and obviously right. */
struct model {
    struct {
        uint8_t tiers;
        uint32_t tokens;
    } pairs[MODEL_HASHES][MODEL_HOLDERS];
    bool is_retired[MODEL_HOLDERS];
};

static struct residency_match model_match(const struct model *model, uint32_t holder)
{
    struct residency_match match = {.block_count = 0};
    bool is_near = true;

    if (model->is_retired[holder])
        return match;
    for (uint32_t i = 0; i < MODEL_HASHES && model->pairs[i][holder].tiers != 0; i++) {
        const uint8_t tiers = model->pairs[i][holder].tiers;
        const uint32_t more = model->pairs[i][holder].tokens - match.tokens;

        is_near &= (tiers & RESIDENCY_HBM) != 0;
        if (!is_near && tiers == RESIDENCY_HBM)
            break;
        match.block_count++;
        match.bytes += WORLD_BLOCK_BYTES;
        match.tokens += more;
        if (!is_near)
            *((tiers & RESIDENCY_CPU) != 0 ? &match.cpu_tokens : &match.ssd_tokens) += more;
    }
    return match;
}

static void model_forget(struct model *model, uint32_t holder)
{
    for (size_t i = 0; i < MODEL_HASHES; i++)
        model->pairs[i][holder].tiers = 0;
    model->is_retired[holder] = false;
}

static void assert_equal(const struct residency_index *index, const struct model *model,
                         const struct block *blocks)
{
    static struct residency_match matches[MODEL_HOLDERS * MODEL_SPREAD];

    residency_index_match(index, blocks, MODEL_HASHES, matches, MODEL_HOLDERS * MODEL_SPREAD);
    for (uint32_t holder = 0; holder < MODEL_HOLDERS; holder++) {
        const struct residency_match *match = &matches[holder * MODEL_SPREAD];
        struct residency_match expected = model_match(model, holder);
        cr_assert(eq(u32, match->block_count, expected.block_count));
        cr_assert(eq(u64, match->bytes, expected.bytes));
        cr_assert(eq(u32, match->tokens, expected.tokens));
        cr_assert(eq(u32, match->cpu_tokens, expected.cpu_tokens));
        cr_assert(eq(u32, match->ssd_tokens, expected.ssd_tokens));
    }
}

static void assert_pair(const struct residency_index *index, const struct model *model, size_t hash,
                        uint32_t holder, uint64_t name)
{
    uint32_t tokens = UINT32_MAX;
    uint8_t tiers = residency_index_get(index, name, holder * MODEL_SPREAD, &tokens);
    uint8_t expected = model->is_retired[holder] ? 0 : model->pairs[hash][holder].tiers;

    cr_assert(eq(u8, tiers, expected));
    if (expected != 0)
        cr_assert(eq(u32, tokens, model->pairs[hash][holder].tokens));
}

/* holders: how many of them take part; tokens: how many opinions there are of a block. */
static void compare_with_model(uint64_t seed, uint32_t holders, uint32_t opinions)
{
    static struct model model;
    struct residency_index *index = residency_index_create(ROOMY);
    struct block blocks[MODEL_HASHES];
    uint64_t random = seed;
    world_prompt(blocks, MODEL_HASHES, 3);
    memset(&model, 0, sizeof model);

    for (unsigned step = 0; step < 20000; step++) {
        size_t hash = world_random(&random) % MODEL_HASHES;
        uint32_t holder = (uint32_t)(world_random(&random) % holders);
        uint64_t name = blocks[hash].hash, what = world_random(&random) % 1000;
        uint32_t storing = step / 2500 % 2 == 0 ? 950 : 100; /* fuller, then emptier */

        if (what < storing && !model.is_retired[holder]) {
            uint8_t tiers = (uint8_t)(world_random(&random) % 7 + 1);
            uint32_t tokens = (uint32_t)(hash * 64 + world_random(&random) % opinions);
            cr_assert(eq(
                int, residency_index_store(index, name, holder * MODEL_SPREAD, tiers, tokens), 0));
            model.pairs[hash][holder].tiers = tiers;
            model.pairs[hash][holder].tokens = tokens;
        } else if (what < 998) {
            residency_index_remove(index, name, holder * MODEL_SPREAD);
            model.pairs[hash][holder].tiers = 0;
        } else {
            residency_index_retire(index, holder * MODEL_SPREAD);
            model.is_retired[holder] = !residency_index_is_free(index, holder * MODEL_SPREAD);
        }
        (void)residency_index_sweep(index, 2);
        for (uint32_t h = 0; h < holders; h++)
            if (residency_index_is_free(index, h * MODEL_SPREAD))
                model_forget(&model, h);
        assert_pair(index, &model, hash, holder, name);
        if (step % 16 == 0)
            assert_equal(index, &model, blocks);
    }
    residency_index_destroy(index);
}

Test(residency_index, it_agrees_with_a_model_under_random_operations)
{
    static const uint32_t holders[] = {2, 3, 4, 12, MODEL_HOLDERS};

    for (size_t i = 0; i < sizeof holders / sizeof holders[0]; i++)
        for (uint32_t opinions = 1; opinions <= 3; opinions++)
            compare_with_model(i * 10 + opinions, holders[i], opinions);
}
