/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/request_part.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "tests/sim_engine/tokenizer.h"

/* Their part of vLLM has an error of its own. */
static bool is_pooling(enum engine_api api)
{
    return api == ENGINE_EMBEDDINGS || api == ENGINE_RERANK || api == ENGINE_SCORE;
}

int request_read_model(const struct engine_model *model, struct json_value root,
                       struct engine_request *request, struct engine_fault *fault)
{
    struct json_value value = json_get(root, "model");
    struct slice name = json_string(value);

    request->model = model->name;
    if (!json_is_given(value) || slice_eq(name, model->name))
        return 0;
    if (json_type(value) != JSON_STRING)
        return request_refuse_field(fault, "model", "string_type",
                                    "Input should be a valid string");
    for (size_t i = 0; i < model->lora_count; i++) {
        if (slice_eq(name, model->loras[i])) {
            request->model = model->loras[i];
            request->lora_id = (uint32_t)i + 1;
            return 0;
        }
    }
    name.len = name.len < 200 ? name.len : 200;
    if (is_pooling(request->api))
        (void)request_refuse(fault, "", "The model `%.*s` does not exist.", (int)name.len,
                             name.ptr);
    else
        (void)request_refuse(fault, "model",
                             "The model `%.*s` does not exist. Valid aliases: %.*s.", (int)name.len,
                             name.ptr, (int)model->name.len, model->name.ptr);
    fault->status = 404;
    fault->type = "NotFoundError";
    return -EINVAL;
}

int request_read_stream(struct json_value root, struct engine_request *request,
                        struct engine_fault *fault)
{
    struct json_value options = json_get(root, "stream_options");

    if (request_read_bool(root, "stream", &request->is_stream, fault) < 0)
        return -EINVAL;
    if (!json_is_given(options))
        return 0;
    if (!request->is_stream)
        return request_refuse_field(fault, "stream_options", "value_error",
                                    "Stream options can only be defined when `stream=True`.");
    if (request_read_bool(options, "include_usage", &request->wants_usage, fault) < 0 ||
        request_read_bool(options, "continuous_usage_stats", &request->wants_usage_always, fault) <
            0)
        return -EINVAL;
    request->wants_usage_always = request->wants_usage_always && request->wants_usage;
    return 0;
}

int request_read_answer_tokens(struct json_value root, struct answer_limit limit,
                               struct engine_request *request, struct engine_fault *fault)
{
    int64_t count = ENGINE_ANSWER_TOKENS;
    int given = request_read_int(root, limit.key, &count, fault);

    if (given < 0)
        return -EINVAL;
    if (count < 1)
        return request_refuse(fault, limit.name, "%s must be at least 1, got %" PRId64 ".",
                              limit.name, count);
    if ((uint64_t)count > limit.tokens_max)
        return request_refuse(fault, limit.name,
                              "%s=%" PRId64 " cannot be greater than max_model_len=%zu. Please "
                              "request fewer output tokens. (parameter=%s, value=%" PRId64 ")",
                              limit.name, count, limit.tokens_max, limit.name, count);
    request->answer_tokens = (size_t)count;
    request->has_length_limit = given == 1;
    return given;
}

int request_read_sampling(struct json_value root, struct engine_request *request,
                          struct engine_fault *fault)
{
    struct json_value salt = json_get(root, "cache_salt");

    if (request_check_number(root, "temperature", fault) < 0 ||
        request_check_number(root, "top_p", fault) < 0)
        return -EINVAL;
    if (!json_is_given(salt))
        return 0;
    request->salt = json_string(salt);
    if (request->salt.len == 0)
        return request_refuse(fault, "cache_salt",
                              "Parameter 'cache_salt' must be a non-empty string if provided. "
                              "(parameter=cache_salt)");
    return 0;
}

int request_read_tool_choice(struct json_value root, struct engine_request *request,
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
    return request_refuse_field(
        fault, "tool_choice", "value_error",
        "When using `tool_choice`, `tools` must hold the function that it names.");
}

struct token_list *request_add_prompt(struct engine_request *request)
{
    request->prompts =
        realloc(request->prompts, (request->prompt_count + 1) * sizeof *request->prompts);
    assert(request->prompts != NULL);
    request->prompts[request->prompt_count] = (struct token_list){0};
    return &request->prompts[request->prompt_count++];
}

int request_read_chat_prompt(const struct engine_model *model, struct json_value root,
                             struct engine_request *request, struct engine_fault *fault)
{
    struct chat_input input = {
        .messages = json_get(root, "messages"),
        .tools = json_get(root, "tools"),
        .add_generation_prompt = true,
    };
    bool thinks = true;

    if (!json_is_given(input.messages))
        return request_refuse_field(fault, "messages", "missing", "Field required");
    if (json_type(input.messages) != JSON_ARRAY)
        return request_refuse_field(fault, "messages", "list_type", "Input should be a valid list");
    if (json_count(input.messages) == 0)
        return request_refuse(
            fault, "",
            "Cannot apply chat template to an empty conversation. Provide at least one "
            "message.");
    if (request_read_bool(root, "add_generation_prompt", &input.add_generation_prompt, fault) < 0 ||
        request_read_bool(json_get(root, "chat_template_kwargs"), "enable_thinking", &thinks,
                          fault) < 0)
        return -EINVAL;
    request->skips_thinking = input.skips_thinking = !thinks;
    chat_template_render(&model->chat_template, input, request_add_prompt(request));
    return 0;
}

static int read_ids(struct json_value array, const char *key, struct token_list *ids,
                    struct engine_fault *fault)
{
    struct json_iterator iterator = json_iterate(array);
    struct json_value element;

    while (json_next_element(&iterator, &element)) {
        int64_t id = json_int64(element);

        if (json_type(element) != JSON_INT64 || id < 0 || id > INT32_MAX)
            return request_refuse_field(fault, key, "int_type", "Input should be a valid token id");
        token_list_append(ids, (uint32_t)id);
    }
    return 0;
}

int request_read_prompt(struct json_value value, const char *key, struct engine_request *request,
                        struct engine_fault *fault)
{
    if (json_type(value) == JSON_STRING) {
        tokenizer_encode(json_string(value), request_add_prompt(request));
        return 0;
    }
    if (json_type(value) == JSON_ARRAY)
        return read_ids(value, key, request_add_prompt(request), fault);
    return request_refuse_field(fault, key, "string_type", "Input should be a valid string");
}

int request_read_prompts(struct json_value root, const char *key, struct engine_request *request,
                         struct engine_fault *fault)
{
    struct json_value prompts = json_get(root, key);
    struct json_iterator iterator = json_iterate(prompts);
    struct json_value element;

    if (!json_is_given(prompts))
        return request_refuse_missing(fault, key);
    if (json_type(prompts) != JSON_ARRAY)
        return request_read_prompt(prompts, key, request, fault);
    if (json_next_element(&iterator, &element) && json_type(element) == JSON_INT64)
        return request_read_prompt(prompts, key, request, fault);
    iterator = json_iterate(prompts);
    while (json_next_element(&iterator, &element)) {
        if (request_read_prompt(element, key, request, fault) < 0)
            return -EINVAL;
    }
    return 0;
}

int request_read_form(const struct request_reader *reader, struct slice form,
                      struct engine_request *request, struct engine_fault *fault)
{
    struct json_value root;
    struct parse_error error;
    int status = json_scan_copy(reader->form_scanner, form, &root, &error);

    if (status < 0) /* a form is a little deeper than the body it was made of */
        return request_refuse(fault, "", "The conversation cannot be read: %s", error.message);
    if (request_read_chat_prompt(reader->model, root, request, fault) < 0)
        return -EINVAL;
    return request_read_tool_choice(root, request, fault);
}
