/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/responses_form.h"

#include <stdbool.h>

#include "tests/sim_engine/chat_form.h"
#include "tests/sim_engine/json_text.h"

static bool is_of_type(struct json_value item, struct slice type)
{
    return slice_eq(json_string(json_get(item, "type")), type);
}

/* The first text of its content, else of its summary. */
static struct slice reasoning_text(struct json_value item)
{
    static const char *const keys[] = {"content", "summary"};
    struct json_value part;

    for (size_t i = 0; i < array_count(keys); i++) {
        struct json_iterator iterator = json_iterate(json_get(item, keys[i]));

        if (json_next_element(&iterator, &part))
            return json_string(json_get(part, "text"));
    }
    return SLICE("");
}

static void put_item(struct chat_form *form, struct json_value item)
{
    struct slice role = json_string(json_get(item, "role"));

    if (is_of_type(item, SLICE("function_call")))
        chat_form_put_call(form, json_string(json_get(item, "name")),
                           json_string(json_get(item, "arguments")));
    else if (is_of_type(item, SLICE("function_call_output")))
        chat_form_put_message(form, SLICE("tool"), json_get(item, "output"));
    else if (is_of_type(item, SLICE("reasoning")))
        chat_form_put_reasoning(form, reasoning_text(item));
    else if (slice_eq(role, SLICE("assistant")))
        chat_form_put_content(form, json_get(item, "content"));
    else if (role.len > 0)
        chat_form_put_message(form, role, json_get(item, "content"));
}

void responses_form_put_messages(struct buf *buf, struct slice earlier, struct json_value input)
{
    struct chat_form form = {.buf = buf};
    struct json_iterator iterator = json_iterate(input);
    struct json_value item;

    text_put(buf, earlier);
    if (json_type(input) == JSON_STRING)
        chat_form_put_message(&form, SLICE("user"), input);
    while (json_type(input) == JSON_ARRAY && json_next_element(&iterator, &item))
        put_item(&form, item);
    chat_form_close(&form);
}

void responses_form_put_answer(struct buf *buf, struct slice text)
{
    struct chat_form form = {.buf = buf};

    chat_form_put_text_message(&form, SLICE("assistant"), text);
}

void responses_form_put(struct buf *buf, struct json_value root, struct slice messages)
{
    struct chat_form form = {.buf = buf};
    struct slice instructions = json_string(json_get(root, "instructions"));
    struct json_value choice = json_get(root, "tool_choice");

    text_put(buf, SLICE("{\"messages\":["));
    if (instructions.len > 0) {
        chat_form_put_text_message(&form, SLICE("system"), instructions);
        if (messages.len > 0)
            text_put(buf, SLICE(","));
    }
    text_put(buf, messages);
    text_put(buf, SLICE("]"));
    chat_form_put_tools(buf, json_get(root, "tools"), "parameters");
    chat_form_put_tool_choice(buf, json_string(json_get(choice, "name")), json_string(choice));
    text_put(buf, SLICE("}"));
}
