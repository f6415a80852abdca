/* SPDX-License-Identifier: Apache-2.0 */

#include "router/residency/residency_index.h"

#include "hashing/block_map.h"
#include "router/residency/block_holders.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/*
 * DESIGN
 *
 * A block_map gives each hash 64 bits; what block_holders makes of them answers nearly always from
 * the same cache line. The map gets 3/4 of the bytes and sets of holders the rest: neither can
 * starve the other.
 *
 * A match keeps the set of holders that have everything so far as a bitmap, and ands each block's
 * holders into it; who falls out has his result. Lookups of one prompt do not depend on each other,
 * so the slots PREFETCH_AHEAD blocks ahead are on their way while this one is looked at.
 *
 * A retired holder is a bit that a match begins without. Sweeps walk the map round and round, a few
 * slots at a time, between other changes; an entry that moves past the walk is met in its next
 * round. Each holder's blocks are counted, so that it is known when nothing is left, and a walk
 * with nothing to look for costs nothing.
 */

enum { PREFETCH_AHEAD = 32, WORD_BITS = BLOCK_HOLDERS_WORD_BITS };
static_assert(RESIDENCY_HOLDER_COUNT_MAX == 1 << BLOCK_HOLDERS_NUMBER_BITS, "any holder fits");
static_assert(RESIDENCY_INDEX_TOKENS_MAX == (1 << BLOCK_HOLDERS_TOKEN_BITS) - 1, "any count fits");

struct residency_index {
    struct block_map map; /* hash -> block_holders, never 0 */
    struct block_holders_memory memory;
    uint64_t holder_count;
    uint64_t refused_total;
    uint32_t held_by[RESIDENCY_HOLDER_COUNT_MAX]; /* blocks of each */
    uint64_t retired[BLOCK_HOLDERS_WORD_COUNT];   /* those of whom something is left */
    uint32_t retired_count;
    size_t sweep_cursor;
};

static uint64_t bit_of(uint32_t holder)
{
    return 1ull << holder % WORD_BITS;
}

static bool is_retired(const struct residency_index *index, uint32_t holder)
{
    return (index->retired[holder / WORD_BITS] & bit_of(holder)) != 0;
}

static void count_removed(struct residency_index *index, uint32_t holder)
{
    assert(index->held_by[holder] > 0);
    assert(index->holder_count > 0);

    index->holder_count--;
    if (--index->held_by[holder] > 0 || !is_retired(index, holder))
        return;
    index->retired[holder / WORD_BITS] &= ~bit_of(holder);
    index->retired_count--;
}

struct residency_index *residency_index_create(size_t bytes_max)
{
    struct residency_index *index;

    assert(bytes_max > 0);

    index = calloc(1, sizeof *index);
    if (index == NULL)
        return NULL;
    index->memory.bytes_max = bytes_max / 4;
    block_map_init(&index->map, bytes_max - index->memory.bytes_max);
    return index;
}

void residency_index_destroy(struct residency_index *index)
{
    struct block_map_slot *slot;
    size_t cursor = 0;

    if (index == NULL)
        return;
    while ((slot = block_map_next(&index->map, &cursor)) != NULL)
        block_holders_release(&slot->value, &index->memory);
    block_map_release(&index->map);
    free(index);
}

int residency_index_store(struct residency_index *index, uint64_t hash, uint32_t holder,
                          uint8_t tiers, uint32_t tokens)
{
    uint64_t *value;
    int status;

    assert(holder < RESIDENCY_HOLDER_COUNT_MAX && !is_retired(index, holder));
    assert(tiers != 0 && tiers <= (RESIDENCY_HBM | RESIDENCY_CPU | RESIDENCY_SSD));

    value = block_map_claim(&index->map, hash);
    status = value != NULL
                 ? block_holders_store(value, (struct block_holding){holder, tokens, tiers},
                                       &index->memory)
                 : -ENOBUFS;
    if (status < 0) {
        index->refused_total++;
        return status;
    }
    index->held_by[holder] += (uint32_t)status;
    index->holder_count += (uint64_t)status;
    return 0;
}

void residency_index_remove(struct residency_index *index, uint64_t hash, uint32_t holder)
{
    uint64_t *value = block_map_find(&index->map, hash);

    assert(holder < RESIDENCY_HOLDER_COUNT_MAX);

    if (value == NULL || !block_holders_remove(value, holder, &index->memory))
        return;
    count_removed(index, holder);
    if (*value == 0)
        block_map_remove_value(&index->map, value);
}

uint8_t residency_index_get(const struct residency_index *index, uint64_t hash, uint32_t holder,
                            uint32_t *tokens)
{
    const uint64_t *value = block_map_find(&index->map, hash);

    assert(holder < RESIDENCY_HOLDER_COUNT_MAX);

    if (value == NULL || is_retired(index, holder))
        return 0;
    return block_holders_find(*value, holder, tokens);
}

void residency_index_prefetch(const struct residency_index *index, uint64_t hash)
{
    block_map_prefetch(&index->map, hash);
}

void residency_index_retire(struct residency_index *index, uint32_t holder)
{
    assert(holder < RESIDENCY_HOLDER_COUNT_MAX);

    if (index->held_by[holder] == 0 || is_retired(index, holder))
        return;
    index->retired[holder / WORD_BITS] |= bit_of(holder);
    index->retired_count++;
}

bool residency_index_is_free(const struct residency_index *index, uint32_t holder)
{
    assert(holder < RESIDENCY_HOLDER_COUNT_MAX);

    return index->held_by[holder] == 0;
}

static void sweep_slot(struct residency_index *index, struct block_map_slot *slot)
{
    int holder;

    while ((holder = block_holders_first_of(slot->value, index->retired)) >= 0) {
        (void)block_holders_remove(&slot->value, (uint32_t)holder, &index->memory);
        count_removed(index, (uint32_t)holder);
    }
    if (slot->value == 0)
        block_map_remove_at(&index->map, &index->sweep_cursor);
}

bool residency_index_sweep(struct residency_index *index, size_t slot_count_max)
{
    while (index->retired_count > 0 && slot_count_max > 0) {
        struct block_map_slot *slot =
            block_map_next_within(&index->map, &index->sweep_cursor, &slot_count_max);

        if (slot != NULL)
            sweep_slot(index, slot);
        else if (slot_count_max > 0)
            index->sweep_cursor = 0; /* the next round */
    }
    return index->retired_count > 0;
}

/* ---- matching ---- */

struct match_run {
    const struct block *blocks;
    struct residency_match *matches;
    size_t holder_count;
    size_t word_count;
    uint64_t active[BLOCK_HOLDERS_WORD_COUNT]; /* who has everything so far */
};

/* holder has block_count blocks and no more; value is the last of them. */
static void settle(struct match_run *run, uint32_t holder, size_t block_count, uint64_t value)
{
    struct residency_match *match;

    if (holder >= run->holder_count || block_count == 0)
        return;
    match = &run->matches[holder];
    *match = (struct residency_match){
        .block_count = (uint32_t)block_count,
        .bytes = run->blocks[block_count - 1].end,
    };
    (void)block_holders_find(value, holder, &match->tokens);
}

/* Takes out who is not in holders. False: nobody is left. */
static bool keep_only(struct match_run *run, const uint64_t *holders, size_t block_count,
                      uint64_t value_before)
{
    uint64_t left = 0;

    for (size_t word = 0; word < run->word_count; word++) {
        uint64_t leaving = run->active[word] & ~holders[word];

        for (; leaving != 0 && block_count > 0; leaving &= leaving - 1)
            settle(run, (uint32_t)(word * WORD_BITS) + (uint32_t)__builtin_ctzll(leaving),
                   block_count, value_before);
        run->active[word] &= holders[word];
        left |= run->active[word];
    }
    return left != 0;
}

static void begin_run(struct match_run *run, const struct residency_index *index)
{
    run->word_count = (run->holder_count + WORD_BITS - 1) / WORD_BITS;
    memset(run->matches, 0, run->holder_count * sizeof *run->matches);
    for (size_t word = 0; word < run->word_count; word++)
        run->active[word] = ~index->retired[word];
}

void residency_index_match(const struct residency_index *index, const struct block *blocks,
                           size_t block_count, struct residency_match *matches, size_t holder_count)
{
    struct match_run run = {.blocks = blocks, .matches = matches, .holder_count = holder_count};
    uint64_t holders[BLOCK_HOLDERS_WORD_COUNT];
    uint64_t value_before = 0;
    bool is_held = true;

    assert(holder_count <= RESIDENCY_HOLDER_COUNT_MAX);
    assert(block_count <= UINT32_MAX);

    begin_run(&run, index);
    for (size_t i = 0; i < block_count && i < PREFETCH_AHEAD; i++)
        block_map_prefetch(&index->map, blocks[i].hash);
    for (size_t i = 0; is_held && i <= block_count; i++) {
        const uint64_t *found =
            i < block_count ? block_map_find(&index->map, blocks[i].hash) : NULL;
        const uint64_t value = found != NULL ? *found : 0;

        if (i + PREFETCH_AHEAD < block_count)
            block_map_prefetch(&index->map, blocks[i + PREFETCH_AHEAD].hash);
        if (value == 0 || block_holders_key(value) != block_holders_key(value_before)) {
            block_holders_write(value, holders, run.word_count);
            is_held = keep_only(&run, holders, i, value_before);
        }
        value_before = value;
    }
}

struct residency_index_stats residency_index_stats(const struct residency_index *index)
{
    return (struct residency_index_stats){
        .block_count = block_map_count(&index->map),
        .holder_count = index->holder_count,
        .bytes = block_map_bytes(&index->map) + index->memory.bytes,
        .refused_total = index->refused_total,
    };
}
