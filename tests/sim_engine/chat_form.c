/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/chat_form.h"

#include "tests/sim_engine/json_text.h"
#include "tests/sim_engine/request_field.h"

static void put_comma(struct chat_form *form)
{
    struct slice text = buf_slice(form->buf);

    if (text.len > 0 && text.ptr[text.len - 1] != '[')
        text_put(form->buf, SLICE(","));
}

void chat_form_close(struct chat_form *form)
{
    if (form->has_calls)
        text_put(form->buf, SLICE("]"));
    if (form->is_open)
        text_put(form->buf, SLICE("}"));
    form->is_open = form->has_content = form->has_calls = false;
}

/* The next part of an assistant's turn joins the open message, if there is one. */
static void open_turn(struct chat_form *form)
{
    if (form->is_open)
        return;
    put_comma(form);
    text_put(form->buf, SLICE("{\"role\":\"assistant\""));
    form->is_open = true;
}

static bool is_text(struct json_value part)
{
    return json_type(json_get(part, "text")) == JSON_STRING;
}

/* An image, in the words of chat and responses, or in those of messages. */
static bool is_image(struct json_value part)
{
    return json_is_given(json_get(part, "image_url")) || json_is_given(json_get(part, "source"));
}

bool chat_form_has_parts(struct json_value parts)
{
    struct json_iterator iterator = json_iterate(parts);
    struct json_value part;

    while (json_next_element(&iterator, &part)) {
        if (is_text(part) || is_image(part))
            return true;
    }
    return false;
}

/* Texts alone: each family has another name for their type. */
static void put_parts(struct buf *buf, struct json_value parts)
{
    struct json_iterator iterator = json_iterate(parts);
    struct json_value part;
    const char *comma = "";

    text_put(buf, SLICE("["));
    while (json_next_element(&iterator, &part)) {
        if (!is_text(part) && !is_image(part))
            continue;
        text_put(buf, slice_of_string(comma));
        comma = ",";
        if (is_text(part)) {
            text_put(buf, SLICE("{\"type\":\"text\",\"text\":"));
            json_put_value(buf, json_get(part, "text"));
            text_put(buf, SLICE("}"));
        } else {
            json_put_value(buf, part);
        }
    }
    text_put(buf, SLICE("]"));
}

static void put_content(struct buf *buf, struct json_value content)
{
    if (json_type(content) == JSON_ARRAY)
        put_parts(buf, content);
    else
        json_put_string(buf, json_string(content));
}

static void begin_message(struct chat_form *form, struct slice role)
{
    chat_form_close(form);
    put_comma(form);
    text_put(form->buf, SLICE("{\"role\":"));
    json_put_string(form->buf, role);
    text_put(form->buf, SLICE(",\"content\":"));
}

void chat_form_put_message(struct chat_form *form, struct slice role, struct json_value content)
{
    begin_message(form, role);
    put_content(form->buf, content);
    text_put(form->buf, SLICE("}"));
}

void chat_form_put_text_message(struct chat_form *form, struct slice role, struct slice text)
{
    begin_message(form, role);
    json_put_string(form->buf, text);
    text_put(form->buf, SLICE("}"));
}

void chat_form_put_reasoning(struct chat_form *form, struct slice text)
{
    chat_form_close(form);
    open_turn(form);
    text_put(form->buf, SLICE(",\"reasoning\":"));
    json_put_string(form->buf, text);
}

void chat_form_put_content(struct chat_form *form, struct json_value content)
{
    if (form->has_content || form->has_calls)
        chat_form_close(form);
    open_turn(form);
    text_put(form->buf, SLICE(",\"content\":"));
    put_content(form->buf, content);
    form->has_content = true;
}

void chat_form_put_call(struct chat_form *form, struct slice name, struct slice arguments)
{
    open_turn(form);
    text_put(form->buf, form->has_calls ? SLICE(",") : SLICE(",\"tool_calls\":["));
    form->has_calls = true;
    text_put(form->buf, SLICE("{\"function\":{\"name\":"));
    json_put_string(form->buf, name);
    text_put(form->buf, SLICE(",\"arguments\":"));
    json_put_string(form->buf, arguments);
    text_put(form->buf, SLICE("}}"));
}

void chat_form_put_tools(struct buf *buf, struct json_value tools, const char *schema_key)
{
    struct json_iterator iterator = json_iterate(tools);
    struct json_value tool;
    const char *comma = "";

    if (json_type(tools) != JSON_ARRAY)
        return;
    text_put(buf, SLICE(",\"tools\":["));
    for (; json_next_element(&iterator, &tool); comma = ",") {
        struct json_value schema = json_get(tool, schema_key);

        text_putf(buf, "%s{\"type\":\"function\",\"function\":{\"name\":", comma);
        json_put_string(buf, json_string(json_get(tool, "name")));
        text_put(buf, SLICE(",\"description\":"));
        json_put_string(buf, json_string(json_get(tool, "description")));
        if (json_type(schema) == JSON_OBJECT) {
            text_put(buf, SLICE(",\"parameters\":"));
            json_put_value(buf, schema);
        }
        text_put(buf, SLICE("}}"));
    }
    text_put(buf, SLICE("]"));
}

void chat_form_put_tool_choice(struct buf *buf, struct slice name, struct slice word)
{
    text_put(buf, SLICE(",\"tool_choice\":"));
    if (name.len > 0) {
        text_put(buf, SLICE("{\"type\":\"function\",\"function\":{\"name\":"));
        json_put_string(buf, name);
        text_put(buf, SLICE("}}"));
    } else {
        json_put_string(buf, word);
    }
}
