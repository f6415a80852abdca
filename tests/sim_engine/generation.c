/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/generation.h"

#include "backends/runtime/buf.h"
#include "tests/sim_engine/answer_plan.h"
#include "tests/sim_engine/answer_registry.h"
#include "tests/sim_engine/json_text.h"
#include "tests/sim_engine/random.h"
#include "tests/sim_engine/response_store.h"
#include "tests/sim_engine/responses_form.h"

#include <xxhash.h>

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One choice: what the scheduler makes, and what the answer shows of it. */
struct choice {
    struct sequence sequence;
    struct answer_plan plan;
    char *id; /* what the engine calls it within */
    struct generation *generation;
};

struct generation {
    struct generation_config config;
    struct engine_request request;
    const struct generation_callbacks *callbacks;
    void *ctx;
    char *id;
    char *salt; /* request's is the body's, which is gone soon */
    const struct answer_family *family;
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

static struct cache_keys cache_keys(const struct generation *generation)
{
    const struct engine_request *request = &generation->request;

    return (struct cache_keys){
        .lora = request->lora_id > 0 ? request->model : SLICE(""),
        .lora_id = request->lora_id,
        .salt = slice_of_string(generation->salt),
    };
}

static bool is_conversation(const struct engine_request *request)
{
    return request->api == ENGINE_CHAT || request->api == ENGINE_MESSAGES ||
           request->api == ENGINE_RESPONSES;
}

/* As in vLLM: "<choice>_" where there are several, the answer's id, "-<prompt>" of completions, and
 * a suffix of the engine's own. */
static char *sequence_id(const struct generation *generation, size_t index)
{
    const struct engine_request *request = &generation->request;
    char choice[32] = "", prompt[32] = "";
    uint64_t suffix = mix(generation->config.seed, (uint64_t)(uintptr_t)generation);
    char *id;
    int len;

    if (request->choice_count > 1)
        snprintf(choice, sizeof choice, "%zu_", index % request->choice_count);
    if (request->api == ENGINE_COMPLETIONS)
        snprintf(prompt, sizeof prompt, "-%zu", index / request->choice_count);
    len = asprintf(&id, "%s%s%s-%08x", choice, generation->id, prompt, (unsigned)suffix);
    assert(len > 0);
    return id;
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
        .thinks_first =
            generation->config.thinks_first && is_conversation(request) && !request->skips_thinking,
        .tool = request->tool,
    };
    uint64_t random;

    random = wish.seed;
    wish.splits_word = random_share(&random) < generation->config.split_share;
    answer_plan_init(&choice->plan, &wish);
    sequence_init(&choice->sequence, cache_root(request));
    choice->id = sequence_id(generation, index);
    choice->sequence.id = slice_of_string(choice->id);
    choice->sequence.cache.keys = cache_keys(generation);
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
    generation->salt = generation->request.salt.len > 0
                           ? strndup(generation->request.salt.ptr, generation->request.salt.len)
                           : strdup("");
    generation->choices = calloc(choice_count, sizeof *generation->choices);
    generation->answers = calloc(choice_count, sizeof *generation->answers);
    assert(generation->id != NULL && generation->salt != NULL);
    assert(generation->choices != NULL && generation->answers != NULL);
    generation->choice_count = choice_count;
    generation->open_count = choice_count;
    generation->head = (struct answer_head){
        .request = &generation->request,
        .id = slice_of_string(generation->id),
        .created_s = config->created_s,
        .hides_usage = config->hides_usage,
        .hides_done = config->hides_done,
        .open_kind = ANSWER_SILENT,
    };
    generation->family = answer_family_of(generation->request.api);
    buf_init(&generation->text, SIZE_MAX);
    for (size_t i = 0; i < generation->request.prompt_count; i++)
        generation->usage.prompt_tokens += generation->request.prompts[i].count;
    for (size_t i = 0; i < choice_count; i++) {
        init_choice(generation, i);
        scheduler_add(config->scheduler, &generation->choices[i].sequence);
    }
    return generation;
}

/* Whole events, one after the other: each ends with an empty line, and JSON holds no line break. */
static void give_events(struct generation *generation)
{
    struct slice rest = buf_slice(&generation->text);

    while (rest.len > 0) {
        const char *end = memmem(rest.ptr, rest.len, "\n\n", 2);
        size_t len;

        assert(end != NULL);
        len = (size_t)(end - rest.ptr) + 2;
        generation->callbacks->on_event(generation->ctx, slice_of(rest.ptr, len));
        rest = slice_skip(rest, len);
    }
    buf_clear(&generation->text);
}

void generation_open(struct generation *generation)
{
    if (!generation->request.is_stream || generation->family->put_opening == NULL)
        return;
    generation->family->put_opening(&generation->text, &generation->head);
    give_events(generation);
}

/* vLLM opens all choices when the first token of any is there. */
static void begin_stream(struct generation *generation)
{
    generation->has_begun = true;
    if (generation->family->put_beginning == NULL)
        return;
    for (size_t i = 0; i < generation->choice_count; i++)
        generation->family->put_beginning(&generation->text, &generation->head,
                                          &generation->answers[i], &generation->usage);
}

static void end_body(struct generation *generation)
{
    generation->family->put_body(&generation->text, &generation->head, generation->answers,
                                 generation->choice_count, &generation->usage);
    generation->callbacks->on_end(generation->ctx, buf_slice(&generation->text));
}

static void tell_token(struct generation *generation, const struct answer_choice *answer)
{
    bool is_last = generation->open_count == 0;

    if (!generation->has_begun)
        begin_stream(generation);
    generation->family->put_token(&generation->text, &generation->head, answer, &generation->usage,
                                  is_last);
    if (is_last)
        generation->family->put_end(&generation->text, &generation->head, &generation->answers[0],
                                    &generation->usage);
    give_events(generation);
    if (is_last)
        generation->callbacks->on_end(generation->ctx, SLICE(""));
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

    if (sequence->has_wrong_page)
        answer_plan_spoil(&choice->plan, sequence->answered_count - 1);
    count_token(generation, choice);
    answer->answered_count = sequence->answered_count;
    if (is_last) {
        answer->finish_reason = finish_reason(generation, choice);
        generation->open_count--;
    }
    if (generation->request.is_stream)
        tell_token(generation, answer);
    else if (generation->open_count == 0)
        end_body(generation);
}

void generation_store(const struct generation *generation, struct response_store *store)
{
    const struct answer_choice *answer = &generation->answers[0];
    struct buf body, messages;

    assert(generation->open_count == 0);
    if (!generation->request.wants_store)
        return;
    buf_init(&body, SIZE_MAX);
    buf_init(&messages, SIZE_MAX);
    generation->family->put_body(&body, &generation->head, answer, 1, &generation->usage);
    text_put(&messages, buf_slice(&generation->request.messages));
    responses_form_put_answer(
        &messages, answer_plan_text(answer->plan, ANSWER_CONTENT, answer->answered_count));
    response_store_put(store, generation->head.id, buf_slice(&body), buf_slice(&messages));
    buf_release(&body);
    buf_release(&messages);
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
        free(generation->choices[i].id);
    }
    free(generation->choices);
    free(generation->answers);
    free(generation->id);
    free(generation->salt);
    buf_release(&generation->text);
    engine_request_release(&generation->request);
    free(generation);
}
