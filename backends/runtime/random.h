/* SPDX-License-Identifier: Apache-2.0 */

/*
 * random: a seeded generator (splitmix64; Steele, Lea, Flood 2014) whose state is one number, which
 * may be anything. For what must differ or spread, never for secrets: who sees a number knows the
 * state. Pure.
 */
#ifndef BACKENDS_RUNTIME_RANDOM_H
#define BACKENDS_RUNTIME_RANDOM_H

#include <stdint.h>

/* Every bit of z over all of them; another z, another number. */
static inline uint64_t random_mix(uint64_t z)
{
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static inline uint64_t random_next(uint64_t *state)
{
    return random_mix(*state += 0x9e3779b97f4a7c15u);
}

#endif
