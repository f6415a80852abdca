/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/identity/alignment.h"

#include "kvtier/identity/alignment_join.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/*
 * DESIGN (how text blocks come to their token blocks: alignment_join.c)
 *
 * A text block is held in a tier when the tier holds all token blocks behind its parent's depth up
 * to its own, on its own token chain; where tiers take turns, the slowest that is needed. A block
 * that flipped more than ALIGNMENT_FLIPS_MAX times is not claimed, which ends every prefix there.
 *
 * Text before the first full token block promises nothing, but a run that did not begin there would
 * be no run: it is claimed, with 0 tokens, exactly while something that follows it is.
 *
 * When a token block changes, the text blocks that cover it end in it or at most span_max - 1 below
 * it. They are only marked; alignment_flush() looks at each once, after all joins.
 */

enum {
    MAP_BYTES_PER_ENTRY = 48,
    MAP_BYTES_MIN = 4096,
};

void alignment_mark_stale(struct alignment *alignment, uint32_t index)
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
        alignment_mark_stale(alignment, i);
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
        node =
            token_chain_next_below(&alignment->tokens, top, node, top->depth + alignment->span_max);
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

bool alignment_attach_name(struct alignment *alignment, uint32_t index, uint64_t block,
                           uint32_t depth)
{
    struct aligned *aligned = &alignment->aligned[index];
    uint64_t *first;

    if (depth > 0 && aligned->block == block)
        return true;
    detach(alignment, index);
    if (depth == 0)
        return true;
    first = block_map_claim(&alignment->by_block, block);
    if (first == NULL) {
        aligned->is_mapped = false;
        return false;
    }
    aligned->next = (uint32_t)*first;
    if (*first != 0)
        alignment->aligned[*first].last = index;
    *first = index;
    aligned->block = block;
    aligned->depth = depth;
    return true;
}

void alignment_attach(struct alignment *alignment, uint32_t index, const struct token_node *node)
{
    (void)alignment_attach_name(alignment, index, node->digest.low, node->depth);
}

void alignment_note_span(struct alignment *alignment, uint32_t depth, uint32_t parent_depth)
{
    if (depth > parent_depth && depth - parent_depth > alignment->span_max)
        alignment->span_max = depth - parent_depth;
}

/* What a block without tokens claims depends on those behind it. */
static void count_claimed_child(struct alignment *alignment, uint32_t parent, int change)
{
    struct aligned *aligned = &alignment->aligned[parent];

    if (parent == 0 || change == 0)
        return;
    assert(change > 0 || aligned->claimed_children > 0);
    aligned->claimed_children += (uint32_t)change;
    if (aligned->block == 0)
        alignment_mark_stale(alignment, parent);
}

static void claim(struct alignment *alignment, uint32_t index, uint64_t hash, uint8_t tiers)
{
    struct aligned *aligned = &alignment->aligned[index];
    const struct token_node *node = token_chain_find(&alignment->tokens, aligned->block);
    const uint32_t tokens = tiers != 0 && node != NULL ? node->token_end : 0;

    if (aligned->claimed == tiers && aligned->claimed_tokens == tokens)
        return;
    for (unsigned tier = 0; tier < TOKEN_TIER_COUNT; tier++) {
        alignment->stats.claimed[tier] += tiers >> tier & 1;
        alignment->stats.claimed[tier] -= aligned->claimed >> tier & 1;
    }
    aligned->claimed = tiers;
    aligned->claimed_tokens = tokens;
    if (alignment->config.on_claimed != NULL)
        alignment->config.on_claimed(alignment->config.ctx, hash, tiers, tokens);
}

/* The place in the stale list stays taken: whoever gets the index next is looked at once more. */
static void on_text_forgotten(void *ctx, uint32_t index, uint64_t hash, uint32_t parent)
{
    struct alignment *alignment = ctx;

    detach(alignment, index);
    count_claimed_child(alignment, parent, alignment->aligned[index].claimed != 0 ? -1 : 0);
    claim(alignment, index, hash, 0);
    alignment->aligned[index] = (struct aligned){.is_stale = alignment->aligned[index].is_stale};
}

int alignment_init(struct alignment *alignment, struct alignment_config config)
{
    const size_t text_count = (size_t)config.text_nodes_max + 1;
    const size_t depth_count = (size_t)config.depth_max + 1;
    int status;

    *alignment = (struct alignment){.config = config, .span_max = 1, .answer_share = 1};
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

int alignment_allow_tokens(struct alignment *alignment, uint32_t token_nodes_max)
{
    int status = token_chain_allow(&alignment->tokens, token_nodes_max);

    if (status == 0)
        alignment->config.token_nodes_max = token_nodes_max;
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

/* In which tiers all the token blocks of a text block are; the slowest needed where none has all.
 */
static uint8_t tiers_of(const struct alignment *alignment, uint32_t index)
{
    const struct aligned *aligned = &alignment->aligned[index];
    const uint32_t parent = text_chain_at(&alignment->text, index)->parent;
    const uint32_t depth = parent != 0 ? alignment->aligned[parent].depth : 0;
    const struct token_node *node = token_chain_find(&alignment->tokens, aligned->block);
    unsigned all = TOKEN_TIERS_ALL, slowest = 0;

    if (!aligned->is_mapped || aligned->is_withheld || aligned->flips > ALIGNMENT_FLIPS_MAX)
        return 0;
    if (aligned->block == 0)
        return aligned->claimed_children > 0 ? 1 << TOKEN_TIER_HBM : 0;
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

/* True: something was joined that may tell which of several answers another attempt's is. */
static bool join_complete(struct alignment *alignment)
{
    bool is_joined = false, is_waiting = false;
    struct attempt *attempt;
    uint64_t cursor = 0;

    while ((attempt = attempt_table_next(&alignment->attempts, &cursor)) != NULL) {
        if (alignment_join(alignment, attempt)) {
            attempt_table_remove(&alignment->attempts, attempt);
            is_joined = true;
        } else {
            is_waiting |= attempt->has_record && attempt->has_anchor && attempt->is_answer;
        }
    }
    return is_joined && is_waiting;
}

void alignment_flush(struct alignment *alignment, uint64_t now_ms)
{
    while (alignment->has_news)
        alignment->has_news = join_complete(alignment);
    attempt_table_expire(&alignment->attempts, now_ms);
    while (alignment->stale_count > 0) {
        const uint32_t index = alignment->stale[--alignment->stale_count];
        const struct text_node *text = text_chain_at(&alignment->text, index);
        struct aligned *aligned = &alignment->aligned[index];
        const bool was_claimed = aligned->claimed != 0;

        aligned->is_stale = false;
        if (text->hash == 0)
            continue;
        claim(alignment, index, text->hash, tiers_of(alignment, index));
        count_claimed_child(alignment, text->parent, (aligned->claimed != 0) - was_claimed);
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
