/* SPDX-License-Identifier: Apache-2.0 */

#include "router/prompt/prompt_parts.h"

#include "router/prompt/value_digest.h"

#include <errno.h>
#include <stdio.h>

int prompt_refuse(struct prompt_sink *sink, const char *code, const char *param,
                  const char *message)
{
    sink->fault->code = code;
    snprintf(sink->fault->param, sizeof sink->fault->param, "%s", param);
    snprintf(sink->fault->message, sizeof sink->fault->message, "%s", message);
    return -EINVAL;
}

int prompt_check_messages(struct prompt_sink *sink, struct json_value messages)
{
    if (json_type(messages) != JSON_ARRAY)
        return prompt_refuse(sink, "missing_field", "messages",
                             "The body needs an array of messages.");
    if (json_count(messages) == 0)
        return prompt_refuse(sink, "invalid_value", "messages",
                             "There must be at least one message.");
    return 0;
}

bool prompt_role_leads(struct slice role)
{
    return slice_eq(role, SLICE("system")) || slice_eq(role, SLICE("developer"));
}

size_t prompt_tools_at(const struct prompt_sink *sink, size_t lead_count, size_t last_user)
{
    if (sink->tool_place == TOOLS_FIRST || last_user == SIZE_MAX)
        return lead_count;
    return last_user + (sink->tool_place == TOOLS_BEHIND_LAST_USER);
}

void prompt_begin_tools(struct prompt_sink *sink, struct json_value tools)
{
    if (sink->tool_place == TOOLS_FIRST || json_count(tools) == 0)
        return;
    sink->before_tools_count = sink->writer.chain->block_count;
    sink->before_tools_bytes = prompt_writer_bytes(&sink->writer);
}

void prompt_write_nonempty(struct prompt_sink *sink, enum prompt_tag tag, struct slice text)
{
    if (text.len > 0)
        prompt_write_field(&sink->writer, tag, text);
}

static bool is_text_part(struct json_value part, struct slice *text)
{
    struct json_value type = json_get(part, "type"), value = json_get(part, "text");
    struct slice name = json_string(type);

    *text = json_string(value);
    return json_type(value) == JSON_STRING &&
           (json_type(type) == JSON_NONE || slice_eq(name, SLICE("text")) ||
            slice_eq(name, SLICE("input_text")) || slice_eq(name, SLICE("output_text")));
}

void prompt_write_media(struct prompt_sink *sink, struct json_value part)
{
    sink->has_media = true;
    prompt_write_digest(&sink->writer, TAG_PART, part_digest(sink->secret, part));
}

static int write_part(struct prompt_sink *sink, struct json_value part, const char *param)
{
    struct slice text;

    if (json_type(part) == JSON_STRING)
        prompt_write_nonempty(sink, TAG_TEXT, json_string(part));
    else if (json_type(part) != JSON_OBJECT)
        return prompt_refuse(sink, "invalid_type", param,
                             "Each part of a message's content must be an object or a string.");
    else if (is_text_part(part, &text))
        prompt_write_nonempty(sink, TAG_TEXT, text);
    else
        prompt_write_media(sink, part);
    return 0;
}

int prompt_write_content(struct prompt_sink *sink, struct json_value content, const char *param)
{
    struct json_iterator parts = json_iterate(content);
    struct json_value part;
    int status = 0;

    switch (json_type(content)) {
    case JSON_NONE:
    case JSON_NULL:
        return 0;
    case JSON_STRING:
        prompt_write_nonempty(sink, TAG_TEXT, json_string(content));
        return 0;
    case JSON_ARRAY:
        while (status == 0 && json_next_element(&parts, &part))
            status = write_part(sink, part, param);
        return status;
    default:
        return prompt_refuse(
            sink, "invalid_type", param,
            "The content of a message must be a string, an array of parts, or null.");
    }
}

static void write_member(struct prompt_sink *sink, struct slice key, struct json_value value)
{
    prompt_write_field(&sink->writer, TAG_KEY, key);
    prompt_write_value(&sink->writer, value);
}

void prompt_write_tool(struct prompt_sink *sink, struct json_value tool)
{
    struct json_iterator members = json_iterate(tool);
    struct json_member member;

    prompt_write_tag(&sink->writer, TAG_TOOL);
    while (json_next_member(&members, &member))
        if (!slice_eq(member.key, SLICE("cache_control")))
            write_member(sink, member.key, member.value);
    if (json_type(tool) != JSON_OBJECT)
        prompt_write_value(&sink->writer, tool);
    prompt_write_end(&sink->writer);
}

static bool is_one_of(struct slice key, const struct slice keys[], size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (slice_eq(keys[i], key))
            return true;
    return false;
}

/* A member with a place in front, unless it is null or absent. */
static void write_placed(struct prompt_sink *sink, struct json_value tool, const char *key,
                         struct slice shown_key)
{
    struct json_value value = json_get(tool, key);

    if (json_type(value) != JSON_NONE && json_type(value) != JSON_NULL)
        write_member(sink, shown_key, value);
}

void prompt_write_flat_tool(struct prompt_sink *sink, struct json_value tool,
                            const char *schema_key)
{
    const struct slice placed[] = {SLICE("type"), SLICE("name"), SLICE("description"),
                                   slice_of_string(schema_key), SLICE("cache_control")};
    struct json_iterator members = json_iterate(tool);
    struct json_member member;

    prompt_write_tag(&sink->writer, TAG_TOOL);
    prompt_write_field(&sink->writer, TAG_KEY, SLICE("type"));
    prompt_write_field(&sink->writer, TAG_STRING, SLICE("function"));
    prompt_write_field(&sink->writer, TAG_KEY, SLICE("function"));
    prompt_write_tag(&sink->writer, TAG_OBJECT);
    write_placed(sink, tool, "name", SLICE("name"));
    write_placed(sink, tool, "description", SLICE("description"));
    write_placed(sink, tool, schema_key, SLICE("parameters"));
    while (json_next_member(&members, &member))
        if (!is_one_of(member.key, placed, array_count(placed)) &&
            json_type(member.value) != JSON_NULL)
            write_member(sink, member.key, member.value);
    prompt_write_tag(&sink->writer, TAG_OBJECT_END);
    prompt_write_end(&sink->writer);
}
