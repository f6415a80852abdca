/* SPDX-License-Identifier: Apache-2.0 */

#include "router/prompt/prompt_stream.h"

#include "router/prompt/prompt_root.h"
#include "router/prompt/prompt_writer.h"
#include "router/prompt/value_digest.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/*
 * DESIGN
 *
 * The canonical stream, version 1. `<x>` is the byte 0xFF and the letter x (prompt_writer.h); 0xFF
 * occurs in no UTF-8 text, so nothing needs escaping or a length in front, no byte can be shifted
 * from one field into the next, and a message still being streamed is a prefix of the finished one.
 *
 *   chat         = tool* message*                                         stream 'C'
 *   completions  = text                                                   stream 'T'
 *   token ids    = 4 bytes each, little-endian                            stream 'I'
 *   tool         = <T> value <.> cut          value: prompt_write_value(), members in order
 *   message      = <M> role [<n> name] [<i> tool_call_id] [<r> reasoning] part* [<f> refusal]
 *                  call* [<x> digest] <.> cut
 *   part         = <t> text | <p> digest      an image is as long as its digest, whatever its bytes
 *   call         = <c> id <n> function name <a> arguments [<x> digest]
 *
 * Fields stand in this order however the client wrote them. Null, "", [] and absent are the same:
 * clients give an answer without text back as either. A content string is one text part. Reasoning
 * stands before the content because the engine made it first: a client that drops it parts from the
 * cached tokens there, and so does its stream. A message that continue_final_message leaves open
 * has no <.>, so that its longer forms share its blocks.
 *
 * The root, which every name depends on, is in prompt_root.c.
 *
 * cache_control marks move from turn to turn and print nothing: they count nowhere. Other members
 * of messages, parts and calls without a tag of their own count by digest.
 */
enum { BLOCK_COUNT_FIRST = 32, IDS_AT_ONCE = 256 };

struct prompt_sink {
    struct prompt_writer writer;
    struct arena *arena;
    const uint8_t *secret;
    size_t block_count_max;
    struct api_fault *fault;
};

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

static int refuse(struct prompt_sink *sink, const char *code, const char *param,
                  const char *message)
{
    sink->fault->code = code;
    snprintf(sink->fault->param, sizeof sink->fault->param, "%s", param);
    snprintf(sink->fault->message, sizeof sink->fault->message, "%s", message);
    return -EINVAL;
}

/* Grows the chain's array in the arena: at least doubles it, within the caller's limit. */
static int reserve_blocks(void *ctx, size_t block_count)
{
    struct prompt_sink *sink = ctx;
    struct block_chain *chain = sink->writer.chain;
    size_t doubled = 2 * chain->block_count_max;
    size_t count = block_count > doubled ? block_count : doubled;
    struct block *blocks;

    if (sink->block_count_max == 0)
        return -ENOBUFS;
    count = count > BLOCK_COUNT_FIRST ? count : BLOCK_COUNT_FIRST;
    count = count < sink->block_count_max ? count : sink->block_count_max;
    if (count <= chain->block_count_max)
        return 0; /* at the limit: the chain will say so */
    blocks = arena_alloc(sink->arena, count * sizeof *blocks);
    if (blocks == NULL)
        return -ENOMEM;
    if (chain->block_count > 0)
        memcpy(blocks, chain->blocks, chain->block_count * sizeof *blocks);
    chain->blocks = blocks;
    chain->block_count_max = count;
    return 0;
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

/* The sum over an object's members, those that print nothing excluded. */
static uint64_t part_digest(const uint8_t *secret, struct json_value part)
{
    struct json_iterator members = json_iterate(part);
    struct json_member member;
    uint64_t sum = 0;

    while (json_next_member(&members, &member))
        if (!slice_eq(member.key, SLICE("cache_control")))
            sum += member_digest(secret, member);
    return sum;
}

static void write_nonempty(struct prompt_sink *sink, enum prompt_tag tag, struct slice text)
{
    if (text.len > 0)
        prompt_write_field(&sink->writer, tag, text);
}

static int write_part(struct prompt_sink *sink, struct json_value part)
{
    struct slice text;

    if (json_type(part) == JSON_STRING)
        write_nonempty(sink, TAG_TEXT, json_string(part));
    else if (json_type(part) != JSON_OBJECT)
        return refuse(sink, "invalid_type", "messages.content",
                      "Each part of a message's content must be an object or a string.");
    else if (is_text_part(part, &text))
        write_nonempty(sink, TAG_TEXT, text);
    else
        prompt_write_digest(&sink->writer, TAG_PART, part_digest(sink->secret, part));
    return 0;
}

static int write_content(struct prompt_sink *sink, struct json_value content)
{
    struct json_iterator parts = json_iterate(content);
    struct json_value part;
    int status = 0;

    switch (json_type(content)) {
    case JSON_NONE:
    case JSON_NULL:
        return 0;
    case JSON_STRING:
        write_nonempty(sink, TAG_TEXT, json_string(content));
        return 0;
    case JSON_ARRAY:
        while (status == 0 && json_next_element(&parts, &part))
            status = write_part(sink, part);
        return status;
    default:
        return refuse(sink, "invalid_type", "messages.content",
                      "The content of a message must be a string, an array of parts, or null.");
    }
}

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

static int write_call(struct prompt_sink *sink, struct json_value call)
{
    struct json_value function = json_get(call, "function");
    struct json_value arguments = json_get(function, "arguments");
    uint64_t extra = call_extra(sink, call);

    if (json_type(call) != JSON_OBJECT)
        return refuse(sink, "invalid_type", "messages.tool_calls",
                      "Each tool call must be an object.");
    prompt_write_field(&sink->writer, TAG_CALL, json_string(json_get(call, "id")));
    prompt_write_field(&sink->writer, TAG_NAME, json_string(json_get(function, "name")));
    prompt_write_field(&sink->writer, TAG_ARGUMENTS, json_string(arguments));
    if (json_type(arguments) == JSON_OBJECT) /* not OpenAI's form, but sent */
        prompt_write_value(&sink->writer, arguments);
    if (extra != 0)
        prompt_write_digest(&sink->writer, TAG_EXTRA, extra);
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
        return refuse(sink, "invalid_type", "messages",
                      "Each message must be an object with a role.");

    prompt_write_field(writer, TAG_MESSAGE, json_string(message.role));
    write_nonempty(sink, TAG_NAME, json_string(message.name));
    write_nonempty(sink, TAG_CALL_ID, json_string(message.tool_call_id));
    write_nonempty(sink, TAG_REASONING, json_string(message.reasoning));
    if ((status = write_content(sink, message.content)) < 0)
        return status;
    write_nonempty(sink, TAG_REFUSAL, json_string(message.refusal));
    if ((status = write_calls(sink, message.tool_calls)) < 0)
        return status;
    if (message.extra != 0)
        prompt_write_digest(writer, TAG_EXTRA, message.extra);
    if (!is_open)
        prompt_write_end(writer);
    return 0;
}

/* One tool, in the order of its members: templates print it so. */
static void write_tool(struct prompt_sink *sink, struct json_value tool)
{
    struct json_iterator members = json_iterate(tool);
    struct json_member member;

    prompt_write_tag(&sink->writer, TAG_TOOL);
    while (json_next_member(&members, &member)) {
        if (slice_eq(member.key, SLICE("cache_control")))
            continue;
        prompt_write_field(&sink->writer, TAG_KEY, member.key);
        prompt_write_value(&sink->writer, member.value);
    }
    if (json_type(tool) != JSON_OBJECT)
        prompt_write_value(&sink->writer, tool);
    prompt_write_end(&sink->writer);
}

static int write_chat(struct prompt_sink *sink, const struct api_request *request)
{
    struct json_iterator tools = json_iterate(json_get(request->root, "tools"));
    struct json_value messages = json_get(request->root, "messages"), element;
    struct json_iterator elements = json_iterate(messages);
    size_t left = json_count(messages);
    int status = 0;

    if (json_type(messages) != JSON_ARRAY)
        return refuse(sink, "missing_field", "messages", "The body needs an array of messages.");
    if (left == 0)
        return refuse(sink, "invalid_value", "messages", "There must be at least one message.");
    while (json_next_element(&tools, &element))
        write_tool(sink, element);
    while (status == 0 && json_next_element(&elements, &element))
        status = write_message(sink, element, --left == 0 && request->continues_message);
    return status;
}

static bool token_id(struct json_value value, uint32_t *id)
{
    int64_t number = json_int64(value);

    *id = (uint32_t)number;
    return json_type(value) == JSON_INT64 && number >= 0 && number <= UINT32_MAX;
}

static int write_token_ids(struct prompt_sink *sink, struct json_value ids)
{
    struct json_iterator elements = json_iterate(ids);
    unsigned char bytes[4 * IDS_AT_ONCE];
    struct json_value element;
    size_t len = 0;
    uint32_t id;

    while (json_next_element(&elements, &element)) {
        if (!token_id(element, &id))
            return refuse(sink, "invalid_type", "prompt",
                          "Each token id must be a whole number from 0 to 4294967295.");
        for (size_t i = 0; i < 4; i++)
            bytes[len++] = (unsigned char)(id >> 8 * i);
        if (len == sizeof bytes) {
            prompt_write_text(&sink->writer, slice_of(bytes, len));
            len = 0;
        }
    }
    prompt_write_text(&sink->writer, slice_of(bytes, len));
    return 0;
}

/* Bytes of the second and later prompts of a body: read, but not named. */
static int count_further(struct prompt_sink *sink, struct json_iterator *prompts,
                         enum json_type type, uint64_t *bytes)
{
    struct json_value prompt;

    while (json_next_element(prompts, &prompt)) {
        if (json_type(prompt) != type)
            return refuse(sink, "invalid_type", "prompt",
                          "The prompts of one body must all be texts, or all be token ids.");
        *bytes += type == JSON_STRING ? json_string(prompt).len : 4 * json_count(prompt);
    }
    return 0;
}

static int write_completion(struct prompt_sink *sink, const struct api_request *request,
                            uint64_t *further_bytes)
{
    struct json_value prompt = json_get(request->root, "prompt"), first = prompt;
    struct json_iterator prompts = json_iterate(prompt);
    int status = 0;

    if (value_is_empty(prompt) && json_type(prompt) != JSON_STRING) {
        if (!value_is_empty(json_get(request->root, "prompt_embeds")))
            return 0; /* it is in the root; nothing to cut into blocks */
        return refuse(sink, "missing_field", "prompt", "The body needs a prompt.");
    }
    if (json_type(prompt) == JSON_ARRAY && json_next_element(&prompts, &first) &&
        json_type(first) != JSON_STRING && json_type(first) != JSON_ARRAY)
        return write_token_ids(sink, prompt);

    if (json_type(first) == JSON_STRING)
        prompt_write_text(&sink->writer, json_string(first));
    else
        status = write_token_ids(sink, first);
    if (status == 0 && json_type(prompt) == JSON_ARRAY)
        status = count_further(sink, &prompts, json_type(first), further_bytes);
    return status;
}

int prompt_stream_write(struct prompt_stream_config config, const struct api_request *request,
                        struct arena *arena, size_t block_count_max, struct prompt_blocks *out,
                        struct api_fault *fault)
{
    struct prompt_sink sink = {
        .writer = {&out->chain, reserve_blocks, &sink, 0},
        .arena = arena,
        .secret = config.secret,
        .block_count_max = block_count_max,
        .fault = fault,
    };
    uint64_t further_bytes = 0;
    int status;

    *fault = (struct api_fault){.code = ""};
    out->token_ids = 0;
    block_chain_init(
        &out->chain,
        (struct block_chain_config){config.secret, config.block_bytes, config.cut_bytes_min},
        prompt_root(config.secret, request), NULL, 0);
    status = request->api == API_CHAT ? write_chat(&sink, request)
                                      : write_completion(&sink, request, &further_bytes);
    out->block_count = prompt_write_tail(&sink.writer);
    out->blocks = out->chain.blocks;
    out->closed_count = out->chain.block_count;
    out->bytes = prompt_writer_bytes(&sink.writer) + further_bytes;
    if (request->is_token_prompt)
        out->token_ids = out->bytes / 4;
    return status < 0 ? status : sink.writer.status;
}
