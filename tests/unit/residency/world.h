/* SPDX-License-Identifier: Apache-2.0 */

/* world: prompts as chains of made-up hashes, and small questions to an index. */
#ifndef TESTS_UNIT_RESIDENCY_WORLD_H
#define TESTS_UNIT_RESIDENCY_WORLD_H

#include "router/residency/residency_index.h"

#include <stddef.h>
#include <stdint.h>

enum { WORLD_BLOCK_BYTES = 256 };

static inline uint64_t world_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

/* A prompt of count blocks whose hashes all depend on its number. */
static inline void world_prompt(struct block *blocks, size_t count, uint64_t number)
{
    for (size_t i = 0; i < count; i++)
        blocks[i] = (struct block){number << 20 | (i + 1), (i + 1) * WORLD_BLOCK_BYTES};
}

/* How many of the first blocks worker holds. */
static inline uint32_t world_held(const struct residency_index *index, uint32_t worker,
                                  const struct block *blocks, size_t count)
{
    struct residency_match matches[RESIDENCY_HOLDER_COUNT_MAX];

    residency_index_match(index, blocks, count, matches, RESIDENCY_HOLDER_COUNT_MAX);
    return matches[worker].block_count;
}

#endif
