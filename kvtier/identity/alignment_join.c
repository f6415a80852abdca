/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/identity/alignment_join.h"

#include "hashing/stream_identity.h"

#include <assert.h>

/*
 * DESIGN
 *
 *   bytes   0 ...... H1 ...... H2 .. H3 ......... H4 |      record: the chain up to the tip H4
 *   tokens  0 ..T1..T2..T3..T4..T5..T6..T7..T8..T9.. |      anchor: how many up to there; T9
 *
 * A join needs the record, the anchor and the token chain. Whichever comes last, it does the same,
 * with the same data: that is why any order gives the same result. It
 *
 *   1. finds how much of the text is mapped already, and where the tokens that this was mapped to
 *      part from the new ones;
 *   2. where prompts with equal text part, so do their tokens: a block mapped behind that place was
 *      interpolated wrongly and is corrected. But where even an anchor lies behind it, equal text
 *      did not become equal tokens (a template drops old reasoning, writes the date): the newest
 *      anchor wins from there on, and the blocks are said to flip;
 *   3. interpolates by bytes what is new;
 *   4. gives every block of the path the last token block that is full by its end.
 */

/* A text block of 256 bytes at 3 bytes a token: what two prompts may share behind the last text
 * block that they both have. */
enum { SLACK_TOKENS = 85 };

/* A join in progress. Indices of path; tokens from the start of the prompt. */
struct join {
    struct alignment *alignment;
    uint32_t path_count;
    uint32_t known;       /* the first so many of path keep the place they have */
    uint32_t block_count; /* blocks[1..block_count] of the prompt; [0] is their root */
    uint32_t text_tokens; /* at the tip */
    uint32_t cached_tokens;
};

static struct aligned *on_path(const struct join *join, uint32_t i)
{
    return &join->alignment->aligned[join->alignment->path[i]];
}

static const struct token_node *block_at(const struct join *join, uint32_t depth)
{
    return token_chain_at(&join->alignment->tokens, join->alignment->blocks[depth]);
}

/* The last block of the prompt that is full at tokens; the root: none is. */
static const struct token_node *block_full_at(const struct join *join, uint32_t tokens)
{
    uint32_t low = 0, high = join->block_count;

    while (low < high) {
        const uint32_t middle = low + (high - low + 1) / 2;

        if (block_at(join, middle)->token_end <= tokens)
            low = middle;
        else
            high = middle - 1;
    }
    return block_at(join, low);
}

/* Ends in tokens of path[first..last], by bytes from the one before first to tokens at last. */
static void interpolate(const struct join *join, uint32_t first, uint32_t last, uint32_t tokens)
{
    const struct text_chain *text = &join->alignment->text;
    const uint32_t *path = join->alignment->path;
    const uint64_t byte_from = first > 0 ? text_chain_at(text, path[first - 1])->end : 0;
    const uint64_t byte_to = text_chain_at(text, path[last])->end;
    const uint32_t token_from = first > 0 ? on_path(join, first - 1)->token_end : 0;

    assert(tokens >= token_from);
    for (uint32_t i = first; i <= last; i++) {
        struct aligned *aligned = on_path(join, i);
        const double share =
            (double)(text_chain_at(text, path[i])->end - byte_from) / (double)(byte_to - byte_from);

        aligned->token_end = token_from + (uint32_t)((tokens - token_from) * share);
        aligned->is_mapped = true;
        aligned->is_anchor = false;
    }
    on_path(join, last)->token_end = tokens;
}

/* Whether path[i] is mapped to tokens that the new prompt has not. A block that the engine no
 * longer knows says nothing. */
static bool is_conflict(const struct join *join, uint32_t i)
{
    const struct token_node *node =
        token_chain_find(&join->alignment->tokens, on_path(join, i)->block);

    return node != NULL && (node->depth > join->block_count || block_at(join, node->depth) != node);
}

/* Where the tokens of path[i] part from the new prompt's: the last block that both have. */
static const struct token_node *find_parting(const struct join *join, uint32_t i)
{
    const struct token_chain *tokens = &join->alignment->tokens;
    const struct token_node *node = token_chain_find(tokens, on_path(join, i)->block);

    while (node->depth > join->block_count || block_at(join, node->depth) != node) {
        if (node->parent == 0)
            return block_at(join, 0); /* not even the root: another LoRA or salt */
        node = token_chain_at(tokens, node->parent);
    }
    return node;
}

/*
 * Equal text became other tokens: path[first..last] is mapped anew, and so is what follows it
 * unless that agrees with the new prompt already.
 */
static void flip(struct join *join, uint32_t first, uint32_t last)
{
    for (uint32_t i = first; i <= last; i++) {
        struct aligned *aligned = on_path(join, i);

        if (aligned->flips <= ALIGNMENT_FLIPS_MAX)
            aligned->flips++;
        join->alignment->stats.flipped++;
    }
    if (last + 1 < join->known) {
        struct aligned *next = on_path(join, last + 1);
        const bool is_anchor = next->is_anchor;

        if (first == 0 || on_path(join, first - 1)->token_end <= next->token_end) {
            interpolate(join, first, last + 1, next->token_end);
            next->is_anchor = is_anchor;
            return;
        }
    }
    join->known = first;
}

/* The place of path[last] is good to within [low, high]; what was interpolated up to it is moved.
 */
static void correct(const struct join *join, uint32_t last, uint32_t low, uint32_t high)
{
    const uint32_t at = on_path(join, last)->token_end;
    const uint32_t to = at < low ? low : high;
    uint32_t first = last;

    if (on_path(join, last)->is_anchor || (at >= low && at <= high))
        return;
    while (first > 0 && !on_path(join, first - 1)->is_anchor)
        first--;
    if (first > 0 && on_path(join, first - 1)->token_end > to)
        return; /* the anchor is good to within a block too: leave both */
    interpolate(join, first, last, to);
    join->alignment->stats.corrected++;
}

/* How many tokens two prompts may share behind path[i], which both have. A block that is not full
 * ends a message, and messages that differ mostly differ from their beginning. */
static uint32_t slack_behind(const struct join *join, uint32_t i)
{
    const struct text_chain *text = &join->alignment->text;
    const uint64_t begin = i > 0 ? text_chain_at(text, join->alignment->path[i - 1])->end : 0;
    const uint64_t end = text_chain_at(text, join->alignment->path[i])->end;

    return end - begin < STREAM_BLOCK_BYTES ? 0 : SLACK_TOKENS;
}

static void settle_conflicts(struct join *join, uint32_t first, uint32_t last)
{
    const struct token_node *parting = find_parting(join, first);
    const uint32_t block_tokens = block_at(join, join->block_count)->token_end / join->block_count;
    const uint32_t slack = slack_behind(join, last);
    const uint32_t low = parting->token_end > slack ? parting->token_end - slack : 0;
    const uint32_t high = parting->token_end + block_tokens - 1;

    for (uint32_t i = first; i <= last; i++) {
        if (on_path(join, i)->is_anchor && on_path(join, i)->token_end > high + SLACK_TOKENS) {
            flip(join, first, last);
            return;
        }
    }
    correct(join, last, low, high);
}

/* The engine found more of this prompt than the text we know to be shared: the text's place is
 * too early. Only a bound from below: what was found may have been cut short by eviction. */
static void use_cached(const struct join *join)
{
    const uint32_t cached = join->cached_tokens;
    uint32_t slack;

    if (cached == UINT32_MAX || join->known == 0 || join->known == join->path_count)
        return;
    if (cached > join->text_tokens)
        return;
    slack = slack_behind(join, join->known - 1);
    correct(join, join->known - 1, cached > slack ? cached - slack : 0, UINT32_MAX);
}

/* Decides where each block of the path ends, in tokens. */
static void settle(struct join *join)
{
    struct aligned *tip = on_path(join, join->path_count - 1);
    uint32_t first = 0, last = join->known, fitting;

    while (first < join->known && !is_conflict(join, first))
        first++;
    while (last > first && !is_conflict(join, last - 1))
        last--;
    if (first < last)
        settle_conflicts(join, first, last - 1);
    else
        use_cached(join);
    if (join->known == join->path_count && tip->token_end != join->text_tokens)
        join->known--; /* it was interpolated, or came to be other tokens: now it is known */
    fitting = join->known;
    while (fitting > 0 && on_path(join, fitting - 1)->token_end > join->text_tokens)
        fitting--;
    if (fitting < join->known)
        flip(join, fitting, join->known - 1);
    if (join->known < join->path_count)
        interpolate(join, join->known, join->path_count - 1, join->text_tokens);
    tip->is_anchor = true;
}

/* What lies behind a block covers more or fewer tokens when that block's end moves. */
static void mark_children(struct alignment *alignment, uint32_t index)
{
    for (uint32_t i = text_chain_at(&alignment->text, index)->child; i != 0;
         i = text_chain_at(&alignment->text, i)->sibling_older) {
        alignment_note_span(alignment, alignment->aligned[i].depth,
                            alignment->aligned[index].depth);
        alignment_mark_stale(alignment, i);
    }
}

static void attach_path(const struct join *join)
{
    struct alignment *alignment = join->alignment;
    uint32_t parent_depth = 0;

    for (uint32_t i = 0; i < join->path_count; i++) {
        const uint32_t index = alignment->path[i];
        struct aligned *aligned = on_path(join, i);
        const uint32_t depth = aligned->depth;

        alignment_attach(alignment, index, block_full_at(join, aligned->token_end));
        alignment_note_span(alignment, aligned->depth, parent_depth);
        alignment_mark_stale(alignment, index);
        if (aligned->depth != depth)
            mark_children(alignment, index);
        parent_depth = aligned->depth;
    }
}

static void lay_out_path(struct join *join, uint32_t tip)
{
    struct alignment *alignment = join->alignment;

    join->path_count = text_chain_at(&alignment->text, tip)->depth;
    for (uint32_t i = join->path_count; i-- > 0;) {
        alignment->path[i] = tip;
        tip = text_chain_at(&alignment->text, tip)->parent;
    }
    while (join->known < join->path_count && on_path(join, join->known)->is_mapped)
        join->known++;
}

static void lay_out_blocks(struct join *join, const struct token_node *last)
{
    struct alignment *alignment = join->alignment;

    join->block_count = last->depth;
    for (uint32_t depth = last->depth + 1; depth-- > 0;) {
        alignment->blocks[depth] = (uint32_t)(last - alignment->tokens.nodes);
        last = token_chain_at(&alignment->tokens, last->parent);
    }
}

/*
 * The attempt's last full block; NULL: not there yet. No one tells the tokens of an answer, so its
 * blocks are those that were made last behind the prompt's. If that was another answer to the same
 * prompt, the next turn's anchor puts it right. The last token of an answer is never computed, so
 * that it fills no block.
 */
static const struct token_node *find_last(const struct alignment *alignment,
                                          const struct attempt *attempt)
{
    const struct token_node *node = token_chain_find(&alignment->tokens, attempt->last_block);
    uint32_t block_tokens;

    if (node == NULL || !attempt->is_answer || node->depth == 0)
        return node;
    block_tokens = node->token_end / node->depth;
    while (node != NULL && attempt->token_count > node->token_end + block_tokens)
        node = token_chain_at(&alignment->tokens, node->child);
    return node;
}

/* That many tokens fill the blocks up to last, and not one more. */
static bool is_fitting(const struct alignment *alignment, const struct attempt *attempt,
                       const struct token_node *last)
{
    return last->depth > 0 && last->depth <= alignment->config.depth_max &&
           attempt->token_count >= last->token_end &&
           attempt->token_count - last->token_end <
               last->token_end / last->depth + (attempt->is_answer ? 1 : 0) &&
           attempt->token_count > attempt->tail_tokens;
}

bool alignment_join(struct alignment *alignment, const struct attempt *attempt)
{
    const struct token_node *last = find_last(alignment, attempt);
    struct join join = {.alignment = alignment, .cached_tokens = attempt->cached_tokens};

    if (!attempt->has_record || !attempt->has_anchor || last == NULL)
        return false;
    if (text_chain_at(&alignment->text, attempt->tip)->hash != attempt->tip_hash) {
        alignment->stats.lost++;
        return true;
    }
    if (!is_fitting(alignment, attempt, last)) {
        alignment->stats.unfit++;
        return true;
    }
    join.text_tokens = attempt->token_count - attempt->tail_tokens;
    lay_out_path(&join, attempt->tip);
    lay_out_blocks(&join, last);
    settle(&join);
    attach_path(&join);
    alignment->stats.joined++;
    return true;
}
