/* SPDX-License-Identifier: Apache-2.0 */

/* random: a seeded generator (splitmix64, Steele et al. 2014) whose state is one number, which may
 * be anything. Pure. */
#ifndef TESTS_SIM_ENGINE_RANDOM_H
#define TESTS_SIM_ENGINE_RANDOM_H

#include <stdint.h>

static inline uint64_t random_next(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* In [0, limit), limit > 0. */
static inline uint64_t random_below(uint64_t *state, uint64_t limit)
{
    return random_next(state) % limit;
}

/* In [0, 1). */
static inline double random_share(uint64_t *state)
{
    return (double)(random_next(state) >> 11) / 9007199254740992.0;
}

#endif
