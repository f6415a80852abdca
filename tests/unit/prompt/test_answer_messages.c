/* SPDX-License-Identifier: Apache-2.0 */

#include "router/prompt/answer_stream.h"
#include "tests/support/answer_world.h"
#include "tests/support/leak_check.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <stdio.h>

#define TEN     "abcdefghij"
#define HUNDRED TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN
#define LONG    HUNDRED HUNDRED HUNDRED
#define USER    "{\"role\":\"user\",\"content\":\"" LONG "?\"}"

/* What an engine gives, and what clients give back. */
#define THOUGHT       "{\"type\":\"thinking\",\"thinking\":\"" HUNDRED "\",\"signature\":\"s\"}"
#define SAID          "{\"type\":\"text\",\"text\":\"" LONG "\",\"citations\":null}"
#define CALLED(input) "{\"type\":\"tool_use\",\"id\":\"c1\",\"name\":\"tea\",\"input\":" input "}"
#define CALLED_BARE   "{\"type\":\"tool_use\",\"id\":\"c2\",\"name\":\"stop\",\"input\":{}}"
#define RESULTS                                                                                    \
    "{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"c1\","            \
    "\"content\":\"" LONG "\"},{\"type\":\"tool_result\",\"tool_use_id\":\"c2\"}]}"
#define INPUT "{\"cups\":2,\"milk\":[true,null,1.5],\"note\":\"" HUNDRED "h\xc3\xa9\\n\"}"

static const char next_turn[] =
    "{\"messages\":[" USER ",{\"role\":\"assistant\",\"content\":[" THOUGHT "," SAID
    "," CALLED(INPUT) "," CALLED_BARE "]}," RESULTS "]}";

static void init(struct answer_world *world)
{
    answer_world_init(world, API_MESSAGES, SLICE("{\"messages\":[" USER "]}"));
}

struct streamed_block {
    const char *start;
    const char *delta; /* its type and the key of its text */
    const char *text;  /* as it stands between quotes */
};

/* The input in the spelling of a model: white space, escapes, numbers. */
static const struct streamed_block streamed_blocks[] = {
    {"{\"type\":\"thinking\",\"thinking\":\"\"}", "\"thinking_delta\",\"thinking\"", HUNDRED},
    {"{\"type\":\"text\",\"text\":\"\"}", "\"text_delta\",\"text\"", LONG},
    {CALLED("{}"), "\"input_json_delta\",\"partial_json\"",
     "{\\\"cups\\\": 2, \\\"milk\\\" : [ true, null, 15e-1 ],\\n\\\"note\\\": "
     "\\\"" HUNDRED "h\\\\u00e9\\\\n\\\"}"},
    {CALLED_BARE, "\"input_json_delta\",\"partial_json\"", ""},
};

/* The length of what stands between quotes at text: an escape stays whole. */
static size_t piece_len(const char *text, size_t step)
{
    size_t len = 0;

    while (text[len] != '\0' && len < step)
        len += text[len] == '\\' ? 2 : 1;
    return len;
}

static void stream_block(struct answer_world *world, size_t index, size_t step)
{
    const struct streamed_block *block = &streamed_blocks[index];
    char event[1024];

    snprintf(event, sizeof event,
             "{\"type\":\"content_block_start\",\"index\":%zu,\"content_block\":%s}", index,
             block->start);
    answer_world_feed_text(world, event);
    for (const char *at = block->text; *at != '\0'; at += piece_len(at, step)) {
        snprintf(
            event, sizeof event,
            "{\"type\":\"content_block_delta\",\"index\":%zu,\"delta\":{\"type\":%s:\"%.*s\"}}",
            index, block->delta, (int)piece_len(at, step), at);
        answer_world_feed_text(world, event);
        cr_assert(eq(int, world->last_kind, ANSWER_EVENT_CONTENT));
    }
    answer_world_feed_text(world, "{\"type\":\"ping\"}");
    snprintf(event, sizeof event, "{\"type\":\"content_block_stop\",\"index\":%zu}", index);
    answer_world_feed_text(world, event);
}

static void stop(struct answer_world *world, const char *reason)
{
    char event[256];

    snprintf(event, sizeof event,
             "{\"type\":\"message_delta\",\"delta\":{\"stop_reason\":%s},\"usage\":{"
             "\"output_tokens\":7}}",
             reason);
    answer_world_feed_text(world, event);
    answer_world_feed_text(world, "{\"type\":\"message_stop\"}");
}

static void check_unlearned(struct answer_world *world, const char *what)
{
    size_t count;

    cr_assert(answer_stream_finish(&world->answer, &count) == NULL, "%s", what);
}

TestSuite(answer_messages, .fini = leak_check);

Test(answer_messages, a_recorded_stream_is_read_and_its_prompt_counted_whole)
{
    struct answer_world world;
    answer_world_init_from_recording(&world, API_MESSAGES, "messages-system-hit-stream.req");

    answer_world_feed_recording(&world, "messages-system-hit-stream.resp");

    cr_assert(world.answer.has_done && world.answer.has_finished && world.answer.has_content);
    cr_assert(eq(u64, world.answer.usage.prompt_tokens, 242)); /* 18 read, 224 in the cache */
    cr_assert(eq(u64, world.answer.usage.cached_tokens, 224));
    cr_assert(world.answer.usage.has_cached);
    cr_assert(eq(u64, world.answer.usage.completion_tokens, 8));
    cr_assert(eq(sz, world.kinds[ANSWER_EVENT_CONTENT], 8));
    cr_assert(eq(sz, world.kinds[ANSWER_EVENT_DONE], 1));
    cr_assert(world.answer.is_learnable);
    answer_world_release(&world);
}

Test(answer_messages, a_recorded_answer_is_the_next_turns_message_streamed_or_not)
{
    static const char next[] =
        "{\"model\":\"tiny\",\"messages\":[{\"role\":\"user\",\"content\":"
        "\"hello, where is the samovar?\"},{\"role\":\"assistant\",\"content\":[{\"type\":\"text\","
        "\"text\":\"moud mourpungiongs vear fouckhoungplomsas\"}]},{\"role\":\"user\",\"content\":"
        "\"what?\"}]}";
    struct answer_world streamed, whole;
    struct buf body;
    answer_world_init_from_recording(&streamed, API_MESSAGES, "messages-stream.req");
    answer_world_init_from_recording(&whole, API_MESSAGES, "messages-plain.req");
    recording_read(&body, answer_recordings, "messages-plain.resp");

    answer_world_feed_recording(&streamed, "messages-stream.resp");
    cr_assert(answer_world_feed_body(&whole, buf_slice(&body)));

    cr_assert(eq(u64, whole.answer.usage.prompt_tokens, 21));
    cr_assert(eq(u64, whole.answer.usage.completion_tokens, 8));
    answer_world_check_next(&streamed, API_MESSAGES, next);
    answer_world_check_next(&whole, API_MESSAGES, next);
    buf_release(&body);
    answer_world_release(&streamed);
    answer_world_release(&whole);
}

/* The model wrote {"cups":, tabs, 2, a tab and }; the client gives back what it read of that. */
Test(answer_messages, a_recorded_call_is_the_next_turns_message)
{
    struct answer_world world;
    answer_world_init_from_recording(&world, API_MESSAGES, "messages-tools-any-stream.req");

    answer_world_feed_recording(&world, "messages-tools-any-stream.resp");

    cr_assert(world.answer.has_done && world.answer.has_finished);
    cr_assert(eq(u64, world.answer.usage.prompt_tokens, 156));
    answer_world_check_next(
        &world, API_MESSAGES,
        "{\"model\":\"tiny\",\"tools\":[{\"name\":\"get_tea\",\"strict\":true,\"description\":"
        "\"make tea\",\"input_schema\":{\"type\":\"object\",\"properties\":{\"cups\":{\"type\":"
        "\"integer\",\"enum\":[2]}},\"required\":[\"cups\"]}}],\"messages\":[{\"role\":\"user\","
        "\"content\":\"hello, where is the samovar?\"},{\"role\":\"assistant\",\"content\":["
        "{\"type\":\"tool_use\",\"id\":\"chatcmpl-tool-bec1f8bc701fd41f\",\"name\":\"get_tea\","
        "\"input\":{\"cups\":2}}]},{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\","
        "\"tool_use_id\":\"chatcmpl-tool-bec1f8bc701fd41f\",\"content\":\"ready\"}]}]}");
    answer_world_release(&world);
}

Test(answer_messages, blocks_streamed_in_any_split_are_the_next_turns_message)
{
    const size_t steps[] = {1, 2, 7, 64, 1000};

    for (size_t i = 0; i < array_count(steps); i++) {
        struct answer_world world;
        init(&world);

        answer_world_feed_text(&world, "{\"type\":\"message_start\",\"message\":{\"usage\":{"
                                       "\"input_tokens\":10,\"cache_read_input_tokens\":20,"
                                       "\"cache_creation_input_tokens\":5,\"output_tokens\":1}}}");
        for (size_t block = 0; block < array_count(streamed_blocks); block++)
            stream_block(&world, block, steps[i]);
        stop(&world, "\"tool_use\"");

        cr_assert(eq(u64, world.answer.usage.prompt_tokens, 35));
        cr_assert(eq(u64, world.answer.usage.cached_tokens, 20));
        cr_assert(eq(u64, world.answer.usage.completion_tokens, 7));
        answer_world_check_next(&world, API_MESSAGES, next_turn);
        answer_world_release(&world);
    }
}

Test(answer_messages, a_body_with_calls_is_the_next_turns_message)
{
    struct answer_world world;
    init(&world);

    bool is_understood = answer_world_feed_body(
        &world,
        SLICE("{\"type\":\"message\",\"role\":\"assistant\",\"content\":[" THOUGHT "," SAID
              "," CALLED(INPUT) "," CALLED_BARE
                                "],\"stop_reason\":\"tool_use\",\"usage\":{\"input_tokens\":7,"
                                "\"cache_read_input_tokens\":null,\"output_tokens\":3}}"));

    cr_assert(is_understood);
    cr_assert(eq(u64, world.answer.usage.prompt_tokens, 7));
    cr_assert(not(world.answer.usage.has_cached));
    answer_world_check_next(&world, API_MESSAGES, next_turn);
    answer_world_release(&world);
}

Test(answer_messages, an_input_that_comes_whole_with_its_start_is_taken_so)
{
    struct answer_world world;
    init(&world);

    stream_block(&world, 0, 50);
    stream_block(&world, 1, 50);
    answer_world_feed_text(&world, "{\"type\":\"content_block_start\",\"index\":2,"
                                   "\"content_block\":" CALLED(INPUT) "}");
    answer_world_feed_text(&world, "{\"type\":\"content_block_stop\",\"index\":2}");
    stream_block(&world, 3, 50);
    stop(&world, "\"tool_use\"");

    answer_world_check_next(&world, API_MESSAGES, next_turn);
    answer_world_release(&world);
}

Test(answer_messages, two_texts_stand_apart_and_two_thoughts_do_not)
{
    struct answer_world world;
    init(&world);

    stream_block(&world, 0, 50);
    stream_block(&world, 0, 50);
    stream_block(&world, 1, 50);
    stream_block(&world, 1, 50);
    stop(&world, "\"end_turn\"");

    answer_world_check_next(&world, API_MESSAGES,
                            "{\"messages\":[" USER ",{\"role\":\"assistant\",\"content\":[" THOUGHT
                            "," THOUGHT "," SAID "," SAID "]}," USER "]}");
    answer_world_release(&world);
}

Test(answer_messages, a_conversation_that_moves_to_chat_finds_the_answer_there)
{
    struct answer_world world;
    init(&world);

    stream_block(&world, 0, 9);
    stream_block(&world, 1, 9);
    stop(&world, "\"max_tokens\"");

    answer_world_check_next(&world, API_CHAT,
                            "{\"messages\":[" USER
                            ",{\"role\":\"assistant\",\"reasoning\":\"" HUNDRED
                            "\",\"content\":\"" LONG "\"}," USER "]}");
    answer_world_release(&world);
}

Test(answer_messages, what_the_next_turn_may_show_otherwise_is_not_learned)
{
#define START(index, block)                                                                        \
    "{\"type\":\"content_block_start\",\"index\":" #index ",\"content_block\":" block "}"
#define DELTA(index, delta)                                                                        \
    "{\"type\":\"content_block_delta\",\"index\":" #index ",\"delta\":{" delta "}}"
    static const char *const events[] = {
        START(2, "{\"type\":\"thinking\",\"thinking\":\"x\"}"), /* thought after it was said */
        START(2, "{\"type\":\"redacted_thinking\",\"data\":\"x\"}"),
        START(2, "{\"type\":\"server_tool_use\"}"),
        DELTA(1, "\"type\":\"text_delta\",\"text\":\"no block is open\""),
        DELTA(0, "\"type\":\"signature_delta\",\"signature\":\"of another block\""),
        DELTA(1, "\"type\":\"novel_delta\""),
        "{\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"refusal\"}}",
        "{\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"x\"}}",
        "not json",
    };

    for (size_t i = 0; i < array_count(events); i++) {
        struct answer_world world;
        init(&world);

        stream_block(&world, 0, 50);
        stream_block(&world, 1, 50);
        cr_assert(world.answer.is_learnable);
        answer_world_feed_text(&world, events[i]);
        stop(&world, "\"end_turn\"");

        check_unlearned(&world, events[i]);
        answer_world_release(&world);
    }
}

Test(answer_messages, an_input_cut_short_is_not_learned)
{
    static const char *const inputs[] = {"{\\\"cups\\\":", "{\\\"cups\\\":2}}", "cups"};

    for (size_t i = 0; i < array_count(inputs); i++) {
        struct answer_world world;
        char event[256];
        init(&world);

        answer_world_feed_text(&world, START(0, CALLED("{}")));
        snprintf(event, sizeof event,
                 DELTA(0, "\"type\":\"input_json_delta\",\"partial_json\":\"%s\""), inputs[i]);
        answer_world_feed_text(&world, event);
        answer_world_feed_text(&world, "{\"type\":\"content_block_stop\",\"index\":0}");
        stop(&world, "\"max_tokens\"");

        check_unlearned(&world, inputs[i]);
        answer_world_release(&world);
    }
}

Test(answer_messages, an_answer_without_a_stop_reason_is_not_learned)
{
    struct answer_world world;
    init(&world);

    stream_block(&world, 1, 50);
    stop(&world, "null");

    cr_assert(world.answer.has_done);
    check_unlearned(&world, "null");
    answer_world_release(&world);
}

Test(answer_messages, each_event_is_what_it_is_to_the_relay)
{
    static const struct {
        const char *event;
        enum answer_event_kind kind;
        uint64_t error_code;
    } rows[] = {
        {"{\"type\":\"ping\"}", ANSWER_EVENT_OTHER, 0},
        {"{\"type\":\"message_start\",\"message\":{}}", ANSWER_EVENT_OTHER, 0},
        {START(0, "{\"type\":\"text\",\"text\":\"\"}"), ANSWER_EVENT_OTHER, 0},
        {START(0, CALLED("{}")), ANSWER_EVENT_CONTENT, 0},
        {DELTA(0, "\"type\":\"text_delta\",\"text\":\"x\""), ANSWER_EVENT_CONTENT, 0},
        {DELTA(0, "\"type\":\"text_delta\",\"text\":\"\""), ANSWER_EVENT_OTHER, 0},
        {DELTA(0, "\"type\":\"signature_delta\",\"signature\":\"x\""), ANSWER_EVENT_OTHER, 0},
        {"{\"type\":\"message_stop\"}", ANSWER_EVENT_DONE, 0},
        {"{\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\"}}", ANSWER_EVENT_ERROR, 529},
        {"{\"type\":\"error\",\"error\":{\"type\":\"internal_error\"}}", ANSWER_EVENT_ERROR, 500},
        {"{\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\"}}", ANSWER_EVENT_ERROR,
         400},
        {"{\"type\":\"error\",\"error\":{\"type\":\"novel_error\"}}", ANSWER_EVENT_ERROR, 0},
        {"[DONE]", ANSWER_EVENT_OTHER, 0}, /* not this family's end */
        {"{}", ANSWER_EVENT_OTHER, 0},
        {"", ANSWER_EVENT_OTHER, 0},
    };

    for (size_t i = 0; i < array_count(rows); i++) {
        struct answer_world world;
        init(&world);

        answer_world_feed_text(&world, rows[i].event);

        cr_assert(eq(int, world.last_kind, rows[i].kind), "%s", rows[i].event);
        cr_assert(eq(int, world.answer.has_done, rows[i].kind == ANSWER_EVENT_DONE));
        cr_assert(eq(int, world.answer.has_content, rows[i].kind == ANSWER_EVENT_CONTENT));
        cr_assert(eq(int, world.answer.has_error, rows[i].kind == ANSWER_EVENT_ERROR));
        cr_assert(eq(u64, world.answer.error_code, rows[i].error_code), "%s", rows[i].event);
        answer_world_release(&world);
    }
}
