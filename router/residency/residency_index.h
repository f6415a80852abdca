/* SPDX-License-Identifier: Apache-2.0 */

/*
 * residency_index: who holds which block, in which tiers, and how many tokens of a prompt end with
 * it there. A holder is a number below RESIDENCY_HOLDER_COUNT_MAX that its source gives a meaning:
 * residency_guess a worker, residency_sync one life of a worker's report. The index knows no
 * source, and each source has an index of its own. Bounded in bytes: what does not fit is refused
 * and counted. Pure; loop thread only.
 */
#ifndef ROUTER_RESIDENCY_RESIDENCY_INDEX_H
#define ROUTER_RESIDENCY_RESIDENCY_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/must_check.h"
#include "hashing/block_chain.h"

enum {
    RESIDENCY_HOLDER_COUNT_MAX = 2048,
    RESIDENCY_INDEX_TOKENS_MAX = (1 << 21) - 1, /* of a prompt, up to the end of a block */
};

enum residency_tier { /* bits */
                      RESIDENCY_HBM = 1,
                      RESIDENCY_CPU = 2,
                      RESIDENCY_SSD = 4,
};

struct residency_index;

struct residency_index_stats {
    uint64_t block_count;   /* distinct blocks held by somebody */
    uint64_t holder_count;  /* (block, holder) pairs; of retired holders too, until swept */
    uint64_t bytes;         /* memory taken */
    uint64_t refused_total; /* stores refused for want of room */
};

/* How much of a prompt one holder has: the longest unbroken run from its first block. HBM counts
 * only from the first block on: behind one that is not there an engine can use what can be brought
 * to it, in order, and nothing else. So a block in HBM alone ends a run that has left HBM. */
struct residency_match {
    uint32_t block_count;
    uint32_t tokens; /* up to the end of the last of them, as its holder counts; 0: it does not */
    uint64_t bytes;  /* of the stream, up to there */
    /* Of tokens, those outside HBM. A block in both is in CPU memory: the nearer one counts. */
    uint32_t cpu_tokens;
    uint32_t ssd_tokens;
};

/* bytes_max > 0. NULL: no memory. */
struct residency_index *residency_index_create(size_t bytes_max);
void residency_index_destroy(struct residency_index *index);

/*
 * holder has hash in these tiers (not 0), and a prompt that long up to its end. Replaces what was
 * stored of the pair. Not of a retired holder. -ENOBUFS: full; refused and counted.
 */
MUST_CHECK int residency_index_store(struct residency_index *index, uint64_t hash, uint32_t holder,
                                     uint8_t tiers, uint32_t tokens);

/* holder no longer has hash in any tier. Of an unknown pair: nothing. */
void residency_index_remove(struct residency_index *index, uint64_t hash, uint32_t holder);

/* The tiers in which holder has hash, 0: in none. *tokens is set only if there is one. */
uint8_t residency_index_get(const struct residency_index *index, uint64_t hash, uint32_t holder,
                            uint32_t *tokens);

/* Brings the place of hash nearer to the processor, for a call about it some 100 ns later. */
void residency_index_prefetch(const struct residency_index *index, uint64_t hash);

/*
 * Forgets everything of holder: hidden from get and match at once, in constant time. What it took
 * is given back by sweeps, and until then the number may not be stored for again.
 */
void residency_index_retire(struct residency_index *index, uint32_t holder);

/* Nothing is left of holder: its number may get a new meaning. */
bool residency_index_is_free(const struct residency_index *index, uint32_t holder);

/* Looks for leavings of retired holders in some more blocks. True: there are more. */
bool residency_index_sweep(struct residency_index *index, size_t block_count_max);

/*
 * Fills matches[h] for each h < holder_count with what h has of blocks[0..block_count), in one
 * pass that ends where nobody has the next block.
 */
void residency_index_match(const struct residency_index *index, const struct block *blocks,
                           size_t block_count, struct residency_match *matches,
                           size_t holder_count);

struct residency_index_stats residency_index_stats(const struct residency_index *index);

#endif
