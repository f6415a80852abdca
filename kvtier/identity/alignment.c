/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/identity/alignment.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

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
 *
 * A text block is held in a tier when the tier holds all token blocks behind its parent's depth up
 * to its own, on its own token chain; where tiers take turns, the slowest that is needed. A block
 * that flipped more than FLIPS_MAX times is not claimed, which ends every prefix there.
 *
 * When a token block changes, the text blocks that cover it end in it or at most span_max - 1 below
 * it. They are only marked; alignment_flush() looks at each once, after all joins.
 */

enum {
    FLIPS_MAX = 3,
    SLACK_TOKENS = 85, /* a text block of 256 bytes at 3 bytes a token: what two prompts may share
                          behind the last block they both have */
    MAP_BYTES_PER_ENTRY = 48,
    MAP_BYTES_MIN = 4096,
};

static void mark_stale(struct alignment *alignment, uint32_t index)
{
    if (alignment->aligned[index].is_stale)
        return;
    assert(alignment->stale_count < alignment->config.text_nodes_max);
    alignment->aligned[index].is_stale = true;
    alignment->stale[alignment->stale_count++] = index;
}

static void mark_stale_at(struct alignment *alignment, uint64_t block)
{
    const uint64_t *first = block_map_find(&alignment->by_block, block);

    for (uint32_t i = first != NULL ? (uint32_t)*first : 0; i != 0; i = alignment->aligned[i].next)
        mark_stale(alignment, i);
}

/* The token node after node in the tree below top, no deeper than depth_max; NULL: that was all. */
static const struct token_node *next_below(const struct token_chain *tokens,
                                           const struct token_node *top,
                                           const struct token_node *node, uint32_t depth_max)
{
    if (node->child != 0 && node->depth < depth_max)
        return token_chain_at(tokens, node->child);
    while (node != top && node->sibling_older == 0)
        node = token_chain_at(tokens, node->parent);
    return node != top ? token_chain_at(tokens, node->sibling_older) : NULL;
}

static void on_tokens_changed(void *ctx, uint64_t name, uint8_t before, uint8_t after)
{
    struct alignment *alignment = ctx;
    const struct token_node *top = token_chain_find(&alignment->tokens, name);
    const struct token_node *node = top;

    (void)before;
    (void)after;
    assert(top != NULL);
    alignment->has_news = true;
    while (node != NULL) {
        mark_stale_at(alignment, node->digest.low);
        node = next_below(&alignment->tokens, top, node, top->depth + alignment->span_max);
    }
}

/* Takes index out of the list of its token block. */
static void detach(struct alignment *alignment, uint32_t index)
{
    struct aligned *aligned = &alignment->aligned[index];

    if (aligned->block == 0)
        return;
    if (aligned->next != 0)
        alignment->aligned[aligned->next].last = aligned->last;
    if (aligned->last != 0)
        alignment->aligned[aligned->last].next = aligned->next;
    else if (aligned->next != 0)
        *block_map_find(&alignment->by_block, aligned->block) = aligned->next;
    else
        block_map_remove(&alignment->by_block, aligned->block);
    aligned->block = 0;
    aligned->depth = aligned->next = aligned->last = 0;
}

/* Puts index into the list of node, or into none while no block is full (node is a root). */
static void attach(struct alignment *alignment, uint32_t index, const struct token_node *node)
{
    struct aligned *aligned = &alignment->aligned[index];
    uint64_t *first;

    if (node->depth > 0 && aligned->block == node->digest.low)
        return;
    detach(alignment, index);
    if (node->depth == 0)
        return;
    first = block_map_claim(&alignment->by_block, node->digest.low);
    if (first == NULL) { /* out of memory: unmapped it claims nothing and is mapped again later */
        aligned->is_mapped = false;
        return;
    }
    aligned->next = (uint32_t)*first;
    if (*first != 0)
        alignment->aligned[*first].last = index;
    *first = index;
    aligned->block = node->digest.low;
    aligned->depth = node->depth;
}

static void claim(struct alignment *alignment, uint32_t index, uint64_t hash, uint8_t tiers)
{
    struct aligned *aligned = &alignment->aligned[index];
    const struct token_node *node = token_chain_find(&alignment->tokens, aligned->block);
    const uint32_t tokens = tiers != 0 && node != NULL ? node->token_end : 0;

    if (aligned->claimed == tiers && aligned->claimed_tokens == tokens)
        return;
    aligned->claimed = tiers;
    aligned->claimed_tokens = tokens;
    if (alignment->config.on_claimed != NULL)
        alignment->config.on_claimed(alignment->config.ctx, hash, tiers, tokens);
}

/* The place in the stale list stays taken: whoever gets the index next is looked at once more. */
static void on_text_forgotten(void *ctx, uint32_t index, uint64_t hash)
{
    struct alignment *alignment = ctx;

    detach(alignment, index);
    claim(alignment, index, hash, 0);
    alignment->aligned[index] = (struct aligned){.is_stale = alignment->aligned[index].is_stale};
}

int alignment_init(struct alignment *alignment, struct alignment_config config)
{
    const size_t text_count = (size_t)config.text_nodes_max + 1;
    const size_t depth_count = (size_t)config.depth_max + 1;
    int status;

    *alignment = (struct alignment){.config = config, .span_max = 1};
    status = token_chain_init(&alignment->tokens,
                              (struct token_chain_config){.secret = config.secret,
                                                          .node_count_max = config.token_nodes_max,
                                                          .groups = config.groups,
                                                          .on_changed = on_tokens_changed,
                                                          .ctx = alignment});
    if (status < 0)
        goto out;
    status = text_chain_init(&alignment->text,
                             (struct text_chain_config){.node_count_max = config.text_nodes_max,
                                                        .depth_max = config.depth_max,
                                                        .on_forgotten = on_text_forgotten,
                                                        .ctx = alignment});
    if (status < 0)
        goto out;
    status = attempt_table_init(&alignment->attempts, config.attempts_max, config.wait_ms);
    if (status < 0)
        goto out;
    block_map_init(&alignment->by_block, text_count * MAP_BYTES_PER_ENTRY + MAP_BYTES_MIN);
    alignment->aligned = calloc(text_count, sizeof *alignment->aligned);
    alignment->stale = calloc(text_count, sizeof *alignment->stale);
    alignment->path = calloc(depth_count, sizeof *alignment->path);
    alignment->blocks = calloc(depth_count, sizeof *alignment->blocks);
    if (alignment->aligned == NULL || alignment->stale == NULL || alignment->path == NULL ||
        alignment->blocks == NULL)
        status = -ENOMEM;
out:
    if (status < 0)
        alignment_release(alignment);
    return status;
}

int alignment_record(struct alignment *alignment, const struct alignment_record *record,
                     uint64_t now_ms)
{
    struct attempt *attempt;
    uint32_t tip;
    int status = text_chain_extend(&alignment->text, record->start, record->blocks,
                                   record->block_count, &tip);

    if (status < 0)
        return status;
    attempt = attempt_table_claim(&alignment->attempts, record->attempt, now_ms);
    attempt->has_record = true;
    attempt->tip = tip;
    attempt->tip_hash = text_chain_at(&alignment->text, tip)->hash;
    alignment->has_news = true;
    return 0;
}

void alignment_anchor(struct alignment *alignment, const struct alignment_anchor *anchor,
                      uint64_t now_ms)
{
    struct attempt *attempt = attempt_table_claim(&alignment->attempts, anchor->attempt, now_ms);

    attempt->has_anchor = true;
    attempt->last_block = anchor->last_block;
    attempt->is_answer = anchor->is_answer;
    attempt->token_count = anchor->token_count;
    attempt->tail_tokens = anchor->tail_tokens;
    attempt->cached_tokens = anchor->cached_tokens;
    alignment->has_news = true;
}

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

        if (aligned->flips <= FLIPS_MAX)
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

static void settle_conflicts(struct join *join, uint32_t first, uint32_t last)
{
    const struct token_node *parting = find_parting(join, first);
    const uint32_t block_tokens = block_at(join, join->block_count)->token_end / join->block_count;
    const uint32_t low = parting->token_end > SLACK_TOKENS ? parting->token_end - SLACK_TOKENS : 0;
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

    if (cached == UINT32_MAX || join->known == 0 || join->known == join->path_count)
        return;
    if (cached > join->text_tokens)
        return;
    correct(join, join->known - 1, cached > SLACK_TOKENS ? cached - SLACK_TOKENS : 0, UINT32_MAX);
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

static void note_span(struct alignment *alignment, uint32_t depth, uint32_t parent_depth)
{
    if (depth > parent_depth && depth - parent_depth > alignment->span_max)
        alignment->span_max = depth - parent_depth;
}

/* What lies behind a block covers more or fewer tokens when that block's end moves. */
static void mark_children(struct alignment *alignment, uint32_t index)
{
    for (uint32_t i = text_chain_at(&alignment->text, index)->child; i != 0;
         i = text_chain_at(&alignment->text, i)->sibling_older) {
        note_span(alignment, alignment->aligned[i].depth, alignment->aligned[index].depth);
        mark_stale(alignment, i);
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

        attach(alignment, index, block_full_at(join, aligned->token_end));
        note_span(alignment, aligned->depth, parent_depth);
        mark_stale(alignment, index);
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

/* True: the attempt is done with, joined or not. */
static bool try_join(struct alignment *alignment, const struct attempt *attempt)
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

/* In which tiers all the token blocks of a text block are; the slowest needed where none has all.
 */
static uint8_t tiers_of(const struct alignment *alignment, uint32_t index)
{
    const struct aligned *aligned = &alignment->aligned[index];
    const uint32_t parent = text_chain_at(&alignment->text, index)->parent;
    const uint32_t depth = parent != 0 ? alignment->aligned[parent].depth : 0;
    const struct token_node *node = token_chain_find(&alignment->tokens, aligned->block);
    unsigned all = TOKEN_TIERS_ALL, slowest = 0;

    if (!aligned->is_mapped || aligned->flips > FLIPS_MAX)
        return 0;
    if (aligned->block == 0)
        return 1
               << TOKEN_TIER_HBM; /* no token block is full yet: nothing is promised, nor lacking */
    if (node == NULL)
        return 0;
    do {
        const unsigned tiers = node->tiers, fastest = tiers & (0U - tiers);

        if (tiers == 0)
            return 0;
        all &= tiers;
        if (fastest > slowest)
            slowest = fastest;
        node = token_chain_at(&alignment->tokens, node->parent);
    } while (node != NULL && node->depth > depth);
    return (uint8_t)(all != 0 ? all : slowest);
}

void alignment_flush(struct alignment *alignment, uint64_t now_ms)
{
    struct attempt *attempt;
    uint64_t cursor = 0;

    while (alignment->has_news && (attempt = attempt_table_next(&alignment->attempts, &cursor)))
        if (try_join(alignment, attempt))
            attempt_table_remove(&alignment->attempts, attempt);
    alignment->has_news = false;
    attempt_table_expire(&alignment->attempts, now_ms);
    while (alignment->stale_count > 0) {
        const uint32_t index = alignment->stale[--alignment->stale_count];
        const uint64_t hash = text_chain_at(&alignment->text, index)->hash;

        alignment->aligned[index].is_stale = false;
        if (hash != 0)
            claim(alignment, index, hash, tiers_of(alignment, index));
    }
}

uint8_t alignment_claim(const struct alignment *alignment, uint64_t hash, uint32_t *tokens)
{
    const uint32_t index = text_chain_find(&alignment->text, hash);

    if (tokens != NULL)
        *tokens = index != 0 ? alignment->aligned[index].claimed_tokens : 0;
    return index != 0 ? alignment->aligned[index].claimed : 0;
}

void alignment_release(struct alignment *alignment)
{
    token_chain_release(&alignment->tokens);
    text_chain_release(&alignment->text);
    attempt_table_release(&alignment->attempts);
    block_map_release(&alignment->by_block);
    free(alignment->aligned);
    free(alignment->stale);
    free(alignment->path);
    free(alignment->blocks);
    alignment->aligned = NULL;
    alignment->stale = alignment->path = alignment->blocks = NULL;
}
