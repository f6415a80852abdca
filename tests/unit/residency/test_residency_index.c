/* SPDX-License-Identifier: Apache-2.0 */

#include "router/residency/residency_index.h"

#include "tests/support/leak_check.h"
#include "tests/unit/residency/world.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { ROOMY = 1 << 24 };

static void store(struct residency_index *index, uint64_t hash, uint32_t worker)
{
    cr_assert(eq(int, residency_index_store(index, hash, worker, RESIDENCY_HBM), 0));
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
        cr_assert(eq(int, residency_index_store(index, 42, 7, tiers[i]), 0));
        cr_assert(eq(u32, world_held(index, 7, &block, 1), 1));
    }

    cr_assert(eq(u64, residency_index_stats(index).block_count, 1));
    cr_assert(eq(u64, residency_index_stats(index).holder_count, 1));
    residency_index_destroy(index);
}

Test(residency_index, a_block_may_have_every_worker_as_its_holder_and_lose_them_one_by_one)
{
    static struct residency_match matches[RESIDENCY_WORKER_COUNT_MAX];
    struct residency_index *index = residency_index_create(ROOMY);
    struct block block = {99, 256};
    for (uint32_t worker = 0; worker < RESIDENCY_WORKER_COUNT_MAX; worker++)
        store(index, 99, worker);
    cr_assert(eq(u64, residency_index_stats(index).holder_count, RESIDENCY_WORKER_COUNT_MAX));

    for (uint32_t gone = 0; gone < RESIDENCY_WORKER_COUNT_MAX; gone++) {
        residency_index_remove(index, 99, gone);
        residency_index_match(index, &block, 1, matches, RESIDENCY_WORKER_COUNT_MAX);
        for (uint32_t worker = 0; worker < RESIDENCY_WORKER_COUNT_MAX; worker++)
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
    residency_index_forget_worker(index, 3);

    cr_assert(eq(u64, residency_index_stats(index).holder_count, 1));
    residency_index_destroy(index);
}

Test(residency_index, forgetting_a_worker_leaves_the_others_alone)
{
    enum { COUNT = 3000 };
    static struct block blocks[COUNT];
    struct residency_index *index = residency_index_create(ROOMY);
    world_prompt(blocks, COUNT, 1);
    for (size_t i = 0; i < COUNT; i++) {
        store(index, blocks[i].hash, 1);
        for (uint32_t worker = 2; worker < 9 && i % 2 == 0; worker++)
            store(index, blocks[i].hash, worker);
    }

    residency_index_forget_worker(index, 1);

    cr_assert(eq(u64, residency_index_stats(index).block_count, COUNT / 2));
    cr_assert(eq(u64, residency_index_stats(index).holder_count, 7 * COUNT / 2));
    cr_assert(eq(u32, world_held(index, 1, blocks, COUNT), 0));
    cr_assert(eq(u32, world_held(index, 8, blocks, COUNT), 1));
    residency_index_destroy(index);
}

Test(residency_index, what_does_not_fit_is_refused_and_counted)
{
    enum { BYTES_MAX = 200000 };
    struct residency_index *index = residency_index_create(BYTES_MAX);
    uint64_t hash = 1;
    struct block first = {1, 256};

    while (residency_index_store(index, hash, 0, RESIDENCY_HBM) == 0) {
        cr_assert(le(u64, residency_index_stats(index).bytes, BYTES_MAX));
        hash++;
    }

    cr_assert(eq(int, residency_index_store(index, hash, 0, RESIDENCY_HBM), -ENOBUFS));
    cr_assert(eq(u64, residency_index_stats(index).refused_total, 2));
    cr_assert(eq(u64, residency_index_stats(index).block_count, hash - 1));
    cr_assert(eq(u32, world_held(index, 0, &first, 1), 1));
    residency_index_remove(index, 1, 0);
    cr_assert(eq(int, residency_index_store(index, hash, 0, RESIDENCY_HBM), 0));
    residency_index_destroy(index);
}

Test(residency_index, holders_beyond_the_inline_ones_are_bounded_too)
{
    enum { BYTES_MAX = 100000 };
    struct residency_index *index = residency_index_create(BYTES_MAX);
    uint64_t stored = 0;

    for (uint64_t hash = 1; hash <= 400; hash++)
        for (uint32_t worker = 0; worker < RESIDENCY_WORKER_COUNT_MAX; worker++)
            stored += residency_index_store(index, hash, worker, RESIDENCY_HBM) == 0;

    cr_assert(le(u64, residency_index_stats(index).bytes, BYTES_MAX));
    cr_assert(eq(u64, residency_index_stats(index).holder_count, stored));
    cr_assert(eq(u64, residency_index_stats(index).refused_total,
                 400 * RESIDENCY_WORKER_COUNT_MAX - stored));
    residency_index_destroy(index);
}

enum { MODEL_HASHES = 60, MODEL_WORKERS = 12 };

static uint32_t model_run(uint8_t model[MODEL_HASHES][MODEL_WORKERS], uint32_t worker)
{
    uint32_t run = 0;

    while (run < MODEL_HASHES && model[run][worker] != 0)
        run++;
    return run;
}

Test(residency_index, it_agrees_with_a_model_under_random_operations)
{
    static uint8_t model[MODEL_HASHES][MODEL_WORKERS];
    struct block blocks[MODEL_HASHES];
    world_prompt(blocks, MODEL_HASHES, 3);

    for (uint64_t seed = 1; seed <= 4; seed++) {
        struct residency_index *index = residency_index_create(ROOMY);
        uint64_t random = seed;
        memset(model, 0, sizeof model);

        for (unsigned step = 0; step < 20000; step++) {
            size_t hash = world_random(&random) % MODEL_HASHES;
            uint32_t worker = (uint32_t)(world_random(&random) % MODEL_WORKERS);
            uint64_t what = world_random(&random) % 1000;
            if (what < 800) {
                uint8_t tiers = (uint8_t)(world_random(&random) % 7 + 1);
                cr_assert(
                    eq(int, residency_index_store(index, blocks[hash].hash, worker, tiers), 0));
                model[hash][worker] = tiers;
            } else if (what < 998) {
                residency_index_remove(index, blocks[hash].hash, worker);
                model[hash][worker] = 0;
            } else {
                residency_index_forget_worker(index, worker);
                for (size_t i = 0; i < MODEL_HASHES; i++)
                    model[i][worker] = 0;
            }

            struct residency_match matches[MODEL_WORKERS];
            uint64_t holder_count = 0;
            residency_index_match(index, blocks, MODEL_HASHES, matches, MODEL_WORKERS);
            for (uint32_t w = 0; w < MODEL_WORKERS; w++) {
                uint32_t run = model_run(model, w);
                cr_assert(eq(u32, matches[w].block_count, run));
                cr_assert(eq(u64, matches[w].bytes, run * WORLD_BLOCK_BYTES));
                for (size_t i = 0; i < MODEL_HASHES; i++)
                    holder_count += model[i][w] != 0;
            }
            cr_assert(eq(u64, residency_index_stats(index).holder_count, holder_count));
        }
        residency_index_destroy(index);
    }
}
