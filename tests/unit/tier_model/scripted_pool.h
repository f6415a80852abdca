/* SPDX-License-Identifier: Apache-2.0 */

/*
 * scripted_pool: backends/thread_pool without threads, linked in its place: what runs next, and
 * what is delivered next, is chosen from a seed. So every interleaving of jobs and loop can come,
 * and comes again with its seed.
 */
#ifndef TESTS_UNIT_TIER_MODEL_SCRIPTED_POOL_H
#define TESTS_UNIT_TIER_MODEL_SCRIPTED_POOL_H

#include <stdbool.h>
#include <stdint.h>

/* Runs one job, or delivers one that has run, of any pool. False: there is none. */
bool scripted_pool_step(uint64_t *seed);

#endif
