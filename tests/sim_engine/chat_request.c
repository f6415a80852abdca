/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/chat_request.h"

#include <errno.h>
#include <inttypes.h>

#include "tests/sim_engine/request_part.h"

static int read_choice_count(struct json_value root, struct engine_request *request,
                             struct engine_fault *fault)
{
    int64_t count = 1;

    if (request_read_int(root, "n", &count, fault) < 0)
        return -EINVAL;
    if (count < 1 || count > ENGINE_CHOICE_COUNT_MAX)
        return request_refuse(fault, "n", "n must be from 1 to %d, got %" PRId64 ".",
                              ENGINE_CHOICE_COUNT_MAX, count);
    request->choice_count = (uint32_t)count;
    return 0;
}

/* What chat and completions have in common. */
static int read_generation(const struct request_reader *reader, struct json_value root,
                           struct engine_request *request, struct engine_fault *fault)
{
    struct answer_limit limit = {
        .key = "max_completion_tokens",
        .name = "max_tokens",
        .tokens_max = reader->model->context_tokens_max,
    };
    int given;

    if (request_read_sampling(root, request, fault) < 0 ||
        request_read_stream(root, request, fault) < 0 ||
        read_choice_count(root, request, fault) < 0 ||
        request_read_bool(root, "return_token_ids", &request->wants_ids, fault) < 0)
        return -EINVAL;
    given = request_read_answer_tokens(root, limit, request, fault);
    limit.key = "max_tokens";
    if (given < 0 || (given == 0 && request_read_answer_tokens(root, limit, request, fault) < 0))
        return -EINVAL;
    request->id = json_string(json_get(root, "request_id"));
    return 0;
}

int chat_request_read(const struct request_reader *reader, struct json_value root,
                      struct engine_request *request, struct engine_fault *fault)
{
    if (read_generation(reader, root, request, fault) < 0 ||
        request_read_tool_choice(root, request, fault) < 0)
        return -EINVAL;
    return request_read_chat_prompt(reader->model, root, request, fault);
}

int completions_request_read(const struct request_reader *reader, struct json_value root,
                             struct engine_request *request, struct engine_fault *fault)
{
    if (read_generation(reader, root, request, fault) < 0)
        return -EINVAL;
    return request_read_prompts(root, "prompt", request, fault);
}

int tokenize_request_read(const struct request_reader *reader, struct json_value root,
                          struct engine_request *request, struct engine_fault *fault)
{
    if (json_is_given(json_get(root, "messages")))
        return request_read_chat_prompt(reader->model, root, request, fault);
    return request_read_prompts(root, "prompt", request, fault);
}

int detokenize_request_read(const struct request_reader *reader, struct json_value root,
                            struct engine_request *request, struct engine_fault *fault)
{
    struct json_value tokens = json_get(root, "tokens");

    (void)reader;
    if (!json_is_given(tokens))
        return request_refuse_missing(fault, "tokens");
    if (json_type(tokens) != JSON_ARRAY)
        return request_refuse_field(fault, "tokens", "list_type", "Input should be a valid list");
    return request_read_prompt(tokens, "tokens", request, fault);
}
