/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/messages_request.h"

#include <errno.h>

#include "backends/runtime/buf.h"
#include "tests/sim_engine/messages_form.h"
#include "tests/sim_engine/request_part.h"

static int check_fields(struct json_value root, const struct engine_request *request,
                        struct engine_fault *fault)
{
    static const char *const needed[] = {"model", "messages", "max_tokens"};
    size_t count = array_count(needed) - (request->api == ENGINE_COUNT_TOKENS); /* no answer */

    for (size_t i = 0; i < count; i++) {
        if (!json_is_given(json_get(root, needed[i])))
            return request_refuse_missing(fault, needed[i]);
    }
    if (json_type(json_get(root, "messages")) != JSON_ARRAY)
        return request_refuse_field(fault, "messages", "list_type", "Input should be a valid list");
    return 0;
}

int messages_request_read(const struct request_reader *reader, struct json_value root,
                          struct engine_request *request, struct engine_fault *fault)
{
    struct answer_limit limit = {
        .key = "max_tokens",
        .name = "max_completion_tokens", /* of the chat request that vLLM makes of it */
        .tokens_max = reader->model->context_tokens_max,
    };
    struct buf form;
    int status;

    if (check_fields(root, request, fault) < 0 || request_read_sampling(root, request, fault) < 0 ||
        request_read_bool(root, "stream", &request->is_stream, fault) < 0)
        return -EINVAL;
    if (request->api == ENGINE_MESSAGES &&
        request_read_answer_tokens(root, limit, request, fault) < 0)
        return -EINVAL;
    buf_init(&form, SIZE_MAX);
    messages_form_put(&form, root);
    status = request_read_form(reader, buf_slice(&form), request, fault);
    buf_release(&form);
    return status;
}
