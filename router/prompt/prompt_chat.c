/* SPDX-License-Identifier: Apache-2.0 */

#include "router/prompt/prompt_parts.h"
#include "router/prompt/value_digest.h"

/*
 * DESIGN
 *
 * Fields stand in the order of the grammar however the client wrote them. Null, "", [] and absent
 * are the same: clients give an answer without text back as either. A content string is one text
 * part. Reasoning stands before the content because the engine made it first: a client that drops
 * it parts from the cached tokens there, and so does its stream. A message that
 * continue_final_message leaves open has no end, so that its longer forms share its blocks.
 *
 * Members of messages, calls and functions without a tag of their own count by digest.
 */

/* What a message holds, in the order of the stream. */
struct message {
    struct json_value role;
    struct json_value name;
    struct json_value tool_call_id;
    struct json_value reasoning;
    struct json_value content;
    struct json_value refusal;
    struct json_value tool_calls;
    uint64_t extra; /* sum of digests of the other members; 0 if there are none */
};

/* Members of a tool call beside those with a place of their own. */
static uint64_t call_extra(struct prompt_sink *sink, struct json_value call)
{
    struct json_iterator members = json_iterate(call);
    struct json_member member;
    uint64_t extra = 0;

    while (json_next_member(&members, &member)) {
        bool is_placed = slice_eq(member.key, SLICE("id")) ||
                         slice_eq(member.key, SLICE("index")) ||
                         slice_eq(member.key, SLICE("function")) ||
                         (slice_eq(member.key, SLICE("type")) &&
                          slice_eq(json_string(member.value), SLICE("function")));

        if (!is_placed && !value_is_empty(member.value))
            extra += member_digest(sink->secret, member);
    }
    return extra;
}

/* Members of its function beside name and arguments. */
static uint64_t function_extra(struct prompt_sink *sink, struct json_value function)
{
    struct json_iterator members = json_iterate(function);
    struct json_member member;
    uint64_t extra = 0;

    while (json_next_member(&members, &member))
        if (!slice_eq(member.key, SLICE("name")) && !slice_eq(member.key, SLICE("arguments")) &&
            !value_is_empty(member.value))
            extra += member_digest(sink->secret, member);
    return extra;
}

static void write_extra(struct prompt_sink *sink, uint64_t extra)
{
    if (extra != 0)
        prompt_write_digest(&sink->writer, TAG_EXTRA, extra);
}

static int write_call(struct prompt_sink *sink, struct json_value call)
{
    struct json_value function = json_get(call, "function");
    struct json_value arguments = json_get(function, "arguments");

    if (json_type(call) != JSON_OBJECT)
        return prompt_refuse(sink, "invalid_type", "messages.tool_calls",
                             "Each tool call must be an object.");
    prompt_write_field(&sink->writer, TAG_CALL, json_string(json_get(call, "id")));
    prompt_write_field(&sink->writer, TAG_NAME, json_string(json_get(function, "name")));
    write_extra(sink, function_extra(sink, function));
    prompt_write_field(&sink->writer, TAG_ARGUMENTS, json_string(arguments));
    if (json_type(arguments) == JSON_OBJECT) /* not OpenAI's form, but sent */
        prompt_write_value(&sink->writer, arguments);
    write_extra(sink, call_extra(sink, call));
    return 0;
}

static int write_calls(struct prompt_sink *sink, struct json_value calls)
{
    struct json_iterator elements = json_iterate(calls);
    struct json_value call;
    int status = 0;

    while (status == 0 && json_next_element(&elements, &call))
        status = write_call(sink, call);
    return status;
}

/* The place of a member, or NULL: it counts as an extra. */
static struct json_value *place_of(struct message *message, struct slice key)
{
    if (slice_eq(key, SLICE("role")))
        return &message->role;
    if (slice_eq(key, SLICE("content")))
        return &message->content;
    if (slice_eq(key, SLICE("name")))
        return &message->name;
    if (slice_eq(key, SLICE("tool_call_id")))
        return &message->tool_call_id;
    if (slice_eq(key, SLICE("reasoning_content")) || slice_eq(key, SLICE("reasoning")))
        return &message->reasoning;
    if (slice_eq(key, SLICE("refusal")))
        return &message->refusal;
    if (slice_eq(key, SLICE("tool_calls")))
        return &message->tool_calls;
    return NULL;
}

static bool prints_nothing(struct slice key)
{
    return slice_eq(key, SLICE("cache_control")) || slice_eq(key, SLICE("annotations"));
}

static void read_message(const uint8_t *secret, struct json_value value, struct message *message)
{
    struct json_iterator members = json_iterate(value);
    struct json_member member;

    *message = (struct message){0};
    while (json_next_member(&members, &member)) {
        struct json_value *place = place_of(message, member.key);

        if (value_is_empty(member.value))
            continue;
        if (place != NULL)
            *place = member.value;
        else if (!prints_nothing(member.key))
            message->extra += member_digest(secret, member);
    }
}

static int write_message(struct prompt_sink *sink, struct json_value value, bool is_open)
{
    struct prompt_writer *writer = &sink->writer;
    struct message message;
    int status;

    read_message(sink->secret, value, &message);
    if (json_type(message.role) != JSON_STRING)
        return prompt_refuse(sink, "invalid_type", "messages",
                             "Each message must be an object with a role.");

    prompt_write_field(writer, TAG_MESSAGE, json_string(message.role));
    prompt_write_nonempty(sink, TAG_NAME, json_string(message.name));
    prompt_write_nonempty(sink, TAG_CALL_ID, json_string(message.tool_call_id));
    prompt_write_nonempty(sink, TAG_REASONING, json_string(message.reasoning));
    if ((status = prompt_write_content(sink, message.content, "messages.content")) < 0)
        return status;
    prompt_write_nonempty(sink, TAG_REFUSAL, json_string(message.refusal));
    if ((status = write_calls(sink, message.tool_calls)) < 0)
        return status;
    write_extra(sink, message.extra);
    if (!is_open)
        prompt_write_end(writer);
    return 0;
}

static void write_tools(struct prompt_sink *sink, struct json_value tools)
{
    struct json_iterator elements = json_iterate(tools);
    struct json_value tool;

    prompt_begin_tools(sink, tools);
    while (json_next_element(&elements, &tool))
        prompt_write_tool(sink, tool);
}

/* In front of which message the tools stand. Most templates need only the first one for that. */
static size_t tools_at(const struct prompt_sink *sink, struct json_value messages)
{
    struct json_iterator elements = json_iterate(messages);
    size_t lead_count = 0, last_user = SIZE_MAX;
    struct json_value message;

    for (size_t i = 0; json_next_element(&elements, &message); i++) {
        struct slice role = json_string(json_get(message, "role"));

        if (i == 0)
            lead_count = prompt_role_leads(role);
        if (sink->tool_place == TOOLS_FIRST)
            break;
        if (slice_eq(role, SLICE("user")))
            last_user = i;
    }
    return prompt_tools_at(sink, lead_count, last_user);
}

int prompt_write_chat(struct prompt_sink *sink, const struct api_request *request)
{
    struct json_value messages = json_get(request->root, "messages"), message;
    struct json_value tools = json_get(request->root, "tools");
    struct json_iterator elements = json_iterate(messages);
    const size_t count = json_count(messages), at = tools_at(sink, messages);
    int status = prompt_check_messages(sink, messages);

    for (size_t i = 0; status == 0 && json_next_element(&elements, &message); i++) {
        if (i == at)
            write_tools(sink, tools);
        status = write_message(sink, message, i + 1 == count && request->continues_message);
    }
    if (status == 0 && at == count)
        write_tools(sink, tools);
    return status;
}
