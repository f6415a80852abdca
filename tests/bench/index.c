/* SPDX-License-Identifier: Apache-2.0 */

/*
 * index: the residency index at its size: 4 million blocks, 256 workers, prompts of 1,640 blocks
 * (420 KiB of text). Every prompt begins with the same system prompt of 64 blocks, which each
 * worker holds; the rest has one holder, every fourth prompt has three. Stores, then random
 * prompts are matched, then evicted and stored anew (churn). Exits 1 when short of the goal.
 */
#include "router/residency/residency_index.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    WORKER_COUNT = 256,
    PROMPT_BLOCKS = 1640,
    SHARED_BLOCKS = 64,
    PROMPT_COUNT = 4000000 / (PROMPT_BLOCKS - SHARED_BLOCKS),
    QUERIES_QUICK = 20000,
    QUERIES = 200000,
};

static const double OPS_PER_S_GOAL = 20e6;
static const double MATCH_P99_US_GOAL = 40;
static const double BYTES_PER_BLOCK_GOAL = 48;

/* Processor time of this thread: what the loop would be busy, whatever else the machine does. */
static double now_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static uint64_t scramble(uint64_t z)
{
    z = (z + 0x9e3779b97f4a7c15) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return (z ^ z >> 31) | 1;
}

/* Prompt 0 is the system prompt that all begin with. */
static void make_prompt(struct block *blocks, uint64_t number)
{
    for (uint64_t i = 0; i < PROMPT_BLOCKS; i++)
        blocks[i] = (struct block){
            scramble((i < SHARED_BLOCKS ? 0 : number) << 32 | i),
            (i + 1) * 256,
        };
}

static unsigned holder_count(uint64_t number)
{
    return number % 4 == 0 ? 3 : 1;
}

static uint32_t holder(uint64_t number, unsigned i)
{
    return (uint32_t)((number + 85 * i) % WORKER_COUNT);
}

/* Returns how many block operations that were. */
static uint64_t store_prompt(struct residency_index *index, const struct block *blocks,
                             uint64_t number)
{
    for (unsigned h = 0; h < holder_count(number); h++)
        for (size_t i = SHARED_BLOCKS; i < PROMPT_BLOCKS; i++)
            if (residency_index_store(index, blocks[i].hash, holder(number, h), RESIDENCY_HBM,
                                      (uint32_t)i * 64) < 0)
                abort();
    return holder_count(number) * (uint64_t)(PROMPT_BLOCKS - SHARED_BLOCKS);
}

static uint64_t remove_prompt(struct residency_index *index, const struct block *blocks,
                              uint64_t number)
{
    for (unsigned h = 0; h < holder_count(number); h++)
        for (size_t i = PROMPT_BLOCKS; i-- > SHARED_BLOCKS;)
            residency_index_remove(index, blocks[i].hash, holder(number, h));
    return holder_count(number) * (uint64_t)(PROMPT_BLOCKS - SHARED_BLOCKS);
}

static double fill(struct residency_index *index)
{
    static struct block blocks[PROMPT_BLOCKS];
    double begin_us = now_us();
    uint64_t ops = (uint64_t)SHARED_BLOCKS * WORKER_COUNT;

    make_prompt(blocks, 0);
    for (size_t i = 0; i < SHARED_BLOCKS; i++)
        for (uint32_t worker = 0; worker < WORKER_COUNT; worker++)
            if (residency_index_store(index, blocks[i].hash, worker, RESIDENCY_HBM,
                                      (uint32_t)i * 64) < 0)
                abort();
    for (uint64_t number = 1; number <= PROMPT_COUNT; number++) {
        make_prompt(blocks, number);
        ops += store_prompt(index, blocks, number);
    }
    return (double)ops / (now_us() - begin_us) * 1e6;
}

static int compare_floats(const void *left, const void *right)
{
    const float *a = left;
    const float *b = right;

    return (*a > *b) - (*a < *b);
}

struct outcome {
    double p50_us;
    double p99_us;
    double ops_per_s; /* blocks matched, stored and removed */
};

/* Nine matches to one prompt that goes and comes back. Making prompts is not timed. */
static struct outcome run(struct residency_index *index, size_t query_count)
{
    static struct block blocks[PROMPT_BLOCKS];
    static float us[QUERIES];
    struct residency_match matches[WORKER_COUNT];
    uint64_t ops = 0;
    double total_us = 0;

    for (size_t q = 0; q < query_count; q++) {
        uint64_t number = scramble(q) % PROMPT_COUNT + 1;
        double begin_us;

        make_prompt(blocks, number);
        begin_us = now_us();
        residency_index_match(index, blocks, PROMPT_BLOCKS, matches, WORKER_COUNT);
        us[q] = (float)(now_us() - begin_us);
        if (matches[holder(number, 0)].block_count != PROMPT_BLOCKS)
            abort();
        ops += PROMPT_BLOCKS;
        if (q % 10 == 0) {
            ops += remove_prompt(index, blocks, number);
            ops += store_prompt(index, blocks, number);
        }
        total_us += now_us() - begin_us;
    }
    qsort(us, query_count, sizeof us[0], compare_floats);
    return (struct outcome){us[query_count / 2], us[query_count * 99 / 100],
                            (double)ops / total_us * 1e6};
}

int main(int argc, char **argv)
{
    bool is_quick = argc == 2 && strcmp(argv[1], "--quick") == 0;
    struct residency_index *index;
    struct residency_index_stats stats;
    struct outcome outcome;
    double stores_per_s, bytes_per_block;
    bool is_reached;

    if (argc > 1 && !is_quick) {
        fprintf(stderr, "usage: index [--quick]\n");
        return 2;
    }
    index = residency_index_create((size_t)512 << 20);
    if (index == NULL)
        return 1;
    stores_per_s = fill(index);
    stats = residency_index_stats(index);
    outcome = run(index, is_quick ? QUERIES_QUICK : QUERIES);
    residency_index_destroy(index);

    bytes_per_block = (double)stats.bytes / (double)stats.block_count;
    is_reached = outcome.ops_per_s >= OPS_PER_S_GOAL && outcome.p99_us <= MATCH_P99_US_GOAL &&
                 bytes_per_block <= BYTES_PER_BLOCK_GOAL;
    printf("%.2f M blocks, %.2f M holders: %.1f bytes/block (goal: <= %.0f)\n",
           (double)stats.block_count / 1e6, (double)stats.holder_count / 1e6, bytes_per_block,
           BYTES_PER_BLOCK_GOAL);
    printf("filling: %.1f M block-ops/s\n", stores_per_s / 1e6);
    printf("match of %d blocks against %d workers: p50 %.1f us, p99 %.1f us (goal: <= %.0f)\n",
           PROMPT_BLOCKS, WORKER_COUNT, outcome.p50_us, outcome.p99_us, MATCH_P99_US_GOAL);
    printf("match and churn: %.1f M block-ops/s (goal: >= %.0f)\n", outcome.ops_per_s / 1e6,
           OPS_PER_S_GOAL / 1e6);
    printf("%s\n", is_reached ? "verdict: REACHED" : "verdict: SHORT of the goal");
    return is_reached ? 0 : 1;
}
