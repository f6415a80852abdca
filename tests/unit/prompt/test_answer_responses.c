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
#define THOUGHT                                                                                    \
    "{\"id\":\"rs_1\",\"type\":\"reasoning\",\"summary\":[],\"content\":[{\"type\":"               \
    "\"reasoning_text\",\"text\":\"" HUNDRED "\"}],\"encrypted_content\":null,\"status\":null}"
#define SAID                                                                                       \
    "{\"id\":\"msg_1\",\"type\":\"message\",\"role\":\"assistant\",\"status\":\"completed\","      \
    "\"content\":[{\"type\":\"output_text\",\"text\":\"" LONG "\",\"annotations\":[],"             \
    "\"logprobs\":null}],\"phase\":null}"
#define CALLED                                                                                     \
    "{\"id\":\"fc_1\",\"type\":\"function_call\",\"call_id\":\"c1\",\"name\":\"tea\","             \
    "\"namespace\":\"kitchen\",\"arguments\":\"{\\\"cups\\\": 2}\",\"status\":\"completed\"}"
#define WROTE                                                                                      \
    "{\"id\":\"ctc_1\",\"type\":\"custom_tool_call\",\"call_id\":\"c2\",\"name\":\"patch\","       \
    "\"input\":\"*** Begin\\n" HUNDRED "\"}"
#define OUTPUTS                                                                                    \
    "{\"type\":\"function_call_output\",\"call_id\":\"c1\",\"output\":\"hot\"},"                   \
    "{\"type\":\"custom_tool_call_output\",\"call_id\":\"c2\",\"output\":\"" LONG "\"}"

static const char first_turn[] = "{\"model\":\"m\",\"input\":[" USER "]}";
static const char next_turn[] =
    "{\"model\":\"m\",\"input\":[" USER "," THOUGHT "," SAID "," CALLED "," WROTE "," OUTPUTS "]}";

static const char recorded_next_turn[] =
    "{\"model\":\"tiny\",\"input\":[{\"role\":\"user\",\"content\":"
    "\"hello, where is the samovar?\"},{\"id\":\"msg_1\",\"content\":[{\"annotations\":[],"
    "\"text\":\"moud mourpungiongs vear fouckhoungplomsas\",\"type\":\"output_text\","
    "\"logprobs\":null}],\"role\":\"assistant\",\"status\":\"completed\",\"type\":\"message\","
    "\"phase\":null},{\"role\":\"user\",\"content\":\"what?\"}]}";

static void init(struct answer_world *world)
{
    answer_world_init(world, API_RESPONSES, slice_of_string(first_turn));
}

/* An item opened, its text in deltas of step bytes, and the item done. */
struct streamed_item {
    const char *added;
    const char *delta_type;
    const char *text; /* as it stands between quotes */
    const char *done;
};

static const struct streamed_item streamed_items[] = {
    {"{\"id\":\"rs_1\",\"type\":\"reasoning\",\"summary\":[],\"status\":\"in_progress\"}",
     "response.reasoning_text.delta", HUNDRED, THOUGHT},
    {"{\"id\":\"msg_1\",\"type\":\"message\",\"role\":\"assistant\",\"content\":[]}",
     "response.output_text.delta", LONG, SAID},
    {"{\"id\":\"fc_1\",\"type\":\"function_call\",\"call_id\":\"c1\",\"name\":\"tea\","
     "\"namespace\":\"kitchen\",\"arguments\":\"\"}",
     "response.function_call_arguments.delta", "{\\\"cups\\\": 2}", CALLED},
    {"{\"id\":\"ctc_1\",\"type\":\"custom_tool_call\",\"call_id\":\"c2\",\"name\":\"patch\","
     "\"input\":\"\"}",
     "response.custom_tool_call_input.delta", "*** Begin\\n" HUNDRED, WROTE},
};

/* The length of what stands between quotes at text: an escape stays whole. */
static size_t piece_len(const char *text, size_t step)
{
    size_t len = 0;

    while (text[len] != '\0' && len < step)
        len += text[len] == '\\' ? 2 : 1;
    return len;
}

static void stream_item(struct answer_world *world, size_t index, size_t step)
{
    const struct streamed_item *item = &streamed_items[index];
    char event[2048];

    snprintf(event, sizeof event,
             "{\"type\":\"response.output_item.added\",\"output_index\":%zu,\"item\":%s}", index,
             item->added);
    answer_world_feed_text(world, event);
    answer_world_feed_text(world, "{\"type\":\"response.content_part.added\",\"part\":{}}");
    for (const char *at = item->text; step > 0 && *at != '\0'; at += piece_len(at, step)) {
        snprintf(event, sizeof event, "{\"type\":\"%s\",\"output_index\":%zu,\"delta\":\"%.*s\"}",
                 item->delta_type, index, (int)piece_len(at, step), at);
        answer_world_feed_text(world, event);
        cr_assert(eq(int, world->last_kind, ANSWER_EVENT_CONTENT));
    }
    snprintf(event, sizeof event,
             "{\"type\":\"response.output_item.done\",\"output_index\":%zu,\"item\":%s}", index,
             item->done);
    answer_world_feed_text(world, event);
}

static void complete(struct answer_world *world)
{
    answer_world_feed_text(world, "{\"type\":\"response.completed\",\"sequence_number\":77,"
                                  "\"response\":{\"id\":\"resp_1\",\"status\":\"completed\"}}");
}

static void check_unlearned(struct answer_world *world, const char *what)
{
    size_t count;

    cr_assert(answer_stream_finish(&world->answer, &count) == NULL, "%s", what);
}

TestSuite(answer_responses, .fini = leak_check);

Test(answer_responses, a_recorded_stream_is_read_to_its_last_event)
{
    struct answer_world world;
    answer_world_init_from_recording(&world, API_RESPONSES, "responses-stream.req");

    answer_world_feed_recording(&world, "responses-stream.resp");

    cr_assert(eq(str, world.answer.response_id, (char *)"resp_832dd124ff52b8ac"));
    cr_assert(world.answer.has_done && world.answer.has_finished && world.answer.has_content);
    cr_assert(not(world.answer.has_error));
    cr_assert(world.answer.has_sequence_number);
    cr_assert(eq(u64, world.answer.sequence_number, 12));
    cr_assert(eq(u64, world.answer.usage.prompt_tokens, 21));
    cr_assert(eq(u64, world.answer.usage.completion_tokens, 8));
    cr_assert(world.answer.usage.has_cached);
    cr_assert(eq(sz, world.kinds[ANSWER_EVENT_CONTENT], 5));
    cr_assert(eq(sz, world.kinds[ANSWER_EVENT_DONE], 1));
    cr_assert(eq(sz, world.kinds[ANSWER_EVENT_USAGE_ONLY], 0));
    answer_world_check_next(&world, API_RESPONSES, recorded_next_turn);
    answer_world_release(&world);
}

Test(answer_responses, a_recorded_body_is_read_and_is_the_next_turns_message)
{
    struct answer_world world;
    struct buf body;
    answer_world_init_from_recording(&world, API_RESPONSES, "responses-plain.req");
    recording_read(&body, answer_recordings, "responses-plain.resp");

    cr_assert(answer_world_feed_body(&world, buf_slice(&body)));

    cr_assert(eq(str, world.answer.response_id, (char *)"resp_bea9ef6a529f6980"));
    cr_assert(world.answer.has_finished && world.answer.has_content);
    cr_assert(eq(u64, world.answer.usage.completion_tokens, 8));
    answer_world_check_next(&world, API_RESPONSES, recorded_next_turn);
    buf_release(&body);
    answer_world_release(&world);
}

Test(answer_responses, cached_tokens_of_a_recorded_stream_are_part_of_the_prompts)
{
    struct answer_world world;
    answer_world_init_from_recording(&world, API_RESPONSES,
                                     "responses-instructions-hit-stream.req");

    answer_world_feed_recording(&world, "responses-instructions-hit-stream.resp");

    cr_assert(eq(u64, world.answer.usage.prompt_tokens, 242));
    cr_assert(eq(u64, world.answer.usage.cached_tokens, 224));
    answer_world_release(&world);
}

Test(answer_responses, a_recorded_call_is_the_next_turns_message)
{
    struct answer_world world;
    answer_world_init_from_recording(&world, API_RESPONSES, "responses-tools-required-stream.req");

    answer_world_feed_recording(&world, "responses-tools-required-stream.resp");

    cr_assert(world.answer.has_done && world.answer.has_finished);
    cr_assert(eq(sz, world.kinds[ANSWER_EVENT_CONTENT], 9)); /* the call's head, 8 deltas */
    answer_world_check_next(
        &world, API_RESPONSES,
        "{\"model\":\"tiny\",\"tools\":[{\"type\":\"function\",\"strict\":true,\"name\":"
        "\"get_tea\",\"description\":\"make tea\",\"parameters\":{\"type\":\"object\","
        "\"properties\":{\"cups\":{\"type\":\"integer\",\"enum\":[2]}},\"required\":[\"cups\"]}}],"
        "\"input\":[{\"role\":\"user\",\"content\":\"hello, where is the samovar?\"},"
        "{\"arguments\":\"{\\\"cups\\\":\\t\\t\\t   2\\t}\",\"call_id\":"
        "\"chatcmpl-tool-a349a72e473833ca\",\"name\":\"get_tea\",\"type\":\"function_call\","
        "\"id\":\"fc_9f5219b0c9b0e3d5\",\"status\":\"completed\"},{\"type\":"
        "\"function_call_output\",\"call_id\":\"chatcmpl-tool-a349a72e473833ca\",\"output\":"
        "\"ready\"}]}");
    answer_world_release(&world);
}

Test(answer_responses, items_streamed_in_any_split_are_the_next_turns_message)
{
    const size_t steps[] = {1, 7, 64, 1000, 0}; /* 0: only the done events carry text */

    for (size_t i = 0; i < array_count(steps); i++) {
        struct answer_world world;
        init(&world);

        for (size_t item = 0; item < array_count(streamed_items); item++)
            stream_item(&world, item, steps[i]);
        complete(&world);

        cr_assert(eq(u64, world.answer.sequence_number, 77));
        answer_world_check_next(&world, API_RESPONSES, next_turn);
        answer_world_release(&world);
    }
}

Test(answer_responses, a_body_with_calls_is_the_next_turns_message)
{
    struct answer_world world;
    init(&world);

    bool is_understood = answer_world_feed_body(
        &world, SLICE("{\"id\":\"resp_1\",\"object\":\"response\",\"error\":null,\"status\":"
                      "\"completed\",\"output\":[" THOUGHT "," SAID "," CALLED "," WROTE
                      "],\"usage\":{\"input_tokens\":40,\"input_tokens_details\":"
                      "{\"cached_tokens\":30},\"output_tokens\":9}}"));

    cr_assert(is_understood);
    cr_assert(eq(u64, world.answer.usage.prompt_tokens, 40));
    cr_assert(eq(u64, world.answer.usage.cached_tokens, 30));
    answer_world_check_next(&world, API_RESPONSES, next_turn);
    answer_world_release(&world);
}

Test(answer_responses, a_conversation_that_moves_to_chat_finds_the_answer_there)
{
    struct answer_world world;
    init(&world);

    stream_item(&world, 0, 10);
    stream_item(&world, 1, 10);
    complete(&world);

    answer_world_check_next(&world, API_CHAT,
                            "{\"model\":\"m\",\"messages\":[" USER ",{\"role\":\"assistant\","
                            "\"reasoning\":\"" HUNDRED "\",\"content\":\"" LONG "\"}," USER "]}");
    answer_world_release(&world);
}

Test(answer_responses, two_texts_of_one_message_stand_apart)
{
    struct answer_world world;
    init(&world);

    answer_world_feed_text(&world, "{\"type\":\"response.output_item.added\",\"output_index\":0,"
                                   "\"item\":{\"type\":\"message\"}}");
    for (int i = 0; i < 2; i++) {
        answer_world_feed_text(&world, "{\"type\":\"response.content_part.added\"}");
        answer_world_feed_text(&world, "{\"type\":\"response.output_text.delta\",\"output_index\":"
                                       "0,\"delta\":\"" HUNDRED "\"}");
    }
    complete(&world);

    answer_world_check_next(&world, API_RESPONSES,
                            "{\"model\":\"m\",\"input\":[" USER ",{\"role\":\"assistant\","
                            "\"content\":[{\"type\":\"output_text\",\"text\":\"" HUNDRED
                            "\"},{\"type\":\"output_text\",\"text\":\"" HUNDRED "\"}]}]}");
    answer_world_release(&world);
}

Test(answer_responses, what_the_next_turn_may_show_otherwise_is_not_learned)
{
#define ADDED(index, item)                                                                         \
    "{\"type\":\"response.output_item.added\",\"output_index\":" #index ",\"item\":" item "}"
#define DONE(index, item)                                                                          \
    "{\"type\":\"response.output_item.done\",\"output_index\":" #index ",\"item\":" item "}"
    static const char *const events[] = {
        ADDED(1, "{\"type\":\"message\"}"),   /* a second message */
        ADDED(1, "{\"type\":\"reasoning\"}"), /* thought after it was said */
        ADDED(1, "{\"type\":\"web_search_call\"}"),
        DONE(1, SAID),
        DONE(1, "{\"type\":\"mcp_call\"}"),
        "{\"type\":\"response.output_text.delta\",\"output_index\":0,\"delta\":\"late\"}",
        "{\"type\":\"response.output_text.delta\",\"output_index\":3,\"delta\":\"x\"}",
        "{\"type\":\"response.refusal.delta\",\"output_index\":0,\"delta\":\"x\"}",
        "{\"type\":\"response.reasoning_summary_text.delta\",\"delta\":\"x\"}",
        "{\"type\":\"response.failed\",\"response\":{\"status\":\"failed\",\"error\":{\"code\":"
        "\"server_error\"}}}",
        "{\"type\":\"response.incomplete\",\"response\":{\"status\":\"incomplete\","
        "\"incomplete_details\":{\"reason\":\"content_filter\"}}}",
        "{\"type\":\"error\",\"code\":\"x\",\"message\":\"x\"}",
        "not json",
    };

    for (size_t i = 0; i < array_count(events); i++) {
        struct answer_world world;
        init(&world);

        stream_item(&world, 0, 50);
        stream_item(&world, 1, 50);
        cr_assert(world.answer.is_learnable);
        answer_world_feed_text(&world, events[i]);
        complete(&world);

        check_unlearned(&world, events[i]);
        answer_world_release(&world);
    }
}

Test(answer_responses, an_item_that_is_done_otherwise_than_it_came_is_not_learned)
{
    static const char *const done[] = {
        DONE(1, "{\"type\":\"message\",\"content\":[{\"type\":\"output_text\",\"text\":\"ab\"}]}"),
        DONE(1, "{\"type\":\"message\",\"content\":[{\"type\":\"refusal\",\"refusal\":\"abc\"}]}"),
        DONE(0, "{\"type\":\"reasoning\",\"summary\":[{\"type\":\"summary_text\",\"text\":\"s\"}],"
                "\"content\":[]}"),
        DONE(0, "{\"type\":\"reasoning\",\"encrypted_content\":\"s\"}"),
    };

    for (size_t i = 0; i < array_count(done); i++) {
        struct answer_world world;
        init(&world);

        answer_world_feed_text(&world, ADDED(1, "{\"type\":\"message\"}"));
        answer_world_feed_text(
            &world,
            "{\"type\":\"response.output_text.delta\",\"output_index\":1,\"delta\":\"abc\"}");
        cr_assert(world.answer.is_learnable);
        answer_world_feed_text(&world, done[i]);
        complete(&world);

        check_unlearned(&world, done[i]);
        answer_world_release(&world);
    }
}

Test(answer_responses, each_event_is_what_it_is_to_the_relay)
{
    static const struct {
        const char *event;
        enum answer_event_kind kind;
        bool has_done;
        uint64_t error_code;
    } rows[] = {
        {"{\"type\":\"response.created\",\"response\":{\"id\":\"r\"}}", ANSWER_EVENT_OTHER, false,
         0},
        {"{\"type\":\"response.output_text.delta\",\"delta\":\"x\"}", ANSWER_EVENT_CONTENT, false,
         0},
        {"{\"type\":\"response.output_text.delta\",\"delta\":\"\"}", ANSWER_EVENT_OTHER, false, 0},
        {"{\"type\":\"response.audio.delta\",\"delta\":\"x\"}", ANSWER_EVENT_CONTENT, false, 0},
        {ADDED(0, "{\"type\":\"message\"}"), ANSWER_EVENT_OTHER, false, 0},
        {ADDED(0, "{\"type\":\"function_call\",\"name\":\"f\"}"), ANSWER_EVENT_CONTENT, false, 0},
        {"{\"type\":\"response.completed\",\"response\":{}}", ANSWER_EVENT_DONE, true, 0},
        {"{\"type\":\"response.incomplete\",\"response\":{}}", ANSWER_EVENT_DONE, true, 0},
        {"{\"type\":\"response.failed\",\"response\":{\"error\":{\"code\":\"server_error\"}}}",
         ANSWER_EVENT_ERROR, true, 500},
        {"{\"type\":\"response.failed\",\"response\":{\"error\":null}}", ANSWER_EVENT_ERROR, true,
         0},
        {"{\"type\":\"error\",\"code\":\"rate_limit_exceeded\",\"message\":\"x\"}",
         ANSWER_EVENT_ERROR, false, 429},
        {"{\"type\":\"error\",\"error\":{\"code\":503}}", ANSWER_EVENT_ERROR, false, 503},
        {"{\"error\":{\"code\":500,\"type\":\"InternalServerError\"}}", ANSWER_EVENT_ERROR, false,
         500},
        {"{\"type\":\"keepalive\"}", ANSWER_EVENT_OTHER, false, 0},
        {"{}", ANSWER_EVENT_OTHER, false, 0},
        {"[DONE]", ANSWER_EVENT_OTHER, false, 0}, /* not this family's end */
        {"", ANSWER_EVENT_OTHER, false, 0},
    };

    for (size_t i = 0; i < array_count(rows); i++) {
        struct answer_world world;
        init(&world);

        answer_world_feed_text(&world, rows[i].event);

        cr_assert(eq(int, world.last_kind, rows[i].kind), "%s", rows[i].event);
        cr_assert(eq(int, world.answer.has_done, rows[i].has_done), "%s", rows[i].event);
        cr_assert(eq(int, world.answer.has_content, rows[i].kind == ANSWER_EVENT_CONTENT));
        cr_assert(eq(int, world.answer.has_error, rows[i].kind == ANSWER_EVENT_ERROR));
        cr_assert(eq(u64, world.answer.error_code, rows[i].error_code), "%s", rows[i].event);
        answer_world_release(&world);
    }
}

Test(answer_responses, an_id_too_long_is_none_and_a_queued_answer_has_one)
{
    struct answer_world world;
    init(&world);

    answer_world_feed_text(
        &world,
        "{\"type\":\"response.created\",\"response\":{\"id\":\"" HUNDRED TEN TEN TEN "\"}}");
    cr_assert(eq(sz, strlen(world.answer.response_id), 0));
    (void)answer_world_feed_body(&world,
                                 SLICE("{\"id\":\"resp_9\",\"status\":\"queued\",\"output\":"
                                       "[],\"usage\":null}"));

    cr_assert(eq(str, world.answer.response_id, (char *)"resp_9"));
    cr_assert(not(world.answer.has_finished));
    check_unlearned(&world, "queued");
    answer_world_release(&world);
}

Test(answer_responses, an_answer_behind_an_engines_state_is_not_learned)
{
    struct answer_world world;
    answer_world_init(&world, API_RESPONSES,
                      SLICE("{\"input\":\"x\",\"previous_response_id\":\"resp_0\"}"));

    stream_item(&world, 1, 50);
    complete(&world);

    cr_assert(world.answer.has_done);
    check_unlearned(&world, "previous_response_id");
    answer_world_release(&world);
}
