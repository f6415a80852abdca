/* SPDX-License-Identifier: Apache-2.0 */

#include "router/residency/block_holders.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/*
 * DESIGN
 *
 *     63  62        42 41      28 27      14 13       0
 *     [0 |   tokens   |  cell 2  |  cell 1  |  cell 0  ]     cell = tiers << 11 | holder;  0: none
 *     [1 |                 address of a holder_set                 ]
 *
 * Up to three holders that agree about the tokens are the value itself. They nearly always do:
 * they count the same prefix in the same vocabulary. So one cache line answers for nearly every
 * block. Cells are packed and in ascending order of holders: the same holders make the same cells,
 * however they came, and a match need not look at them twice.
 *
 * More holders, or such as disagree, are a holder_set: the cells in the same order, 2 bytes each,
 * tokens for each of them only while they disagree, and a bitmap as well from DENSE_CAPACITY_MIN
 * on: what everybody holds (a system prompt) costs a match no more than what one holds, and the
 * bitmap's rank of a holder is the place of its cell.
 *
 *     [count, capacity, tokens | words, if dense | tokens of each, if they disagree | cells ]
 *
 * A set never changes its form in place: it is written anew, by one function, when it is full, when
 * it has become a quarter full, and when its holders begin or cease to disagree.
 */

enum {
    CELL_BITS = 14,
    CELL_MASK = (1 << CELL_BITS) - 1,
    NUMBER_MASK = (1 << BLOCK_HOLDERS_NUMBER_BITS) - 1,
    INLINE_COUNT = 3,
    TOKENS_SHIFT = INLINE_COUNT * CELL_BITS,
    TOKENS_MASK = (1 << BLOCK_HOLDERS_TOKEN_BITS) - 1,
    CAPACITY_MIN = 4,
    DENSE_CAPACITY_MIN = 128,
};
static_assert(TOKENS_SHIFT + BLOCK_HOLDERS_TOKEN_BITS == 63, "bit 63 of a value means a set");

static const uint64_t VALUE_IS_SET = 1ull << 63;
static const uint64_t CELLS_MASK = (1ull << TOKENS_SHIFT) - 1;

struct holder_set {
    uint16_t count;
    uint16_t capacity;
    uint32_t tokens;  /* of all of them, or DISAGREE */
    uint64_t words[]; /* and what follows: see DESIGN */
};

static const uint32_t DISAGREE = UINT32_MAX;

static uint16_t make_cell(struct block_holding holding)
{
    return (uint16_t)((uint32_t)holding.tiers << BLOCK_HOLDERS_NUMBER_BITS | holding.holder);
}

static uint32_t cell_holder(uint64_t cell)
{
    return (uint32_t)cell & NUMBER_MASK;
}

static uint8_t cell_tiers(uint64_t cell)
{
    return (uint8_t)((cell & CELL_MASK) >> BLOCK_HOLDERS_NUMBER_BITS);
}

static uint64_t inline_cell(uint64_t value, unsigned at)
{
    return value >> (CELL_BITS * at) & CELL_MASK;
}

static uint32_t inline_tokens(uint64_t value)
{
    return (uint32_t)(value >> TOKENS_SHIFT) & TOKENS_MASK;
}

static bool has_set(uint64_t value)
{
    return (value & VALUE_IS_SET) != 0;
}

static struct holder_set *set_of(uint64_t value)
{
    return (struct holder_set *)(uintptr_t)(value & ~VALUE_IS_SET); /* NOLINT: see DESIGN */
}

/* ---- the parts of a set ---- */

static bool is_dense(const struct holder_set *set)
{
    return set->capacity >= DENSE_CAPACITY_MIN;
}

static size_t words_size(size_t capacity)
{
    return capacity >= DENSE_CAPACITY_MIN ? BLOCK_HOLDERS_WORD_COUNT * sizeof(uint64_t) : 0;
}

static size_t set_size(size_t capacity, bool is_agreed)
{
    return sizeof(struct holder_set) + words_size(capacity) +
           capacity * (sizeof(uint16_t) + (is_agreed ? 0 : sizeof(uint32_t)));
}

/* Only if they disagree. */
static uint32_t *set_tokens(struct holder_set *set)
{
    return (uint32_t *)(void *)((uint8_t *)set->words + words_size(set->capacity));
}

static uint16_t *set_cells(struct holder_set *set)
{
    uint32_t *tokens = set_tokens(set);

    return (uint16_t *)(void *)(set->tokens == DISAGREE ? tokens + set->capacity : tokens);
}

static uint32_t tokens_at(struct holder_set *set, size_t at)
{
    return set->tokens == DISAGREE ? set_tokens(set)[at] : set->tokens;
}

/* How many holders of the set have lower numbers. */
static size_t rank(struct holder_set *set, uint32_t holder)
{
    const uint16_t *cells = set_cells(set);
    size_t count = 0;

    if (is_dense(set)) {
        const uint32_t word = holder / BLOCK_HOLDERS_WORD_BITS;

        for (uint32_t i = 0; i < word; i++)
            count += (size_t)__builtin_popcountll(set->words[i]);
        return count + (size_t)__builtin_popcountll(
                           set->words[word] & ((1ull << holder % BLOCK_HOLDERS_WORD_BITS) - 1));
    }
    for (size_t i = 0; i < set->count; i++) /* no early end: the compiler makes vectors of it */
        count += cell_holder(cells[i]) < holder;
    return count;
}

static void flip_bit(struct holder_set *set, uint32_t holder)
{
    set->words[holder / BLOCK_HOLDERS_WORD_BITS] ^= 1ull << holder % BLOCK_HOLDERS_WORD_BITS;
}

/* ---- a value in either form ---- */

static size_t holder_count(uint64_t value)
{
    size_t count = 0;

    if (has_set(value))
        return set_of(value)->count;
    while (count < INLINE_COUNT && inline_cell(value, (unsigned)count) != 0)
        count++;
    return count;
}

static struct block_holding holding_at(uint64_t value, size_t at)
{
    const uint64_t cell =
        has_set(value) ? set_cells(set_of(value))[at] : inline_cell(value, (unsigned)at);

    return (struct block_holding){
        .holder = cell_holder(cell),
        .tokens = has_set(value) ? tokens_at(set_of(value), at) : inline_tokens(value),
        .tiers = cell_tiers(cell),
    };
}

/* Where holder is among the holders, or would go. */
static size_t place_of(uint64_t value, uint32_t holder)
{
    size_t at = 0;

    if (has_set(value))
        return rank(set_of(value), holder);
    while (at < INLINE_COUNT && inline_cell(value, (unsigned)at) != 0 &&
           cell_holder(inline_cell(value, (unsigned)at)) < holder)
        at++;
    return at;
}

static bool is_at(uint64_t value, size_t at, uint32_t holder)
{
    return at < holder_count(value) && holding_at(value, at).holder == holder;
}

/* All have the same tokens, in whichever form that is written. */
static bool is_agreed(uint64_t value)
{
    struct holder_set *set;
    size_t i = 1;

    if (!has_set(value) || set_of(value)->tokens != DISAGREE)
        return true;
    set = set_of(value);
    while (i < set->count && set_tokens(set)[i] == set_tokens(set)[0])
        i++;
    return i >= set->count;
}

/* ---- from one form to another ---- */

/* What the allocator takes for it: 8 bytes more, in steps of 16. */
static size_t chunk_size(const struct holder_set *set)
{
    const size_t size = set_size(set->capacity, set->tokens != DISAGREE);

    return size <= 24 ? 32 : (size + 8 + 15) & ~(size_t)15;
}

void block_holders_release(uint64_t *value, struct block_holders_memory *memory)
{
    if (has_set(*value)) {
        memory->bytes -= chunk_size(set_of(*value));
        free(set_of(*value));
    }
    *value = 0;
}

static void write_inline(uint64_t *value, struct block_holders_memory *memory)
{
    const size_t count = holder_count(*value);
    uint64_t packed = (uint64_t)holding_at(*value, 0).tokens << TOKENS_SHIFT;

    assert(count <= INLINE_COUNT);

    for (size_t i = 0; i < count; i++)
        packed |= (uint64_t)make_cell(holding_at(*value, i)) << (CELL_BITS * i);
    block_holders_release(value, memory);
    *value = packed;
}

/* A quarter more than count, so that not every new holder means a new set. */
static size_t capacity_of(size_t count)
{
    return (count + count / 4 + 3) & ~(size_t)3;
}

/* Writes the holders of value into a set of that capacity. False: no room, unchanged. */
static bool write_set(uint64_t *value, size_t capacity, bool agree,
                      struct block_holders_memory *memory)
{
    const struct holder_set form = {.capacity = (uint16_t)capacity, .tokens = agree ? 0 : DISAGREE};
    const size_t bytes_freed = has_set(*value) ? chunk_size(set_of(*value)) : 0;
    const size_t count = holder_count(*value);
    struct holder_set *set;

    assert(count <= capacity);

    if (memory->bytes - bytes_freed + chunk_size(&form) > memory->bytes_max)
        return false;
    set = calloc(1, set_size(capacity, agree));
    if (set == NULL)
        return false;
    *set = form;
    set->count = (uint16_t)count;
    if (agree)
        set->tokens = holding_at(*value, 0).tokens;
    for (size_t i = 0; i < count; i++) {
        const struct block_holding holding = holding_at(*value, i);

        set_cells(set)[i] = make_cell(holding);
        if (!agree)
            set_tokens(set)[i] = holding.tokens;
        if (is_dense(set))
            flip_bit(set, holding.holder);
    }
    block_holders_release(value, memory);
    memory->bytes += chunk_size(set);
    *value = VALUE_IS_SET | (uint64_t)(uintptr_t)set;
    return true;
}

/* A smaller form for what is left. Where there is no memory for it now the larger one stays. */
static void shrink(uint64_t *value, struct block_holders_memory *memory)
{
    struct holder_set *set = set_of(*value);
    const bool agree = is_agreed(*value);

    if (set->count <= INLINE_COUNT && agree)
        write_inline(value, memory);
    else if (capacity_of(set->count) <= set->capacity / 2 || agree != (set->tokens != DISAGREE))
        (void)write_set(value, capacity_of(set->count), agree, memory);
}

/* ---- changes ---- */

static void insert_into_set(struct holder_set *set, size_t at, struct block_holding holding)
{
    const size_t behind = set->count - at;
    uint16_t *cells = set_cells(set);

    assert(set->count < set->capacity);

    memmove(cells + at + 1, cells + at, behind * sizeof *cells);
    cells[at] = make_cell(holding);
    if (set->tokens == DISAGREE) {
        uint32_t *tokens = set_tokens(set);

        memmove(tokens + at + 1, tokens + at, behind * sizeof *tokens);
        tokens[at] = holding.tokens;
    }
    set->count++;
    if (is_dense(set))
        flip_bit(set, holding.holder);
}

static void remove_from_set(struct holder_set *set, size_t at)
{
    const size_t behind = set->count - at - 1u;
    uint16_t *cells = set_cells(set);

    if (is_dense(set))
        flip_bit(set, cell_holder(cells[at]));
    memmove(cells + at, cells + at + 1, behind * sizeof *cells);
    if (set->tokens == DISAGREE)
        memmove(set_tokens(set) + at, set_tokens(set) + at + 1, behind * sizeof(uint32_t));
    set->count--;
}

static uint64_t below(size_t at)
{
    return (1ull << (CELL_BITS * at)) - 1;
}

static void insert_inline(uint64_t *value, size_t at, struct block_holding holding)
{
    const uint64_t cells = *value & CELLS_MASK;

    *value = (uint64_t)holding.tokens << TOKENS_SHIFT | (cells & below(at)) |
             (uint64_t)make_cell(holding) << (CELL_BITS * at) | (cells & ~below(at)) << CELL_BITS;
}

static int insert(uint64_t *value, size_t at, struct block_holding holding,
                  struct block_holders_memory *memory)
{
    const size_t count = holder_count(*value);
    const bool was_agreed = !has_set(*value) || set_of(*value)->tokens != DISAGREE;
    const bool agree = count == 0 || (was_agreed && holding_at(*value, 0).tokens == holding.tokens);

    if (!has_set(*value) && count < INLINE_COUNT && agree) {
        insert_inline(value, at, holding);
        return 1;
    }
    if ((!has_set(*value) || set_of(*value)->capacity == count || agree != was_agreed) &&
        !write_set(value, capacity_of(count + 1), agree, memory))
        return -ENOBUFS;
    insert_into_set(set_of(*value), at, holding);
    return 1;
}

static void set_tiers(uint64_t *value, size_t at, uint16_t cell)
{
    if (has_set(*value))
        set_cells(set_of(*value))[at] = cell;
    else
        *value = (*value & ~((uint64_t)CELL_MASK << (CELL_BITS * at))) | (uint64_t)cell
                                                                             << (CELL_BITS * at);
}

static int replace(uint64_t *value, size_t at, struct block_holding holding,
                   struct block_holders_memory *memory)
{
    const size_t count = holder_count(*value);

    if (holding_at(*value, at).tokens != holding.tokens) {
        const bool was_agreed = !has_set(*value) || set_of(*value)->tokens != DISAGREE;

        if (count == 1 && !has_set(*value)) {
            *value = 0;
            insert_inline(value, 0, holding);
            return 0;
        }
        if (was_agreed && !write_set(value, capacity_of(count), false, memory))
            return -ENOBUFS;
        set_tokens(set_of(*value))[at] = holding.tokens;
        set_tiers(value, at, make_cell(holding));
        shrink(value, memory);
        return 0;
    }
    set_tiers(value, at, make_cell(holding));
    return 0;
}

int block_holders_store(uint64_t *value, struct block_holding holding,
                        struct block_holders_memory *memory)
{
    const size_t at = place_of(*value, holding.holder);

    assert(holding.tiers != 0 && holding.tiers <= CELL_MASK >> BLOCK_HOLDERS_NUMBER_BITS);
    assert(holding.holder <= NUMBER_MASK && holding.tokens <= TOKENS_MASK);

    return is_at(*value, at, holding.holder) ? replace(value, at, holding, memory)
                                             : insert(value, at, holding, memory);
}

bool block_holders_remove(uint64_t *value, uint32_t holder, struct block_holders_memory *memory)
{
    const size_t at = place_of(*value, holder);

    if (!is_at(*value, at, holder))
        return false;
    if (holder_count(*value) == 1) {
        block_holders_release(value, memory);
    } else if (has_set(*value)) {
        remove_from_set(set_of(*value), at);
        shrink(value, memory);
    } else {
        const uint64_t cells = *value & CELLS_MASK;

        *value = (*value & ~CELLS_MASK) | (cells & below(at)) | (cells >> CELL_BITS & ~below(at));
    }
    return true;
}

/* ---- questions ---- */

uint8_t block_holders_find(uint64_t value, uint32_t holder, uint32_t *tokens)
{
    const size_t at = place_of(value, holder);
    struct block_holding holding;

    if (!is_at(value, at, holder))
        return 0;
    holding = holding_at(value, at);
    *tokens = holding.tokens;
    return holding.tiers;
}

int block_holders_first_of(uint64_t value, const uint64_t words[BLOCK_HOLDERS_WORD_COUNT])
{
    const size_t count = holder_count(value);

    for (size_t i = 0; i < count; i++) {
        const uint32_t holder = holding_at(value, i).holder;

        if (words[holder / BLOCK_HOLDERS_WORD_BITS] >> holder % BLOCK_HOLDERS_WORD_BITS & 1)
            return (int)holder;
    }
    return -1;
}

static void mark(uint32_t holder, uint64_t *words, size_t word_count)
{
    if (holder / BLOCK_HOLDERS_WORD_BITS < word_count)
        words[holder / BLOCK_HOLDERS_WORD_BITS] |= 1ull << holder % BLOCK_HOLDERS_WORD_BITS;
}

void block_holders_write(uint64_t value, uint64_t *words, size_t word_count)
{
    assert(word_count <= BLOCK_HOLDERS_WORD_COUNT);

    if (has_set(value) && is_dense(set_of(value))) {
        memcpy(words, set_of(value)->words, word_count * sizeof *words);
        return;
    }
    memset(words, 0, word_count * sizeof *words);
    if (has_set(value)) {
        struct holder_set *set = set_of(value);

        for (size_t i = 0; i < set->count; i++)
            mark(cell_holder(set_cells(set)[i]), words, word_count);
        return;
    }
    for (uint64_t cells = value & CELLS_MASK; cells != 0; cells >>= CELL_BITS)
        mark(cell_holder(cells), words, word_count);
}

uint64_t block_holders_key(uint64_t value)
{
    return has_set(value) ? value : value & CELLS_MASK;
}
