/* SPDX-License-Identifier: Apache-2.0 */

#include "router/prompt/prompt_parts.h"
#include "router/prompt/value_digest.h"

/*
 * DESIGN
 *
 * Written as the chat messages that engines make of it:
 *   - instructions are a system message in front
 *   - an input string is a user message; a message item is a message
 *   - what the assistant did lies in items of its own: reasoning, a message, function calls. Items
 *     in a row are one assistant message as long as each has a place left in it: reasoning one,
 *     content one, calls any number. Its fields stand in the order of the grammar, so a row is read
 *     once to find them and its calls once more
 *   - an output of a call is a tool message
 *   - a function's tool is written as in chat; other tools as they are
 *
 * id, status and the like of items are bookkeeping: engines make them up, clients give them back or
 * not, and no template prints them. They count nowhere. Items of other types (web searches, ...)
 * count by digest of all they hold.
 */

enum item_kind {
    ITEM_MESSAGE,   /* of another role than assistant */
    ITEM_REASONING, /* the next three are parts of an assistant message */
    ITEM_CONTENT,
    ITEM_CALL,
    ITEM_OUTPUT, /* of a call */
    ITEM_OTHER,
    ITEM_BAD,
};

/* A row of items that are one assistant message. */
struct row {
    struct json_iterator start; /* stands before the row's first item */
    size_t count;
    struct json_value reasoning;
    struct json_value content;
};

static enum item_kind message_kind(struct json_value item)
{
    struct json_value role = json_get(item, "role");

    if (json_type(role) != JSON_STRING)
        return ITEM_BAD;
    return slice_eq(json_string(role), SLICE("assistant")) ? ITEM_CONTENT : ITEM_MESSAGE;
}

static enum item_kind kind_of(struct json_value item)
{
    struct json_value type = json_get(item, "type");
    struct slice name = json_string(type);

    if (slice_eq(name, SLICE("message")))
        return message_kind(item);
    if (slice_eq(name, SLICE("reasoning")))
        return ITEM_REASONING;
    if (slice_eq(name, SLICE("function_call")) || slice_eq(name, SLICE("custom_tool_call")))
        return ITEM_CALL;
    if (slice_eq(name, SLICE("function_call_output")) ||
        slice_eq(name, SLICE("custom_tool_call_output")))
        return ITEM_OUTPUT;
    if (json_type(type) == JSON_STRING)
        return ITEM_OTHER;
    if (json_type(json_get(item, "role")) == JSON_STRING)
        return message_kind(item);
    /* A reference to an item may come without its type. */
    return json_type(json_get(item, "id")) == JSON_STRING ? ITEM_OTHER : ITEM_BAD;
}

/* Whether the row takes the item as well; then it is in. */
static bool row_add(struct row *row, enum item_kind kind, struct json_value item)
{
    struct json_value *place = kind == ITEM_REASONING ? &row->reasoning : &row->content;

    if (kind != ITEM_CALL) {
        if (json_type(*place) != JSON_NONE)
            return false;
        *place = item;
    }
    row->count++;
    return true;
}

/* Texts of parts, one behind the other, after one tag. True: there was some. */
static bool write_texts(struct prompt_sink *sink, struct json_value parts)
{
    struct json_iterator elements = json_iterate(parts);
    struct json_value part;
    bool has_text = false;

    while (json_next_element(&elements, &part)) {
        struct slice text = json_string(json_get(part, "text"));

        if (text.len > 0 && !has_text)
            prompt_write_tag(&sink->writer, TAG_REASONING);
        has_text |= text.len > 0;
        prompt_write_text(&sink->writer, text);
    }
    return has_text;
}

/* The text the model thought; where a client has only a summary, or it sealed, that. */
static void write_reasoning(struct prompt_sink *sink, struct json_value item)
{
    if (!write_texts(sink, json_get(item, "content")) &&
        !write_texts(sink, json_get(item, "summary")))
        prompt_write_nonempty(sink, TAG_REASONING,
                              json_string(json_get(item, "encrypted_content")));
}

/* A function in a namespace goes by both names, joined as engines show it to the model. */
static void write_call_name(struct prompt_sink *sink, struct json_value item)
{
    struct slice space = json_string(json_get(item, "namespace"));

    prompt_write_field(&sink->writer, TAG_NAME, space);
    if (space.len > 0)
        prompt_write_text(&sink->writer, SLICE("__"));
    prompt_write_text(&sink->writer, json_string(json_get(item, "name")));
}

static void write_call(struct prompt_sink *sink, struct json_value item)
{
    prompt_write_field(&sink->writer, TAG_CALL, json_string(json_get(item, "call_id")));
    write_call_name(sink, item);
    if (slice_eq(json_string(json_get(item, "type")), SLICE("custom_tool_call")))
        prompt_write_field(&sink->writer, TAG_TEXT, json_string(json_get(item, "input")));
    else
        prompt_write_field(&sink->writer, TAG_ARGUMENTS, json_string(json_get(item, "arguments")));
}

static void write_calls(struct prompt_sink *sink, const struct row *row)
{
    struct json_iterator items = row->start;
    struct json_value item;

    for (size_t i = 0; i < row->count && json_next_element(&items, &item); i++)
        if (kind_of(item) == ITEM_CALL)
            write_call(sink, item);
}

/* Ends the row, which is empty afterwards. */
static int write_row(struct prompt_sink *sink, struct row *row, bool is_open)
{
    struct row full = *row;
    int status;

    *row = (struct row){0};
    if (full.count == 0)
        return 0;
    prompt_write_field(&sink->writer, TAG_MESSAGE, SLICE("assistant"));
    write_reasoning(sink, full.reasoning);
    status = prompt_write_content(sink, json_get(full.content, "content"), "input.content");
    if (status < 0)
        return status;
    write_calls(sink, &full);
    if (!is_open)
        prompt_write_end(&sink->writer);
    return 0;
}

static int write_message(struct prompt_sink *sink, struct json_value item)
{
    struct json_value content = json_get(item, "content");
    int status;

    prompt_write_field(&sink->writer, TAG_MESSAGE, json_string(json_get(item, "role")));
    if ((status = prompt_write_content(sink, content, "input.content")) < 0)
        return status;
    prompt_write_end(&sink->writer);
    return 0;
}

static int write_output(struct prompt_sink *sink, struct json_value item)
{
    int status;

    prompt_write_field(&sink->writer, TAG_MESSAGE, SLICE("tool"));
    prompt_write_nonempty(sink, TAG_CALL_ID, json_string(json_get(item, "call_id")));
    if ((status = prompt_write_content(sink, json_get(item, "output"), "input.output")) < 0)
        return status;
    prompt_write_end(&sink->writer);
    return 0;
}

static int write_other(struct prompt_sink *sink, struct json_value item)
{
    prompt_write_field(&sink->writer, TAG_MESSAGE, json_string(json_get(item, "type")));
    prompt_write_digest(&sink->writer, TAG_EXTRA, part_digest(sink->secret, item));
    prompt_write_end(&sink->writer);
    return 0;
}

/* An item that stands for itself. */
static int write_item(struct prompt_sink *sink, enum item_kind kind, struct json_value item)
{
    switch (kind) {
    case ITEM_MESSAGE:
        return write_message(sink, item);
    case ITEM_OUTPUT:
        return write_output(sink, item);
    case ITEM_OTHER:
        return write_other(sink, item);
    default:
        return prompt_refuse(sink, "invalid_type", "input",
                             "Each input item must be an object with a role or a type.");
    }
}

static void write_tools(struct prompt_sink *sink, struct json_value tools)
{
    struct json_iterator elements = json_iterate(tools);
    struct json_value tool;

    prompt_begin_tools(sink, tools);
    while (json_next_element(&elements, &tool)) {
        if (slice_eq(json_string(json_get(tool, "type")), SLICE("function")) &&
            json_type(json_get(tool, "function")) == JSON_NONE)
            prompt_write_flat_tool(sink, tool, "parameters");
        else
            prompt_write_tool(sink, tool);
    }
}

/* In front of which of items the tools stand. */
static size_t tools_at(const struct prompt_sink *sink, struct json_iterator items)
{
    size_t last_user = SIZE_MAX;
    struct json_value item;

    if (sink->tool_place == TOOLS_FIRST)
        return 0;
    for (size_t i = 0; json_next_element(&items, &item); i++)
        if (kind_of(item) == ITEM_MESSAGE &&
            slice_eq(json_string(json_get(item, "role")), SLICE("user")))
            last_user = i;
    return prompt_tools_at(sink, 0, last_user);
}

/* Where the tools stand no row goes on: there are messages of others around them. */
static int write_items(struct prompt_sink *sink, struct json_iterator items,
                       struct json_value tools, bool is_open)
{
    const size_t at = tools_at(sink, items);
    struct json_iterator before = items;
    struct row row = {0};
    struct json_value item;
    size_t count = 0;
    int status = 0;

    for (; status == 0 && json_next_element(&items, &item); count++) {
        enum item_kind kind = kind_of(item);
        bool is_assistant = kind == ITEM_REASONING || kind == ITEM_CONTENT || kind == ITEM_CALL;

        if (count == at && (status = write_row(sink, &row, false)) == 0)
            write_tools(sink, tools);
        if (status < 0)
            break;
        if (!is_assistant || !row_add(&row, kind, item)) {
            status = write_row(sink, &row, false);
            if (status == 0 && !is_assistant)
                status = write_item(sink, kind, item);
            if (is_assistant)
                (void)row_add(&row, kind, item);
        }
        if (row.count == 1)
            row.start = before;
        before = items;
    }
    if (status == 0)
        status = write_row(sink, &row, is_open);
    if (status == 0 && count == at)
        write_tools(sink, tools);
    return status;
}

static void write_text_message(struct prompt_sink *sink, struct slice role, struct slice text)
{
    prompt_write_field(&sink->writer, TAG_MESSAGE, role);
    prompt_write_nonempty(sink, TAG_TEXT, text);
    prompt_write_end(&sink->writer);
}

/* Takes the first item off items where it is a message of instructions: no array, no item. */
static int write_leading_item(struct prompt_sink *sink, struct json_iterator *items)
{
    struct json_iterator rest = *items;
    struct json_value item;

    if (!json_next_element(&rest, &item) || kind_of(item) != ITEM_MESSAGE ||
        !prompt_role_leads(json_string(json_get(item, "role"))))
        return 0;
    *items = rest;
    return write_message(sink, item);
}

int prompt_write_responses(struct prompt_sink *sink, const struct api_request *request)
{
    struct json_value input = json_get(request->root, "input");
    struct json_value tools = json_get(request->root, "tools");
    struct slice instructions = json_string(json_get(request->root, "instructions"));
    struct json_iterator items = json_iterate(input);
    int status = 0;

    if (json_type(input) == JSON_NONE || json_type(input) == JSON_NULL)
        return prompt_refuse(sink, "missing_field", "input",
                             "The body needs an input: a string or an array of items.");
    if (instructions.len > 0)
        write_text_message(sink, SLICE("system"), instructions);
    else
        status = write_leading_item(sink, &items);
    if (status == 0 && json_type(input) == JSON_ARRAY)
        return write_items(sink, items, tools, request->continues_message);
    if (status < 0)
        return status;
    if (sink->tool_place != TOOLS_BEHIND_LAST_USER)
        write_tools(sink, tools);
    write_text_message(sink, SLICE("user"), json_string(input));
    if (sink->tool_place == TOOLS_BEHIND_LAST_USER)
        write_tools(sink, tools);
    return 0;
}
