/* SPDX-License-Identifier: Apache-2.0 */

/*
 * text_chain: the text blocks (H) an agent knows, as routers named them: which follows which, and
 * where each ends. What a router sees in the map it may take as the start of its next record, so
 * forgetting a block is told, as the removal it must be there. Where the engine's tokens come in is
 * alignment's business.
 * Pure: no I/O, clock or globals; init takes the memory, or bounds it (maps grow up
 * to a limit). One thread at a time.
 */
#ifndef KVTIER_IDENTITY_TEXT_CHAIN_H
#define KVTIER_IDENTITY_TEXT_CHAIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/must_check.h"
#include "hashing/block_map.h"

/* hash, which followed parent, is no longer known; index may soon stand for another. Must not
 * change chain. */
typedef void text_forgotten_fn(void *ctx, uint32_t index, uint64_t hash, uint32_t parent);

struct text_chain_config {
    uint32_t node_count_max; /* some 100 bytes for each */
    uint32_t depth_max; /* longer chains are refused: a walk to the root is that long at most */
    text_forgotten_fn *on_forgotten; /* NULL: nobody wants to know */
    void *ctx;
};

struct text_node {
    uint64_t hash;   /* 0: free */
    uint64_t end;    /* bytes from the start of the stream to the end of this block */
    uint32_t parent; /* index; 0: the first of its stream */
    uint32_t depth;  /* blocks up to here, this one included */
    uint32_t child;  /* the newest; the others by its sibling_older */
    uint32_t sibling_older;
    uint32_t sibling_newer;
    uint32_t older; /* in the list of leaves, by last use */
    uint32_t newer; /* also links free nodes */
};

/* A block of a record. Bytes from the start of the stream. */
struct text_block {
    uint64_t hash;
    uint64_t end;
};

struct text_chain_stats {
    uint64_t forgotten;
    uint64_t unknown_starts; /* records that began where we know nothing */
    uint64_t refused;        /* records too deep, or too long for the room there is */
    uint64_t invalid;        /* records that contradict themselves or what is known */
};

struct text_chain {
    struct text_chain_config config;
    struct text_node *nodes; /* [node_count_max + 1]; [0] is nobody */
    struct block_map by_hash;
    uint32_t node_free;
    uint32_t node_count;
    uint32_t oldest; /* of the leaves */
    uint32_t newest;
    uint32_t walked; /* the newest leaf that a walk has come to; 0: none yet */
    struct text_chain_stats stats;
};

/* Empty. -ENOMEM; -EINVAL: a limit is 0. */
MUST_CHECK int text_chain_init(struct text_chain *chain, struct text_chain_config config);

/*
 * Makes blocks[0..count) known behind start (0: from the beginning of a stream) and the newest
 * used; those known already change nothing. *tip is the last one's index (start's when count is 0).
 * May forget other leaves. All or, but for what was forgotten, nothing:
 * -ENOENT: start is not known; its removal should be published, so that the next record is longer.
 * -EINVAL: a hash is 0, ends do not grow, no block at all, or a block is known in another place.
 * -ENOSPC: deeper than depth_max, or more blocks than can be held.
 */
MUST_CHECK int text_chain_extend(struct text_chain *chain, uint64_t start,
                                 const struct text_block *blocks, size_t count, uint32_t *tip);

/* The index of hash; 0: not known. */
uint32_t text_chain_find(const struct text_chain *chain, uint64_t hash);

/* The node of an index that is not 0; its hash is 0 when it is free. */
const struct text_node *text_chain_at(const struct text_chain *chain, uint32_t index);

/*
 * A walk over the leaves, the one used longest ago first; chain may change on the way. A leaf that
 * is used meanwhile is met where it is then, perhaps once more; one that is forgotten is not. Next
 * returns 0 when there is none left.
 */
void text_chain_walk_begin(struct text_chain *chain);
uint32_t text_chain_walk_next(struct text_chain *chain);

/* Frees everything; may be called twice, and after a failed init. Reports nothing. */
void text_chain_release(struct text_chain *chain);

#endif
