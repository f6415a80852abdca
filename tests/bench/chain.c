/* SPDX-License-Identifier: Apache-2.0 */

/*
 * chain: how fast prompts get their names. Text in 256-byte blocks, as chat prompts; and blocks of
 * 16 token ids. Medians of repetitions over a prompt of 420 KiB (about 100,000 tokens). Exits 1
 * when short of the goal.
 */
#include "hashing/block_chain.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    PROMPT_BYTES = 420 * 1024,
    TEXT_BLOCK_BYTES = 256,
    TEXT_CUT_BYTES_MIN = 64,
    IDS_PER_BLOCK = 16,
    IDS_BLOCK_BYTES = IDS_PER_BLOCK * BLOCK_CHAIN_ID_BYTES,
    BLOCK_COUNT_MAX = PROMPT_BYTES / IDS_BLOCK_BYTES,
    REPETITIONS_QUICK = 501,
    REPETITIONS = 5001,
};

static const double TEXT_GB_PER_S_GOAL = 8;
static const double IDS_NS_PER_BLOCK_GOAL = 8;

struct bench {
    uint8_t secret[BLOCK_CHAIN_SECRET_BYTES];
    uint8_t prompt[PROMPT_BYTES];
    struct block blocks[BLOCK_COUNT_MAX];
    double ns[REPETITIONS];
};

static double now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static int compare_doubles(const void *left, const void *right)
{
    const double *a = left;
    const double *b = right;

    return (*a > *b) - (*a < *b);
}

/* Median time to name the whole prompt, in ns. Each repetition has another root, so that nothing
 * can be computed once for all. */
static double measure(struct bench *bench, struct block_chain_config config, int repetitions)
{
    for (int i = 0; i < repetitions; i++) {
        struct block_chain chain;
        double begin = now_ns();

        block_chain_init(&chain, config, (uint64_t)i + 1, bench->blocks, BLOCK_COUNT_MAX);
        if (block_chain_append(&chain, bench->prompt, PROMPT_BYTES) < 0)
            abort();
        bench->ns[i] = now_ns() - begin;
    }
    qsort(bench->ns, (size_t)repetitions, sizeof bench->ns[0], compare_doubles);
    return bench->ns[repetitions / 2];
}

int main(int argc, char **argv)
{
    bool is_quick = argc == 2 && strcmp(argv[1], "--quick") == 0;
    int repetitions = is_quick ? REPETITIONS_QUICK : REPETITIONS;
    struct bench *bench;
    double gb_per_s, ns_per_block;
    bool is_reached;

    if (argc > 1 && !is_quick) {
        fprintf(stderr, "usage: chain [--quick]\n");
        return 2;
    }
    bench = calloc(1, sizeof *bench);
    if (bench == NULL)
        return 1;
    digest_secret_derive(bench->secret, "bench", 5);
    for (size_t i = 0; i < PROMPT_BYTES; i++)
        bench->prompt[i] = (uint8_t)(i * 31 + i / 256);

    gb_per_s =
        (double)PROMPT_BYTES /
        measure(bench,
                (struct block_chain_config){bench->secret, TEXT_BLOCK_BYTES, TEXT_CUT_BYTES_MIN},
                repetitions);
    ns_per_block =
        measure(bench, (struct block_chain_config){bench->secret, IDS_BLOCK_BYTES, IDS_BLOCK_BYTES},
                repetitions) /
        (double)BLOCK_COUNT_MAX;
    free(bench);

    is_reached = gb_per_s >= TEXT_GB_PER_S_GOAL && ns_per_block <= IDS_NS_PER_BLOCK_GOAL;
    printf("text, %d-byte blocks: %.1f GB/s (goal: >= %.0f)\n", TEXT_BLOCK_BYTES, gb_per_s,
           TEXT_GB_PER_S_GOAL);
    printf("token ids, %d a block: %.1f ns/block (goal: <= %.0f)\n", IDS_PER_BLOCK, ns_per_block,
           IDS_NS_PER_BLOCK_GOAL);
    printf("%s\n", is_reached ? "verdict: REACHED" : "verdict: SHORT of the goal");
    return is_reached ? 0 : 1;
}
