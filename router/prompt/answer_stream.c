/* SPDX-License-Identifier: Apache-2.0 */

#include "router/prompt/answer_stream.h"

#include "router/prompt/prompt_writer.h"
#include "router/prompt/value_digest.h"

#include <errno.h>
#include <stdlib.h>

/*
 * DESIGN
 *
 * The engine caches its own answer; the next turn's prompt holds it as an assistant message. So the
 * message is written here as prompt_stream.c will write it then: role, reasoning, content, calls,
 * in this order. Deltas come in this order too (reasoning is thought before content is said, calls
 * come last, one by one); an answer that jumps back, or holds what we cannot foresee a client to
 * send (refusals, audio, several choices), is relayed all the same but not learned.
 *
 * Reasoning is part of the chain because it lies in the engine's cache before the content: where a
 * client drops it, the next prompt parts from the cached tokens exactly where its stream parts from
 * this one. Texts of zero length count as absent, as in requests.
 *
 * A body is one big delta. Each event is scanned as a whole: most are a few hundred bytes, and a
 * scanner that stays warm needs no memory.
 */
enum { BLOCK_COUNT_FIRST = 8 };

enum place { PLACE_START, PLACE_REASONING, PLACE_CONTENT, PLACE_CALLS };

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

static int reserve_blocks(void *ctx, size_t block_count)
{
    struct answer_stream *answer = ctx;
    struct block_chain *chain = &answer->chain;
    size_t doubled = 2 * chain->block_count_max;
    size_t count = block_count > doubled ? block_count : doubled;
    struct block *blocks;

    count = count > BLOCK_COUNT_FIRST ? count : BLOCK_COUNT_FIRST;
    count = count < ANSWER_BLOCK_COUNT_MAX ? count : ANSWER_BLOCK_COUNT_MAX;
    if (count <= chain->block_count_max)
        return 0; /* at the limit: the chain will say so */
    blocks = realloc(answer->blocks, count * sizeof *blocks);
    if (blocks == NULL)
        return -ENOMEM;
    answer->blocks = chain->blocks = blocks;
    chain->block_count_max = count;
    return 0;
}

static struct prompt_writer writer_of(struct answer_stream *answer)
{
    return (struct prompt_writer){&answer->chain, reserve_blocks, answer, 0};
}

static bool is_writing(const struct answer_stream *answer)
{
    return answer->is_learnable && !answer->is_full;
}

/* Brings the message to place; its first step writes the head. */
static void move_to(struct answer_stream *answer, struct prompt_writer *writer, enum place place)
{
    if (answer->place == PLACE_START)
        prompt_write_field(writer, TAG_MESSAGE, SLICE("assistant"));
    answer->place = place;
}

/* Some more reasoning or content. True: there was some. */
static bool add_text(struct answer_stream *answer, enum place place, struct slice text)
{
    struct prompt_writer writer = writer_of(answer);

    if (text.len == 0)
        return false;
    answer->is_learnable = answer->is_learnable && answer->place <= place;
    if (!is_writing(answer))
        return true;
    if (answer->place < place) {
        move_to(answer, &writer, place);
        prompt_write_tag(&writer, place == PLACE_REASONING ? TAG_REASONING : TAG_TEXT);
    }
    prompt_write_text(&writer, text);
    answer->is_full = writer.status < 0;
    return true;
}

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
    struct prompt_writer writer = writer_of(answer);
    struct json_value function = json_get(call, "function");
    struct json_value arguments = json_get(function, "arguments");
    bool is_new;

    if (!is_call_in_order(answer, call, index, &is_new) || json_type(arguments) == JSON_OBJECT)
        answer->is_learnable = false;
    if (!is_writing(answer))
        return;
    if (is_new) {
        move_to(answer, &writer, PLACE_CALLS);
        answer->call_index = index;
        prompt_write_field(&writer, TAG_CALL, json_string(json_get(call, "id")));
        prompt_write_field(&writer, TAG_NAME, json_string(json_get(function, "name")));
        prompt_write_tag(&writer, TAG_ARGUMENTS);
    }
    prompt_write_text(&writer, json_string(arguments));
    answer->is_full = writer.status < 0;
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
    has_text = add_text(answer, PLACE_REASONING, json_string(delta.reasoning));
    has_text |= add_text(answer, PLACE_CONTENT, json_string(delta.content));
    has_text |= add_calls(answer, delta.tool_calls);
    return has_text || delta.has_other || !value_is_empty(delta.content);
}

/* Completions: the next prompt is this one with the text behind it, without any tag. */
static bool add_completion_text(struct answer_stream *answer, struct slice text)
{
    struct prompt_writer writer = writer_of(answer);

    if (is_writing(answer)) {
        prompt_write_text(&writer, text);
        answer->is_full = writer.status < 0;
    }
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

static bool read_count(struct json_value value, uint64_t *count)
{
    if (json_type(value) != JSON_INT64 || json_int64(value) < 0)
        return false;
    *count = (uint64_t)json_int64(value);
    return true;
}

/* The newest counts; an earlier cached_tokens stays where later usage has none. */
static void read_usage(struct answer_stream *answer, struct json_value value)
{
    struct answer_usage *usage = &answer->usage;
    struct json_value details = json_get(value, "prompt_tokens_details");

    if (read_count(json_get(value, "prompt_tokens"), &usage->prompt_tokens)) {
        usage->is_known = true;
        if (!read_count(json_get(value, "completion_tokens"), &usage->completion_tokens))
            usage->completion_tokens = 0;
    }
    if (read_count(json_get(details, "cached_tokens"), &usage->cached_tokens))
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

static enum answer_event_kind add_chunk(struct answer_stream *answer, struct json_value root)
{
    struct chunk chunk = read_chunk(root);

    if (json_type(chunk.usage) == JSON_OBJECT)
        read_usage(answer, chunk.usage);
    if (json_type(chunk.error) != JSON_NONE) {
        answer->has_error = true;
        (void)read_count(json_get(chunk.error, "code"), &answer->error_code);
        answer->is_learnable = false;
        return ANSWER_EVENT_ERROR;
    }
    if (json_type(chunk.choices) == JSON_ARRAY && json_count(chunk.choices) == 0 &&
        json_type(chunk.usage) == JSON_OBJECT)
        return ANSWER_EVENT_USAGE_ONLY;
    return add_choices(answer, chunk.choices) ? ANSWER_EVENT_CONTENT : ANSWER_EVENT_OTHER;
}

void answer_stream_init(struct answer_stream *answer, const struct api_request *request,
                        const struct block_chain *prompt_chain)
{
    *answer = (struct answer_stream){.api = request->api};
    if (prompt_chain == NULL)
        return;
    answer->is_learnable = request->is_answer_learnable;
    answer->chain = *prompt_chain;
    answer->chain.blocks = NULL; /* its blocks are the prompt's; ours begin behind them */
    answer->chain.block_count = 0;
    answer->chain.block_count_max = 0;
}

static bool is_done_mark(struct slice data)
{
    while (data.len > 0 && data.ptr[data.len - 1] == ' ')
        data.len--;
    return slice_eq(data, SLICE("[DONE]"));
}

enum answer_event_kind answer_stream_event(struct answer_stream *answer,
                                           struct json_scanner *scanner, struct slice data)
{
    struct parse_error error;
    struct json_value root;

    answer->event_count++;
    if (is_done_mark(data)) {
        answer->has_done = true;
        return ANSWER_EVENT_DONE;
    }
    if (json_scan(scanner, data, &root, &error) < 0) {
        answer->is_learnable = false; /* it may have held text */
        return ANSWER_EVENT_OTHER;
    }
    return add_chunk(answer, root);
}

bool answer_stream_body(struct answer_stream *answer, struct json_scanner *scanner,
                        struct slice body)
{
    struct parse_error error;
    struct json_value root;

    if (json_scan(scanner, body, &root, &error) < 0 || json_type(root) != JSON_OBJECT) {
        answer->is_learnable = false;
        return false;
    }
    return add_chunk(answer, root) != ANSWER_EVENT_OTHER || answer->has_finished;
}

static void close_message(struct answer_stream *answer)
{
    struct prompt_writer writer = writer_of(answer);

    if (answer->api == API_CHAT) {
        move_to(answer, &writer, answer->place);
        prompt_write_end(&writer);
    }
    answer->block_count = prompt_write_tail(&writer);
}

const struct block *answer_stream_finish(struct answer_stream *answer, size_t *block_count)
{
    *block_count = 0;
    if (!answer->is_learnable || !answer->has_finished)
        return NULL;
    if (!answer->is_closed) {
        answer->is_closed = true;
        answer->block_count = answer->chain.block_count;
        if (!answer->is_full)
            close_message(answer);
    }
    *block_count = answer->block_count;
    return answer->block_count > 0 ? answer->blocks : NULL;
}

void answer_stream_release(struct answer_stream *answer)
{
    free(answer->blocks);
    answer->blocks = answer->chain.blocks = NULL;
    answer->block_count = answer->chain.block_count = answer->chain.block_count_max = 0;
    answer->is_learnable = false;
}
