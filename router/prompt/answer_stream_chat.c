/* SPDX-License-Identifier: Apache-2.0 */

#include "router/prompt/answer_stream_parts.h"
#include "router/prompt/value_digest.h"

/*
 * DESIGN
 *
 * Chat and completions. A body is one big chunk: `message` where a chunk has `delta`, and calls
 * whose order is their index. One pass over the members of each object: most events are a few
 * hundred bytes and carry a few bytes of text.
 */

/* A delta, or the message of a body. */
struct delta {
    struct json_value role;
    struct json_value reasoning;
    struct json_value content;
    struct json_value tool_calls;
    bool has_other; /* something the next turn may show in a way we cannot foresee */
};

/* What matters of a chunk or body. */
struct chunk {
    struct json_value choices;
    struct json_value usage;
    struct json_value error;
};

/* The start of a call if index is the next one, else more of the open one. */
static bool is_call_in_order(const struct answer_stream *answer, struct json_value call,
                             uint32_t index, bool *is_new)
{
    struct json_value type = json_get(call, "type");
    struct json_value name = json_get(json_get(call, "function"), "name");

    *is_new = answer->place != PLACE_CALLS || index == answer->call_index + 1;
    if (*is_new)
        return (answer->place == PLACE_CALLS || index == 0) && json_type(name) == JSON_STRING &&
               (json_type(type) != JSON_STRING || slice_eq(json_string(type), SLICE("function")));
    return index == answer->call_index && json_string(name).len == 0;
}

static void add_call(struct answer_stream *answer, struct json_value call, uint32_t index)
{
    struct json_value function = json_get(call, "function");
    struct json_value arguments = json_get(function, "arguments");
    struct answer_call head = {.id = json_string(json_get(call, "id")),
                               .name = json_string(json_get(function, "name")),
                               .tag = TAG_ARGUMENTS};
    bool is_new;

    if (!is_call_in_order(answer, call, index, &is_new) || json_type(arguments) == JSON_OBJECT)
        answer->is_learnable = false;
    if (is_new && answer_is_writing(answer)) {
        answer_open_call(answer, &head);
        answer->call_index = index;
    }
    answer_add_more(answer, json_string(arguments));
}

/* Calls of a body carry no index: their order is it. */
static bool add_calls(struct answer_stream *answer, struct json_value calls)
{
    struct json_iterator elements = json_iterate(calls);
    struct json_value call;
    uint32_t position = 0;

    while (json_next_element(&elements, &call)) {
        struct json_value index = json_get(call, "index");

        add_call(answer, call,
                 json_type(index) == JSON_INT64 ? (uint32_t)json_int64(index) : position);
        position++;
    }
    return position > 0;
}

static struct delta read_delta(struct json_value value)
{
    struct json_iterator members = json_iterate(value);
    struct json_member member;
    struct delta delta = {0};

    while (json_next_member(&members, &member)) {
        if (value_is_empty(member.value))
            continue;
        if (slice_eq(member.key, SLICE("content")))
            delta.content = member.value;
        else if (slice_eq(member.key, SLICE("role")))
            delta.role = member.value;
        else if (slice_eq(member.key, SLICE("reasoning_content")) ||
                 slice_eq(member.key, SLICE("reasoning")))
            delta.reasoning = member.value;
        else if (slice_eq(member.key, SLICE("tool_calls")))
            delta.tool_calls = member.value;
        else if (!slice_eq(member.key, SLICE("annotations")))
            delta.has_other = true;
    }
    return delta;
}

static bool is_string_or_none(struct json_value value)
{
    return json_type(value) == JSON_NONE || json_type(value) == JSON_STRING;
}

/* True: it carries something the client has waited for. */
static bool add_delta(struct answer_stream *answer, struct json_value value)
{
    struct delta delta = read_delta(value);
    bool has_text;

    if (delta.has_other || !is_string_or_none(delta.content) ||
        !is_string_or_none(delta.reasoning) ||
        (json_type(delta.role) != JSON_NONE &&
         !slice_eq(json_string(delta.role), SLICE("assistant"))))
        answer->is_learnable = false;
    has_text = answer_add_text(answer, PLACE_REASONING, json_string(delta.reasoning));
    has_text |= answer_add_text(answer, PLACE_CONTENT, json_string(delta.content));
    has_text |= add_calls(answer, delta.tool_calls);
    return has_text || delta.has_other || !value_is_empty(delta.content);
}

/* Completions: the next prompt is this one with the text behind it, without any tag. */
static bool add_completion_text(struct answer_stream *answer, struct slice text)
{
    answer_add_more(answer, text);
    return text.len > 0;
}

static void read_finish(struct answer_stream *answer, struct json_value reason)
{
    struct slice text = json_string(reason);

    if (json_type(reason) != JSON_STRING)
        return;
    answer->has_finished = true;
    if (slice_eq(text, SLICE("abort")) || slice_eq(text, SLICE("error")))
        answer->is_learnable = false;
}

/* True: it carries something the client has waited for. */
static bool add_choice(struct answer_stream *answer, struct json_value choice)
{
    struct json_iterator members = json_iterate(choice);
    struct json_member member;
    bool has_content = false;

    while (json_next_member(&members, &member)) {
        if (slice_eq(member.key, SLICE("index")))
            answer->is_learnable = answer->is_learnable && json_int64(member.value) == 0;
        else if (slice_eq(member.key, SLICE("finish_reason")))
            read_finish(answer, member.value);
        else if (answer->api == API_COMPLETIONS && slice_eq(member.key, SLICE("text")))
            has_content |= add_completion_text(answer, json_string(member.value));
        else if (answer->api == API_CHAT &&
                 (slice_eq(member.key, SLICE("delta")) || slice_eq(member.key, SLICE("message"))))
            has_content |= add_delta(answer, member.value);
    }
    return has_content;
}

static bool add_choices(struct answer_stream *answer, struct json_value choices)
{
    struct json_iterator elements = json_iterate(choices);
    struct json_value choice;
    bool has_content = false;
    size_t count = 0;

    while (json_next_element(&elements, &choice)) {
        answer->is_learnable = answer->is_learnable && ++count == 1;
        has_content |= add_choice(answer, choice);
    }
    return has_content;
}

/* The newest counts; an earlier cached_tokens stays where later usage has none. */
static void read_usage(struct answer_stream *answer, struct json_value value)
{
    struct answer_usage *usage = &answer->usage;
    struct json_value details = json_get(value, "prompt_tokens_details");

    if (answer_read_count(json_get(value, "prompt_tokens"), &usage->prompt_tokens)) {
        usage->is_known = true;
        if (!answer_read_count(json_get(value, "completion_tokens"), &usage->completion_tokens))
            usage->completion_tokens = 0;
    }
    if (answer_read_count(json_get(details, "cached_tokens"), &usage->cached_tokens))
        usage->has_cached = true;
}

static struct chunk read_chunk(struct json_value root)
{
    struct json_iterator members = json_iterate(root);
    struct json_member member;
    struct chunk chunk = {0};

    while (json_next_member(&members, &member)) {
        if (slice_eq(member.key, SLICE("choices")))
            chunk.choices = member.value;
        else if (slice_eq(member.key, SLICE("usage")))
            chunk.usage = member.value;
        else if (slice_eq(member.key, SLICE("error")) && !value_is_empty(member.value))
            chunk.error = member.value;
        else if (slice_eq(member.key, SLICE("object")) &&
                 slice_eq(json_string(member.value), SLICE("error")))
            chunk.error = member.value; /* an older form: the error is the chunk itself */
    }
    return chunk;
}

enum answer_event_kind answer_read_chat(struct answer_stream *answer, struct json_value root)
{
    struct chunk chunk = read_chunk(root);

    if (json_type(chunk.usage) == JSON_OBJECT)
        read_usage(answer, chunk.usage);
    if (json_type(chunk.error) != JSON_NONE)
        return answer_fail(answer, chunk.error);
    if (json_type(chunk.choices) == JSON_ARRAY && json_count(chunk.choices) == 0 &&
        json_type(chunk.usage) == JSON_OBJECT)
        return ANSWER_EVENT_USAGE_ONLY;
    return answer_kind_of(add_choices(answer, chunk.choices));
}
