/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/prefix_cache.h"

#include <xxhash.h>

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "backends/runtime/list.h"

/*
 * DESIGN
 *
 * As vLLM's BlockPool (that of 0.32): all blocks that nobody uses wait in one queue, named or not.
 * New space is taken from its head; a named block taken there is evicted. A hit takes its blocks
 * out of the middle. Freed blocks join the tail, a sequence's last block first; but those without a
 * name, which nobody can find, the head.
 *
 *     head -> [freed without a name][never used ...] [tail of the oldest][its prefix] ... <- tail
 *
 * Two sequences that compute the same text at once get two blocks of one name, as in vLLM; the
 * older copy is found. Names live in a chained hash table whose links are in the blocks, so that
 * nothing is allocated after create. Block 0 is vLLM's null block: never given out.
 */

struct cache_block {
    struct list_node in_queue; /* linked exactly while reference_count is 0 */
    uint64_t name;             /* 0: none */
    uint32_t reference_count;
    uint32_t next; /* in the bucket of its name; 0 ends it */
};

struct prefix_cache {
    struct cache_block *blocks;
    uint32_t block_count;
    uint32_t block_size;
    uint32_t *buckets; /* heads of chains of blocks; 0: empty */
    uint32_t bucket_mask;
    struct list queue;
    size_t named_count;
    uint64_t eviction_count;
    const struct prefix_cache_observer *observer; /* NULL: none */
    void *observer_ctx;
};

struct prefix_cache *prefix_cache_create(uint32_t block_count, uint32_t block_size)
{
    assert(block_count >= 2 && block_count < UINT32_MAX / 4);
    assert(block_size >= 1);

    struct prefix_cache *cache = calloc(1, sizeof *cache);
    uint32_t bucket_count = 2;
    assert(cache != NULL);
    while (bucket_count < block_count)
        bucket_count *= 2;
    cache->blocks = calloc(block_count, sizeof *cache->blocks);
    cache->buckets = calloc(bucket_count, sizeof *cache->buckets);
    assert(cache->blocks != NULL && cache->buckets != NULL);
    cache->block_count = block_count;
    cache->block_size = block_size;
    cache->bucket_mask = bucket_count - 1;
    list_init(&cache->queue);
    for (uint32_t i = 0; i < block_count; i++)
        list_node_init(&cache->blocks[i].in_queue);
    for (uint32_t i = 1; i < block_count; i++)
        list_append(&cache->queue, &cache->blocks[i].in_queue);
    return cache;
}

void prefix_cache_destroy(struct prefix_cache *cache)
{
    if (cache == NULL)
        return;
    free(cache->blocks);
    free(cache->buckets);
    free(cache);
}

void prefix_cache_observe(struct prefix_cache *cache, const struct prefix_cache_observer *observer,
                          void *ctx)
{
    assert(cache->observer == NULL);

    cache->observer = observer;
    cache->observer_ctx = ctx;
}

static uint32_t *bucket_of(const struct prefix_cache *cache, uint64_t name)
{
    return &cache->buckets[(uint32_t)name & cache->bucket_mask];
}

static uint32_t find(const struct prefix_cache *cache, uint64_t name)
{
    uint32_t at = *bucket_of(cache, name);

    while (at != 0 && cache->blocks[at].name != name)
        at = cache->blocks[at].next;
    return at;
}

static void set_name(struct prefix_cache *cache, uint32_t index, uint64_t name)
{
    uint32_t *link = bucket_of(cache, name);

    assert(cache->blocks[index].name == 0);
    while (*link != 0) /* at the end: the oldest copy is found first */
        link = &cache->blocks[*link].next;
    *link = index;
    cache->blocks[index].name = name;
    cache->blocks[index].next = 0;
    cache->named_count++;
}

static void drop_name(struct prefix_cache *cache, uint32_t index)
{
    struct cache_block *block = &cache->blocks[index];
    uint32_t *link = bucket_of(cache, block->name);

    assert(block->name != 0);
    while (*link != index) {
        assert(*link != 0);
        link = &cache->blocks[*link].next;
    }
    *link = block->next;
    block->name = 0;
    block->next = 0;
    cache->named_count--;
}

/* The least recently used free block, without its name. The caller saw that there is one. */
static uint32_t take_block(struct prefix_cache *cache)
{
    assert(cache->queue.count > 0);

    struct cache_block *block = container_of(cache->queue.head.next, struct cache_block, in_queue);
    uint32_t index = (uint32_t)(block - cache->blocks);
    list_remove(&cache->queue, &block->in_queue);
    if (block->name != 0) {
        if (cache->observer != NULL)
            cache->observer->on_evicted(cache->observer_ctx, block->name);
        drop_name(cache, index);
        cache->eviction_count++;
    }
    block->reference_count = 1;
    return index;
}

static void share_block(struct prefix_cache *cache, uint32_t index)
{
    struct cache_block *block = &cache->blocks[index];

    if (block->reference_count == 0)
        list_remove(&cache->queue, &block->in_queue);
    block->reference_count++;
}

void cache_sequence_init(struct cache_sequence *sequence, uint64_t root)
{
    *sequence = (struct cache_sequence){.root = root};
}

static void reserve(struct cache_sequence *sequence, size_t block_count)
{
    size_t capacity = sequence->capacity > 0 ? sequence->capacity : 16;

    if (block_count <= sequence->capacity)
        return;
    while (capacity < block_count)
        capacity *= 2;
    sequence->names = realloc(sequence->names, capacity * sizeof *sequence->names);
    sequence->blocks = realloc(sequence->blocks, capacity * sizeof *sequence->blocks);
    assert(sequence->names != NULL && sequence->blocks != NULL);
    sequence->capacity = capacity;
}

/* Names the full blocks of tokens; those named before stay, as tokens only ever grow. */
static void extend_names(struct cache_sequence *sequence, uint32_t block_size,
                         const uint32_t *tokens, size_t token_count)
{
    size_t full_count = token_count / block_size;

    reserve(sequence, full_count);
    while (sequence->name_count < full_count) {
        size_t i = sequence->name_count;
        uint64_t parent = i == 0 ? sequence->root : sequence->names[i - 1];
        uint64_t digest = XXH3_64bits(tokens + i * block_size, block_size * sizeof *tokens);
        uint64_t pair[2] = {parent, digest};
        uint64_t name = XXH3_64bits(pair, sizeof pair);

        sequence->names[sequence->name_count++] = name != 0 ? name : 1;
    }
}

size_t prefix_cache_match(const struct prefix_cache *cache, struct cache_sequence *sequence,
                          const uint32_t *tokens, size_t token_count)
{
    size_t block_count_max = token_count == 0 ? 0 : (token_count - 1) / cache->block_size;
    size_t hit_count = 0;

    extend_names(sequence, cache->block_size, tokens, token_count);
    while (hit_count < block_count_max && find(cache, sequence->names[hit_count]) != 0)
        hit_count++;
    return hit_count * cache->block_size;
}

void prefix_cache_name(struct prefix_cache *cache, struct cache_sequence *sequence,
                       const uint32_t *tokens, size_t token_count)
{
    struct cache_stored stored = {
        .names = sequence->names,
        .tokens = tokens,
        .first = sequence->named_count,
        .keys = &sequence->keys,
    };

    assert(token_count <= sequence->block_count * cache->block_size);
    for (; sequence->named_count < token_count / cache->block_size; sequence->named_count++)
        set_name(cache, sequence->blocks[sequence->named_count],
                 sequence->names[sequence->named_count]);
    stored.count = sequence->named_count - stored.first;
    if (stored.count > 0 && cache->observer != NULL)
        cache->observer->on_stored(cache->observer_ctx, &stored);
}

/* Of the first count names, how many of their blocks wait in the queue: sharing takes them out. */
static size_t queued_count(const struct prefix_cache *cache, const struct cache_sequence *sequence,
                           size_t count)
{
    size_t queued = 0;

    for (size_t i = 0; i < count; i++) {
        uint32_t index = find(cache, sequence->names[i]);

        assert(index != 0);
        if (cache->blocks[index].reference_count == 0)
            queued++;
    }
    return queued;
}

int prefix_cache_take(struct prefix_cache *cache, struct cache_sequence *sequence,
                      const uint32_t *tokens, size_t token_count, size_t matched_count)
{
    size_t shared_count = matched_count / cache->block_size;
    size_t needed_count = (token_count + cache->block_size - 1) / cache->block_size;

    assert(matched_count % cache->block_size == 0);
    assert(matched_count == 0 || sequence->block_count == 0);
    assert(matched_count <= token_count);
    extend_names(sequence, cache->block_size, tokens, token_count);
    reserve(sequence, needed_count);
    if (needed_count > sequence->block_count + shared_count &&
        needed_count - sequence->block_count - shared_count >
            cache->queue.count - queued_count(cache, sequence, shared_count))
        return -ENOSPC;

    for (size_t i = 0; i < shared_count; i++) {
        sequence->blocks[sequence->block_count] = find(cache, sequence->names[i]);
        share_block(cache, sequence->blocks[sequence->block_count++]);
        sequence->named_count++;
    }
    while (sequence->block_count < needed_count)
        sequence->blocks[sequence->block_count++] = take_block(cache);
    return 0;
}

int prefix_cache_grow(struct prefix_cache *cache, struct cache_sequence *sequence,
                      const uint32_t *tokens, size_t token_count, size_t matched_count)
{
    int status = prefix_cache_take(cache, sequence, tokens, token_count, matched_count);

    if (status == 0)
        prefix_cache_name(cache, sequence, tokens, token_count);
    return status;
}

void prefix_cache_free(struct prefix_cache *cache, struct cache_sequence *sequence)
{
    for (size_t i = sequence->named_count; i < sequence->block_count; i++) {
        struct cache_block *block = &cache->blocks[sequence->blocks[i]];

        assert(block->name == 0 && block->reference_count == 1);
        block->reference_count = 0;
        list_prepend(&cache->queue, &block->in_queue);
    }
    for (size_t i = sequence->named_count; i-- > 0;) {
        struct cache_block *block = &cache->blocks[sequence->blocks[i]];

        assert(block->reference_count > 0);
        if (--block->reference_count == 0)
            list_append(&cache->queue, &block->in_queue);
    }
    sequence->block_count = 0;
    sequence->named_count = 0;
}

bool prefix_cache_reset(struct prefix_cache *cache)
{
    if (cache->queue.count < prefix_cache_usable_count(cache))
        return false;
    for (uint32_t i = 1; i < cache->block_count; i++) {
        if (cache->blocks[i].name != 0)
            drop_name(cache, i);
    }
    assert(cache->named_count == 0);
    if (cache->observer != NULL)
        cache->observer->on_cleared(cache->observer_ctx);
    return true;
}

uint32_t prefix_cache_block_size(const struct prefix_cache *cache)
{
    return cache->block_size;
}

size_t prefix_cache_free_count(const struct prefix_cache *cache)
{
    return cache->queue.count;
}

size_t prefix_cache_usable_count(const struct prefix_cache *cache)
{
    return cache->block_count - 1;
}

size_t prefix_cache_named_count(const struct prefix_cache *cache)
{
    return cache->named_count;
}

uint64_t prefix_cache_eviction_count(const struct prefix_cache *cache)
{
    return cache->eviction_count;
}

void cache_sequence_release(struct cache_sequence *sequence)
{
    assert(sequence->block_count == 0);

    free(sequence->names);
    free(sequence->blocks);
    *sequence = (struct cache_sequence){.root = sequence->root};
}
