/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/messages_form.h"

#include <stdbool.h>

#include "tests/sim_engine/chat_form.h"
#include "tests/sim_engine/json_text.h"

/*
 * DESIGN
 *
 * Three things are not where chat has them. The system prompt is a field, and becomes the first
 * message. Results of tools are blocks of a user's message, and become messages before the rest of
 * it. The arguments of a call are an object, and become the text that Python's json.dumps makes of
 * it, which is how the model wrote them: the engine must find its own answers in its cache.
 */

static bool is_of_type(struct json_value block, struct slice type)
{
    return slice_eq(json_string(json_get(block, "type")), type);
}

static void put_spaced(struct buf *buf, struct json_value value);

static void put_spaced_members(struct buf *buf, struct json_value value)
{
    struct json_iterator iterator = json_iterate(value);
    struct json_member member;
    const char *comma = "";

    for (; json_next_member(&iterator, &member); comma = ", ") {
        text_put(buf, slice_of_string(comma));
        json_put_string(buf, member.key);
        text_put(buf, SLICE(": "));
        put_spaced(buf, member.value);
    }
}

static void put_spaced_elements(struct buf *buf, struct json_value value)
{
    struct json_iterator iterator = json_iterate(value);
    struct json_value element;
    const char *comma = "";

    for (; json_next_element(&iterator, &element); comma = ", ") {
        text_put(buf, slice_of_string(comma));
        put_spaced(buf, element);
    }
}

/* As deep as json_scan lets a document be. */
static void put_spaced(struct buf *buf, struct json_value value)
{
    if (json_type(value) == JSON_ARRAY) {
        text_put(buf, SLICE("["));
        put_spaced_elements(buf, value);
        text_put(buf, SLICE("]"));
    } else if (json_type(value) == JSON_OBJECT) {
        text_put(buf, SLICE("{"));
        put_spaced_members(buf, value);
        text_put(buf, SLICE("}"));
    } else {
        json_put_value(buf, value);
    }
}

/* All its blocks in one text, but for the one that names the client's billing: it differs with
 * every request, and vLLM leaves it out so that prompts stay alike. */
static void put_system(struct chat_form *form, struct json_value system)
{
    struct json_iterator iterator = json_iterate(system);
    struct json_value block;
    struct buf text;

    buf_init(&text, SIZE_MAX);
    text_put(&text, json_string(system));
    while (json_type(system) == JSON_ARRAY && json_next_element(&iterator, &block)) {
        struct slice piece = json_string(json_get(block, "text"));

        if (!slice_starts_with(piece, SLICE("x-anthropic-billing-header")))
            text_put(&text, piece);
    }
    if (buf_len(&text) > 0)
        chat_form_put_text_message(form, SLICE("system"), buf_slice(&text));
    buf_release(&text);
}

static void put_tool_results(struct chat_form *form, struct json_value blocks)
{
    struct json_iterator iterator = json_iterate(blocks);
    struct json_value block;

    while (json_next_element(&iterator, &block)) {
        if (is_of_type(block, SLICE("tool_result")))
            chat_form_put_message(form, SLICE("tool"), json_get(block, "content"));
    }
}

static void put_calls(struct chat_form *form, struct json_value blocks)
{
    struct json_iterator iterator = json_iterate(blocks);
    struct json_value block;
    struct buf arguments;

    buf_init(&arguments, SIZE_MAX);
    while (json_next_element(&iterator, &block)) {
        if (!is_of_type(block, SLICE("tool_use")))
            continue;
        buf_clear(&arguments);
        put_spaced(&arguments, json_get(block, "input"));
        chat_form_put_call(form, json_string(json_get(block, "name")), buf_slice(&arguments));
    }
    buf_release(&arguments);
}

static void put_assistant_blocks(struct chat_form *form, struct json_value blocks)
{
    struct json_iterator iterator = json_iterate(blocks);
    struct json_value block;

    while (json_next_element(&iterator, &block)) {
        if (is_of_type(block, SLICE("thinking")))
            chat_form_put_reasoning(form, json_string(json_get(block, "thinking")));
    }
    if (chat_form_has_parts(blocks))
        chat_form_put_content(form, blocks);
    put_calls(form, blocks);
    chat_form_close(form);
}

static void put_message(struct chat_form *form, struct json_value message)
{
    struct slice role = json_string(json_get(message, "role"));
    struct json_value content = json_get(message, "content");

    if (json_type(content) != JSON_ARRAY) {
        chat_form_put_message(form, role, content);
    } else if (slice_eq(role, SLICE("assistant"))) {
        put_assistant_blocks(form, content);
    } else {
        put_tool_results(form, content);
        if (chat_form_has_parts(content))
            chat_form_put_message(form, role, content);
    }
}

/* "any" is chat's "required"; a tool is chosen by its name. */
static void put_tool_choice(struct buf *buf, struct json_value choice)
{
    struct slice type = json_string(json_get(choice, "type"));
    struct slice name = json_string(json_get(choice, "name"));

    if (!slice_eq(type, SLICE("tool")))
        name.len = 0;
    chat_form_put_tool_choice(buf, name, slice_eq(type, SLICE("any")) ? SLICE("required") : type);
}

void messages_form_put(struct buf *buf, struct json_value root)
{
    struct chat_form form = {.buf = buf};
    struct json_iterator iterator = json_iterate(json_get(root, "messages"));
    struct json_value message;

    text_put(buf, SLICE("{\"messages\":["));
    put_system(&form, json_get(root, "system"));
    while (json_next_element(&iterator, &message))
        put_message(&form, message);
    text_put(buf, SLICE("]"));
    chat_form_put_tools(buf, json_get(root, "tools"), "input_schema");
    put_tool_choice(buf, json_get(root, "tool_choice"));
    text_put(buf, SLICE("}"));
}
