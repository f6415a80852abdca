/* SPDX-License-Identifier: Apache-2.0 */

#include "router/prompt/answer_stream_parts.h"
#include "router/prompt/value_digest.h"

/*
 * DESIGN
 *
 * An answer is a list of blocks: thinking, text, tool_use. Streamed, each is started, filled by
 * deltas and stopped; a body's blocks are there at once. Signatures and citations are for the API:
 * no prompt shows them. What the engine thought but seals (redacted_thinking), and blocks of tools
 * that run at the server, end learning.
 *
 * The input of a call comes as pieces of text and goes back as a value: value_stream.h.
 */

/* What matters of an event. */
struct event {
    struct slice type;
    struct json_value delta;
    struct json_value content_block;
    struct json_value message;
    struct json_value usage;
    struct json_value error;
    uint64_t index;
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
        else if (slice_eq(member.key, SLICE("index")))
            (void)answer_read_count(member.value, &event.index);
        else if (slice_eq(member.key, SLICE("content_block")))
            event.content_block = member.value;
        else if (slice_eq(member.key, SLICE("message")))
            event.message = member.value;
        else if (slice_eq(member.key, SLICE("usage")))
            event.usage = member.value;
        else if (slice_eq(member.key, SLICE("error")) && !value_is_empty(member.value))
            event.error = member.value;
    }
    return event;
}

/* Counts are cumulative, and an event may leave out what did not change. input_tokens excludes
 * what the cache gave and took. */
static void read_usage(struct answer_stream *answer, struct json_value value)
{
    struct answer_usage *usage = &answer->usage;
    uint64_t input, read = 0, created = 0;

    if (answer_read_count(json_get(value, "cache_read_input_tokens"), &read)) {
        usage->has_cached = true;
        usage->cached_tokens = read;
    }
    (void)answer_read_count(json_get(value, "cache_creation_input_tokens"), &created);
    if (answer_read_count(json_get(value, "input_tokens"), &input)) {
        usage->is_known = true;
        usage->prompt_tokens = input + read + created;
    }
    (void)answer_read_count(json_get(value, "output_tokens"), &usage->completion_tokens);
}

static void read_stop(struct answer_stream *answer, struct json_value reason)
{
    if (json_type(reason) != JSON_STRING)
        return;
    answer->has_finished = true;
    if (slice_eq(json_string(reason), SLICE("refusal")))
        answer->is_learnable = false;
}

/* ---- blocks ---- */

static void open_call(struct answer_stream *answer, struct json_value block)
{
    struct json_value input = json_get(block, "input");
    struct answer_call call = {.id = json_string(json_get(block, "id")),
                               .name = json_string(json_get(block, "name")),
                               .tag = TAG_ARGUMENTS};

    answer->part = PART_CALL;
    answer_open_call(answer, &call);
    if (value_is_empty(input))
        return;
    answer_add_value(answer, input); /* whole already */
    answer->part = PART_NONE;
}

/* A block with what it holds already. True: something the client has waited for. */
static bool open_block(struct answer_stream *answer, struct json_value block, uint64_t index)
{
    struct slice type = json_string(json_get(block, "type"));

    answer->part = PART_NONE;
    answer->part_index = index;
    answer->part_bytes = 0;
    if (slice_eq(type, SLICE("text"))) {
        answer->part = PART_TEXT;
        answer->is_part_new = answer->place == PLACE_CONTENT;
        return answer_add_text(answer, PLACE_CONTENT, json_string(json_get(block, "text")));
    }
    if (slice_eq(type, SLICE("thinking"))) {
        answer->part = PART_REASONING;
        return answer_add_text(answer, PLACE_REASONING, json_string(json_get(block, "thinking")));
    }
    if (slice_eq(type, SLICE("tool_use")))
        open_call(answer, block);
    else
        answer->is_learnable = false;
    return true;
}

static void close_block(struct answer_stream *answer)
{
    if (answer->part == PART_CALL)
        answer_end_value(answer);
    answer->part = PART_NONE;
}

/* A delta of text that belongs to the open block, if it is that part. */
static bool add_text(struct answer_stream *answer, enum answer_part part, struct slice text)
{
    if (answer->part != (unsigned)part)
        answer->is_learnable = false;
    answer->part_bytes += text.len;
    if (part == PART_CALL)
        answer_add_value_text(answer, text);
    else
        (void)answer_add_text(answer, part == PART_TEXT ? PLACE_CONTENT : PLACE_REASONING, text);
    return text.len > 0;
}

/* True: something the client has waited for. */
static bool add_delta(struct answer_stream *answer, const struct event *event)
{
    struct slice type = json_string(json_get(event->delta, "type"));

    if (event->index != answer->part_index)
        answer->is_learnable = false;
    if (slice_eq(type, SLICE("text_delta")))
        return add_text(answer, PART_TEXT, json_string(json_get(event->delta, "text")));
    if (slice_eq(type, SLICE("thinking_delta")))
        return add_text(answer, PART_REASONING, json_string(json_get(event->delta, "thinking")));
    if (slice_eq(type, SLICE("input_json_delta")))
        return add_text(answer, PART_CALL, json_string(json_get(event->delta, "partial_json")));
    if (slice_eq(type, SLICE("signature_delta")) || slice_eq(type, SLICE("citations_delta")))
        return false;
    answer->is_learnable = false;
    return true;
}

/* ---- events and bodies ---- */

enum answer_event_kind answer_read_messages_event(struct answer_stream *answer,
                                                  struct json_value root)
{
    struct event event = read_members(root);

    if (json_type(event.error) != JSON_NONE)
        return answer_fail(answer, event.error);
    if (slice_eq(event.type, SLICE("content_block_delta")))
        return answer_kind_of(add_delta(answer, &event));
    if (slice_eq(event.type, SLICE("content_block_start")))
        return answer_kind_of(open_block(answer, event.content_block, event.index));
    if (slice_eq(event.type, SLICE("content_block_stop"))) {
        close_block(answer);
    } else if (slice_eq(event.type, SLICE("message_start"))) {
        read_usage(answer, json_get(event.message, "usage"));
    } else if (slice_eq(event.type, SLICE("message_delta"))) {
        read_usage(answer, event.usage);
        read_stop(answer, json_get(event.delta, "stop_reason"));
    } else if (slice_eq(event.type, SLICE("message_stop"))) {
        answer->has_done = true;
        return ANSWER_EVENT_DONE;
    }
    return ANSWER_EVENT_OTHER;
}

enum answer_event_kind answer_read_messages_body(struct answer_stream *answer,
                                                 struct json_value root)
{
    struct json_iterator blocks = json_iterate(json_get(root, "content"));
    struct json_value error = json_get(root, "error"), block;
    bool has_content = false;
    uint64_t index = 0;

    if (!value_is_empty(error))
        return answer_fail(answer, error);
    read_usage(answer, json_get(root, "usage"));
    read_stop(answer, json_get(root, "stop_reason"));
    while (json_next_element(&blocks, &block)) {
        has_content |= open_block(answer, block, index++);
        close_block(answer);
    }
    return answer_kind_of(has_content);
}
