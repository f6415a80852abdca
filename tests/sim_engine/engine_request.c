/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/engine_request.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/sim_engine/tokenizer.h"

/*
 * DESIGN
 *
 * vLLM checks in two layers, and the layer shows in the error: the schema of the body (pydantic:
 * "1 validation error", type "Bad Request", param "body.<field>") and the meaning of the values
 * ("BadRequestError", param the field or null). The recordings have both. Unknown fields are fine.
 */

static int refuse(struct engine_fault *fault, const char *param, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static int refuse(struct engine_fault *fault, const char *param, const char *format, ...)
{
    va_list args;

    *fault = (struct engine_fault){.status = 400, .type = "BadRequestError"};
    snprintf(fault->param, sizeof fault->param, "%s", param);
    va_start(args, format);
    vsnprintf(fault->message, sizeof fault->message, format, args);
    va_end(args);
    return -EINVAL;
}

/* The schema's error for one field. */
static int refuse_field(struct engine_fault *fault, const char *field, const char *type,
                        const char *message)
{
    char param[64];

    snprintf(param, sizeof param, "body.%s", field);
    (void)refuse(fault, param, "1 validation error:\n  {'type': '%s', 'loc': '%s', 'msg': '%s'}",
                 type, param, message);
    fault->type = "Bad Request";
    return -EINVAL;
}

void engine_fault_bad_json(struct engine_fault *fault, size_t offset, const char *why)
{
    char param[64];

    snprintf(param, sizeof param, "body.%zu", offset);
    (void)refuse(fault, param,
                 "1 validation error:\n  {'type': 'json_invalid', 'loc': '%s', 'msg': 'JSON decode "
                 "error', 'input': '<dict of 0 items>', 'ctx': {'error': '%s'}}",
                 param, why);
    fault->type = "Bad Request";
}

static bool is_given(struct json_value value)
{
    return json_type(value) != JSON_NONE && json_type(value) != JSON_NULL;
}

static int read_bool(struct json_value object, const char *key, bool *flag,
                     struct engine_fault *fault)
{
    struct json_value value = json_get(object, key);

    if (!is_given(value))
        return 0;
    if (json_type(value) != JSON_BOOL)
        return refuse_field(fault, key, "bool_type", "Input should be a valid boolean");
    *flag = json_bool(value);
    return 0;
}

/* 1: read; 0: not given. */
static int read_int(struct json_value root, const char *key, int64_t *number,
                    struct engine_fault *fault)
{
    struct json_value value = json_get(root, key);

    if (!is_given(value))
        return 0;
    if (json_type(value) != JSON_INT64)
        return refuse_field(fault, key, "int_type", "Input should be a valid integer");
    *number = json_int64(value);
    return 1;
}

static int check_number(struct json_value root, const char *key, struct engine_fault *fault)
{
    struct json_value value = json_get(root, key);
    enum json_type type = json_type(value);

    if (!is_given(value) || type == JSON_INT64 || type == JSON_UINT64 || type == JSON_DOUBLE)
        return 0;
    return refuse_field(fault, key, "float_parsing",
                        "Input should be a valid number, unable to parse string as a number");
}

static int read_model(const struct engine_model *model, struct json_value root,
                      struct engine_request *request, struct engine_fault *fault)
{
    struct json_value value = json_get(root, "model");
    struct slice name = json_string(value);

    request->model = model->name;
    if (!is_given(value) || slice_eq(name, model->name))
        return 0;
    if (json_type(value) != JSON_STRING)
        return refuse_field(fault, "model", "string_type", "Input should be a valid string");
    for (size_t i = 0; i < model->lora_count; i++) {
        if (slice_eq(name, model->loras[i])) {
            request->model = model->loras[i];
            return 0;
        }
    }
    (void)refuse(fault, "model", "The model `%.*s` does not exist. Valid aliases: %.*s.",
                 (int)(name.len < 200 ? name.len : 200), name.ptr, (int)model->name.len,
                 model->name.ptr);
    fault->status = 404;
    fault->type = "NotFoundError";
    return -EINVAL;
}

static int read_stream(struct json_value root, struct engine_request *request,
                       struct engine_fault *fault)
{
    struct json_value options = json_get(root, "stream_options");

    if (read_bool(root, "stream", &request->is_stream, fault) < 0)
        return -EINVAL;
    if (!is_given(options))
        return 0;
    if (!request->is_stream)
        return refuse_field(fault, "stream_options", "value_error",
                            "Stream options can only be defined when `stream=True`.");
    if (read_bool(options, "include_usage", &request->wants_usage, fault) < 0 ||
        read_bool(options, "continuous_usage_stats", &request->wants_usage_always, fault) < 0)
        return -EINVAL;
    request->wants_usage_always = request->wants_usage_always && request->wants_usage;
    return 0;
}

static int read_choice_count(struct json_value root, struct engine_request *request,
                             struct engine_fault *fault)
{
    int64_t count = 1;

    if (read_int(root, "n", &count, fault) < 0)
        return -EINVAL;
    if (count < 1 || count > ENGINE_CHOICE_COUNT_MAX)
        return refuse(fault, "n", "n must be from 1 to %d, got %" PRId64 ".",
                      ENGINE_CHOICE_COUNT_MAX, count);
    request->choice_count = (uint32_t)count;
    return 0;
}

static int read_answer_tokens(const struct engine_model *model, struct json_value root,
                              struct engine_request *request, struct engine_fault *fault)
{
    int64_t count = ENGINE_ANSWER_TOKENS;
    int given = read_int(root, "max_completion_tokens", &count, fault);

    if (given == 0)
        given = read_int(root, "max_tokens", &count, fault);
    if (given < 0)
        return -EINVAL;
    if (count < 1)
        return refuse(fault, "max_tokens", "max_tokens must be at least 1, got %" PRId64 ".",
                      count);
    if ((uint64_t)count > model->context_tokens_max)
        return refuse(fault, "max_tokens",
                      "max_tokens=%" PRId64 " cannot be greater than max_model_len=%zu. Please "
                      "request fewer output tokens. (parameter=max_tokens, value=%" PRId64 ")",
                      count, model->context_tokens_max, count);
    request->answer_tokens = (size_t)count;
    request->has_length_limit = given == 1;
    return 0;
}

static int read_salt(struct json_value root, struct engine_request *request,
                     struct engine_fault *fault)
{
    struct json_value value = json_get(root, "cache_salt");

    if (!is_given(value))
        return 0;
    request->salt = json_string(value);
    if (request->salt.len == 0)
        return refuse(fault, "cache_salt",
                      "Parameter 'cache_salt' must be a non-empty string if provided. "
                      "(parameter=cache_salt)");
    return 0;
}

/* tool_choice "required" or a function's name says which tool must be called. */
static int read_tool_choice(struct json_value root, struct engine_request *request,
                            struct engine_fault *fault)
{
    struct json_value choice = json_get(root, "tool_choice");
    struct slice name = json_string(json_get(json_get(choice, "function"), "name"));
    struct json_iterator tools = json_iterate(json_get(root, "tools"));
    struct json_value tool;
    bool is_required = slice_eq(json_string(choice), SLICE("required"));

    request->is_tool_named = json_type(choice) == JSON_OBJECT;
    if (!is_required && !request->is_tool_named)
        return 0;
    while (json_next_element(&tools, &tool)) {
        struct slice found = json_string(json_get(json_get(tool, "function"), "name"));

        if (is_required || slice_eq(found, name)) {
            request->tool = tool;
            return 0;
        }
    }
    return refuse_field(fault, "tool_choice", "value_error",
                        "When using `tool_choice`, `tools` must hold the function that it names.");
}

static struct token_list *add_prompt(struct engine_request *request)
{
    request->prompts =
        realloc(request->prompts, (request->prompt_count + 1) * sizeof *request->prompts);
    assert(request->prompts != NULL);
    request->prompts[request->prompt_count] = (struct token_list){0};
    return &request->prompts[request->prompt_count++];
}

static int read_chat_prompt(const struct engine_model *model, struct json_value root,
                            struct engine_request *request, struct engine_fault *fault)
{
    struct chat_input input = {
        .messages = json_get(root, "messages"),
        .tools = json_get(root, "tools"),
        .add_generation_prompt = true,
    };

    if (!is_given(input.messages))
        return refuse_field(fault, "messages", "missing", "Field required");
    if (json_type(input.messages) != JSON_ARRAY)
        return refuse_field(fault, "messages", "list_type", "Input should be a valid list");
    if (json_count(input.messages) == 0)
        return refuse(fault, "",
                      "Cannot apply chat template to an empty conversation. Provide at least one "
                      "message.");
    if (read_bool(root, "add_generation_prompt", &input.add_generation_prompt, fault) < 0)
        return -EINVAL;
    chat_template_render(&model->chat_template, input, add_prompt(request));
    return 0;
}

static int read_ids(struct json_value array, struct token_list *ids, struct engine_fault *fault)
{
    struct json_iterator iterator = json_iterate(array);
    struct json_value element;

    while (json_next_element(&iterator, &element)) {
        int64_t id = json_int64(element);

        if (json_type(element) != JSON_INT64 || id < 0 || id > INT32_MAX)
            return refuse_field(fault, "prompt", "int_type", "Input should be a valid token id");
        token_list_append(ids, (uint32_t)id);
    }
    return 0;
}

/* One prompt: a string or an array of ids. */
static int read_one_prompt(struct json_value value, struct engine_request *request,
                           struct engine_fault *fault)
{
    if (json_type(value) == JSON_STRING) {
        tokenizer_encode(json_string(value), add_prompt(request));
        return 0;
    }
    if (json_type(value) == JSON_ARRAY)
        return read_ids(value, add_prompt(request), fault);
    return refuse_field(fault, "prompt", "string_type", "Input should be a valid string");
}

static int read_text_prompts(struct json_value root, struct engine_request *request,
                             struct engine_fault *fault)
{
    struct json_value prompt = json_get(root, "prompt");
    struct json_iterator iterator = json_iterate(prompt);
    struct json_value element;

    if (!is_given(prompt))
        return refuse_field(fault, "prompt", "missing", "Field required");
    if (json_type(prompt) != JSON_ARRAY)
        return read_one_prompt(prompt, request, fault);
    if (json_next_element(&iterator, &element) && json_type(element) == JSON_INT64)
        return read_one_prompt(prompt, request, fault);
    iterator = json_iterate(prompt);
    while (json_next_element(&iterator, &element)) {
        if (read_one_prompt(element, request, fault) < 0)
            return -EINVAL;
    }
    return 0;
}

static int truncate_prompts(const struct engine_model *model, struct json_value root,
                            struct engine_request *request, struct engine_fault *fault)
{
    int64_t limit = 0;
    int given = read_int(root, "truncate_prompt_tokens", &limit, fault);

    if (given <= 0)
        return given;
    if (limit < -1 || limit == 0)
        return refuse(fault, "truncate_prompt_tokens",
                      "truncate_prompt_tokens must be -1 or at least 1.");
    for (size_t i = 0; i < request->prompt_count; i++)
        token_list_keep_last(&request->prompts[i],
                             limit < 0 ? model->context_tokens_max : (size_t)limit);
    return 0;
}

static int check_lengths(const struct engine_model *model, const struct engine_request *request,
                         struct engine_fault *fault)
{
    size_t limit = model->context_tokens_max;

    if (request->prompt_count == 0)
        return refuse(fault, "prompt", "Either prompt or prompt_embeds must be provided.");
    for (size_t i = 0; i < request->prompt_count; i++) {
        size_t count = request->prompts[i].count;

        if (count == 0)
            return refuse(fault, "prompt", "The decoder prompt cannot be empty.");
        if (count > limit)
            return refuse(fault, "input_tokens",
                          "This model's maximum context length is %zu tokens. However, your prompt "
                          "contains %zu input tokens, which exceeds this limit even without any "
                          "output tokens. Please reduce the length of the input prompt. "
                          "(parameter=input_tokens, value=%zu)",
                          limit, count, count);
        if (request->api != ENGINE_TOKENIZE && count + request->answer_tokens > limit)
            return refuse(fault, "input_tokens",
                          "This model's maximum context length is %zu tokens. However, you "
                          "requested %zu output tokens and your prompt contains %zu input tokens, "
                          "for a total of %zu tokens. Please reduce the length of the input prompt "
                          "or the number of requested output tokens. (parameter=input_tokens, "
                          "value=%zu)",
                          limit, request->answer_tokens, count, count + request->answer_tokens,
                          count);
    }
    return 0;
}

/* What both kinds of generation have and /tokenize has not. */
static int read_generation(const struct engine_model *model, struct json_value root,
                           struct engine_request *request, struct engine_fault *fault)
{
    if (check_number(root, "temperature", fault) < 0 || check_number(root, "top_p", fault) < 0 ||
        read_stream(root, request, fault) < 0 || read_choice_count(root, request, fault) < 0 ||
        read_bool(root, "return_token_ids", &request->wants_ids, fault) < 0 ||
        read_answer_tokens(model, root, request, fault) < 0 || read_salt(root, request, fault) < 0)
        return -EINVAL;
    request->id = json_string(json_get(root, "request_id"));
    return request->api == ENGINE_CHAT ? read_tool_choice(root, request, fault) : 0;
}

int engine_request_read(enum engine_api api, const struct engine_model *model,
                        struct json_value root, struct engine_request *request,
                        struct engine_fault *fault)
{
    bool is_chat =
        api == ENGINE_CHAT || (api == ENGINE_TOKENIZE && is_given(json_get(root, "messages")));

    *request = (struct engine_request){.api = api, .choice_count = 1};
    if (json_type(root) != JSON_OBJECT)
        return refuse_field(fault, "", "model_attributes_type", "Input should be an object");
    if (api != ENGINE_TOKENIZE && read_generation(model, root, request, fault) < 0)
        return -EINVAL;
    if ((is_chat ? read_chat_prompt(model, root, request, fault)
                 : read_text_prompts(root, request, fault)) < 0)
        return -EINVAL;
    if (read_model(model, root, request, fault) < 0 ||
        truncate_prompts(model, root, request, fault) < 0)
        return -EINVAL;
    return check_lengths(model, request, fault);
}

void engine_request_release(struct engine_request *request)
{
    for (size_t i = 0; i < request->prompt_count; i++)
        token_list_release(&request->prompts[i]);
    free(request->prompts);
    *request = (struct engine_request){0};
}
