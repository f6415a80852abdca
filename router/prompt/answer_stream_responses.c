/* SPDX-License-Identifier: Apache-2.0 */

#include "router/prompt/answer_stream_parts.h"
#include "router/prompt/value_digest.h"

#include <string.h>

/*
 * DESIGN
 *
 * An answer is a list of items: reasoning, a message, calls. Streamed, each is opened, filled by
 * deltas and done; `done` shows it whole, as the client will give it back, so it is compared by
 * length with what came, and stands in where nothing came. A body's items are opened and done.
 *
 * Only what prompt_responses.c makes one assistant message of is learned: a second message or
 * reasoning, and items of other types, end that. So does a summary of the reasoning: the engine
 * thought something else.
 */

enum event_type {
    EVENT_TEXT_DELTA,
    EVENT_REASONING_DELTA,
    EVENT_ARGUMENTS_DELTA,
    EVENT_INPUT_DELTA,
    EVENT_ITEM_ADDED,
    EVENT_ITEM_DONE,
    EVENT_PART_ADDED,
    EVENT_CREATED,
    EVENT_QUEUED,
    EVENT_IN_PROGRESS,
    EVENT_COMPLETED,
    EVENT_INCOMPLETE,
    EVENT_FAILED,
    EVENT_ERROR,
    EVENT_UNKNOWN,
};

static const struct slice event_names[] = {
#define NAME(text)                                                                                 \
    {                                                                                              \
        text, sizeof text - 1                                                                      \
    }
    [EVENT_TEXT_DELTA] = NAME("response.output_text.delta"),
    [EVENT_REASONING_DELTA] = NAME("response.reasoning_text.delta"),
    [EVENT_ARGUMENTS_DELTA] = NAME("response.function_call_arguments.delta"),
    [EVENT_INPUT_DELTA] = NAME("response.custom_tool_call_input.delta"),
    [EVENT_ITEM_ADDED] = NAME("response.output_item.added"),
    [EVENT_ITEM_DONE] = NAME("response.output_item.done"),
    [EVENT_PART_ADDED] = NAME("response.content_part.added"),
    [EVENT_CREATED] = NAME("response.created"),
    [EVENT_QUEUED] = NAME("response.queued"),
    [EVENT_IN_PROGRESS] = NAME("response.in_progress"),
    [EVENT_COMPLETED] = NAME("response.completed"),
    [EVENT_INCOMPLETE] = NAME("response.incomplete"),
    [EVENT_FAILED] = NAME("response.failed"),
    [EVENT_ERROR] = NAME("error"),
#undef NAME
};
_Static_assert(array_count(event_names) == EVENT_UNKNOWN, "every event has a name");

/* What matters of an event. */
struct event {
    struct slice type;
    struct json_value delta;
    struct json_value item;
    struct json_value response;
    struct json_value sequence_number;
    uint64_t output_index;
};

static struct event read_members(struct json_value root)
{
    struct json_iterator members = json_iterate(root);
    struct json_member member;
    struct event event = {0};

    while (json_next_member(&members, &member)) {
        if (slice_eq(member.key, SLICE("type")))
            event.type = json_string(member.value);
        else if (slice_eq(member.key, SLICE("delta")))
            event.delta = member.value;
        else if (slice_eq(member.key, SLICE("item")))
            event.item = member.value;
        else if (slice_eq(member.key, SLICE("response")))
            event.response = member.value;
        else if (slice_eq(member.key, SLICE("sequence_number")))
            event.sequence_number = member.value;
        else if (slice_eq(member.key, SLICE("output_index")))
            (void)answer_read_count(member.value, &event.output_index);
    }
    return event;
}

static enum event_type find_event(struct slice type)
{
    enum event_type event = 0;

    while (event < EVENT_UNKNOWN && !slice_eq(event_names[event], type))
        event++;
    return event;
}

/* ---- items ---- */

static bool is_type(struct json_value item, struct slice type)
{
    return slice_eq(json_string(json_get(item, "type")), type);
}

static void open_call(struct answer_stream *answer, struct json_value item, enum prompt_tag tag)
{
    struct answer_call call = {.id = json_string(json_get(item, "call_id")),
                               .space = json_string(json_get(item, "namespace")),
                               .name = json_string(json_get(item, "name")),
                               .tag = tag};

    answer->part = PART_CALL;
    answer_open_call(answer, &call);
}

/* True: it carries something the client has waited for. */
static bool open_item(struct answer_stream *answer, struct json_value item, uint64_t index)
{
    unsigned place_max = PLACE_CALLS;

    answer->part = PART_NONE;
    answer->part_index = index;
    answer->part_bytes = 0;
    if (is_type(item, SLICE("message"))) {
        answer->part = PART_TEXT;
        place_max = PLACE_REASONING;
    } else if (is_type(item, SLICE("reasoning"))) {
        answer->part = PART_REASONING;
        place_max = PLACE_START;
    } else if (is_type(item, SLICE("function_call"))) {
        open_call(answer, item, TAG_ARGUMENTS);
    } else if (is_type(item, SLICE("custom_tool_call"))) {
        open_call(answer, item, TAG_TEXT);
    } else {
        answer->is_learnable = false;
    }
    answer->is_learnable = answer->is_learnable && answer->place <= place_max;
    return answer->part == PART_CALL;
}

/* True: it carries something the client has waited for. */
static bool add_delta(struct answer_stream *answer, enum answer_part part,
                      const struct event *event)
{
    struct slice text = json_string(event->delta);

    if (answer->part != (unsigned)part || answer->part_index != event->output_index)
        answer->is_learnable = false;
    answer->part_bytes += text.len;
    if (part == PART_CALL)
        answer_add_more(answer, text);
    else
        (void)answer_add_text(answer, part == PART_TEXT ? PLACE_CONTENT : PLACE_REASONING, text);
    return text.len > 0;
}

/* The whole of a text whose deltas, if any, have been added. True: it was new, and not empty. */
static bool add_whole(struct answer_stream *answer, struct slice text, uint64_t bytes_before)
{
    if (bytes_before > 0 || text.len == 0)
        return false;
    if (answer->part == PART_CALL) {
        answer_add_more(answer, text);
        return true;
    }
    answer->is_part_new = answer->part == PART_TEXT && answer->place == PLACE_CONTENT;
    return answer_add_text(answer, answer->part == PART_TEXT ? PLACE_CONTENT : PLACE_REASONING,
                           text);
}

/* The texts of a message or of reasoning. */
static bool close_texts(struct answer_stream *answer, struct json_value content, struct slice type)
{
    struct json_iterator parts = json_iterate(content);
    uint64_t bytes_before = answer->part_bytes, bytes = 0;
    struct json_value part;
    bool has_content = false;

    while (json_next_element(&parts, &part)) {
        struct slice text = json_string(json_get(part, "text"));

        if (!is_type(part, type))
            answer->is_learnable = false; /* a refusal, ... */
        bytes += text.len;
        has_content |= add_whole(answer, text, bytes_before) || !is_type(part, type);
    }
    if (bytes_before > 0 && bytes_before != bytes)
        answer->is_learnable = false;
    return has_content;
}

static bool close_reasoning(struct answer_stream *answer, struct json_value item)
{
    if (!value_is_empty(json_get(item, "summary")) ||
        !value_is_empty(json_get(item, "encrypted_content")))
        answer->is_learnable = false;
    return close_texts(answer, json_get(item, "content"), SLICE("reasoning_text"));
}

static bool close_call(struct answer_stream *answer, struct json_value item)
{
    bool is_custom = is_type(item, SLICE("custom_tool_call"));
    struct slice text = json_string(json_get(item, is_custom ? "input" : "arguments"));

    if (answer->part_bytes > 0 && answer->part_bytes != text.len)
        answer->is_learnable = false;
    return add_whole(answer, text, answer->part_bytes);
}

/* True: it carries something the client has waited for, and not yet had. */
static bool close_item(struct answer_stream *answer, struct json_value item, uint64_t index)
{
    bool has_content = false;

    if (answer->part == PART_NONE || answer->part_index != index)
        has_content = open_item(answer, item, index);
    switch ((enum answer_part)answer->part) {
    case PART_TEXT:
        has_content |= close_texts(answer, json_get(item, "content"), SLICE("output_text"));
        break;
    case PART_REASONING:
        has_content |= close_reasoning(answer, item);
        break;
    case PART_CALL:
        has_content |= close_call(answer, item);
        break;
    case PART_NONE:
        break;
    }
    answer->part = PART_NONE;
    return has_content;
}

/* ---- the response object ---- */

static void read_id(struct answer_stream *answer, struct slice id)
{
    if (id.len == 0 || id.len > ANSWER_RESPONSE_ID_BYTES_MAX)
        return;
    memcpy(answer->response_id, id.ptr, id.len);
    answer->response_id[id.len] = '\0';
}

/* input_tokens counts cached ones too. */
static void read_usage(struct answer_stream *answer, struct json_value value)
{
    struct answer_usage *usage = &answer->usage;
    struct json_value details = json_get(value, "input_tokens_details");

    if (answer_read_count(json_get(value, "input_tokens"), &usage->prompt_tokens)) {
        usage->is_known = true;
        if (!answer_read_count(json_get(value, "output_tokens"), &usage->completion_tokens))
            usage->completion_tokens = 0;
    }
    if (answer_read_count(json_get(details, "cached_tokens"), &usage->cached_tokens))
        usage->has_cached = true;
}

static void read_status(struct answer_stream *answer, struct json_value response)
{
    struct slice status = json_string(json_get(response, "status"));
    struct json_value details = json_get(response, "incomplete_details");

    if (slice_eq(status, SLICE("completed")) || slice_eq(status, SLICE("incomplete")))
        answer->has_finished = true;
    else if (slice_eq(status, SLICE("failed")) || slice_eq(status, SLICE("cancelled")))
        answer->is_learnable = false;
    if (slice_eq(json_string(json_get(details, "reason")), SLICE("content_filter")))
        answer->is_learnable = false;
}

static void read_response(struct answer_stream *answer, struct json_value response)
{
    struct json_value error = json_get(response, "error");

    read_id(answer, json_string(json_get(response, "id")));
    read_usage(answer, json_get(response, "usage"));
    read_status(answer, response);
    if (!value_is_empty(error))
        (void)answer_fail(answer, error);
}

/* ---- events and bodies ---- */

/* Deltas of items that we do not follow: something the client has waited for all the same. */
static enum answer_event_kind read_unknown(struct answer_stream *answer, struct json_value root,
                                           struct slice type)
{
    struct json_value error = json_get(root, "error");
    struct slice end = SLICE(".delta");

    if (!value_is_empty(error))
        return answer_fail(answer, error);
    if (type.len < end.len || !slice_eq(slice_skip(type, type.len - end.len), end))
        return ANSWER_EVENT_OTHER;
    answer->is_learnable = false;
    return ANSWER_EVENT_CONTENT;
}

enum answer_event_kind answer_read_responses_event(struct answer_stream *answer,
                                                   struct json_value root)
{
    struct event event = read_members(root);

    if (answer_read_count(event.sequence_number, &answer->sequence_number))
        answer->has_sequence_number = true;
    switch (find_event(event.type)) {
    case EVENT_TEXT_DELTA:
        return answer_kind_of(add_delta(answer, PART_TEXT, &event));
    case EVENT_REASONING_DELTA:
        return answer_kind_of(add_delta(answer, PART_REASONING, &event));
    case EVENT_ARGUMENTS_DELTA:
    case EVENT_INPUT_DELTA:
        return answer_kind_of(add_delta(answer, PART_CALL, &event));
    case EVENT_ITEM_ADDED:
        return answer_kind_of(open_item(answer, event.item, event.output_index));
    case EVENT_ITEM_DONE:
        return answer_kind_of(close_item(answer, event.item, event.output_index));
    case EVENT_PART_ADDED: /* a second text of the same message stands apart from the first */
        answer->is_part_new = answer->part == PART_TEXT && answer->place == PLACE_CONTENT;
        return ANSWER_EVENT_OTHER;
    case EVENT_CREATED:
    case EVENT_QUEUED:
    case EVENT_IN_PROGRESS:
        read_response(answer, event.response);
        return ANSWER_EVENT_OTHER;
    case EVENT_COMPLETED:
    case EVENT_INCOMPLETE:
        read_response(answer, event.response);
        answer->has_done = true;
        return ANSWER_EVENT_DONE;
    case EVENT_FAILED:
        read_response(answer, event.response);
        answer->has_done = true;
        return answer_fail(answer, json_get(event.response, "error"));
    case EVENT_ERROR: /* flat, or with an object */
        return answer_fail(answer, json_type(json_get(root, "error")) == JSON_OBJECT
                                       ? json_get(root, "error")
                                       : root);
    case EVENT_UNKNOWN:
        break;
    }
    return read_unknown(answer, root, event.type);
}

enum answer_event_kind answer_read_responses_body(struct answer_stream *answer,
                                                  struct json_value root)
{
    struct json_iterator items = json_iterate(json_get(root, "output"));
    struct json_value item;
    bool has_content = false;
    uint64_t index = 0;

    read_response(answer, root);
    if (answer->has_error)
        return ANSWER_EVENT_ERROR;
    while (json_next_element(&items, &item))
        has_content |= close_item(answer, item, index++);
    return answer_kind_of(has_content);
}
