/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/generation.h"

#include <xxhash.h>

#include <assert.h>
#include <stdlib.h>

#include "backends/runtime/buf.h"
#include "tests/sim_engine/answer_plan.h"
#include "tests/sim_engine/json_text.h"

/* One choice: what the scheduler makes, and what the answer shows of it. */
struct choice {
    struct sequence sequence;
    struct answer_plan plan;
    struct generation *generation;
};

struct generation {
    struct generation_config config;
    struct engine_request request;
    const struct generation_callbacks *callbacks;
    void *ctx;
    char *id;
    struct answer_head head;
    struct choice *choices;
    struct answer_choice *answers; /* one a choice, in the same order */
    size_t choice_count;
    size_t open_count; /* choices that are not finished */
    struct answer_usage usage;
    bool has_begun;
    struct buf text;
};

static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t pair[2] = {a, b};

    return XXH3_64bits(pair, sizeof pair);
}

/* Another model, LoRA or salt shares nothing in the cache. */
static uint64_t cache_root(const struct engine_request *request)
{
    return mix(XXH3_64bits(request->model.ptr, request->model.len),
               request->salt.len > 0 ? XXH3_64bits(request->salt.ptr, request->salt.len) : 0);
}

static void init_choice(struct generation *generation, size_t index)
{
    const struct engine_request *request = &generation->request;
    const struct token_list *prompt = &request->prompts[index / request->choice_count];
    struct choice *choice = &generation->choices[index];
    uint64_t prompt_digest = XXH3_64bits(prompt->ids, prompt->count * sizeof *prompt->ids);
    struct answer_wish wish = {
        .seed = mix(mix(generation->config.seed, prompt_digest), index % request->choice_count),
        .token_count = request->answer_tokens,
        .thinks_first = generation->config.thinks_first && request->api == ENGINE_CHAT,
        .tool = request->tool,
    };

    answer_plan_init(&choice->plan, &wish);
    sequence_init(&choice->sequence, cache_root(request));
    token_list_append_all(&choice->sequence.tokens, prompt->ids, prompt->count);
    token_list_append_all(&choice->sequence.tokens, choice->plan.ids.ids, choice->plan.ids.count);
    choice->sequence.prompt_count = prompt->count;
    choice->sequence.answer_count = choice->plan.ids.count;
    choice->sequence.ctx = choice;
    choice->generation = generation;
    generation->answers[index] = (struct answer_choice){
        .index = (uint32_t)index,
        .prompt = prompt,
        .plan = &choice->plan,
    };
}

struct generation *generation_create(const struct generation_config *config,
                                     struct engine_request *request,
                                     const struct generation_callbacks *callbacks, void *ctx)
{
    struct generation *generation = calloc(1, sizeof *generation);
    size_t choice_count = request->prompt_count * request->choice_count;

    assert(generation != NULL && choice_count > 0);
    generation->config = *config;
    generation->request = *request;
    *request = (struct engine_request){0};
    generation->callbacks = callbacks;
    generation->ctx = ctx;
    generation->id = strndup(config->id.ptr, config->id.len);
    generation->choices = calloc(choice_count, sizeof *generation->choices);
    generation->answers = calloc(choice_count, sizeof *generation->answers);
    assert(generation->id != NULL && generation->choices != NULL && generation->answers != NULL);
    generation->choice_count = choice_count;
    generation->open_count = choice_count;
    generation->head = (struct answer_head){
        .request = &generation->request,
        .id = slice_of_string(generation->id),
        .created_s = config->created_s,
        .hides_usage = config->hides_usage,
    };
    buf_init(&generation->text, SIZE_MAX);
    for (size_t i = 0; i < generation->request.prompt_count; i++)
        generation->usage.prompt_tokens += generation->request.prompts[i].count;
    for (size_t i = 0; i < choice_count; i++) {
        init_choice(generation, i);
        scheduler_add(config->scheduler, &generation->choices[i].sequence);
    }
    return generation;
}

static void give_event(struct generation *generation)
{
    generation->callbacks->on_event(generation->ctx, buf_slice(&generation->text));
    buf_clear(&generation->text);
}

/* chat: vLLM opens all choices when the first token of any is there. */
static void begin_stream(struct generation *generation)
{
    if (generation->request.api != ENGINE_CHAT)
        return;
    for (size_t i = 0; i < generation->choice_count; i++) {
        struct answer_usage usage = {.prompt_tokens = generation->usage.prompt_tokens};

        answer_put_role_event(&generation->text, &generation->head, &generation->answers[i],
                              &usage);
        give_event(generation);
    }
}

static void end_stream(struct generation *generation)
{
    if (generation->request.wants_usage && !generation->config.hides_usage) {
        answer_put_usage_event(&generation->text, &generation->head, &generation->usage);
        give_event(generation);
    }
    if (!generation->config.hides_done) {
        text_put(&generation->text, SLICE("data: [DONE]\n\n"));
        give_event(generation);
    }
    generation->callbacks->on_end(generation->ctx, SLICE(""));
}

static void end_body(struct generation *generation)
{
    answer_put_body(&generation->text, &generation->head, generation->answers,
                    generation->choice_count, &generation->usage);
    generation->callbacks->on_end(generation->ctx, buf_slice(&generation->text));
}

/* What vLLM says: a tool call it had to make for "required" is "tool_calls", for a named function
 * it is "stop"; an answer as long as was asked for is "length". */
static const char *finish_reason(const struct generation *generation, const struct choice *choice)
{
    if (answer_plan_is_tool_call(&choice->plan))
        return generation->request.is_tool_named ? "stop" : "tool_calls";
    return generation->request.has_length_limit ? "length" : "stop";
}

/* Cached tokens are counted once a prompt, by its first choice: the others find what it read. */
static void count_token(struct generation *generation, const struct choice *choice)
{
    const struct sequence *sequence = &choice->sequence;
    size_t index = (size_t)(choice - generation->choices);
    size_t block_size = generation->config.block_size;

    generation->usage.completion_tokens++;
    if (sequence->answered_count > 1 || index % generation->request.choice_count != 0)
        return;
    generation->usage.cached_tokens += sequence->cached_count;
    generation->usage.created_tokens +=
        sequence->prompt_count / block_size * block_size - sequence->cached_count;
}

void generation_on_token(struct sequence *sequence, bool is_last)
{
    struct choice *choice = sequence->ctx;
    struct generation *generation = choice->generation;
    struct answer_choice *answer = &generation->answers[choice - generation->choices];

    count_token(generation, choice);
    answer->answered_count = sequence->answered_count;
    if (is_last) {
        answer->finish_reason = finish_reason(generation, choice);
        generation->open_count--;
    }
    if (generation->request.is_stream) {
        if (!generation->has_begun)
            begin_stream(generation);
        generation->has_begun = true;
        if (answer_put_token_event(&generation->text, &generation->head, answer, &generation->usage,
                                   generation->open_count == 0))
            give_event(generation);
    }
    if (generation->open_count > 0)
        return;
    if (generation->request.is_stream)
        end_stream(generation);
    else
        end_body(generation);
}

bool generation_is_done(const struct generation *generation)
{
    return generation->open_count == 0;
}

bool generation_is_stream(const struct generation *generation)
{
    return generation->request.is_stream;
}

const char *generation_finish_reason(const struct generation *generation)
{
    const char *reason = generation->answers[0].finish_reason;

    return reason != NULL ? reason : "abort";
}

struct answer_usage generation_usage(const struct generation *generation)
{
    return generation->usage;
}

void generation_destroy(struct generation *generation)
{
    if (generation == NULL)
        return;
    for (size_t i = 0; i < generation->choice_count; i++) {
        scheduler_cancel(generation->config.scheduler, &generation->choices[i].sequence);
        sequence_release(&generation->choices[i].sequence);
        answer_plan_release(&generation->choices[i].plan);
    }
    free(generation->choices);
    free(generation->answers);
    free(generation->id);
    buf_release(&generation->text);
    engine_request_release(&generation->request);
    free(generation);
}
