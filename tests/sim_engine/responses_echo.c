/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/responses_echo.h"

#include "tests/sim_engine/json_text.h"
#include "tests/sim_engine/request_field.h"

/* `"key":value,`; initial where it was not given. */
static void put_member(struct buf *echo, struct json_value root, const char *key,
                       const char *initial)
{
    struct json_value value = json_get(root, key);

    text_putf(echo, "\"%s\":", key);
    if (json_is_given(value))
        json_put_value(echo, value);
    else
        text_put(echo, slice_of_string(initial));
    text_put(echo, SLICE(","));
}

/* Without tools a choice means nothing, and vLLM says "none". */
static void put_tool_choice(struct buf *echo, struct json_value root)
{
    struct json_value choice = json_get(root, "tool_choice");

    if (json_count(json_get(root, "tools")) == 0) {
        text_put(echo, SLICE("\"tool_choice\":\"none\","));
    } else if (json_type(choice) == JSON_OBJECT) {
        text_put(echo, SLICE("\"tool_choice\":{\"name\":"));
        json_put_string(echo, json_string(json_get(choice, "name")));
        text_put(echo, SLICE(",\"type\":\"function\"},"));
    } else {
        put_member(echo, root, "tool_choice", "\"auto\"");
    }
}

static void put_tools(struct buf *echo, struct json_value tools)
{
    struct json_iterator iterator = json_iterate(tools);
    struct json_value tool;
    const char *comma = "";

    text_put(echo, SLICE("\"tools\":["));
    for (; json_next_element(&iterator, &tool); comma = ",") {
        text_putf(echo, "%s{", comma);
        put_member(echo, tool, "name", "\"\"");
        put_member(echo, tool, "parameters", "null");
        put_member(echo, tool, "strict", "null");
        text_put(echo, SLICE("\"type\":\"function\",\"allowed_callers\":null,\"async\":null,"
                             "\"defer_loading\":null,"));
        put_member(echo, tool, "description", "null");
        text_put(echo, SLICE("\"output_schema\":null}"));
    }
    text_put(echo, SLICE("],"));
}

void responses_echo_put(struct buf *echo, struct json_value root, size_t output_tokens_max)
{
    put_member(echo, root, "instructions", "null");
    put_member(echo, root, "metadata", "null");
    text_end_piece(echo);

    put_member(echo, root, "parallel_tool_calls", "true");
    put_member(echo, root, "temperature", "1.0");
    put_tool_choice(echo, root);
    put_tools(echo, json_get(root, "tools"));
    put_member(echo, root, "top_p", "1.0");
    text_putf(echo, "\"background\":false,\"max_output_tokens\":%zu,", output_tokens_max);
    put_member(echo, root, "max_tool_calls", "null");
    put_member(echo, root, "previous_response_id", "null");
    text_put(echo, SLICE("\"prompt\":null,"));
    put_member(echo, root, "reasoning", "null");
    put_member(echo, root, "service_tier", "\"auto\"");
    text_end_piece(echo);

    put_member(echo, root, "text", "null");
    text_put(echo, SLICE("\"top_logprobs\":null,"));
    put_member(echo, root, "truncation", "\"disabled\"");
    text_end_piece(echo);

    put_member(echo, root, "user", "null");
    put_member(echo, root, "presence_penalty", "0.0");
    put_member(echo, root, "frequency_penalty", "0.0");
    text_end_piece(echo);
}
