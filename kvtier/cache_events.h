/* SPDX-License-Identifier: Apache-2.0 */

/*
 * cache_events: what an engine publishes about its KV cache, applied to the token chain of one
 * worker: which media are tiers, which of a hybrid model's groups count, and what beside its tokens
 * makes a block another one. What it cannot be sure of it leaves out and counts: a block that is
 * not claimed is a hit that was not foreseen, one that is claimed wrongly a phantom.
 * Pure: no I/O, clock or globals. One thread at a time.
 */
#ifndef KVTIER_CACHE_EVENTS_H
#define KVTIER_CACHE_EVENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "backends/kvevents/kv_event_codec.h"
#include "kvtier/identity/token_chain.h"

enum { CACHE_EVENTS_BLOCK_TOKENS_MAX = 4096 };

struct cache_events_stats {
    uint64_t stored;        /* blocks taken in */
    uint64_t removed;       /* copies of blocks dropped */
    uint64_t cleared;       /* times that the engine emptied its cache */
    uint64_t ignored_media; /* events about media that are no tier here */
    uint64_t
        ignored_groups; /* events about groups that do not count: sliding windows and the like */
    uint64_t malformed; /* known events that are not as they should be */
    uint64_t unknown;   /* events and fields that the codec does not know */
};

/* All fields may be read, none written but clears_all_tiers. */
struct cache_events {
    const uint8_t *secret;     /* DIGEST_SECRET_BYTES; borrowed */
    struct token_chain *chain; /* borrowed; its config.groups is this one's to set */
    /* Whether AllBlocksCleared is about lower tiers too, of which it says nothing. */
    bool clears_all_tiers;
    int64_t groups[TOKEN_GROUP_COUNT_MAX]; /* the engine's numbers of those that count */
    uint32_t group_count;
    uint32_t block_tokens; /* of the blocks it stores; 0: none seen yet */
    struct cache_events_stats stats;
    uint32_t ids[CACHE_EVENTS_BLOCK_TOKENS_MAX]; /* of the block in hand */
};

/* Borrows both. clears_all_tiers is true at first. */
void cache_events_init(struct cache_events *events, const uint8_t *secret,
                       struct token_chain *chain);

/* Applies all events of batch, in their order. */
void cache_events_apply(struct cache_events *events, struct kv_event_batch *batch);

/* Another engine process, or an unknown part of what it said was lost: nothing is known of it. */
void cache_events_begin_epoch(struct cache_events *events);

#endif
