/* SPDX-License-Identifier: Apache-2.0 */

#include "router/join/attempt_notes.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "hashing/digest.h"
#include "router/join/join.h"

/*
 * DESIGN
 *
 *   ASKED --count--+--> COUNTED --usage agrees--> SETTLED (posted)
 *                  |       |`---usage differs---> SETTLED (mismatch)
 *                  |       `----no usage came---> SETTLED (unchecked)
 *                  '--trusted-------------------> SETTLED (posted)    ... or any other reason
 *
 * Count and usage come in either order: a short answer is over before the side call is. A trusted
 * worker's anchor does not wait for usage, since an answer may go on for minutes and the agent
 * keeps its part of the attempt for seconds. What usage then says is still compared: it decides
 * about the next ones, and about the answer's note.
 */
#define HANDOVER_MS_MIN 2000.0
#define HANDOVER_FACTOR 2.0 /* of the predicted time to first token */

enum { LAG_MS_MAX = 100 }; /* of our own loop: more, and it has enough to do */

enum notes_state {
    NOTES_ASKED,   /* how many tokens it is, is being found out */
    NOTES_COUNTED, /* it is known, and waits for usage to agree */
    NOTES_SETTLED, /* told, or never to be */
};

struct answered {
    struct residency_note_block *blocks; /* heap; NULL: nothing to tell (yet) */
    size_t block_count;
    uint64_t completion_tokens;
};

struct attempt_notes {
    struct join *join;
    enum notes_state state;
    enum anchor_outcome outcome; /* of SETTLED */
    bool is_ended;               /* its attempt is over */
    bool has_echo;               /* ASKED: the answer is to say it */
    enum anchor_target target;
    bool has_usage;
    bool is_disproved; /* usage says another number of tokens than was told */
    uint64_t worker_id;
    uint32_t worker_index;
    uint64_t attempt;                    /* its key */
    uint64_t start;                      /* hash of the block that blocks go on from */
    struct residency_note_block *blocks; /* heap, until they are told */
    size_t block_count;
    size_t front_count;    /* of blocks: those in front of tools that stand late; */
    double front_tail;     /* of the prompt's tokens: the share between them and the tools */
    uint64_t answer_start; /* hash of the block that an answer goes on from, */
    uint64_t answer_begin; /* and where in the stream it ends */
    double handover_ms;
    uint64_t prompt_tokens; /* by usage */
    uint32_t cached_tokens;
    struct token_answer counted;
    struct answered answered;
};

static struct anchor_trust *trust_of(const struct attempt_notes *notes)
{
    return &notes->join->trusts[notes->target];
}

static void free_when_over(struct attempt_notes *notes)
{
    if (!notes->is_ended || notes->state != NOTES_SETTLED)
        return;
    free(notes->blocks);
    free(notes->answered.blocks);
    free(notes);
}

/* ---- telling ---- */

/* In a note a block has its own length. before: where the first one begins. */
static struct residency_note_block *blocks_of(const struct block *blocks, size_t count,
                                              uint64_t before)
{
    struct residency_note_block *copy = malloc(count * sizeof *copy);

    for (size_t i = 0; copy != NULL && i < count; i++) {
        copy[i] = (struct residency_note_block){blocks[i].hash, (uint32_t)(blocks[i].end - before)};
        before = blocks[i].end;
    }
    return copy;
}

/* From some time on the map is the truth about these blocks. Takes them. */
static void leave_to_map(struct attempt_notes *notes, struct residency_note_block **blocks,
                         size_t block_count)
{
    uint64_t now_ms = io_loop_now_ms(notes->join->config.io);

    join_hand_over(notes->join, (struct handover_lot){now_ms + (uint64_t)notes->handover_ms,
                                                      notes->worker_id, *blocks, block_count});
    *blocks = NULL;
}

/* False: the worker is gone, or Redis. */
static bool post(struct attempt_notes *notes, const struct residency_note *note,
                 const struct residency_note_block *blocks, size_t block_count)
{
    const struct worker *worker = worker_set_find(notes->join->config.workers, notes->worker_id);

    return worker != NULL &&
           note_post_add(notes->join->post, (struct note_receiver){worker->id, worker->name}, note,
                         blocks, block_count) == 0;
}

static bool post_text(struct attempt_notes *notes)
{
    const struct residency_note note = {
        .kind = RESIDENCY_NOTE_ROUTED,
        .attempt = notes->attempt,
        .start = notes->start,
    };

    return post(notes, &note, notes->blocks, notes->block_count);
}

static bool post_anchor(struct attempt_notes *notes)
{
    const struct residency_note note = {
        .kind = RESIDENCY_NOTE_ANCHOR,
        .attempt = notes->attempt,
        .last_block = notes->counted.anchor.last_block,
        .token_count = notes->counted.anchor.token_count,
        .tail_tokens = notes->counted.tail_tokens,
        .cached_tokens = notes->cached_tokens,
    };

    return post(notes, &note, NULL, 0);
}

/*
 * Tools that stand late are not as many tokens a byte as the text around them, and the text in
 * front of them is what the next turn shares: so where they begin is told as if that text were a
 * prompt of its own. Told first, it is joined first, and the rest lies between it and the end.
 */
static void post_front(struct attempt_notes *notes)
{
    const struct token_anchor *anchor = &notes->counted.anchor;
    const struct residency_note text = {
        .kind = RESIDENCY_NOTE_ROUTED,
        .attempt = ~notes->attempt,
        .start = notes->start,
    };
    const struct residency_note counted = {
        .kind = RESIDENCY_NOTE_ANCHOR,
        .attempt = ~notes->attempt,
        .last_block = anchor->before_tools_block,
        .token_count = anchor->before_tools,
        .tail_tokens = (uint32_t)(notes->front_tail * anchor->token_count),
        .cached_tokens = UINT32_MAX,
    };

    if (notes->front_count == 0 || anchor->before_tools_block == 0 || ~notes->attempt == 0)
        return;
    if (counted.tail_tokens < counted.token_count &&
        post(notes, &text, notes->blocks, notes->front_count))
        (void)post(notes, &counted, NULL, 0); /* without, the agent forgets the attempt in time */
}

static bool post_prompt(struct attempt_notes *notes)
{
    post_front(notes);
    return post_text(notes) && post_anchor(notes);
}

/* The answer, once its prompt is told and both counts are known. */
static void post_answer(struct attempt_notes *notes)
{
    struct answered *answered = &notes->answered;
    bool is_told = notes->state == NOTES_SETTLED && !notes->is_disproved &&
                   (notes->outcome == ANCHOR_POSTED || notes->outcome == ANCHOR_BY_ENGINE);
    uint64_t token_count = notes->prompt_tokens + answered->completion_tokens;
    struct residency_note note = {
        .kind = RESIDENCY_NOTE_ANSWERED,
        .attempt = notes->attempt,
        .start = notes->answer_start,
        .has_anchor = true,
        .last_block = notes->counted.anchor.last_block, /* 0: the engine told its agent */
        .token_count = (uint32_t)token_count,
        .cached_tokens = notes->cached_tokens,
    };

    if (!is_told || answered->blocks == NULL || token_count > RESIDENCY_TOKENS_MAX)
        return;
    if (!post(notes, &note, answered->blocks, answered->block_count))
        return;
    notes->join->config.stats->answers_posted_total++;
    leave_to_map(notes, &answered->blocks, answered->block_count);
}

static void settle(struct attempt_notes *notes, enum anchor_outcome outcome)
{
    assert(notes->state != NOTES_SETTLED);

    notes->state = NOTES_SETTLED;
    notes->outcome = outcome;
    notes->join->config.stats->anchors_total[outcome]++;
    if (outcome == ANCHOR_POSTED || outcome == ANCHOR_BY_ENGINE)
        leave_to_map(notes, &notes->blocks, notes->block_count);
    post_answer(notes);
}

static void tell_prompt(struct attempt_notes *notes)
{
    if (notes->counted.anchor.last_block == 0)
        settle(notes, ANCHOR_SHORT);
    else if (notes->counted.tail_tokens > notes->counted.anchor.token_count)
        settle(notes, ANCHOR_FAILED); /* the tail of another template than was thought */
    else if (post_prompt(notes))
        settle(notes, ANCHOR_POSTED);
    else
        settle(notes, ANCHOR_DROPPED);
}

/* ---- what comes in ---- */

/* Both numbers are known. */
static bool agrees(struct attempt_notes *notes)
{
    bool does = notes->prompt_tokens == notes->counted.anchor.token_count;

    anchor_trust_note(trust_of(notes), notes->worker_index, notes->worker_id, does);
    return does;
}

/* COUNTED: is it to be told, now? */
static void consider(struct attempt_notes *notes)
{
    if (notes->has_usage) {
        if (agrees(notes))
            tell_prompt(notes);
        else
            settle(notes, ANCHOR_MISMATCH);
    } else if (anchor_trust_has(trust_of(notes), notes->worker_index, notes->worker_id)) {
        tell_prompt(notes);
    } else if (notes->is_ended) {
        settle(notes, ANCHOR_UNCHECKED);
    }
}

static void on_answered(void *ctx, const struct token_answer *answer)
{
    struct attempt_notes *notes = ctx;

    assert(notes->state == NOTES_ASKED);

    notes->counted = *answer;
    if (answer->outcome == ANCHOR_POSTED) {
        notes->state = NOTES_COUNTED;
        consider(notes);
    } else {
        settle(notes, answer->outcome);
    }
    free_when_over(notes);
}

/* How much of it the template added behind the text, no answer says; so the text's end is put some
 * tokens too far, as where a tail cannot be asked. */
void attempt_notes_echoed(struct attempt_notes *notes, const struct token_anchor *anchor)
{
    const struct token_answer answer = {ANCHOR_POSTED, *anchor, 0};

    if (notes->state == NOTES_ASKED)
        on_answered(notes, &answer);
}

void attempt_notes_usage(struct attempt_notes *notes, uint64_t prompt_tokens,
                         uint32_t cached_tokens)
{
    notes->has_usage = true;
    notes->prompt_tokens = prompt_tokens;
    notes->cached_tokens = cached_tokens;
    if (notes->state == NOTES_COUNTED) {
        consider(notes);
    } else if (notes->state == NOTES_SETTLED && notes->outcome == ANCHOR_POSTED && !agrees(notes)) {
        notes->is_disproved = true;
        notes->join->config.stats->anchors_disproved_total++;
    }
}

void attempt_notes_answer(struct attempt_notes *notes, const struct block *blocks,
                          size_t block_count, uint64_t completion_tokens)
{
    struct answered *answered = &notes->answered;

    assert(answered->blocks == NULL);

    if (!notes->has_usage || block_count == 0)
        return;
    *answered = (struct answered){
        .blocks = blocks_of(blocks, block_count, notes->answer_begin),
        .block_count = block_count,
        .completion_tokens = completion_tokens,
    };
    post_answer(notes); /* or when the prompt is told */
}

bool attempt_notes_outcome(const struct attempt_notes *notes, enum anchor_outcome *outcome)
{
    *outcome = notes->outcome;
    return notes->state == NOTES_SETTLED;
}

void attempt_notes_end(struct attempt_notes **notes_ptr)
{
    struct attempt_notes *notes = *notes_ptr;

    *notes_ptr = NULL;
    notes->is_ended = true;
    if (notes->state == NOTES_COUNTED)
        consider(notes);
    else if (notes->state == NOTES_ASKED && notes->has_echo)
        settle(notes, ANCHOR_FAILED); /* the answer was asked, and did not say it */
    free_when_over(notes);
}

/* ---- the beginning ---- */

bool attempt_notes_are_due_at_send(const struct join *join, const struct worker *worker)
{
    struct residency_agent agent = join->config.find_agent(join->config.ctx, worker);

    return agent.is_there && agent.has_anchors;
}

static uint64_t new_bytes(const struct attempt_begun *begun)
{
    uint64_t known = begun->exact_count > 0 ? begun->blocks[begun->exact_count - 1].end : 0;

    return begun->blocks[begun->block_count - 1].end - known;
}

/* What is known before anybody is asked. */
static enum anchor_outcome judge(const struct join *join, const struct attempt_begun *begun,
                                 const struct residency_agent *agent)
{
    if (!agent->is_there || (agent->block_tokens == 0 && !agent->has_anchors))
        return ANCHOR_NO_AGENT; /* or one that has not said what a block is */
    if (begun->block_count == 0)
        return ANCHOR_API;
    if (begun->plan->source == ANCHOR_SOURCE_NONE &&
        (!agent->has_anchors || begun->plan->why_not == ANCHOR_SHAPE))
        return begun->plan->why_not;
    if (new_bytes(begun) < join->config.anchor_bytes_min)
        return ANCHOR_KNOWN;
    if (agent->text_depth_max > 0 && begun->block_count > agent->text_depth_max)
        return ANCHOR_LONG;
    if (!note_post_is_open(join->post))
        return ANCHOR_DROPPED;
    if (agent->has_anchors)
        return ANCHOR_BY_ENGINE;
    if (agent->block_tokens > TOKEN_ANCHOR_BLOCK_TOKENS_MAX)
        return ANCHOR_LONG;
    if (begun->has_echo)
        return ANCHOR_POSTED;
    return join->lag_ms > LAG_MS_MAX || begun->body == NULL ? ANCHOR_BUSY : ANCHOR_POSTED;
}

static struct attempt_notes *make_notes(struct join *join, const struct attempt_begun *begun)
{
    struct attempt_notes *notes = calloc(1, sizeof *notes);
    uint64_t known = begun->exact_count > 0 ? begun->blocks[begun->exact_count - 1].end : 0;
    double twice_ms = HANDOVER_FACTOR * begun->predicted_ttft_ms;

    if (notes == NULL)
        return NULL;
    notes->join = join;
    notes->worker_id = begun->worker->id;
    notes->worker_index = begun->worker->index;
    notes->target = begun->plan->target;
    notes->has_echo = begun->has_echo;
    notes->attempt = digest_64(join->config.secret, DIGEST_ATTEMPT, begun->attempt_id,
                               strlen(begun->attempt_id));
    notes->cached_tokens = UINT32_MAX;
    notes->handover_ms = twice_ms > HANDOVER_MS_MIN ? twice_ms : HANDOVER_MS_MIN;
    notes->start = begun->exact_count > 0 ? begun->blocks[begun->exact_count - 1].hash : 0;
    notes->block_count = begun->block_count - begun->exact_count;
    notes->blocks = blocks_of(begun->blocks + begun->exact_count, notes->block_count, known);
    if (begun->before_tools_count > begun->exact_count) {
        const struct block *front = &begun->blocks[begun->before_tools_count - 1];

        notes->front_count = begun->before_tools_count - begun->exact_count;
        notes->front_tail = (double)(begun->before_tools_bytes - front->end) /
                            (double)begun->blocks[begun->block_count - 1].end;
    }
    if (begun->closed_count > 0) {
        notes->answer_start = begun->blocks[begun->closed_count - 1].hash;
        notes->answer_begin = begun->blocks[begun->closed_count - 1].end;
    }
    if (notes->blocks == NULL) {
        free(notes);
        return NULL;
    }
    return notes;
}

/* Engines tell a LoRA's blocks apart by its name. */
static struct slice lora_of(const struct join *join, const char *model_id)
{
    struct slice id = slice_of_string(model_id);
    const struct model *model = worker_set_find_model(join->config.workers, id);

    return model != NULL && model->is_lora ? id : slice_of(NULL, 0);
}

struct token_naming attempt_notes_naming(const struct join *join, const struct attempt_begun *begun)
{
    const struct join_config *config = &join->config;
    const struct residency_agent agent = config->find_agent(config->ctx, begun->worker);
    struct slice lora = lora_of(join, begun->model_id), salt = begun->plan->salt;

    return (struct token_naming){
        config->secret, token_name_root(config->secret, lora.ptr, lora.len, salt.ptr, salt.len),
        agent.block_tokens, begun->layout};
}

bool attempt_notes_want_echo(const struct join *join, const struct attempt_begun *begun)
{
    const struct residency_agent agent = join->config.find_agent(join->config.ctx, begun->worker);

    return begun->plan->source == ANCHOR_SOURCE_ENGINE &&
           judge(join, begun, &agent) == ANCHOR_POSTED &&
           token_asker_is_unable(join->asker, begun->worker, begun->plan);
}

static enum anchor_outcome ask(struct attempt_notes *notes, const struct attempt_begun *begun)
{
    const struct join_config *config = &notes->join->config;
    const struct token_question question = {
        .worker = begun->worker,
        .plan = begun->plan,
        .naming = attempt_notes_naming(notes->join, begun),
        .model = digest_64(config->secret, DIGEST_ROOT, begun->model_id, strlen(begun->model_id)),
        .splice_at = begun->splice_at,
        .body = begun->body,
    };

    return token_asker_ask(notes->join->asker, &question, on_answered, notes);
}

/* Posts the text, or asks. Anything but ANCHOR_POSTED and _BY_ENGINE: why not. */
static enum anchor_outcome start(struct attempt_notes *notes, const struct attempt_begun *begun,
                                 const struct residency_agent *agent)
{
    if (begun->has_echo && !agent->has_anchors)
        return ANCHOR_POSTED; /* the answer will say it */
    if (!agent->has_anchors)
        return ask(notes, begun);
    if (!post_text(notes))
        return ANCHOR_DROPPED;
    settle(notes, ANCHOR_BY_ENGINE);
    return ANCHOR_BY_ENGINE;
}

struct attempt_notes *attempt_notes_begin(struct join *join, const struct attempt_begun *begun,
                                          enum anchor_outcome *why_not)
{
    struct residency_agent agent = join->config.find_agent(join->config.ctx, begun->worker);
    enum anchor_outcome outcome = judge(join, begun, &agent);
    struct attempt_notes *notes = NULL;

    if (outcome == ANCHOR_POSTED || outcome == ANCHOR_BY_ENGINE) {
        notes = make_notes(join, begun);
        outcome = notes != NULL ? start(notes, begun, &agent) : ANCHOR_BUSY;
    }
    if (outcome == ANCHOR_POSTED || outcome == ANCHOR_BY_ENGINE)
        return notes;
    if (notes != NULL)
        free(notes->blocks);
    free(notes);
    join->config.stats->anchors_total[outcome]++;
    *why_not = outcome;
    return NULL;
}
