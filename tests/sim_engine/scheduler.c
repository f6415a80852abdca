/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/scheduler.h"

#include "tests/sim_engine/connector.h"

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
 *   of them in the cache;
 * - who is about to be admitted asks the connector first. What lies beneath the cache is loaded
 *   into blocks of its own while others run; then it waits at the head, with its blocks. It takes
 *   room for all it knows before it loads: else two that have loaded could wait for each other's;
 * - whoever is told to ask later lets others pass; all else is first come, first served.
 *
 *     idle --add--> waiting --admit--> running --last token or cancel--> idle
 *                     ^ ^ \             /
 *                     | |  load     preempt
 *                     | |   v         /
 *                     | +-loading    /
 *                     +-------------+
 */

struct scheduler {
    struct scheduler_config config;
    struct prefix_cache *cache;
    sequence_token_fn *on_token;
    void *ctx;
    const struct connector_ops *connector; /* NULL: nothing lies beneath the cache */
    void *connector_ctx;
    struct list waiting;
    struct list loading;
    struct list running;       /* oldest first */
    struct sequence **in_step; /* of the step in flight; NULL where one was cancelled */
    size_t in_step_count;
    bool is_stepping;
    uint64_t step_begin_us;
    uint64_t step_end_us;
    size_t step_prefill_count; /* tokens */
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
    list_init(&scheduler->loading);
    list_init(&scheduler->running);
    return scheduler;
}

void scheduler_destroy(struct scheduler *scheduler)
{
    if (scheduler == NULL)
        return;
    assert(scheduler->waiting.count == 0 && scheduler->running.count == 0);
    assert(scheduler->loading.count == 0);
    free(scheduler->in_step);
    free(scheduler);
}

void scheduler_connect(struct scheduler *scheduler, const struct connector_ops *ops, void *ctx)
{
    assert(scheduler->connector == NULL);

    scheduler->connector = ops;
    scheduler->connector_ctx = ctx;
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
    struct list *lists[SEQUENCE_STATE_COUNT] = {
        [SEQUENCE_WAITING] = &scheduler->waiting,
        [SEQUENCE_LOADING] = &scheduler->loading,
        [SEQUENCE_RUNNING] = &scheduler->running,
    };

    assert(lists[state] != NULL);
    return lists[state];
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
    if (scheduler->connector != NULL)
        scheduler->connector->open(scheduler->connector_ctx, sequence);
}

static void forget_in_step(struct scheduler *scheduler, const struct sequence *sequence)
{
    for (size_t i = 0; i < scheduler->in_step_count; i++) {
        if (scheduler->in_step[i] == sequence)
            scheduler->in_step[i] = NULL;
    }
}

/* Out of the scheduler, with nothing of it left. */
static void leave(struct scheduler *scheduler, struct sequence *sequence)
{
    if (scheduler->connector != NULL)
        scheduler->connector->close(scheduler->connector_ctx, sequence);
    prefix_cache_free(scheduler->cache, &sequence->cache);
    set_state(scheduler, sequence, SEQUENCE_IDLE);
}

void scheduler_cancel(struct scheduler *scheduler, struct sequence *sequence)
{
    if (sequence->state == SEQUENCE_IDLE)
        return;
    forget_in_step(scheduler, sequence);
    leave(scheduler, sequence);
}

static void put_at_head(struct scheduler *scheduler, struct sequence *sequence)
{
    list_remove(list_of(scheduler, sequence->state), &sequence->in_state);
    sequence->state = SEQUENCE_WAITING;
    list_prepend(&scheduler->waiting, &sequence->in_state);
}

/* Back to the head of the queue; what it answered is kept, its blocks are not. */
static void preempt(struct scheduler *scheduler, struct sequence *sequence)
{
    assert(sequence->step_count == 0); /* the newest is scheduled last */

    prefix_cache_free(scheduler->cache, &sequence->cache);
    sequence->computed_count = 0;
    put_at_head(scheduler, sequence);
    scheduler->stats.preemption_count++;
}

void scheduler_loaded(struct scheduler *scheduler, struct sequence *sequence, size_t block_count)
{
    assert(sequence->state == SEQUENCE_LOADING);

    sequence->loaded_count = block_count * prefix_cache_block_size(scheduler->cache);
    sequence->computed_count += sequence->loaded_count;
    prefix_cache_name(scheduler->cache, &sequence->cache, sequence->tokens.ids,
                      sequence->computed_count);
    put_at_head(scheduler, sequence);
}

static struct sequence *last_of(struct list *list)
{
    return container_of(list->head.prev, struct sequence, in_state);
}

/* What one step under construction has gathered. */
struct step {
    uint64_t now_us;
    size_t budget;
    size_t prefill_count; /* tokens */
    size_t decode_count;  /* sequences */
    bool has_preempted;
};

/* Its blocks got their names just now: who finds them from now on finds them filled. */
static void write_pages(struct scheduler *scheduler, struct sequence *sequence, size_t count)
{
    size_t block_size = prefix_cache_block_size(scheduler->cache);
    size_t first = sequence->computed_count / block_size;
    size_t end = (sequence->computed_count + count) / block_size;

    if (scheduler->connector != NULL && end > first)
        scheduler->connector->write(scheduler->connector_ctx, sequence, first, end - first);
}

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
    write_pages(scheduler, sequence, count);
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

enum admission { ADMITTED, ADMISSION_NO_ROOM, ADMISSION_PUT_OFF, ADMISSION_LOADS };

/* It has loaded, and kept its blocks. */
static bool has_blocks(const struct sequence *sequence)
{
    return sequence->cache.block_count > 0;
}

static enum admission run(struct scheduler *scheduler, struct step *step, struct sequence *sequence)
{
    size_t known = known_count(sequence);
    size_t matched = sequence->computed_count;
    size_t count = known - matched < step->budget ? known - matched : step->budget;

    if (prefix_cache_grow(scheduler->cache, &sequence->cache, sequence->tokens.ids, matched + count,
                          has_blocks(sequence) ? 0 : matched) < 0)
        return ADMISSION_NO_ROOM;
    if (!sequence->was_admitted) {
        sequence->was_admitted = true;
        sequence->cached_count = matched;
        scheduler->stats.prompt_tokens += sequence->prompt_count;
        scheduler->stats.cached_tokens += matched;
        scheduler->stats.loaded_tokens += sequence->loaded_count;
        scheduler->stats.asked_tokens +=
            sequence->prompt_count - (matched - sequence->loaded_count);
    }
    if (scheduler->connector != NULL)
        scheduler->connector->read(scheduler->connector_ctx, sequence,
                                   matched / prefix_cache_block_size(scheduler->cache));
    set_state(scheduler, sequence, SEQUENCE_RUNNING);
    schedule(scheduler, step, sequence, count);
    return ADMITTED;
}

static enum admission load(struct scheduler *scheduler, struct step *step,
                           struct sequence *sequence, size_t found)
{
    size_t block_size = prefix_cache_block_size(scheduler->cache);
    size_t matched = sequence->computed_count;

    if (prefix_cache_take(scheduler->cache, &sequence->cache, sequence->tokens.ids,
                          known_count(sequence), matched) < 0)
        return ADMISSION_NO_ROOM;
    if (!scheduler->connector->load(scheduler->connector_ctx, sequence, matched / block_size,
                                    found / block_size))
        return run(scheduler, step, sequence);
    set_state(scheduler, sequence, SEQUENCE_LOADING);
    return ADMISSION_LOADS;
}

static enum admission admit(struct scheduler *scheduler, struct step *step,
                            struct sequence *sequence)
{
    struct connector_found found = {0};

    if (has_blocks(sequence))
        return run(scheduler, step, sequence);
    sequence->computed_count = prefix_cache_match(scheduler->cache, &sequence->cache,
                                                  sequence->tokens.ids, known_count(sequence));
    sequence->loaded_count = 0;
    if (scheduler->connector != NULL)
        found = scheduler->connector->look_up(scheduler->connector_ctx, sequence,
                                              sequence->computed_count);
    if (found.later_ms > 0) {
        sequence->ask_us = step->now_us + found.later_ms * UINT64_C(1000);
        return ADMISSION_PUT_OFF;
    }
    if (found.token_count > 0)
        return load(scheduler, step, sequence, found.token_count);
    return run(scheduler, step, sequence);
}

static void schedule_waiting(struct scheduler *scheduler, struct step *step)
{
    struct list_node *node = scheduler->waiting.head.next;

    while (node != &scheduler->waiting.head && step->budget > 0 &&
           scheduler->running.count < scheduler->config.running_count_max) {
        struct sequence *sequence = container_of(node, struct sequence, in_state);

        node = node->next;
        if (sequence->ask_us <= step->now_us &&
            admit(scheduler, step, sequence) == ADMISSION_NO_ROOM)
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

static uint64_t take_wait_us(struct scheduler *scheduler)
{
    return scheduler->connector != NULL
               ? scheduler->connector->take_wait_us(scheduler->connector_ctx)
               : 0;
}

static void begin_step(struct scheduler *scheduler, uint64_t now_us)
{
    struct step step = {.now_us = now_us, .budget = SCHEDULER_STEP_TOKENS_MAX};
    uint64_t wait_us;

    assert(!scheduler->is_stepping);
    scheduler->in_step_count = 0;
    schedule_running(scheduler, &step);
    if (!step.has_preempted)
        schedule_waiting(scheduler, &step);
    wait_us = take_wait_us(scheduler);
    if (scheduler->in_step_count == 0)
        return;
    scheduler->is_stepping = true;
    scheduler->step_begin_us = now_us + wait_us;
    scheduler->step_end_us = scheduler->step_begin_us + duration_us(&scheduler->config.time, &step);
    scheduler->step_prefill_count = step.prefill_count;
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
    if (is_last)
        leave(scheduler, sequence);
    scheduler->on_token(scheduler->ctx, sequence, is_last);
}

static void save(struct scheduler *scheduler)
{
    struct connector_step step = {
        .sequences = scheduler->in_step,
        .sequence_count = scheduler->in_step_count,
        .prefill_tokens = scheduler->step_prefill_count,
        .us = scheduler->step_end_us - scheduler->step_begin_us,
    };

    if (scheduler->connector != NULL)
        scheduler->connector->save(scheduler->connector_ctx, &step);
}

static void end_step(struct scheduler *scheduler)
{
    scheduler->is_stepping = false;
    save(scheduler);
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

/* When the first of those that were put off wants to ask again; 0: nobody was. */
static uint64_t next_ask_us(const struct scheduler *scheduler, uint64_t now_us)
{
    uint64_t next_us = 0;

    for (const struct list_node *node = scheduler->waiting.head.next;
         node != &scheduler->waiting.head; node = node->next) {
        uint64_t ask_us = container_of(node, struct sequence, in_state)->ask_us;

        if (ask_us > now_us && (next_us == 0 || ask_us < next_us))
            next_us = ask_us;
    }
    return next_us;
}

uint64_t scheduler_step(struct scheduler *scheduler, uint64_t now_us)
{
    uint64_t begin_us = now_us;

    if (scheduler->is_stepping) {
        if (now_us < scheduler->step_end_us)
            return scheduler->step_end_us;
        begin_us = scheduler->step_end_us;
        end_step(scheduler);
        begin_us += take_wait_us(scheduler);
    }
    begin_step(scheduler, begin_us);
    return scheduler->is_stepping ? scheduler->step_end_us : next_ask_us(scheduler, begin_us);
}

size_t scheduler_running_count(const struct scheduler *scheduler)
{
    return scheduler->running.count;
}

size_t scheduler_waiting_count(const struct scheduler *scheduler)
{
    return scheduler->waiting.count + scheduler->loading.count;
}

size_t scheduler_loading_count(const struct scheduler *scheduler)
{
    return scheduler->loading.count;
}

struct scheduler_stats scheduler_stats(const struct scheduler *scheduler)
{
    return scheduler->stats;
}
