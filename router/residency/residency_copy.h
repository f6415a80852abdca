/* SPDX-License-Identifier: Apache-2.0 */

/*
 * residency_copy: the records of one life of one worker's report, as they were read: under a
 * holder number of their own in a residency_index, with the count and the digest by which they are
 * known to be the agent's. Forgetting them is retiring the number. Pure; loop thread only.
 */
#ifndef ROUTER_RESIDENCY_RESIDENCY_COPY_H
#define ROUTER_RESIDENCY_RESIDENCY_COPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/must_check.h"
#include "backends/runtime/slice.h"
#include "router/residency/residency_index.h"

enum { RESIDENCY_HOLDER_NONE = UINT32_MAX >> 1, RESIDENCY_TIER_COUNT = 3 };

/* The numbers of one index, and which are taken: low ones, as a match costs what it is asked for.
 */
struct residency_holders {
    struct residency_index *index;
    uint32_t end; /* those that are taken are below it */
    bool is_taken[RESIDENCY_HOLDER_COUNT_MAX];
};

struct residency_copy {
    uint32_t holder; /* RESIDENCY_HOLDER_NONE: there is no copy, and all else is 0 */
    uint64_t count;  /* records */
    uint64_t digest; /* of them */
    uint64_t tier_counts[RESIDENCY_TIER_COUNT]; /* records in HBM, CPU, SSD */
    uint64_t refused_count; /* that the index had no room for: then count and digest say nothing */
};

/* Borrows index. */
void residency_holders_init(struct residency_holders *holders, struct residency_index *index);

/* No copy. */
void residency_copy_init(struct residency_copy *copy);

/* An empty one. False: every number is taken, or not yet swept. */
MUST_CHECK bool residency_copy_begin(struct residency_copy *copy,
                                     struct residency_holders *holders);

/* Its records are gone at once; there is no copy then. */
void residency_copy_drop(struct residency_copy *copy, struct residency_holders *holders);

/* Takes the records of a page or a change (RESIDENCY_RECORD_BYTES each; free places are passed
 * over). Each says how its block is held from now on, so the order and repeats do not matter. */
void residency_copy_apply(struct residency_copy *copy, struct residency_holders *holders,
                          struct slice records);

/* Whether it is the whole with that count and digest; what was refused room cannot be told. */
bool residency_copy_agrees(const struct residency_copy *copy, uint64_t count, uint64_t digest);

#endif
