/* SPDX-License-Identifier: Apache-2.0 */

#include "router/residency/residency_index.h"

#include "hashing/block_map.h"

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/*
 * DESIGN
 *
 * A block_map gives each hash 64 bits. They are the holders themselves, up to four:
 *
 *     63      48      32      16       0
 *     [ cell3 | cell2 | cell1 | cell0 ]        cell = tiers << 10 | worker;  0: none
 *
 * or, when bit 63 is set, a pointer to a holder_set with more of them, as cells, and from 33 on as
 * a bitmap too: 8 bytes a holder at most, and what everybody holds (a system prompt) costs a match
 * no more than what one holds. Nearly every block has one
 * to four holders, so a lookup touches one cache line; at most 3/4 full tables of 16-byte slots are
 * 21 to 43 bytes a block. Cells are packed from the low end: block after block of a prompt with the
 * same holders, stored in the same order, has the same 64 bits, and a match need not look at them.
 *
 * A match keeps the set of workers that hold everything so far as a bitmap, and ands each block's
 * holders into it; who falls out has his result. Lookups of one prompt do not depend on each other,
 * so the slots PREFETCH_AHEAD blocks ahead are on their way while this one is looked at.
 *
 * The table gets 3/4 of the bytes and the sets the rest: neither can starve the other.
 */

enum {
    WORKER_BITS = 10,
    CELL_BITS = 16,
    CELL_MASK = (1 << CELL_BITS) - 1,
    INLINE_COUNT = 4,
    SET_CAPACITY_MIN = 8,
    SET_CAPACITY_DENSE = 64, /* from here on a set has a bitmap as well */
    PREFETCH_AHEAD = 32,
    WORD_BITS = 64,
    WORD_COUNT = RESIDENCY_WORKER_COUNT_MAX / WORD_BITS,
};
static_assert(RESIDENCY_WORKER_COUNT_MAX == 1 << WORKER_BITS, "a cell has room for any worker");
static_assert((RESIDENCY_HBM | RESIDENCY_CPU | RESIDENCY_SSD) << WORKER_BITS < 1 << 15,
              "bit 15 of a cell is free, so bit 63 of a value can mean a set");

static const uint64_t VALUE_IS_SET = 1ull << 63;

struct holder_set {
    uint16_t count;
    uint16_t capacity;
    uint32_t unused;
    uint64_t words[]; /* WORD_COUNT of them if is_dense(), and then the cells */
};

struct residency_index {
    struct block_map map;
    size_t set_bytes;
    size_t set_bytes_max;
    uint64_t holder_count;
    uint64_t refused_total;
    uint32_t held_by[RESIDENCY_WORKER_COUNT_MAX]; /* blocks of each worker */
};

static uint16_t make_cell(uint32_t worker, uint8_t tiers)
{
    return (uint16_t)((uint32_t)tiers << WORKER_BITS | worker);
}

static uint32_t cell_worker(uint64_t cell)
{
    return (uint32_t)cell & (RESIDENCY_WORKER_COUNT_MAX - 1);
}

static struct holder_set *value_set(uint64_t value)
{
    return (struct holder_set *)(uintptr_t)(value & ~VALUE_IS_SET); /* NOLINT: see DESIGN */
}

static size_t word_count_of(size_t capacity)
{
    return capacity >= SET_CAPACITY_DENSE ? WORD_COUNT : 0;
}

static bool is_dense(const struct holder_set *set)
{
    return word_count_of(set->capacity) > 0;
}

static size_t set_size(size_t capacity)
{
    return sizeof(struct holder_set) + word_count_of(capacity) * sizeof(uint64_t) +
           capacity * sizeof(uint16_t);
}

static uint16_t *set_cells(struct holder_set *set)
{
    return (uint16_t *)(set->words + word_count_of(set->capacity));
}

static bool has_bit(const uint64_t *words, uint32_t worker)
{
    return words[worker / WORD_BITS] >> worker % WORD_BITS & 1;
}

static void flip_bit(uint64_t *words, uint32_t worker)
{
    words[worker / WORD_BITS] ^= 1ull << worker % WORD_BITS;
}

static unsigned inline_count(uint64_t value)
{
    unsigned count = 0;

    while (count < INLINE_COUNT && (value >> (CELL_BITS * count) & CELL_MASK) != 0)
        count++;
    return count;
}

/* Place of worker among the holders, or -1. */
static int find_holder(uint64_t value, uint32_t worker)
{
    if (value & VALUE_IS_SET) {
        struct holder_set *set = value_set(value);
        const uint16_t *cells = set_cells(set);

        if (is_dense(set) && !has_bit(set->words, worker))
            return -1;
        for (int i = 0; i < set->count; i++)
            if (cell_worker(cells[i]) == worker)
                return i;
        return -1;
    }
    for (int i = 0; i < (int)inline_count(value); i++)
        if (cell_worker(value >> (CELL_BITS * i)) == worker)
            return i;
    return -1;
}

static void set_tiers(uint64_t *value, int at, uint16_t cell)
{
    if (*value & VALUE_IS_SET) {
        set_cells(value_set(*value))[at] = cell;
        return;
    }
    *value &= ~((uint64_t)CELL_MASK << (CELL_BITS * at));
    *value |= (uint64_t)cell << (CELL_BITS * at);
}

/* Makes room for the bitmap before the cells, which still lie at `from`, and fills it. */
static void densify(struct holder_set *set, const uint16_t *from)
{
    memmove(set_cells(set), from, set->count * sizeof *from);
    memset(set->words, 0, WORD_COUNT * sizeof set->words[0]);
    for (size_t i = 0; i < set->count; i++)
        flip_bit(set->words, cell_worker(set_cells(set)[i]));
}

/* A set of that capacity with the holders of value, which it replaces. False: no room. */
static bool resize_set(struct residency_index *index, uint64_t *value, size_t capacity)
{
    const bool had_set = *value & VALUE_IS_SET;
    struct holder_set *old = had_set ? value_set(*value) : NULL;
    const size_t old_bytes = had_set ? set_size(old->capacity) : 0;
    struct holder_set *set;

    if (index->set_bytes - old_bytes + set_size(capacity) > index->set_bytes_max)
        return false;
    set = realloc(old, set_size(capacity));
    if (set == NULL)
        return false;

    if (!had_set) {
        *set = (struct holder_set){.count = INLINE_COUNT, .capacity = (uint16_t)capacity};
        for (int i = 0; i < INLINE_COUNT; i++)
            set_cells(set)[i] = (uint16_t)(*value >> (CELL_BITS * i) & CELL_MASK);
    } else {
        const uint16_t *from = set_cells(set);
        const bool was_dense = is_dense(set);

        set->capacity = (uint16_t)capacity;
        if (is_dense(set) && !was_dense)
            densify(set, from);
    }
    index->set_bytes = index->set_bytes - old_bytes + set_size(capacity);
    *value = VALUE_IS_SET | (uint64_t)(uintptr_t)set;
    return true;
}

static bool add_holder(struct residency_index *index, uint64_t *value, uint16_t cell)
{
    struct holder_set *set;

    if (!(*value & VALUE_IS_SET)) {
        unsigned count = inline_count(*value);

        if (count < INLINE_COUNT) {
            *value |= (uint64_t)cell << (CELL_BITS * count);
            return true;
        }
        if (!resize_set(index, value, SET_CAPACITY_MIN))
            return false;
    }
    set = value_set(*value);
    if (set->count == set->capacity && !resize_set(index, value, 2 * (size_t)set->capacity))
        return false;
    set = value_set(*value);
    set_cells(set)[set->count++] = cell;
    if (is_dense(set))
        flip_bit(set->words, cell_worker(cell));
    return true;
}

static void free_set(struct residency_index *index, uint64_t *value)
{
    struct holder_set *set = value_set(*value);

    index->set_bytes -= set_size(set->capacity);
    free(set);
    *value = 0;
}

/* Closes the gap, so that cells stay packed; a set that fits inline again goes back there. */
static void remove_holder(struct residency_index *index, uint64_t *value, int at)
{
    if (*value & VALUE_IS_SET) {
        struct holder_set *set = value_set(*value);
        uint16_t *cells = set_cells(set);
        uint64_t packed = 0;

        if (is_dense(set))
            flip_bit(set->words, cell_worker(cells[at]));
        set->count--;
        memmove(cells + at, cells + at + 1, (size_t)(set->count - at) * sizeof *cells);
        if (set->count > INLINE_COUNT)
            return;
        for (int i = 0; i < set->count; i++)
            packed |= (uint64_t)cells[i] << (CELL_BITS * i);
        free_set(index, value);
        *value = packed;
        return;
    }
    uint64_t below = ((uint64_t)1 << (CELL_BITS * at)) - 1;

    *value = (*value & below) | (*value >> CELL_BITS & ~below);
}

static void count_removed(struct residency_index *index, uint32_t worker)
{
    assert(index->held_by[worker] > 0);
    assert(index->holder_count > 0);

    index->held_by[worker]--;
    index->holder_count--;
}

struct residency_index *residency_index_create(size_t bytes_max)
{
    struct residency_index *index;

    assert(bytes_max > 0);

    index = calloc(1, sizeof *index);
    if (index == NULL)
        return NULL;
    index->set_bytes_max = bytes_max / 4;
    block_map_init(&index->map, bytes_max - index->set_bytes_max);
    return index;
}

void residency_index_destroy(struct residency_index *index)
{
    struct block_map_slot *slot;
    size_t cursor = 0;

    if (index == NULL)
        return;
    while ((slot = block_map_next(&index->map, &cursor)) != NULL)
        if (slot->value & VALUE_IS_SET)
            free_set(index, &slot->value);
    block_map_release(&index->map);
    free(index);
}

int residency_index_store(struct residency_index *index, uint64_t hash, uint32_t worker,
                          uint8_t tiers)
{
    const uint16_t cell = make_cell(worker, tiers);
    uint64_t *value;
    int at;

    assert(worker < RESIDENCY_WORKER_COUNT_MAX);
    assert(tiers != 0 && tiers <= (RESIDENCY_HBM | RESIDENCY_CPU | RESIDENCY_SSD));

    value = block_map_claim(&index->map, hash);
    at = value != NULL ? find_holder(*value, worker) : -1;
    if (at >= 0) {
        set_tiers(value, at, cell);
        return 0;
    }
    if (value == NULL || !add_holder(index, value, cell)) {
        index->refused_total++;
        return -ENOBUFS;
    }
    index->held_by[worker]++;
    index->holder_count++;
    return 0;
}

void residency_index_remove(struct residency_index *index, uint64_t hash, uint32_t worker)
{
    uint64_t *value = block_map_find(&index->map, hash);
    int at = value != NULL ? find_holder(*value, worker) : -1;

    assert(worker < RESIDENCY_WORKER_COUNT_MAX);

    if (at < 0)
        return;
    count_removed(index, worker);
    remove_holder(index, value, at);
    if (*value == 0)
        block_map_remove_value(&index->map, value);
}

void residency_index_forget_worker(struct residency_index *index, uint32_t worker)
{
    struct block_map_slot *slot;
    size_t cursor = 0;

    assert(worker < RESIDENCY_WORKER_COUNT_MAX);

    while (index->held_by[worker] > 0 && (slot = block_map_next(&index->map, &cursor)) != NULL) {
        int at = find_holder(slot->value, worker);

        if (at < 0)
            continue;
        count_removed(index, worker);
        remove_holder(index, &slot->value, at);
        if (slot->value == 0)
            block_map_remove_at(&index->map, &cursor);
    }
    assert(index->held_by[worker] == 0);
}

static void mark(uint32_t worker, uint64_t *words, size_t word_count)
{
    if (worker / WORD_BITS < word_count)
        words[worker / WORD_BITS] |= 1ull << worker % WORD_BITS;
}

/* Sets the bits of the holders of value; bits beyond the words asked for are not wanted. */
static void mark_holders(uint64_t value, uint64_t *words, size_t word_count)
{
    if (value & VALUE_IS_SET) {
        struct holder_set *set = value_set(value);

        if (is_dense(set)) {
            memcpy(words, set->words, word_count * sizeof *words);
            return;
        }
        memset(words, 0, word_count * sizeof *words);
        for (size_t i = 0; i < set->count; i++)
            mark(cell_worker(set_cells(set)[i]), words, word_count);
        return;
    }
    memset(words, 0, word_count * sizeof *words);
    for (; value != 0; value >>= CELL_BITS)
        mark(cell_worker(value), words, word_count);
}

static void settle(struct residency_match *match, const struct block *blocks, size_t block_count)
{
    *match = (struct residency_match){(uint32_t)block_count,
                                      block_count > 0 ? blocks[block_count - 1].end : 0};
}

/* Gives everybody in `leaving` a match of the first block_count blocks. */
static void settle_all(uint64_t leaving, size_t word, const struct block *blocks,
                       size_t block_count, struct residency_match *matches, size_t worker_count)
{
    for (; leaving != 0; leaving &= leaving - 1) {
        size_t worker = word * WORD_BITS + (size_t)__builtin_ctzll(leaving);

        if (worker < worker_count)
            settle(&matches[worker], blocks, block_count);
    }
}

void residency_index_match(const struct residency_index *index, const struct block *blocks,
                           size_t block_count, struct residency_match *matches, size_t worker_count)
{
    const size_t word_count = (worker_count + WORD_BITS - 1) / WORD_BITS;
    uint64_t active[WORD_COUNT], holders[WORD_COUNT];
    uint64_t value_before = 0;
    bool is_held = true;

    assert(worker_count <= RESIDENCY_WORKER_COUNT_MAX);
    assert(block_count <= UINT32_MAX);

    memset(matches, 0, worker_count * sizeof *matches);
    memset(active, 0xff, sizeof active);
    for (size_t i = 0; i < block_count && i < PREFETCH_AHEAD; i++)
        block_map_prefetch(&index->map, blocks[i].hash);

    for (size_t i = 0; is_held && i <= block_count; i++) {
        const uint64_t *found =
            i < block_count ? block_map_find(&index->map, blocks[i].hash) : NULL;
        const uint64_t value = found != NULL ? *found : 0;

        if (i + PREFETCH_AHEAD < block_count)
            block_map_prefetch(&index->map, blocks[i + PREFETCH_AHEAD].hash);
        if (value != 0 && value == value_before)
            continue;
        value_before = value;
        mark_holders(value, holders, word_count);
        is_held = false;
        for (size_t word = 0; word < word_count; word++) {
            settle_all(active[word] & ~holders[word], word, blocks, i, matches, worker_count);
            active[word] &= holders[word];
            is_held |= active[word] != 0;
        }
    }
}

struct residency_index_stats residency_index_stats(const struct residency_index *index)
{
    return (struct residency_index_stats){
        .block_count = block_map_count(&index->map),
        .holder_count = index->holder_count,
        .bytes = block_map_bytes(&index->map) + index->set_bytes,
        .refused_total = index->refused_total,
    };
}
