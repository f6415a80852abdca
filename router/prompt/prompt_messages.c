/* SPDX-License-Identifier: Apache-2.0 */

#include "router/prompt/prompt_parts.h"
#include "router/prompt/value_digest.h"

/*
 * DESIGN
 *
 * Written as the chat messages that engines make of it:
 *   - the texts of `system`, one behind the other, are one system message in front
 *   - results of tools, though blocks of a user's message, are tool messages of their own in front
 *     of what else that message holds; a message that holds nothing else is gone
 *   - thinking blocks together are a message's reasoning, tool_use blocks its calls. The signature
 *     of a thinking block is for the API, not for the model; redacted thinking shows it nothing
 *   - a call's input is written as a value: no client gives it back in the spelling that the engine
 *     wrote. A tool is written as in chat
 *
 * Members of blocks beside those count nowhere (cache_control, citations, caller, is_error, ...):
 * engines do not print them. A system text that begins with BILLING_MARK is a header of a coding
 * client, another one in each request; vLLM takes it out for the sake of its prefix cache.
 *
 * A system message in the middle stays where it is. An engine whose template wants all of them in
 * front prints another prompt, which only it can know: there the names promise too much, and the
 * count of cached tokens in its answers corrects that.
 */
#define BILLING_MARK "x-anthropic-billing-header"

enum block_kind {
    BLOCK_TEXT,
    BLOCK_THINKING,
    BLOCK_CALL,
    BLOCK_RESULT,
    BLOCK_SILENT, /* prints nothing */
    BLOCK_OTHER,  /* an image, a document, ... */
};

static enum block_kind kind_of(struct json_value block)
{
    struct slice type = json_string(json_get(block, "type"));

    if (slice_eq(type, SLICE("text")))
        return BLOCK_TEXT;
    if (slice_eq(type, SLICE("thinking")))
        return BLOCK_THINKING;
    if (slice_eq(type, SLICE("tool_use")))
        return BLOCK_CALL;
    if (slice_eq(type, SLICE("tool_result")))
        return BLOCK_RESULT;
    if (slice_eq(type, SLICE("redacted_thinking")))
        return BLOCK_SILENT;
    return BLOCK_OTHER;
}

static struct slice text_of(struct json_value block)
{
    return json_string(json_get(block, "text"));
}

static bool begins_with(struct slice text, struct slice start)
{
    return text.len >= start.len && slice_eq(slice_of(text.ptr, start.len), start);
}

/* One system text; the first that says something begins the message. */
static void write_system_text(struct prompt_sink *sink, struct slice text, bool *has_begun)
{
    if (text.len == 0 || begins_with(text, SLICE(BILLING_MARK)))
        return;
    if (!*has_begun) {
        prompt_write_field(&sink->writer, TAG_MESSAGE, SLICE("system"));
        prompt_write_tag(&sink->writer, TAG_TEXT);
    }
    *has_begun = true;
    prompt_write_text(&sink->writer, text);
}

static int write_system(struct prompt_sink *sink, struct json_value content, const char *param)
{
    struct json_iterator blocks = json_iterate(content);
    struct json_value block;
    bool has_begun = false;

    write_system_text(sink, json_string(content), &has_begun);
    while (json_next_element(&blocks, &block)) {
        if (json_type(block) != JSON_OBJECT)
            return prompt_refuse(sink, "invalid_type", param, "Each block must be an object.");
        write_system_text(sink, text_of(block), &has_begun);
    }
    if (has_begun)
        prompt_write_end(&sink->writer);
    return 0;
}

/* The next block of that kind. */
static bool next_block(struct json_iterator *blocks, enum block_kind kind, struct json_value *block)
{
    while (json_next_element(blocks, block))
        if (kind_of(*block) == kind)
            return true;
    return false;
}

/* Texts of a tool's result are lines of one text; what else it holds follows. */
static void write_result_blocks(struct prompt_sink *sink, struct json_value content)
{
    struct json_iterator texts = json_iterate(content), others = texts;
    struct json_value block;
    bool has_text = false;

    while (next_block(&texts, BLOCK_TEXT, &block)) {
        if (!has_text)
            prompt_write_tag(&sink->writer, TAG_TEXT);
        else
            prompt_write_text(&sink->writer, SLICE("\n"));
        has_text = true;
        prompt_write_text(&sink->writer, text_of(block));
    }
    while (next_block(&others, BLOCK_OTHER, &block))
        prompt_write_media(sink, block);
}

static void write_result(struct prompt_sink *sink, struct json_value block)
{
    struct json_value content = json_get(block, "content");

    prompt_write_field(&sink->writer, TAG_MESSAGE, SLICE("tool"));
    prompt_write_nonempty(sink, TAG_CALL_ID, json_string(json_get(block, "tool_use_id")));
    prompt_write_nonempty(sink, TAG_TEXT, json_string(content));
    write_result_blocks(sink, content);
    prompt_write_end(&sink->writer);
}

static void write_call(struct prompt_sink *sink, struct json_value block)
{
    struct json_value input = json_get(block, "input");

    prompt_write_field(&sink->writer, TAG_CALL, json_string(json_get(block, "id")));
    prompt_write_field(&sink->writer, TAG_NAME, json_string(json_get(block, "name")));
    prompt_write_tag(&sink->writer, TAG_ARGUMENTS);
    if (json_type(input) == JSON_OBJECT) {
        prompt_write_value(&sink->writer, input);
    } else { /* an engine shows the model an empty one */
        prompt_write_tag(&sink->writer, TAG_OBJECT);
        prompt_write_tag(&sink->writer, TAG_OBJECT_END);
    }
}

static void write_results(struct prompt_sink *sink, struct json_value content)
{
    struct json_iterator blocks = json_iterate(content);
    struct json_value block;

    while (next_block(&blocks, BLOCK_RESULT, &block))
        write_result(sink, block);
}

static void write_reasoning(struct prompt_sink *sink, struct json_value content)
{
    struct json_iterator blocks = json_iterate(content);
    struct json_value block;
    bool has_text = false;

    while (next_block(&blocks, BLOCK_THINKING, &block)) {
        struct slice text = json_string(json_get(block, "thinking"));

        if (text.len > 0 && !has_text)
            prompt_write_tag(&sink->writer, TAG_REASONING);
        has_text |= text.len > 0;
        prompt_write_text(&sink->writer, text);
    }
}

static void write_parts(struct prompt_sink *sink, struct json_value content)
{
    struct json_iterator blocks = json_iterate(content);
    struct json_value block;

    while (json_next_element(&blocks, &block)) {
        enum block_kind kind = kind_of(block);

        if (kind == BLOCK_TEXT)
            prompt_write_nonempty(sink, TAG_TEXT, text_of(block));
        else if (kind == BLOCK_OTHER)
            prompt_write_media(sink, block);
    }
}

static void write_calls(struct prompt_sink *sink, struct json_value content)
{
    struct json_iterator blocks = json_iterate(content);
    struct json_value block;

    while (next_block(&blocks, BLOCK_CALL, &block))
        write_call(sink, block);
}

/* Whether a message made of blocks says anything but results of tools. */
static bool has_more_than_results(struct json_value content)
{
    struct json_iterator blocks = json_iterate(content);
    struct json_value block;

    while (json_next_element(&blocks, &block)) {
        enum block_kind kind = kind_of(block);

        if (kind == BLOCK_OTHER || (kind == BLOCK_TEXT && text_of(block).len > 0))
            return true;
    }
    return false;
}

static int check_blocks(struct prompt_sink *sink, struct json_value content)
{
    struct json_iterator blocks = json_iterate(content);
    struct json_value block;

    if (json_type(content) != JSON_STRING && json_type(content) != JSON_ARRAY)
        return prompt_refuse(sink, "invalid_type", "messages.content",
                             "The content of a message must be a string or an array of blocks.");
    while (json_next_element(&blocks, &block))
        if (json_type(block) != JSON_OBJECT)
            return prompt_refuse(sink, "invalid_type", "messages.content",
                                 "Each block of a message's content must be an object.");
    return 0;
}

static void write_tools(struct prompt_sink *sink, struct json_value tools)
{
    struct json_iterator elements = json_iterate(tools);
    struct json_value tool;

    prompt_begin_tools(sink, tools);
    while (json_next_element(&elements, &tool)) {
        if (json_type(json_get(tool, "input_schema")) == JSON_OBJECT)
            prompt_write_flat_tool(sink, tool, "input_schema");
        else /* a tool of the server's own: a type with options */
            prompt_write_tool(sink, tool);
    }
}

/* Whether an engine makes a user's message of it, and not only results of tools. */
static bool is_users(struct json_value message)
{
    struct json_value content = json_get(message, "content");

    return slice_eq(json_string(json_get(message, "role")), SLICE("user")) &&
           (json_type(content) != JSON_ARRAY || has_more_than_results(content));
}

/* tools: printed in front of it, but behind the results of tools in it; or nothing. */
static int write_message(struct prompt_sink *sink, struct json_value message,
                         struct json_value tools, bool is_open)
{
    struct json_value role = json_get(message, "role"), content = json_get(message, "content");
    int status;

    if (json_type(role) != JSON_STRING)
        return prompt_refuse(sink, "invalid_type", "messages",
                             "Each message must be an object with a role.");
    if ((status = check_blocks(sink, content)) < 0)
        return status;
    if (slice_eq(json_string(role), SLICE("system")))
        return write_system(sink, content, "messages.content");

    write_results(sink, content);
    write_tools(sink, tools);
    if (slice_eq(json_string(role), SLICE("user")) && !is_users(message))
        return 0;
    prompt_write_field(&sink->writer, TAG_MESSAGE, json_string(role));
    write_reasoning(sink, content);
    prompt_write_nonempty(sink, TAG_TEXT, json_string(content));
    write_parts(sink, content);
    write_calls(sink, content);
    if (!is_open)
        prompt_write_end(&sink->writer);
    return 0;
}

/* In front of which message the tools stand; the system text is none of them. */
static size_t tools_at(const struct prompt_sink *sink, struct json_value messages)
{
    struct json_iterator elements = json_iterate(messages);
    size_t last_user = SIZE_MAX;
    struct json_value message;

    if (sink->tool_place == TOOLS_FIRST)
        return 0;
    for (size_t i = 0; json_next_element(&elements, &message); i++)
        if (is_users(message))
            last_user = i;
    return prompt_tools_at(sink, 0, last_user);
}

int prompt_write_messages(struct prompt_sink *sink, const struct api_request *request)
{
    struct json_value messages = json_get(request->root, "messages"), message;
    struct json_value tools = json_get(request->root, "tools"), none = {0};
    struct json_iterator elements = json_iterate(messages);
    const size_t count = json_count(messages), at = tools_at(sink, messages);
    int status = prompt_check_messages(sink, messages);

    if (status == 0)
        status = write_system(sink, json_get(request->root, "system"), "system");
    for (size_t i = 0; status == 0 && json_next_element(&elements, &message); i++) {
        const bool is_open = i + 1 == count && request->continues_message;
        const bool is_within =
            i == at && sink->tool_place == TOOLS_BEFORE_LAST_USER && is_users(message);

        if (i == at && !is_within)
            write_tools(sink, tools);
        status = write_message(sink, message, is_within ? tools : none, is_open);
    }
    if (status == 0 && at == count)
        write_tools(sink, tools);
    return status;
}
