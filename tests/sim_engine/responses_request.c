/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/responses_request.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "backends/runtime/buf.h"
#include "tests/sim_engine/json_text.h"
#include "tests/sim_engine/request_part.h"
#include "tests/sim_engine/response_store.h"
#include "tests/sim_engine/responses_echo.h"
#include "tests/sim_engine/responses_form.h"

int responses_refuse_id(struct engine_fault *fault, struct slice id)
{
    (void)request_refuse(fault, "response_id", "Response with id '%.*s' not found.",
                         (int)(id.len < 200 ? id.len : 200), id.ptr);
    fault->status = 404;
    fault->type = "invalid_request_error";
    return -EINVAL;
}

static int check_fields(struct json_value root, struct engine_fault *fault)
{
    struct json_value input = json_get(root, "input");
    struct slice choice = json_string(json_get(root, "tool_choice"));
    bool is_background = false;

    if (!json_is_given(input))
        return request_refuse_missing(fault, "input");
    if (json_type(input) != JSON_STRING && json_type(input) != JSON_ARRAY)
        return request_refuse_field(fault, "input", "string_type",
                                    "Input should be a valid string or a valid list");
    if (slice_eq(choice, SLICE("required")) && json_count(json_get(root, "tools")) == 0)
        return request_refuse(fault, "tool_choice",
                              "Tool choice 'required' must be specified with 'tools' parameter. "
                              "(parameter=tool_choice)");
    if (request_read_bool(root, "background", &is_background, fault) < 0)
        return -EINVAL;
    if (is_background) /* a generation here ends with its connection */
        return request_refuse(fault, "background",
                              "This engine does not support the background mode.");
    return 0;
}

/* request->messages: the stored conversation, and the input behind it. */
static int read_messages(const struct request_reader *reader, struct json_value root,
                         struct engine_request *request, struct engine_fault *fault)
{
    struct slice previous_id = json_string(json_get(root, "previous_response_id"));
    const struct stored_response *previous = NULL;

    if (previous_id.len > 0) {
        previous = response_store_find(reader->store, previous_id);
        if (previous == NULL)
            return responses_refuse_id(fault, previous_id);
    }
    responses_form_put_messages(&request->messages,
                                previous != NULL ? buf_slice(&previous->messages) : SLICE(""),
                                json_get(root, "input"));
    return 0;
}

int responses_request_read(const struct request_reader *reader, struct json_value root,
                           struct engine_request *request, struct engine_fault *fault)
{
    struct answer_limit limit = {
        .key = "max_output_tokens",
        .name = "max_output_tokens",
        .tokens_max = reader->model->context_tokens_max,
    };
    struct buf form;
    int status;

    request->wants_store = true;
    if (check_fields(root, fault) < 0 || request_read_sampling(root, request, fault) < 0 ||
        request_read_bool(root, "stream", &request->is_stream, fault) < 0 ||
        request_read_bool(root, "store", &request->wants_store, fault) < 0 ||
        request_read_answer_tokens(root, limit, request, fault) < 0 ||
        read_messages(reader, root, request, fault) < 0)
        return -EINVAL;
    request->id = json_string(json_get(root, "request_id"));
    buf_init(&form, SIZE_MAX);
    responses_form_put(&form, root, buf_slice(&request->messages));
    status = request_read_form(reader, buf_slice(&form), request, fault);
    buf_release(&form);
    if (status == 0)
        responses_echo_put(&request->echo, root,
                           request->has_length_limit
                               ? request->answer_tokens
                               : limit.tokens_max - request->prompts[0].count);
    return status;
}
