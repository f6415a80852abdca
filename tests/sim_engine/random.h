/* SPDX-License-Identifier: Apache-2.0 */

/* random: what the engine draws from a seeded generator. Pure. */
#ifndef TESTS_SIM_ENGINE_RANDOM_H
#define TESTS_SIM_ENGINE_RANDOM_H

#include <stdint.h>

#include "backends/runtime/random.h"

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
