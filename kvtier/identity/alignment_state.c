/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/identity/alignment_state.h"

#include "kvtier/identity/alignment_join.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

/*
 * DESIGN
 *
 *     state   version 8, identity 8, runs, digest of all before it 8
 *     run     start 8, count 8, blocks: 24 each
 *     block   hash 8, token block's name 8, from the lowest bit on: tokens 22, depth 22, length 9,
 *             flips 3, is_anchor 1
 *
 * Numbers are little-endian. A run is a text chain from a block that an earlier run has (start: its
 * hash; 0: the beginning of a stream) to a leaf; leaves are in order of their last use. So reading
 * a run is what taking in a record is, with all that a record is checked for, a smaller limit
 * forgets what was used longest ago, and the order of use is what it was.
 *
 * A chain is saved up to the first block that is not mapped, or is longer than routers cut them.
 * The digest is keyed: what another secret named is not taken for ours.
 */

enum {
    HEAD_BYTES = 16,
    RUN_BYTES = 16,
    BLOCK_BYTES = 24,
    DIGEST_BYTES = 8,
    LENGTH_BITS = 9,
    TOKENS_BITS = 22,
    DEPTH_BITS = 22,
    FLIPS_BITS = 3,
    LENGTH_MAX = 1 << LENGTH_BITS, /* saved less one: no block is empty */
    COUNT_MAX = (1 << TOKENS_BITS) - 1,
    PORTION = 64,
};
static_assert(TOKENS_BITS == DEPTH_BITS, "one limit for both");
static_assert(TOKENS_BITS + DEPTH_BITS + LENGTH_BITS + FLIPS_BITS + 1 <= 64, "a block's numbers");
static_assert(ALIGNMENT_FLIPS_MAX + 1 < 1 << FLIPS_BITS, "flips are counted to one more");

static const uint64_t VERSION = 1;

/* ---- numbers ---- */

static void put_u64(uint8_t *bytes, uint64_t value)
{
    for (unsigned i = 0; i < sizeof value; i++)
        bytes[i] = (uint8_t)(value >> 8 * i);
}

static uint64_t get_u64(const char *bytes)
{
    uint64_t value = 0;

    for (unsigned i = sizeof value; i-- > 0;)
        value = value << 8 | (uint8_t)bytes[i];
    return value;
}

/* The lowest bits of *word, which loses them. */
static uint32_t take_bits(uint64_t *word, unsigned count)
{
    const uint32_t bits = (uint32_t)(*word & ((1ull << count) - 1));

    *word >>= count;
    return bits;
}

/* ---- saving ---- */

static int append_u64s(struct buf *out, const uint64_t *values, size_t count)
{
    uint8_t bytes[BLOCK_BYTES];

    assert(count * sizeof *values <= sizeof bytes);
    for (size_t i = 0; i < count; i++)
        put_u64(bytes + i * sizeof *values, values[i]);
    return buf_append(out, slice_of(bytes, count * sizeof *values));
}

static uint64_t length_of(const struct alignment *alignment, uint32_t index)
{
    const struct text_node *text = text_chain_at(&alignment->text, index);

    return text->end - (text->parent != 0 ? text_chain_at(&alignment->text, text->parent)->end : 0);
}

static bool is_worth_saving(const struct alignment *alignment, uint32_t index)
{
    const struct aligned *aligned = &alignment->aligned[index];

    return aligned->is_mapped && length_of(alignment, index) <= LENGTH_MAX &&
           aligned->token_end <= COUNT_MAX && aligned->depth <= COUNT_MAX;
}

static int save_block(const struct alignment *alignment, uint32_t index, struct buf *out)
{
    const struct aligned *aligned = &alignment->aligned[index];
    uint64_t numbers = aligned->is_anchor;

    numbers = numbers << FLIPS_BITS | aligned->flips;
    numbers = numbers << LENGTH_BITS | (length_of(alignment, index) - 1);
    numbers = numbers << DEPTH_BITS | aligned->depth;
    numbers = numbers << TOKENS_BITS | aligned->token_end;
    return append_u64s(
        out, (uint64_t[]){text_chain_at(&alignment->text, index)->hash, aligned->block, numbers},
        3);
}

static bool is_saved(const uint64_t *saved, uint32_t index)
{
    return saved[index / 64] >> index % 64 & 1;
}

/* Saves what leads to leaf and is not saved yet. */
static int save_run(struct alignment *alignment, uint32_t leaf, uint64_t *saved, struct buf *out)
{
    const struct text_chain *text = &alignment->text;
    uint32_t count = 0, worth = 0, base = leaf;
    int status;

    for (; base != 0 && !is_saved(saved, base); base = text_chain_at(text, base)->parent)
        alignment->path[count++] = base;
    while (worth < count && is_worth_saving(alignment, alignment->path[count - 1 - worth]))
        worth++;
    if (worth == 0)
        return 0;
    status =
        append_u64s(out, (uint64_t[]){base != 0 ? text_chain_at(text, base)->hash : 0, worth}, 2);
    for (uint32_t i = 0; status == 0 && i < worth; i++) {
        const uint32_t index = alignment->path[count - 1 - i];

        saved[index / 64] |= 1ull << index % 64;
        status = save_block(alignment, index, out);
    }
    return status;
}

int alignment_save(struct alignment *alignment, uint64_t identity, struct buf *out)
{
    uint64_t *saved = calloc(alignment->config.text_nodes_max / 64 + 1, sizeof *saved);
    const size_t begin = buf_len(out);
    int status = saved != NULL ? buf_reserve(out, HEAD_BYTES) : -ENOMEM;

    if (status == 0)
        status = append_u64s(out, (uint64_t[]){VERSION, identity}, 2);
    for (uint32_t leaf = 0;
         status == 0 && (leaf = text_chain_next_leaf(&alignment->text, leaf)) != 0;)
        status = save_run(alignment, leaf, saved, out);
    if (status == 0) {
        const struct slice bytes = slice_skip(buf_slice(out), begin);
        const uint64_t digest =
            digest_64(alignment->config.secret, DIGEST_ALIGNMENT, bytes.ptr, bytes.len);

        status = append_u64s(out, &digest, 1);
    }
    if (status < 0)
        out->end = out->start + begin;
    free(saved);
    return status;
}

/* ---- loading ---- */

struct saved_block {
    struct text_block text;
    struct aligned aligned; /* block, token_end, depth, flips, is_anchor */
};

/* The block at bytes, behind one that ends at `end`. */
static struct saved_block read_block(const char *bytes, uint64_t end)
{
    uint64_t numbers = get_u64(bytes + 16);
    struct saved_block block = {.text.hash = get_u64(bytes), .aligned.block = get_u64(bytes + 8)};

    block.aligned.token_end = take_bits(&numbers, TOKENS_BITS);
    block.aligned.depth = take_bits(&numbers, DEPTH_BITS);
    block.text.end = end + take_bits(&numbers, LENGTH_BITS) + 1;
    block.aligned.flips = (uint8_t)take_bits(&numbers, FLIPS_BITS);
    block.aligned.is_anchor = take_bits(&numbers, 1);
    return block;
}

/* A place that a join could have given it, behind parent (0: none). */
static bool is_possible(const struct alignment *alignment, const struct aligned *aligned,
                        uint32_t parent)
{
    const struct aligned *before = &alignment->aligned[parent];

    return aligned->depth <= alignment->config.depth_max &&
           (aligned->depth == 0) == (aligned->block == 0) && aligned->depth <= aligned->token_end &&
           aligned->flips <= ALIGNMENT_FLIPS_MAX + 1 &&
           (parent == 0 || (before->is_mapped && before->token_end <= aligned->token_end));
}

static bool map_block(struct alignment *alignment, uint32_t index, const struct aligned *loaded)
{
    struct aligned *aligned = &alignment->aligned[index];
    const uint32_t parent = text_chain_at(&alignment->text, index)->parent;

    if (aligned->is_mapped)
        return true; /* what was learned since is newer */
    if (!is_possible(alignment, loaded, parent))
        return false;
    aligned->token_end = loaded->token_end;
    aligned->flips = loaded->flips;
    aligned->is_anchor = loaded->is_anchor;
    aligned->is_mapped = true;
    if (!alignment_attach_name(alignment, index, loaded->block, loaded->depth))
        return false;
    alignment_note_span(alignment, aligned->depth,
                        parent != 0 ? alignment->aligned[parent].depth : 0);
    alignment_mark_stale(alignment, index);
    return true;
}

/* Takes in some blocks of a run behind *tip, which moves on. False: the rest of the run is of no
 * use. */
static bool load_portion(struct alignment *alignment, uint32_t *tip, const char *bytes,
                         size_t count)
{
    struct text_block text[PORTION];
    struct saved_block block;
    uint64_t start = 0, end = 0;

    if (*tip != 0) {
        start = text_chain_at(&alignment->text, *tip)->hash;
        end = text_chain_at(&alignment->text, *tip)->end;
    }
    for (size_t i = 0; i < count; i++) {
        text[i] = read_block(bytes + i * BLOCK_BYTES, end).text;
        end = text[i].end;
    }
    if (text_chain_extend(&alignment->text, start, text, count, tip) < 0)
        return false;
    for (size_t i = 0; i < count; i++) {
        block = read_block(bytes + i * BLOCK_BYTES, 0);
        if (!map_block(alignment, text_chain_find(&alignment->text, block.text.hash),
                       &block.aligned))
            return false;
    }
    return true;
}

static void load_run(struct alignment *alignment, uint64_t start, const char *bytes, size_t count)
{
    uint32_t tip = text_chain_find(&alignment->text, start);

    if (start != 0 && tip == 0)
        return; /* there is less room than there was */
    for (size_t at = 0; at < count; at += PORTION) {
        const size_t portion = count - at < PORTION ? count - at : PORTION;

        if (!load_portion(alignment, &tip, bytes + at * BLOCK_BYTES, portion))
            return;
    }
}

/* The runs of a whole and unharmed state; false: it is none of ours. */
static bool open_state(const struct alignment *alignment, uint64_t identity, struct slice *bytes)
{
    const size_t digest_at = bytes->len - DIGEST_BYTES;

    if (bytes->len < HEAD_BYTES + DIGEST_BYTES || get_u64(bytes->ptr) != VERSION ||
        get_u64(bytes->ptr + 8) != identity ||
        get_u64(bytes->ptr + digest_at) !=
            digest_64(alignment->config.secret, DIGEST_ALIGNMENT, bytes->ptr, digest_at))
        return false;
    *bytes = slice_of(bytes->ptr + HEAD_BYTES, digest_at - HEAD_BYTES);
    return true;
}

/* The next run; false: there is no whole one. */
static bool next_run(struct slice *runs, uint64_t *start, struct slice *blocks)
{
    uint64_t count;

    if (runs->len < RUN_BYTES)
        return false;
    *start = get_u64(runs->ptr);
    count = get_u64(runs->ptr + 8);
    if (count == 0 || count > (runs->len - RUN_BYTES) / BLOCK_BYTES)
        return false;
    *blocks = slice_of(runs->ptr + RUN_BYTES, (size_t)count * BLOCK_BYTES);
    *runs = slice_skip(*runs, RUN_BYTES + blocks->len);
    return true;
}

int alignment_load(struct alignment *alignment, uint64_t identity, struct slice bytes)
{
    struct slice runs, blocks;
    uint64_t start;

    if (!open_state(alignment, identity, &bytes))
        return -EPROTO;
    for (runs = bytes; runs.len > 0;)
        if (!next_run(&runs, &start, &blocks))
            return -EPROTO;
    for (runs = bytes; next_run(&runs, &start, &blocks);)
        load_run(alignment, start, blocks.ptr, blocks.len / BLOCK_BYTES);
    return 0;
}
