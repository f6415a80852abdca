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
 *
 * An answer is mapped to what the engine generated. The next turn may not find that again: its text
 * becomes other tokens, or the template drops it. So each prompt that goes on from an answer shows
 * which share of it was found, and of the answers to come only the median share is claimed: where
 * all are kept that is all, where none is nothing, and at the median the error is least. The rest
 * is claimed once such a prompt has proved it.
 */

/* A text block of 256 bytes at 3 bytes a token: what two prompts may share behind the last text
 * block that they both have. */
enum { SLACK_TOKENS = 85 };

enum {
    ANSWER_LOOKS_MAX = 1024, /* token blocks looked at for one answer */
    SIBLING_LOOKS_MAX = 64,  /* texts that go on from one block */
};

static const double SHARE_STEP_MIN = 1.0 / 16; /* large at first, when nothing is known yet */

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

        if (aligned->is_answer)
            continue; /* no unrest: the engine's tokens were not what their text becomes */
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

/* Whether a text that goes on from the last mapped block of the path became tokens up to found. */
static bool is_found_of_sibling(const struct join *join, const struct token_node *found)
{
    const struct alignment *alignment = join->alignment;
    const uint32_t last = alignment->path[join->known - 1];
    uint32_t child = text_chain_at(&alignment->text, last)->child, looks = 0;

    for (; child != 0 && looks < SIBLING_LOOKS_MAX; looks++) {
        const struct token_node *node =
            token_chain_find(&alignment->tokens, alignment->aligned[child].block);

        while (node != NULL && node->depth > found->depth)
            node = token_chain_at(&alignment->tokens, node->parent);
        if (node == found)
            return true;
        child = text_chain_at(&alignment->text, child)->sibling_older;
    }
    return false;
}

/*
 * Whether the engine found text that we know: of what it found behind the part of the path that is
 * mapped, some tokens are another text's. Else it was a prompt, or an answer, that nobody told us
 * of, or not yet: the text here is shared further than we know, and its place may well be right.
 */
static bool has_found_known_text(const struct join *join)
{
    const uint32_t known_end = join->known > 0 ? on_path(join, join->known - 1)->token_end : 0;
    const struct token_node *found = block_full_at(join, join->cached_tokens);

    for (uint32_t depth = found->depth; depth > 0; depth--) {
        if (block_at(join, depth)->token_end <= known_end)
            break;
        if (block_map_find(&join->alignment->by_block, block_at(join, depth)->digest.low) != NULL)
            return true;
    }
    return join->known > 0 && is_found_of_sibling(join, found);
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
    else if (has_found_known_text(join))
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
    uint32_t parent_depth = 0, changed = join->path_count;

    for (uint32_t i = 0; i < join->path_count; i++) {
        const uint32_t index = alignment->path[i];
        struct aligned *aligned = on_path(join, i);
        const uint32_t depth = aligned->depth;
        const uint64_t block = aligned->block;

        alignment_attach(alignment, index, block_full_at(join, aligned->token_end));
        alignment_note_span(alignment, aligned->depth, parent_depth);
        alignment_mark_stale(alignment, index);
        if (aligned->depth != depth)
            mark_children(alignment, index);
        parent_depth = aligned->depth;
        if (aligned->block != block && i < changed)
            changed = i;
    }
    alignment_save_note_path(alignment, changed, join->path_count);
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

/* ---- answers ---- */

enum belonging { NOBODYS, OURS, ANOTHERS };

/* Whether text block i is on the path, or follows it. */
static bool is_on_our_line(const struct join *join, uint32_t i)
{
    const struct text_chain *text = &join->alignment->text;

    while (text_chain_at(text, i)->depth > join->path_count)
        i = text_chain_at(text, i)->parent;
    return join->alignment->path[text_chain_at(text, i)->depth - 1] == i;
}

/* Whose text became node: a text block that covers it ends in it or closely below. */
static enum belonging belonging_of(const struct join *join, const struct token_node *node)
{
    const struct alignment *alignment = join->alignment;
    const struct token_node *top = node;
    enum belonging belonging = NOBODYS;

    while (node != NULL) {
        const uint64_t *first = block_map_find(&alignment->by_block, node->digest.low);

        for (uint32_t i = first != NULL ? (uint32_t)*first : 0; i != 0;
             i = alignment->aligned[i].next) {
            if (is_on_our_line(join, i))
                return OURS;
            belonging = ANOTHERS;
        }
        node =
            token_chain_next_below(&alignment->tokens, top, node, top->depth + alignment->span_max);
    }
    return belonging;
}

/*
 * Where the answer ends, behind prompt_last; NULL: not there yet, or it cannot be told which it is.
 * No one tells the tokens of an answer, but how many there are: its last full block is so deep (the
 * last token is never computed, so that it fills no block). Of several chains as long, those that
 * became another text's are not it; if more than one is left, the attempt waits for theirs, and
 * where these never come the next turn's anchor says what became of the answer.
 */
static const struct token_node *find_answer(const struct join *join, const struct attempt *attempt,
                                            const struct token_node *prompt_last)
{
    const struct token_chain *tokens = &join->alignment->tokens;
    const uint32_t block_tokens = prompt_last->token_end / prompt_last->depth;
    const uint32_t depth = attempt->token_count > 0 ? (attempt->token_count - 1) / block_tokens : 0;
    const struct token_node *found = NULL, *node = prompt_last;

    if (depth <= prompt_last->depth)
        return prompt_last;
    for (uint32_t looked_at = 0; node != NULL; looked_at++) {
        const enum belonging belonging = node->depth == depth ? belonging_of(join, node) : ANOTHERS;

        if (belonging == OURS)
            return node;
        if (looked_at == ANSWER_LOOKS_MAX || (belonging == NOBODYS && found != NULL))
            return NULL;
        if (belonging == NOBODYS)
            found = node;
        node = token_chain_next_below(tokens, prompt_last, node, depth);
    }
    return found;
}

/* A later prompt has said already what became of this answer. */
static bool is_proved(const struct join *join, uint32_t prompt_tokens)
{
    const struct aligned *last = join->known > 0 ? on_path(join, join->known - 1) : NULL;

    return last != NULL && join->known + 1 >= join->path_count && !last->is_answer &&
           last->token_end >= prompt_tokens + SLACK_TOKENS;
}

/* What is new on the path became what the engine generated. Of that the next turn finds a share; a
 * block is withheld when more than half of it lies beyond. */
static void mark_answer(const struct join *join, uint32_t mapped, uint32_t prompt_tokens)
{
    const uint32_t to = join->text_tokens;
    uint32_t from = mapped > 0 ? on_path(join, mapped - 1)->token_end : 0, begin;
    double limit;

    if (from < prompt_tokens)
        from = prompt_tokens;
    begin = from;
    limit = from + (to > from ? to - from : 0) * join->alignment->answer_share;
    for (uint32_t i = mapped; i < join->path_count; i++) {
        struct aligned *aligned = on_path(join, i);

        aligned->is_answer = true;
        aligned->is_withheld = (begin + (double)aligned->token_end) / 2 > limit;
        begin = aligned->token_end > begin ? aligned->token_end : begin;
    }
}

static void clear_answers(const struct join *join)
{
    for (uint32_t i = 0; i < join->path_count; i++)
        on_path(join, i)->is_answer = on_path(join, i)->is_withheld = false;
}

/* A step towards what was seen: so often up as down at the median. */
static void learn_share(struct alignment *alignment, double seen)
{
    const uint64_t count = alignment->stats.answers_kept + alignment->stats.answers_parted;
    const double step = 1.0 / (double)(count + 2);
    const double step_max = step > SHARE_STEP_MIN ? step : SHARE_STEP_MIN;
    double *share = &alignment->answer_share;

    if (seen > *share)
        *share = seen < *share + step_max ? seen : *share + step_max;
    else
        *share = seen > *share - step_max ? seen : *share - step_max;
    ++*(seen < 1 ? &alignment->stats.answers_parted : &alignment->stats.answers_kept);
}

/* A prompt that goes on from an answer shows how much of it is found again. */
static void learn_from_answer(const struct join *join)
{
    const struct token_chain *tokens = &join->alignment->tokens;
    uint32_t first = 0, last, from, conflict;
    double to;

    while (first < join->known && !on_path(join, first)->is_answer)
        first++;
    last = first;
    while (last < join->known && on_path(join, last)->is_answer)
        last++;
    if (first == last || token_chain_find(tokens, on_path(join, last - 1)->block) == NULL)
        return; /* no answer, or the engine has forgotten it */
    from = first > 0 ? on_path(join, first - 1)->token_end : 0;
    to = on_path(join, last - 1)->token_end;
    for (conflict = 0; conflict < last && !is_conflict(join, conflict);)
        conflict++;
    if (conflict < first || to <= from)
        return; /* something else changed, in front of it */
    if (conflict == last) {
        learn_share(join->alignment, 1);
    } else {
        const uint32_t parting = find_parting(join, conflict)->token_end;

        learn_share(join->alignment, parting > from ? (parting - from) / (to - from) : 0);
    }
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

/* Everything of the attempt is there: maps its path to the chain that ends in last. */
static void join_path(struct join *join, const struct attempt *attempt,
                      const struct token_node *prompt_last, const struct token_node *last)
{
    const uint32_t mapped = join->known;

    join->text_tokens = attempt->token_count - attempt->tail_tokens;
    lay_out_blocks(join, last);
    if (!attempt->is_answer)
        learn_from_answer(join);
    settle(join);
    if (attempt->is_answer)
        mark_answer(join, mapped, prompt_last->token_end);
    else
        clear_answers(join);
    attach_path(join);
}

bool alignment_join(struct alignment *alignment, const struct attempt *attempt)
{
    const struct token_node *prompt_last =
        token_chain_find(&alignment->tokens, attempt->last_block);
    const struct token_node *last = prompt_last;
    struct join join = {.alignment = alignment, .cached_tokens = attempt->cached_tokens};

    if (!attempt->has_record || !attempt->has_anchor || prompt_last == NULL)
        return false;
    if (text_chain_at(&alignment->text, attempt->tip)->hash != attempt->tip_hash) {
        alignment->stats.lost++;
        return true;
    }
    lay_out_path(&join, attempt->tip);
    if (attempt->is_answer && prompt_last->depth > 0) {
        if (is_proved(&join, prompt_last->token_end))
            return true;
        last = find_answer(&join, attempt, prompt_last);
        if (last == NULL)
            return false;
    }
    if (!is_fitting(alignment, attempt, last)) {
        alignment->stats.unfit++;
        return true;
    }
    join_path(&join, attempt, prompt_last, last);
    alignment->stats.joined++;
    return true;
}
