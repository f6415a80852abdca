/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/scheduler.h"

#include <assert.h>
#include <stdlib.h>

/*
 * DESIGN
 *
 * vLLM's V1 scheduler, as far as time and cache show it:
 * - a step has a budget of 2,048 tokens. Running sequences come first, one token each, or the next
 *   chunk of their prompt; then waiting ones, first come first served, as long as budget, batch
 *   and cache have room;
 * - blocks are named when the step that fills them begins, so that two equal prompts of one step
 *   share;
 * - a running sequence that finds no block sends the newest running one back to the head of the
 *   queue (preemption by recomputation): it keeps what it answered and finds what of its blocks is
 *   still cached. A step that preempted admits nobody;
 * - what a step does to the cache is published at its end, before its tokens leave;
 * - the last token made is not computed until the next step, so an answer of n tokens leaves n - 1
 *   of them in the cache.
 *
 *     idle --add--> waiting --admit--> running --last token or cancel--> idle
 *                      ^---preempt-------/
 */

struct scheduler {
    struct scheduler_config config;
    struct prefix_cache *cache;
    sequence_token_fn *on_token;
    void *ctx;
    struct list waiting;
    struct list running;       /* oldest first */
    struct sequence **in_step; /* of the step in flight; NULL where one was cancelled */
    size_t in_step_count;
    bool is_stepping;
    uint64_t step_end_us;
    struct scheduler_stats stats;
};

struct scheduler *scheduler_create(struct scheduler_config config, struct prefix_cache *cache,
                                   sequence_token_fn *on_token, void *ctx)
{
    assert(config.running_count_max > 0);
    assert(config.time.prefill_tokens_per_s > 0 && config.time.speedup > 0);

    struct scheduler *scheduler = calloc(1, sizeof *scheduler);
    assert(scheduler != NULL);
    scheduler->in_step = calloc(config.running_count_max, sizeof *scheduler->in_step);
    assert(scheduler->in_step != NULL);
    scheduler->config = config;
    scheduler->cache = cache;
    scheduler->on_token = on_token;
    scheduler->ctx = ctx;
    list_init(&scheduler->waiting);
    list_init(&scheduler->running);
    return scheduler;
}

void scheduler_destroy(struct scheduler *scheduler)
{
    if (scheduler == NULL)
        return;
    assert(scheduler->waiting.count == 0 && scheduler->running.count == 0);
    free(scheduler->in_step);
    free(scheduler);
}

void sequence_init(struct sequence *sequence, uint64_t root)
{
    *sequence = (struct sequence){.state = SEQUENCE_IDLE};
    list_node_init(&sequence->in_state);
    cache_sequence_init(&sequence->cache, root);
}

void sequence_release(struct sequence *sequence)
{
    assert(sequence->state == SEQUENCE_IDLE);

    token_list_release(&sequence->tokens);
    cache_sequence_release(&sequence->cache);
}

static struct list *list_of(struct scheduler *scheduler, enum sequence_state state)
{
    assert(state != SEQUENCE_IDLE);
    return state == SEQUENCE_WAITING ? &scheduler->waiting : &scheduler->running;
}

static void set_state(struct scheduler *scheduler, struct sequence *sequence,
                      enum sequence_state state)
{
    if (sequence->state != SEQUENCE_IDLE)
        list_remove(list_of(scheduler, sequence->state), &sequence->in_state);
    sequence->state = state;
    if (state != SEQUENCE_IDLE)
        list_append(list_of(scheduler, state), &sequence->in_state);
}

/* Tokens that are known: what the next steps have to compute. */
static size_t known_count(const struct sequence *sequence)
{
    return sequence->prompt_count + sequence->answered_count;
}

void scheduler_add(struct scheduler *scheduler, struct sequence *sequence)
{
    assert(sequence->state == SEQUENCE_IDLE);
    assert(sequence->prompt_count > 0 && sequence->answer_count > 0);
    assert(sequence->tokens.count == sequence->prompt_count + sequence->answer_count);

    set_state(scheduler, sequence, SEQUENCE_WAITING);
}

static void forget_in_step(struct scheduler *scheduler, const struct sequence *sequence)
{
    for (size_t i = 0; i < scheduler->in_step_count; i++) {
        if (scheduler->in_step[i] == sequence)
            scheduler->in_step[i] = NULL;
    }
}

void scheduler_cancel(struct scheduler *scheduler, struct sequence *sequence)
{
    if (sequence->state == SEQUENCE_IDLE)
        return;
    forget_in_step(scheduler, sequence);
    prefix_cache_free(scheduler->cache, &sequence->cache);
    set_state(scheduler, sequence, SEQUENCE_IDLE);
}

/* Back to the head of the queue; what it answered is kept, its blocks are not. */
static void preempt(struct scheduler *scheduler, struct sequence *sequence)
{
    assert(sequence->step_count == 0); /* the newest is scheduled last */

    prefix_cache_free(scheduler->cache, &sequence->cache);
    sequence->computed_count = 0;
    list_remove(&scheduler->running, &sequence->in_state);
    sequence->state = SEQUENCE_WAITING;
    list_prepend(&scheduler->waiting, &sequence->in_state);
    scheduler->stats.preemption_count++;
}

static struct sequence *first_of(struct list *list)
{
    return container_of(list->head.next, struct sequence, in_state);
}

static struct sequence *last_of(struct list *list)
{
    return container_of(list->head.prev, struct sequence, in_state);
}

/* What one step under construction has gathered. */
struct step {
    size_t budget;
    size_t prefill_count; /* tokens */
    size_t decode_count;  /* sequences */
    bool has_preempted;
};

static void schedule(struct scheduler *scheduler, struct step *step, struct sequence *sequence,
                     size_t count)
{
    bool is_decode =
        sequence->answered_count > 0 && sequence->computed_count + 1 == known_count(sequence);

    sequence->step_count = count;
    step->budget -= count;
    if (is_decode)
        step->decode_count++;
    else
        step->prefill_count += count;
    scheduler->in_step[scheduler->in_step_count++] = sequence;
}

/* Room for count tokens more, by preempting from the back; false: sequence itself had to go. */
static bool grow_running(struct scheduler *scheduler, struct step *step, struct sequence *sequence,
                         size_t count)
{
    while (prefix_cache_grow(scheduler->cache, &sequence->cache, sequence->tokens.ids,
                             sequence->computed_count + count, 0) < 0) {
        struct sequence *victim = last_of(&scheduler->running);

        preempt(scheduler, victim);
        step->has_preempted = true;
        if (victim == sequence)
            return false;
    }
    return true;
}

static void schedule_running(struct scheduler *scheduler, struct step *step)
{
    struct list_node *node = scheduler->running.head.next;

    while (node != &scheduler->running.head && step->budget > 0) {
        struct sequence *sequence = container_of(node, struct sequence, in_state);
        size_t count = known_count(sequence) - sequence->computed_count;

        count = count < step->budget ? count : step->budget;
        if (!grow_running(scheduler, step, sequence, count))
            break; /* it was the last of the list */
        node = sequence->in_state.next;
        schedule(scheduler, step, sequence, count);
    }
}

static bool admit(struct scheduler *scheduler, struct step *step, struct sequence *sequence)
{
    size_t known = known_count(sequence);
    size_t matched =
        prefix_cache_match(scheduler->cache, &sequence->cache, sequence->tokens.ids, known);
    size_t count = known - matched < step->budget ? known - matched : step->budget;

    if (prefix_cache_grow(scheduler->cache, &sequence->cache, sequence->tokens.ids, matched + count,
                          matched) < 0)
        return false;
    if (!sequence->was_admitted) {
        sequence->was_admitted = true;
        sequence->cached_count = matched;
        scheduler->stats.prompt_tokens += sequence->prompt_count;
        scheduler->stats.cached_tokens += matched;
    }
    sequence->computed_count = matched;
    set_state(scheduler, sequence, SEQUENCE_RUNNING);
    schedule(scheduler, step, sequence, count);
    return true;
}

static void schedule_waiting(struct scheduler *scheduler, struct step *step)
{
    while (scheduler->waiting.count > 0 && step->budget > 0 &&
           scheduler->running.count < scheduler->config.running_count_max) {
        if (!admit(scheduler, step, first_of(&scheduler->waiting)))
            return;
    }
}

static uint64_t duration_us(const struct time_model *time, const struct step *step)
{
    double ms = (double)step->prefill_count * 1000.0 / time->prefill_tokens_per_s;
    double us;

    if (step->decode_count > 0)
        ms += time->decode_ms + time->decode_ms_per_request * (double)step->decode_count;
    us = ms * 1000.0 / time->speedup;
    return us < 1 ? 1 : (uint64_t)(us + 0.5);
}

static void begin_step(struct scheduler *scheduler, uint64_t now_us)
{
    struct step step = {.budget = SCHEDULER_STEP_TOKENS_MAX};

    assert(!scheduler->is_stepping);
    scheduler->in_step_count = 0;
    schedule_running(scheduler, &step);
    if (!step.has_preempted)
        schedule_waiting(scheduler, &step);
    if (scheduler->in_step_count == 0)
        return;
    scheduler->is_stepping = true;
    scheduler->step_end_us = now_us + duration_us(&scheduler->config.time, &step);
    scheduler->stats.step_count++;
}

/* The tokens of one sequence are computed; the newest of them says what comes next, unless more of
 * the prompt is to be read. */
static void finish_part(struct scheduler *scheduler, struct sequence *sequence)
{
    bool is_last;

    sequence->computed_count += sequence->step_count;
    sequence->step_count = 0;
    if (sequence->computed_count < known_count(sequence))
        return;
    sequence->answered_count++;
    scheduler->stats.generation_tokens++;
    is_last = sequence->answered_count == sequence->answer_count;
    if (is_last) {
        prefix_cache_free(scheduler->cache, &sequence->cache);
        set_state(scheduler, sequence, SEQUENCE_IDLE);
    }
    scheduler->on_token(scheduler->ctx, sequence, is_last);
}

static void end_step(struct scheduler *scheduler)
{
    scheduler->is_stepping = false;
    if (scheduler->config.on_step != NULL)
        scheduler->config.on_step(scheduler->ctx);
    for (size_t i = 0; i < scheduler->in_step_count; i++) {
        struct sequence *sequence = scheduler->in_step[i];

        scheduler->in_step[i] = NULL;
        if (sequence != NULL)
            finish_part(scheduler, sequence);
    }
    scheduler->in_step_count = 0;
}

uint64_t scheduler_step(struct scheduler *scheduler, uint64_t now_us)
{
    uint64_t begin_us = now_us;

    if (scheduler->is_stepping) {
        if (now_us < scheduler->step_end_us)
            return scheduler->step_end_us;
        begin_us = scheduler->step_end_us;
        end_step(scheduler);
    }
    begin_step(scheduler, begin_us);
    return scheduler->is_stepping ? scheduler->step_end_us : 0;
}

size_t scheduler_running_count(const struct scheduler *scheduler)
{
    return scheduler->running.count;
}

size_t scheduler_waiting_count(const struct scheduler *scheduler)
{
    return scheduler->waiting.count;
}

struct scheduler_stats scheduler_stats(const struct scheduler *scheduler)
{
    return scheduler->stats;
}
