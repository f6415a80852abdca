/* SPDX-License-Identifier: Apache-2.0 */

/*
 * residency_index: which worker holds which block, in which tiers. It has apply-style calls and
 * knows no source; residency_guess (and later residency_sync) feed it. Bounded in bytes: what does
 * not fit is refused and counted. Pure; loop thread only.
 */
#ifndef ROUTER_RESIDENCY_RESIDENCY_INDEX_H
#define ROUTER_RESIDENCY_RESIDENCY_INDEX_H

#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/must_check.h"
#include "hashing/block_chain.h"

enum { RESIDENCY_WORKER_COUNT_MAX = 1024 };

enum residency_tier { /* bits */
                      RESIDENCY_HBM = 1,
                      RESIDENCY_CPU = 2,
                      RESIDENCY_SSD = 4,
};

struct residency_index;

struct residency_index_stats {
    uint64_t block_count;   /* distinct blocks held by somebody */
    uint64_t holder_count;  /* (block, worker) pairs */
    uint64_t bytes;         /* memory taken */
    uint64_t refused_total; /* stores refused for want of room */
};

/* How much of a prompt one worker holds: the longest unbroken run from its first block. */
struct residency_match {
    uint32_t block_count;
    uint64_t bytes; /* stream bytes up to the end of the last of them */
};

/* bytes_max > 0. NULL: no memory. */
struct residency_index *residency_index_create(size_t bytes_max);
void residency_index_destroy(struct residency_index *index);

/* Sets the tiers in which worker holds hash; tiers != 0. -ENOBUFS: full, refused and counted. */
MUST_CHECK int residency_index_store(struct residency_index *index, uint64_t hash, uint32_t worker,
                                     uint8_t tiers);

/* worker no longer holds hash in any tier. Of an unknown pair: nothing. */
void residency_index_remove(struct residency_index *index, uint64_t hash, uint32_t worker);

/* Forgets everything of worker. Walks the table unless worker holds nothing: who knows its blocks
 * removes them one by one instead. */
void residency_index_forget_worker(struct residency_index *index, uint32_t worker);

/*
 * Fills matches[w] for each w < worker_count with what w holds of blocks[0..block_count), in one
 * pass that ends where nobody holds the next block.
 */
void residency_index_match(const struct residency_index *index, const struct block *blocks,
                           size_t block_count, struct residency_match *matches,
                           size_t worker_count);

struct residency_index_stats residency_index_stats(const struct residency_index *index);

#endif
