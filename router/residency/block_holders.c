/* SPDX-License-Identifier: Apache-2.0 */

#include "router/residency/block_holders.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

/*
 * DESIGN
 *
 *     63  62        42 41      28 27      14 13       0
 *     [0 |   tokens   |  cell 2  |  cell 1  |  cell 0  ]     cell = tiers << 11 | holder
 *     [0 |   tokens   | 0 . more |  cell 1  |  cell 0  ]     tiers 0: no holder
 *     [1 |                 address of a holder_set                 ]
 *
 * Up to three holders that agree about the tokens are the value itself, so that what a table has
 * fetched answers for nearly every block: holders count the same prefix in the same vocabulary,
 * and only between two anchors do they interpolate. Two may disagree a little: the second counts
 * `more` tokens than the first, from -1023 to 1023. Whatever else there is, is a set.
 *
 * Cells are packed and in ascending order of holders: the same holders make the same cells, however
 * they came, and a match need not look at them twice.
 *
 * A set is written anew when it is full, when half of it has become enough, and when its holders
 * begin or cease to disagree; and it goes when they fit into the value again.
 */

enum {
    CELL_BITS = HOLDER_NUMBER_BITS + HOLDER_TIER_BITS,
    CELL_MASK = (1 << CELL_BITS) - 1,
    NUMBER_MASK = (1 << HOLDER_NUMBER_BITS) - 1,
    INLINE_COUNT = 3,
    TOKENS_SHIFT = INLINE_COUNT * CELL_BITS,
    TOKENS_MASK = (1 << HOLDER_TOKEN_BITS) - 1,
    MORE_SHIFT = 2 * CELL_BITS,
    MORE_MAX = (1 << (HOLDER_NUMBER_BITS - 1)) - 1,
};
static_assert(TOKENS_SHIFT + HOLDER_TOKEN_BITS == 63, "bit 63 of a value means a set");

static const uint64_t VALUE_IS_SET = 1ull << 63;
static const uint64_t CELLS_MASK = (1ull << TOKENS_SHIFT) - 1;

static bool has_set(uint64_t value)
{
    return (value & VALUE_IS_SET) != 0;
}

static struct holder_set *set_of(uint64_t value)
{
    return (struct holder_set *)(uintptr_t)(value & ~VALUE_IS_SET); /* NOLINT: see DESIGN */
}

/* ---- holders in the value itself ---- */

static uint64_t cell_at(uint64_t value, size_t at)
{
    return value >> (CELL_BITS * at) & CELL_MASK;
}

static uint32_t cell_holder(uint64_t cell)
{
    return (uint32_t)cell & NUMBER_MASK;
}

static uint64_t make_cell(struct block_holding holding)
{
    return (uint64_t)holding.tiers << HOLDER_NUMBER_BITS | holding.holder;
}

static bool is_holder(uint64_t cell)
{
    return cell >> HOLDER_NUMBER_BITS != 0;
}

/* How many tokens more the second of two holders counts. */
static int32_t more_of(uint64_t value)
{
    const uint64_t cell = cell_at(value, 2);
    const int32_t more = (int32_t)cell_holder(cell);

    if (is_holder(cell))
        return 0;
    return more > MORE_MAX ? more - (1 << HOLDER_NUMBER_BITS) : more;
}

/* False: these do not fit into a value. */
static bool pack(const struct block_holding *holdings, size_t count, uint64_t *value)
{
    const uint32_t tokens = holdings[0].tokens;
    uint64_t packed = (uint64_t)tokens << TOKENS_SHIFT;

    if (count > INLINE_COUNT)
        return false;
    for (size_t i = 0; i < count; i++) {
        const int32_t more = (int32_t)holdings[i].tokens - (int32_t)tokens;

        if (more != 0 && (count != 2 || more > MORE_MAX || more < -MORE_MAX))
            return false;
        packed |= make_cell(holdings[i]) << (CELL_BITS * i);
        packed |= ((uint64_t)(uint32_t)more & NUMBER_MASK) << MORE_SHIFT;
    }
    *value = packed;
    return true;
}

/* ---- a value of either kind ---- */

static size_t count_of(uint64_t value)
{
    size_t count = 0;

    if (has_set(value))
        return holder_set_count(set_of(value));
    while (count < INLINE_COUNT && is_holder(cell_at(value, count)))
        count++;
    return count;
}

static struct block_holding holding_at(uint64_t value, size_t at)
{
    const uint32_t tokens = (uint32_t)(value >> TOKENS_SHIFT) & TOKENS_MASK;
    uint64_t cell;

    if (has_set(value))
        return holder_set_at(set_of(value), at);
    cell = cell_at(value, at);
    return (struct block_holding){
        .holder = cell_holder(cell),
        .tokens = at == 1 ? tokens + (uint32_t)more_of(value) : tokens,
        .tiers = (uint8_t)(cell >> HOLDER_NUMBER_BITS),
    };
}

/* Where holder is among them, or would go. */
static size_t place_of(uint64_t value, uint32_t holder)
{
    size_t at = 0;

    if (has_set(value))
        return holder_set_place(set_of(value), holder);
    while (at < INLINE_COUNT && is_holder(cell_at(value, at)) &&
           cell_holder(cell_at(value, at)) < holder)
        at++;
    return at;
}

static bool is_at(uint64_t value, size_t at, uint32_t holder)
{
    return at < count_of(value) && holding_at(value, at).holder == holder;
}

/* ---- from one form to another ---- */

static size_t bytes_of(uint64_t value)
{
    const struct holder_set *set = set_of(value);

    return has_set(value) ? holder_set_bytes(holder_set_capacity(set), holder_set_is_agreed(set))
                          : 0;
}

void block_holders_release(uint64_t *value, struct block_holders_memory *memory)
{
    if (has_set(*value)) {
        memory->bytes -= bytes_of(*value);
        holder_set_destroy(set_of(*value));
    }
    *value = 0;
}

/* A quarter more than count, so that not every new holder means a new set. */
static size_t capacity_for(size_t count)
{
    return (count + count / 4 + 3) & ~(size_t)3;
}

/* Writes the holders into a set with room for count. False: no room, unchanged. */
static bool write_set(uint64_t *value, size_t count, bool is_agreed,
                      struct block_holders_memory *memory)
{
    const size_t capacity = capacity_for(count);
    const size_t bytes = holder_set_bytes(capacity, is_agreed);
    struct holder_set *set;

    if (memory->bytes - bytes_of(*value) + bytes > memory->bytes_max)
        return false;
    set = holder_set_create(capacity, is_agreed);
    if (set == NULL)
        return false;
    for (size_t i = 0; i < count_of(*value); i++)
        holder_set_insert(set, i, holding_at(*value, i));
    block_holders_release(value, memory);
    memory->bytes += bytes;
    *value = VALUE_IS_SET | (uint64_t)(uintptr_t)set;
    return true;
}

/* False: the holders of the set do not fit into a value. */
static bool write_inline(uint64_t *value, struct block_holders_memory *memory)
{
    struct block_holding holdings[INLINE_COUNT];
    const size_t count = count_of(*value);
    uint64_t packed;

    if (count > INLINE_COUNT)
        return false;
    for (size_t i = 0; i < count; i++)
        holdings[i] = holding_at(*value, i);
    if (!pack(holdings, count, &packed))
        return false;
    block_holders_release(value, memory);
    *value = packed;
    return true;
}

static bool all_agree(uint64_t value)
{
    const size_t count = count_of(value);
    size_t i = 1;

    if (holder_set_is_agreed(set_of(value)))
        return true;
    while (i < count && holding_at(value, i).tokens == holding_at(value, 0).tokens)
        i++;
    return i >= count;
}

/* The best form for what is in the set. Where there is no memory for it now the old one stays. */
static void shrink(uint64_t *value, struct block_holders_memory *memory)
{
    const struct holder_set *set = set_of(*value);
    const size_t count = holder_set_count(set);
    const bool is_agreed = all_agree(*value);

    if (write_inline(value, memory))
        return;
    if (capacity_for(count) <= holder_set_capacity(set) / 2 ||
        is_agreed != holder_set_is_agreed(set))
        (void)write_set(value, count, is_agreed, memory);
}

/* ---- changes ---- */

/* Puts holding at its place among the holders in the value. False: not all fit then, unchanged. */
static bool store_inline(uint64_t *value, size_t at, bool is_new, struct block_holding holding)
{
    struct block_holding holdings[INLINE_COUNT + 1];
    const size_t count = count_of(*value);

    for (size_t i = 0; i < count; i++)
        holdings[i + (is_new && i >= at)] = holding_at(*value, i);
    holdings[at] = holding;
    return pack(holdings, count + is_new, value);
}

/* The set that holding can be put into. False: no room, unchanged. */
static bool prepare_set(uint64_t *value, bool is_new, struct block_holding holding,
                        struct block_holders_memory *memory)
{
    const size_t count = count_of(*value) + is_new;
    uint32_t tokens;
    const bool is_agreed = block_holders_agreed(*value, &tokens) && tokens == holding.tokens;

    if (has_set(*value) && count <= holder_set_capacity(set_of(*value)) &&
        is_agreed == holder_set_is_agreed(set_of(*value)))
        return true;
    return write_set(value, count, is_agreed, memory);
}

int block_holders_store(uint64_t *value, struct block_holding holding,
                        struct block_holders_memory *memory)
{
    size_t at;
    bool is_new;

    assert(holding.tiers != 0 && holding.tiers >> HOLDER_TIER_BITS == 0);
    assert(holding.holder <= NUMBER_MASK && holding.tokens <= TOKENS_MASK);

    if (*value == 0)
        return pack(&holding, 1, value);
    at = place_of(*value, holding.holder);
    is_new = !is_at(*value, at, holding.holder);
    if (!has_set(*value) && store_inline(value, at, is_new, holding))
        return is_new;
    if (!prepare_set(value, is_new, holding, memory))
        return -ENOBUFS;
    if (is_new) {
        holder_set_insert(set_of(*value), at, holding);
    } else {
        holder_set_replace(set_of(*value), at, holding);
        shrink(value, memory); /* they may agree now */
    }
    return is_new;
}

static void remove_inline(uint64_t *value, size_t at)
{
    struct block_holding holdings[INLINE_COUNT];
    const size_t count = count_of(*value);

    for (size_t i = 0; i < count; i++)
        if (i != at)
            holdings[i - (i > at)] = holding_at(*value, i);
    (void)pack(holdings, count - 1, value); /* fewer fit where more did */
}

/* The commonest case, and the cheapest. */
static bool is_alone(uint64_t value, uint32_t holder)
{
    return !has_set(value) && !is_holder(cell_at(value, 1)) && is_holder(cell_at(value, 0)) &&
           cell_holder(cell_at(value, 0)) == holder;
}

bool block_holders_remove(uint64_t *value, uint32_t holder, struct block_holders_memory *memory)
{
    size_t at;

    if (is_alone(*value, holder)) {
        *value = 0;
        return true;
    }
    at = place_of(*value, holder);
    if (!is_at(*value, at, holder))
        return false;
    if (has_set(*value)) {
        holder_set_remove(set_of(*value), at); /* it had four, or three that disagreed: some stay */
        shrink(value, memory);
    } else {
        remove_inline(value, at);
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

bool block_holders_agreed(uint64_t value, uint32_t *tokens)
{
    if (value == 0 || (has_set(value) ? !holder_set_is_agreed(set_of(value)) : more_of(value) != 0))
        return false;
    *tokens = holding_at(value, 0).tokens;
    return true;
}

int block_holders_first_of(uint64_t value, const uint64_t words[HOLDER_WORD_COUNT])
{
    const size_t count = count_of(value);

    for (size_t i = 0; i < count; i++) {
        const uint32_t holder = holding_at(value, i).holder;

        if (words[holder / HOLDER_WORD_BITS] >> holder % HOLDER_WORD_BITS & 1)
            return (int)holder;
    }
    return -1;
}

void block_holders_write(uint64_t value, uint8_t tiers, uint64_t *words, size_t word_count)
{
    assert(word_count <= HOLDER_WORD_COUNT);

    if (has_set(value)) {
        holder_set_write(set_of(value), tiers, words, word_count);
        return;
    }
    memset(words, 0, word_count * sizeof *words);
    for (size_t i = 0; i < count_of(value); i++) {
        const uint64_t cell = cell_at(value, i);
        const uint32_t holder = cell_holder(cell);

        if ((cell >> HOLDER_NUMBER_BITS & tiers) != 0 && holder / HOLDER_WORD_BITS < word_count)
            words[holder / HOLDER_WORD_BITS] |= 1ull << holder % HOLDER_WORD_BITS;
    }
}

uint64_t block_holders_key(uint64_t value)
{
    if (has_set(value))
        return value;
    return is_holder(cell_at(value, 2)) ? value & CELLS_MASK : value & ((1ull << MORE_SHIFT) - 1);
}
