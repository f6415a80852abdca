/* SPDX-License-Identifier: Apache-2.0 */

#include "router/residency/residency_index.h"

#include "router/residency/block_holders.h"
#include "router/residency/block_table.h"

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
 * Tiers are bitmaps too: who still has everything in HBM, and whose run is in CPU memory or on SSD
 * just now. Tokens are asked for where a holder goes from one tier to another, hardly ever more
 * than twice in a prompt: entering subtracts what lies before, leaving adds what lies behind. A
 * block that all have in HBM, as all before it, needs none of this; an index in which nobody ever
 * stored a block below HBM does not even ask.
 *
 * A retired holder is a bit that a match begins without. Sweeps walk the map round and round, a few
 * slots at a time, between other changes; an entry that moves past the walk is met in its next
 * round. Each holder's blocks are counted, so that it is known when nothing is left, and a walk
 * with nothing to look for costs nothing.
 */

enum { PREFETCH_AHEAD = 32, WORD_BITS = HOLDER_WORD_BITS };
static_assert(RESIDENCY_HOLDER_COUNT_MAX == 1 << HOLDER_NUMBER_BITS, "any holder fits");
static_assert(RESIDENCY_INDEX_TOKENS_MAX == (1 << HOLDER_TOKEN_BITS) - 1, "any count fits");

struct residency_index {
    struct block_table table;    /* hash -> block_holders, never 0 */
    struct block_trail storing;  /* who stores goes along a prompt */
    struct block_trail removing; /* and who removes along another */
    struct block_holders_memory memory;
    uint64_t holder_count;
    uint64_t refused_total;
    bool has_far;                                 /* something was stored that was not in HBM */
    uint32_t held_by[RESIDENCY_HOLDER_COUNT_MAX]; /* blocks of each */
    uint64_t retired[HOLDER_WORD_COUNT];          /* those of whom something is left */
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
    block_table_init(&index->table, bytes_max - index->memory.bytes_max);
    return index;
}

void residency_index_destroy(struct residency_index *index)
{
    struct block_entry *entry;
    size_t cursor = 0, entry_count = SIZE_MAX;

    if (index == NULL)
        return;
    while ((entry = block_table_next(&index->table, &cursor, &entry_count)) != NULL)
        block_holders_release(&entry->value, &index->memory);
    block_table_release(&index->table);
    free(index);
}

int residency_index_store(struct residency_index *index, uint64_t hash, uint32_t holder,
                          uint8_t tiers, uint32_t tokens)
{
    uint64_t *value;
    int status;

    assert(holder < RESIDENCY_HOLDER_COUNT_MAX && !is_retired(index, holder));
    assert(tiers != 0 && tiers <= (RESIDENCY_HBM | RESIDENCY_CPU | RESIDENCY_SSD));

    value = block_table_claim(&index->table, hash, &index->storing);
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
    index->has_far |= (tiers & RESIDENCY_HBM) == 0;
    return 0;
}

void residency_index_remove(struct residency_index *index, uint64_t hash, uint32_t holder)
{
    uint64_t *value = block_table_find(&index->table, hash, &index->removing);

    assert(holder < RESIDENCY_HOLDER_COUNT_MAX);

    if (value == NULL || !block_holders_remove(value, holder, &index->memory))
        return;
    count_removed(index, holder);
    if (*value == 0)
        block_table_remove(&index->table, value, &index->removing);
}

uint8_t residency_index_get(const struct residency_index *index, uint64_t hash, uint32_t holder,
                            uint32_t *tokens)
{
    const uint64_t *value =
        block_table_find(&index->table, hash, &(struct block_trail){.entry = 0});

    assert(holder < RESIDENCY_HOLDER_COUNT_MAX);

    if (value == NULL || is_retired(index, holder))
        return 0;
    return block_holders_find(*value, holder, tokens);
}

void residency_index_prefetch(const struct residency_index *index, uint64_t hash)
{
    block_table_prefetch(&index->table, hash);
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

static void sweep_entry(struct residency_index *index, struct block_entry *entry)
{
    const struct block_trail sweeping = {.entry = (uint32_t)index->sweep_cursor, .step = 1};
    int holder;

    while ((holder = block_holders_first_of(entry->value, index->retired)) >= 0) {
        (void)block_holders_remove(&entry->value, (uint32_t)holder, &index->memory);
        count_removed(index, (uint32_t)holder);
    }
    if (entry->value == 0)
        block_table_remove(&index->table, &entry->value, &sweeping);
}

bool residency_index_sweep(struct residency_index *index, size_t block_count_max)
{
    while (index->retired_count > 0 && block_count_max > 0) {
        struct block_entry *entry =
            block_table_next(&index->table, &index->sweep_cursor, &block_count_max);

        if (entry != NULL)
            sweep_entry(index, entry);
        else if (block_count_max > 0)
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
    bool has_far;                       /* the next but one matter */
    uint64_t active[HOLDER_WORD_COUNT]; /* who has everything so far */
    uint64_t hbm[HOLDER_WORD_COUNT];    /* of them, all of it in HBM */
    uint64_t cpu[HOLDER_WORD_COUNT];    /* of the others, the last block in CPU memory */
    uint64_t ssd[HOLDER_WORD_COUNT];    /* of the others, the last block only on SSD */
};

/* A sum of differences that an agent made: of blocks that get shorter it may be anything. */
static uint32_t bounded(uint32_t tokens, uint32_t max)
{
    if (tokens > INT32_MAX)
        return 0;
    return tokens < max ? tokens : max;
}

/* Those of word `at` in leaving have the first block_count blocks and no more. */
static void settle(struct match_run *run, size_t at, uint64_t leaving, size_t block_count,
                   uint64_t value_before)
{
    struct residency_match match = {.block_count = (uint32_t)block_count};
    bool is_agreed;

    if (leaving == 0 || block_count == 0)
        return;
    match.bytes = run->blocks[block_count - 1].end;
    is_agreed = block_holders_agreed(value_before, &match.tokens);
    for (; leaving != 0; leaving &= leaving - 1) {
        const uint32_t holder = (uint32_t)(at * WORD_BITS) + (uint32_t)__builtin_ctzll(leaving);

        if (!is_agreed)
            (void)block_holders_find(value_before, holder, &match.tokens);
        if (run->has_far) {
            match.cpu_tokens = bounded(run->matches[holder].cpu_tokens, match.tokens);
            match.ssd_tokens =
                bounded(run->matches[holder].ssd_tokens, match.tokens - match.cpu_tokens);
        }
        run->matches[holder] = match;
    }
}

/* Those of word `at` whose run was in a tier and is not any more, or the other way round. */
static void cross(struct match_run *run, size_t at, enum residency_tier tier, uint64_t was,
                  uint64_t is, uint64_t value_before)
{
    for (uint64_t changed = was ^ is; changed != 0; changed &= changed - 1) {
        const uint32_t holder = (uint32_t)(at * WORD_BITS) + (uint32_t)__builtin_ctzll(changed);
        struct residency_match *match = &run->matches[holder];
        uint32_t *sum = tier == RESIDENCY_CPU ? &match->cpu_tokens : &match->ssd_tokens;
        uint32_t tokens = 0; /* before the first block */

        (void)block_holders_find(value_before, holder, &tokens);
        *sum += (was & changed & -changed) != 0 ? tokens : 0 - tokens;
    }
}

/* Whether all who have everything so far have it in HBM, and the block with this bitmap, too. */
static bool is_all_near(const struct match_run *run, const uint64_t *hbm)
{
    uint64_t far = 0;

    for (size_t at = 0; at < run->word_count; at++)
        far |= run->active[at] & ~(run->hbm[at] & hbm[at]);
    return far == 0;
}

/* holders[]: those of the block with this value who can go on with it. */
static void follow_tiers(struct match_run *run, uint64_t value, uint64_t value_before,
                         uint64_t *holders)
{
    uint64_t cpu[HOLDER_WORD_COUNT], ssd[HOLDER_WORD_COUNT];

    block_holders_write(value, RESIDENCY_HBM, holders, run->word_count);
    if (is_all_near(run, holders))
        return; /* nobody enters another tier, is in one or falls out */
    block_holders_write(value, RESIDENCY_CPU, cpu, run->word_count);
    block_holders_write(value, RESIDENCY_SSD, ssd, run->word_count);
    for (size_t at = 0; at < run->word_count; at++) {
        const uint64_t far = run->active[at] & ~(run->hbm[at] & holders[at]);

        cpu[at] &= far;
        ssd[at] &= far & ~cpu[at];
        cross(run, at, RESIDENCY_CPU, run->cpu[at], cpu[at], value_before);
        cross(run, at, RESIDENCY_SSD, run->ssd[at], ssd[at], value_before);
        run->hbm[at] &= holders[at];
        run->cpu[at] = cpu[at];
        run->ssd[at] = ssd[at];
        holders[at] = run->hbm[at] | cpu[at] | ssd[at];
    }
}

/* Takes out who is not in holders. False: nobody is left. */
static bool keep_only(struct match_run *run, const uint64_t *holders, size_t block_count,
                      uint64_t value_before)
{
    uint64_t left = 0;

    for (size_t word = 0; word < run->word_count; word++) {
        settle(run, word, run->active[word] & ~holders[word], block_count, value_before);
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
    if (run->holder_count % WORD_BITS > 0) /* nobody is asked about beyond the last */
        run->active[run->word_count - 1] &= (1ull << run->holder_count % WORD_BITS) - 1;
    run->has_far = index->has_far;
    if (!run->has_far)
        return;
    memcpy(run->hbm, run->active, run->word_count * sizeof run->hbm[0]);
    memset(run->cpu, 0, run->word_count * sizeof run->cpu[0]);
    memset(run->ssd, 0, run->word_count * sizeof run->ssd[0]);
}

/* False: nobody has the i-th block and all before it. */
static bool match_block(struct match_run *run, size_t i, uint64_t value, uint64_t value_before)
{
    uint64_t holders[HOLDER_WORD_COUNT];

    if (value != 0 && block_holders_key(value) == block_holders_key(value_before))
        return true;
    if (run->has_far)
        follow_tiers(run, value, value_before, holders);
    else
        block_holders_write(value, HOLDER_TIERS_ALL, holders, run->word_count);
    return keep_only(run, holders, i, value_before);
}

void residency_index_match(const struct residency_index *index, const struct block *blocks,
                           size_t block_count, struct residency_match *matches, size_t holder_count)
{
    struct match_run run;
    struct block_trail trail = {.entry = 0};
    uint64_t values[BLOCK_TABLE_BATCH_MAX];
    uint64_t value_before = 0;
    size_t at = 0;

    assert(holder_count <= RESIDENCY_HOLDER_COUNT_MAX);
    assert(block_count <= UINT32_MAX);

    run.blocks = blocks;
    run.matches = matches;
    run.holder_count = holder_count;
    begin_run(&run, index);
    while (at < block_count) {
        const size_t count =
            block_table_follow(&index->table, blocks + at, block_count - at, &trail, values);

        for (size_t i = 0; i < count; i++, at++) {
            if (!match_block(&run, at, values[i], value_before))
                return;
            value_before = values[i];
        }
    }
    (void)match_block(&run, block_count, 0, value_before);
}

struct residency_index_stats residency_index_stats(const struct residency_index *index)
{
    return (struct residency_index_stats){
        .block_count = block_table_count(&index->table),
        .holder_count = index->holder_count,
        .bytes = block_table_bytes(&index->table) + index->memory.bytes,
        .refused_total = index->refused_total,
    };
}
