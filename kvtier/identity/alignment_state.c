/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/identity/alignment_state.h"

#include "kvtier/identity/alignment_join.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "hashing/little_endian.h"

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
 * A chain is saved up to the first block that is not mapped, is withheld (what was learned of
 * answers is not kept, so it would be claimed), or is longer than routers cut them. The digest is
 * keyed: what another secret named is not taken for ours.
 *
 * A million blocks take longer than the loop may stand still. So a save goes on between other work,
 * and what is mapped otherwise behind its back is said again, at the end: of two runs with one
 * block the later counts. Half of it as it was and half as it is would be more than a hit lost: a
 * block that is claimed from its parent's depth on, where that is another prompt's, is a phantom.
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
    BYTES_PER_BLOCK = 27,   /* with its share of a run's head, by which out grows at once */
    AGAIN_COUNT_MAX = 8192, /* joins while a save is under way: seconds of them */
};
static_assert(TOKENS_BITS == DEPTH_BITS, "one limit for both");
static_assert(TOKENS_BITS + DEPTH_BITS + LENGTH_BITS + FLIPS_BITS + 1 <= 64, "a block's numbers");
static_assert(ALIGNMENT_FLIPS_MAX + 1 < 1 << FLIPS_BITS, "flips are counted to one more");

static const uint64_t VERSION = 1;

/* ---- numbers ---- */

static uint64_t get_u64(const char *bytes)
{
    return get_little((const uint8_t *)bytes, sizeof(uint64_t));
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
        put_little(bytes + i * sizeof *values, sizeof *values, values[i]);
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

    return aligned->is_mapped && !aligned->is_withheld &&
           length_of(alignment, index) <= LENGTH_MAX && aligned->token_end <= COUNT_MAX &&
           aligned->depth <= COUNT_MAX;
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

/* A save under way: which text blocks are in out, and the ends of paths to look at once more. */
struct alignment_saving {
    struct buf *out;
    size_t begin; /* of this state in out */
    uint32_t again_count;
    uint32_t again[AGAIN_COUNT_MAX];
    bool is_overfull;
    uint64_t saved[]; /* a bit each */
};

static bool is_saved(const struct alignment_saving *saving, uint32_t index)
{
    return saving->saved[index / 64] >> index % 64 & 1;
}

static void set_saved(struct alignment_saving *saving, uint32_t index, bool is_saved)
{
    const uint64_t bit = 1ull << index % 64;

    if (is_saved)
        saving->saved[index / 64] |= bit;
    else
        saving->saved[index / 64] &= ~bit;
}

/* Saves what leads to leaf and is not saved yet; how many blocks it looked at, or -ENOBUFS. */
static int64_t save_run(struct alignment *alignment, uint32_t leaf)
{
    const struct text_chain *text = &alignment->text;
    struct alignment_saving *saving = alignment->saving;
    uint32_t count = 0, worth = 0, base = leaf;
    int status = 0;

    for (; base != 0 && !is_saved(saving, base); base = text_chain_at(text, base)->parent)
        alignment->path[count++] = base;
    while (worth < count && is_worth_saving(alignment, alignment->path[count - 1 - worth]))
        worth++;
    if (worth > 0)
        status = append_u64s(
            saving->out, (uint64_t[]){base != 0 ? text_chain_at(text, base)->hash : 0, worth}, 2);
    for (uint32_t i = 0; status == 0 && i < worth; i++) {
        const uint32_t index = alignment->path[count - 1 - i];

        set_saved(saving, index, true);
        status = save_block(alignment, index, saving->out);
    }
    return status < 0 ? status : (int64_t)count + 1;
}

int alignment_save_begin(struct alignment *alignment, uint64_t identity, struct buf *out)
{
    const size_t words = alignment->config.text_nodes_max / 64 + 1;
    struct alignment_saving *saving = calloc(1, sizeof *saving + words * sizeof saving->saved[0]);
    int status = saving != NULL ? 0 : -ENOMEM;

    assert(alignment->saving == NULL);

    if (status == 0) {
        *saving = (struct alignment_saving){.out = out, .begin = buf_len(out)};
        /* At once, lest it be moved as it grows: what is not written is not there either. */
        (void)!buf_reserve(out, (size_t)alignment->text.node_count * BYTES_PER_BLOCK);
        status = append_u64s(out, (uint64_t[]){VERSION, identity}, 2);
    }
    if (status < 0) {
        free(saving);
        return status;
    }
    alignment->saving = saving;
    text_chain_walk_begin(&alignment->text);
    return 0;
}

void alignment_save_abandon(struct alignment *alignment)
{
    struct alignment_saving *saving = alignment->saving;

    if (saving == NULL)
        return;
    saving->out->end = saving->out->start + saving->begin;
    free(saving);
    alignment->saving = NULL;
}

int alignment_save_seal(const uint8_t *secret, struct buf *out, size_t begin)
{
    const struct slice bytes = slice_skip(buf_slice(out), begin);
    const uint64_t digest = digest_64(secret, DIGEST_ALIGNMENT, bytes.ptr, bytes.len);

    return append_u64s(out, &digest, 1);
}

/* The next end of a path to be saved; 0: there is none. */
static uint32_t next_tip(struct alignment *alignment)
{
    struct alignment_saving *saving = alignment->saving;
    const uint32_t leaf = text_chain_walk_next(&alignment->text);

    if (leaf != 0 || saving->again_count == 0)
        return leaf;
    return saving->again[--saving->again_count];
}

int alignment_save_step(struct alignment *alignment, uint32_t count)
{
    struct alignment_saving *saving = alignment->saving;
    int64_t status = 1;
    uint32_t tip = 0;

    assert(saving != NULL);

    for (int64_t left = count; left > 0 && status > 0; left -= status) {
        if (saving->is_overfull)
            status = -EOVERFLOW;
        else
            tip = next_tip(alignment);
        if (status > 0)
            status = tip != 0 ? save_run(alignment, tip) : 0;
    }
    if (status > 0)
        return 1;
    if (status < 0) {
        alignment_save_abandon(alignment);
        return (int)status;
    }
    free(saving);
    alignment->saving = NULL;
    return 0;
}

int alignment_save(struct alignment *alignment, uint64_t identity, struct buf *out)
{
    const size_t begin = buf_len(out);
    int status = alignment_save_begin(alignment, identity, out);

    if (status == 0)
        status = alignment_save_step(alignment, UINT32_MAX);
    assert(status <= 0); /* no more text blocks than that */
    if (status == 0)
        status = alignment_save_seal(alignment->config.secret, out, begin);
    if (status < 0)
        out->end = out->start + begin;
    return status;
}

/* Whoever gets the index next is another block. */
void alignment_save_note_forgotten(struct alignment *alignment, uint32_t index)
{
    if (alignment->saving != NULL)
        set_saved(alignment->saving, index, false);
}

/* Said once more, from the first that is otherwise on: the last that is said of a block counts. The
 * walk may have passed its end already. */
void alignment_save_note_path(struct alignment *alignment, uint32_t changed, uint32_t path_count)
{
    struct alignment_saving *saving = alignment->saving;
    uint32_t first = 0;

    if (saving == NULL)
        return;
    while (first < changed && is_saved(saving, alignment->path[first]))
        first++;
    if (first == path_count)
        return;
    for (uint32_t i = first; i < path_count; i++)
        set_saved(saving, alignment->path[i], false);
    if (saving->again_count == AGAIN_COUNT_MAX)
        saving->is_overfull = true;
    else
        saving->again[saving->again_count++] = alignment->path[path_count - 1];
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

/* What follows covers more or fewer tokens. */
static void widen_children(struct alignment *alignment, uint32_t index)
{
    uint32_t child = text_chain_at(&alignment->text, index)->child;

    for (; child != 0; child = text_chain_at(&alignment->text, child)->sibling_older) {
        alignment_note_span(alignment, alignment->aligned[child].depth,
                            alignment->aligned[index].depth);
        alignment_mark_stale(alignment, child);
    }
}

/* known: the text blocks that were mapped before this state was read. */
static bool map_block(struct alignment *alignment, uint32_t index, const struct aligned *loaded,
                      uint64_t *known)
{
    struct aligned *aligned = &alignment->aligned[index];
    const uint32_t parent = text_chain_at(&alignment->text, index)->parent;

    if (aligned->is_mapped && (known[index / 64] >> index % 64 & 1) != 0)
        return true; /* what was learned since is newer */
    if (!is_possible(alignment, loaded, parent)) {
        (void)alignment_attach_name(alignment, index, 0, 0);
        aligned->is_mapped = false;
        return false;
    }
    aligned->token_end = loaded->token_end;
    aligned->flips = loaded->flips;
    aligned->is_anchor = loaded->is_anchor;
    aligned->is_mapped = true;
    known[index / 64] &= ~(1ull << index % 64); /* of a block that was forgotten to make room */
    if (!alignment_attach_name(alignment, index, loaded->block, loaded->depth))
        return false;
    alignment_note_span(alignment, aligned->depth,
                        parent != 0 ? alignment->aligned[parent].depth : 0);
    alignment_mark_stale(alignment, index);
    widen_children(alignment, index);
    return true;
}

/* Takes in some blocks of a run behind *tip, which moves on. False: the rest of the run is of no
 * use. */
static bool load_portion(struct alignment *alignment, uint32_t *tip, struct slice bytes,
                         uint64_t *known)
{
    const size_t count = bytes.len / BLOCK_BYTES;
    struct text_block text[PORTION];
    struct saved_block block;
    uint64_t start = 0, end = 0;

    if (*tip != 0) {
        start = text_chain_at(&alignment->text, *tip)->hash;
        end = text_chain_at(&alignment->text, *tip)->end;
    }
    for (size_t i = 0; i < count; i++) {
        text[i] = read_block(bytes.ptr + i * BLOCK_BYTES, end).text;
        end = text[i].end;
    }
    if (text_chain_extend(&alignment->text, start, text, count, tip) < 0)
        return false;
    for (size_t i = 0; i < count; i++) {
        block = read_block(bytes.ptr + i * BLOCK_BYTES, 0);
        if (!map_block(alignment, text_chain_find(&alignment->text, block.text.hash),
                       &block.aligned, known))
            return false;
    }
    return true;
}

static void load_run(struct alignment *alignment, uint64_t start, struct slice blocks,
                     uint64_t *known)
{
    const size_t portion = (size_t)PORTION * BLOCK_BYTES;
    uint32_t tip = text_chain_find(&alignment->text, start);

    if (start != 0 && tip == 0)
        return; /* there is less room than there was */
    while (blocks.len > 0) {
        const size_t len = blocks.len < portion ? blocks.len : portion;

        if (!load_portion(alignment, &tip, slice_of(blocks.ptr, len), known))
            return;
        blocks = slice_skip(blocks, len);
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

/* A bit for each text block that is mapped; NULL: no memory. */
static uint64_t *find_known(const struct alignment *alignment)
{
    uint64_t *known = calloc(alignment->config.text_nodes_max / 64 + 1, sizeof *known);

    for (uint32_t i = 1; known != NULL && i <= alignment->config.text_nodes_max; i++)
        known[i / 64] |= (uint64_t)alignment->aligned[i].is_mapped << i % 64;
    return known;
}

int alignment_load(struct alignment *alignment, uint64_t identity, struct slice bytes)
{
    struct slice runs, blocks;
    uint64_t *known;
    uint64_t start;

    if (!open_state(alignment, identity, &bytes))
        return -EPROTO;
    for (runs = bytes; runs.len > 0;)
        if (!next_run(&runs, &start, &blocks))
            return -EPROTO;
    known = find_known(alignment);
    if (known == NULL)
        return -ENOMEM;
    for (runs = bytes; next_run(&runs, &start, &blocks);)
        load_run(alignment, start, blocks, known);
    free(known);
    return 0;
}
