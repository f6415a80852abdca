/* SPDX-License-Identifier: Apache-2.0 */

/*
 * prefix_cache: the paged KV cache of an engine, as vLLM keeps it: fixed blocks, named by a chain
 * of hashes once they are full, counted while in use, evicted least recently used first. It holds
 * no keys and values, only who would hold them. Pure: no clock, no log; one thread at a time.
 */
#ifndef TESTS_SIM_ENGINE_PREFIX_CACHE_H
#define TESTS_SIM_ENGINE_PREFIX_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/must_check.h"
#include "backends/runtime/slice.h"

struct prefix_cache;

/* What beside tokens goes into a name, where it is to be told: vLLM's extra keys. Borrowed. */
struct cache_keys {
    struct slice lora; /* empty: none */
    uint32_t lora_id;  /* of lora */
    struct slice salt; /* empty: none */
};

/* The blocks of one sequence of tokens, in order. */
struct cache_sequence {
    uint64_t root;          /* of the name chain: model or LoRA and cache salt */
    struct cache_keys keys; /* what of it an observer is told */
    uint64_t *names;        /* of the full blocks of the tokens seen so far */
    size_t name_count;
    uint32_t *blocks; /* held; each counts one reference */
    size_t block_count;
    size_t named_count; /* the first ones of blocks, that are findable by name */
    size_t capacity;    /* of both arrays */
};

/* Blocks of one sequence that got their names at once: [first, first + count) of names, and of the
 * tokens that are block_size times as many. */
struct cache_stored {
    const uint64_t *names; /* from the chain's first block on */
    const uint32_t *tokens;
    size_t first;
    size_t count;
    const struct cache_keys *keys;
};

/* What becomes of names, in its order. A name may be several blocks': each is told. Called from
 * within; may not call the cache. */
struct prefix_cache_observer {
    void (*on_stored)(void *ctx, const struct cache_stored *stored);
    void (*on_evicted)(void *ctx, uint64_t name); /* before the room is used again */
    void (*on_cleared)(void *ctx);
};

/* block_count includes the null block that vLLM keeps to itself: one less is usable. */
struct prefix_cache *prefix_cache_create(uint32_t block_count, uint32_t block_size);
void prefix_cache_destroy(struct prefix_cache *cache);

/* Borrows both; at most one observer. */
void prefix_cache_observe(struct prefix_cache *cache, const struct prefix_cache_observer *observer,
                          void *ctx);

/* Starts a sequence that holds nothing. */
void cache_sequence_init(struct cache_sequence *sequence, uint64_t root);

/*
 * How many leading tokens are in cached blocks: whole blocks only, and never the last token, which
 * is always computed. Changes nothing but the sequence's own names.
 */
size_t prefix_cache_match(const struct prefix_cache *cache, struct cache_sequence *sequence,
                          const uint32_t *tokens, size_t token_count);

/*
 * Makes room for the first token_count of tokens, matched_count of them (from prefix_cache_match;
 * 0 when the sequence holds blocks already) by sharing, without names for the new ones: who is to
 * fill them is not done yet. -ENOSPC: too few blocks are free; nothing changed.
 */
MUST_CHECK int prefix_cache_take(struct prefix_cache *cache, struct cache_sequence *sequence,
                                 const uint32_t *tokens, size_t token_count, size_t matched_count);

/* Names the blocks that the first token_count of tokens fill; there is room for them. */
void prefix_cache_name(struct prefix_cache *cache, struct cache_sequence *sequence,
                       const uint32_t *tokens, size_t token_count);

/* Both: takes room, and names at once what the step that begins will fill. */
MUST_CHECK int prefix_cache_grow(struct prefix_cache *cache, struct cache_sequence *sequence,
                                 const uint32_t *tokens, size_t token_count, size_t matched_count);

/* Gives up all blocks, the last one first so that tails are evicted before their prefix. What is
 * named stays findable until evicted. */
void prefix_cache_free(struct prefix_cache *cache, struct cache_sequence *sequence);

/* Forgets all names. false: blocks are in use, nothing changed. */
bool prefix_cache_reset(struct prefix_cache *cache);

uint32_t prefix_cache_block_size(const struct prefix_cache *cache); /* tokens */
size_t prefix_cache_free_count(const struct prefix_cache *cache);
size_t prefix_cache_usable_count(const struct prefix_cache *cache);
size_t prefix_cache_named_count(const struct prefix_cache *cache); /* all copies counted */
uint64_t prefix_cache_eviction_count(const struct prefix_cache *cache);

/* The sequence holds no blocks any more. */
void cache_sequence_release(struct cache_sequence *sequence);

#endif
