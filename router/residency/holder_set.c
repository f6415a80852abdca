/* SPDX-License-Identifier: Apache-2.0 */

#include "router/residency/holder_set.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/*
 * DESIGN
 *
 *     [count, capacity, tokens | words, if dense | tokens of each, if they disagree | cells ]
 *
 *     cell = tiers << 11 | holder
 *
 * 2 bytes a holder, 4 more for each only while they disagree about the tokens, and a bitmap as well
 * from DENSE_CAPACITY_MIN on: what everybody holds (a system prompt) costs a match no more than
 * what one holds, and the bitmap's rank of a holder is the place of its cell. A set never changes
 * capacity or form: its owner writes another one.
 */

enum {
    NUMBER_MASK = (1 << HOLDER_NUMBER_BITS) - 1,
    DENSE_CAPACITY_MIN = 128,
    CHUNK_BYTES_MIN = 32, /* of malloc() on 64 bits: 8 bytes of its own, in steps of 16 */
    CHUNK_BYTES_OWN = 8,
    CHUNK_BYTES_STEP = 16,
};

static const uint32_t DISAGREE = UINT32_MAX;

struct holder_set {
    uint16_t count;
    uint16_t capacity;
    uint32_t tokens;  /* of all of them, or DISAGREE */
    uint64_t words[]; /* and what follows: see DESIGN */
};

static size_t word_count_of(size_t capacity)
{
    return capacity >= DENSE_CAPACITY_MIN ? HOLDER_WORD_COUNT : 0;
}

static bool is_dense(const struct holder_set *set)
{
    return word_count_of(set->capacity) > 0;
}

/* Only if they disagree. */
static uint32_t *tokens_of(const struct holder_set *set)
{
    return (uint32_t *)(void *)(set->words + word_count_of(set->capacity));
}

static uint16_t *cells_of(const struct holder_set *set)
{
    uint32_t *tokens = tokens_of(set);

    return (uint16_t *)(void *)(set->tokens == DISAGREE ? tokens + set->capacity : tokens);
}

static uint32_t cell_holder(uint16_t cell)
{
    return cell & NUMBER_MASK;
}

static uint16_t make_cell(struct block_holding holding)
{
    return (uint16_t)((uint32_t)holding.tiers << HOLDER_NUMBER_BITS | holding.holder);
}

static size_t size_of(size_t capacity, bool is_agreed)
{
    return sizeof(struct holder_set) + word_count_of(capacity) * sizeof(uint64_t) +
           capacity * (sizeof(uint16_t) + (is_agreed ? 0 : sizeof(uint32_t)));
}

static void flip_bit(struct holder_set *set, uint32_t holder)
{
    set->words[holder / HOLDER_WORD_BITS] ^= 1ull << holder % HOLDER_WORD_BITS;
}

struct holder_set *holder_set_create(size_t capacity, bool is_agreed)
{
    struct holder_set *set = calloc(1, size_of(capacity, is_agreed));

    assert(capacity > 0 && capacity <= UINT16_MAX);

    if (set == NULL)
        return NULL;
    set->capacity = (uint16_t)capacity;
    set->tokens = is_agreed ? 0 : DISAGREE;
    return set;
}

void holder_set_destroy(struct holder_set *set)
{
    free(set);
}

size_t holder_set_bytes(size_t capacity, bool is_agreed)
{
    const size_t size = size_of(capacity, is_agreed) + CHUNK_BYTES_OWN;

    if (size <= CHUNK_BYTES_MIN)
        return CHUNK_BYTES_MIN;
    return (size + CHUNK_BYTES_STEP - 1) / CHUNK_BYTES_STEP * CHUNK_BYTES_STEP;
}

size_t holder_set_count(const struct holder_set *set)
{
    return set->count;
}

size_t holder_set_capacity(const struct holder_set *set)
{
    return set->capacity;
}

bool holder_set_is_agreed(const struct holder_set *set)
{
    return set->tokens != DISAGREE;
}

size_t holder_set_place(const struct holder_set *set, uint32_t holder)
{
    const uint16_t *cells = cells_of(set);
    size_t count = 0;

    if (is_dense(set)) {
        const uint32_t word = holder / HOLDER_WORD_BITS;
        const uint64_t below = (1ull << holder % HOLDER_WORD_BITS) - 1;

        for (uint32_t i = 0; i < word; i++)
            count += (size_t)__builtin_popcountll(set->words[i]);
        return count + (size_t)__builtin_popcountll(set->words[word] & below);
    }
    for (size_t i = 0; i < set->count; i++) /* no early end: the compiler makes vectors of it */
        count += cell_holder(cells[i]) < holder;
    return count;
}

struct block_holding holder_set_at(const struct holder_set *set, size_t at)
{
    const uint16_t cell = cells_of(set)[at];

    assert(at < set->count);

    return (struct block_holding){
        .holder = cell_holder(cell),
        .tokens = set->tokens == DISAGREE ? tokens_of(set)[at] : set->tokens,
        .tiers = (uint8_t)(cell >> HOLDER_NUMBER_BITS),
    };
}

void holder_set_insert(struct holder_set *set, size_t at, struct block_holding holding)
{
    const size_t behind = set->count - at;
    uint16_t *cells = cells_of(set);

    assert(set->count < set->capacity && at <= set->count);
    assert(set->tokens == DISAGREE || set->count == 0 || set->tokens == holding.tokens);

    memmove(cells + at + 1, cells + at, behind * sizeof *cells);
    if (set->tokens == DISAGREE)
        memmove(tokens_of(set) + at + 1, tokens_of(set) + at, behind * sizeof(uint32_t));
    if (is_dense(set))
        flip_bit(set, holding.holder);
    set->count++;
    holder_set_replace(set, at, holding);
}

void holder_set_replace(struct holder_set *set, size_t at, struct block_holding holding)
{
    assert(at < set->count);
    assert(set->tokens == DISAGREE || set->count == 1 || set->tokens == holding.tokens);

    cells_of(set)[at] = make_cell(holding);
    if (set->tokens == DISAGREE)
        tokens_of(set)[at] = holding.tokens;
    else
        set->tokens = holding.tokens;
}

void holder_set_remove(struct holder_set *set, size_t at)
{
    const size_t behind = set->count - at - 1u;
    uint16_t *cells = cells_of(set);

    assert(at < set->count);

    if (is_dense(set))
        flip_bit(set, cell_holder(cells[at]));
    memmove(cells + at, cells + at + 1, behind * sizeof *cells);
    if (set->tokens == DISAGREE)
        memmove(tokens_of(set) + at, tokens_of(set) + at + 1, behind * sizeof(uint32_t));
    set->count--;
}

/* Each has it in one of tiers. */
static bool are_all_in(const struct holder_set *set, uint8_t tiers)
{
    const uint32_t mask = (uint32_t)tiers << HOLDER_NUMBER_BITS;
    const uint16_t *cells = cells_of(set);
    size_t count = 0;

    for (size_t i = 0; i < set->count; i++) /* no early end: as in holder_set_place() */
        count += (cells[i] & mask) != 0;
    return count == set->count;
}

void holder_set_write(const struct holder_set *set, uint8_t tiers, uint64_t *words,
                      size_t word_count)
{
    const uint32_t mask = (uint32_t)tiers << HOLDER_NUMBER_BITS;
    const uint16_t *cells = cells_of(set);

    if (is_dense(set) && (tiers == HOLDER_TIERS_ALL || are_all_in(set, tiers))) {
        memcpy(words, set->words, word_count * sizeof *words);
        return;
    }
    memset(words, 0, word_count * sizeof *words);
    for (size_t i = 0; i < set->count; i++) {
        const uint32_t holder = cell_holder(cells[i]);

        if ((cells[i] & mask) != 0 && holder / HOLDER_WORD_BITS < word_count)
            words[holder / HOLDER_WORD_BITS] |= 1ull << holder % HOLDER_WORD_BITS;
    }
}
