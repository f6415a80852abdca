/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/request_registry.h"

#include <assert.h>
#include <errno.h>

#include "tests/sim_engine/chat_request.h"
#include "tests/sim_engine/messages_request.h"
#include "tests/sim_engine/pooling_request.h"
#include "tests/sim_engine/request_part.h"
#include "tests/sim_engine/responses_request.h"

/*
 * DESIGN
 *
 * Each endpoint has a reader: its fields, then its prompts. What all share comes behind it: the
 * model's name, the lengths. Unknown fields are fine.
 */

typedef int request_read_fn(const struct request_reader *reader, struct json_value root,
                            struct engine_request *request, struct engine_fault *fault);

static request_read_fn *const read_fns[] = {
    [ENGINE_CHAT] = chat_request_read,
    [ENGINE_COMPLETIONS] = completions_request_read,
    [ENGINE_COUNT_TOKENS] = messages_request_read,
    [ENGINE_DETOKENIZE] = detokenize_request_read,
    [ENGINE_EMBEDDINGS] = pooling_request_read,
    [ENGINE_MESSAGES] = messages_request_read,
    [ENGINE_RERANK] = pooling_request_read,
    [ENGINE_RESPONSES] = responses_request_read,
    [ENGINE_SCORE] = pooling_request_read,
    [ENGINE_TOKENIZE] = tokenize_request_read,
};
static_assert(array_count(read_fns) == ENGINE_API_COUNT, "every endpoint has a reader");

static int truncate_prompts(const struct engine_model *model, struct json_value root,
                            struct engine_request *request, struct engine_fault *fault)
{
    int64_t limit = 0;
    int given = request_read_int(root, "truncate_prompt_tokens", &limit, fault);

    if (given <= 0)
        return given;
    if (limit < -1 || limit == 0)
        return request_refuse(fault, "truncate_prompt_tokens",
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
        return request_refuse(fault, "prompt", "Either prompt or prompt_embeds must be provided.");
    for (size_t i = 0; i < request->prompt_count; i++) {
        size_t count = request->prompts[i].count;

        if (count == 0)
            return request_refuse(fault, "prompt", "The decoder prompt cannot be empty.");
        if (count > limit)
            return request_refuse(
                fault, "input_tokens",
                "This model's maximum context length is %zu tokens. However, your prompt "
                "contains %zu input tokens, which exceeds this limit even without any "
                "output tokens. Please reduce the length of the input prompt. "
                "(parameter=input_tokens, value=%zu)",
                limit, count, count);
        if (request->answer_tokens > 0 && count + request->answer_tokens > limit)
            return request_refuse(
                fault, "input_tokens",
                "This model's maximum context length is %zu tokens. However, you "
                "requested %zu output tokens and your prompt contains %zu input tokens, "
                "for a total of %zu tokens. Please reduce the length of the input prompt "
                "or the number of requested output tokens. (parameter=input_tokens, "
                "value=%zu)",
                limit, request->answer_tokens, count, count + request->answer_tokens, count);
    }
    return 0;
}

int engine_request_read(enum engine_api api, const struct request_reader *reader,
                        struct json_value root, struct engine_request *request,
                        struct engine_fault *fault)
{
    engine_request_init(request, api);
    if (json_type(root) != JSON_OBJECT)
        return request_refuse_field(fault, "", "model_attributes_type",
                                    "Input should be an object");
    if (read_fns[api](reader, root, request, fault) < 0 ||
        request_read_model(reader->model, root, request, fault) < 0 ||
        truncate_prompts(reader->model, root, request, fault) < 0)
        return -EINVAL;
    return api == ENGINE_DETOKENIZE ? 0 : check_lengths(reader->model, request, fault);
}
