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

TestSuite(answer_stream, .fini = leak_check);

Test(answer_stream, usage_of_a_recorded_stream_is_read_and_its_event_told_apart)
{
    struct answer_world world;
    answer_world_init_from_recording(&world, API_CHAT, "chat-stream-usage.req");

    answer_world_feed_recording(&world, "chat-stream-usage.resp");

    cr_assert(world.answer.usage.is_known);
    cr_assert(world.answer.usage.has_cached);
    cr_assert(eq(u64, world.answer.usage.prompt_tokens, 242));
    cr_assert(eq(u64, world.answer.usage.completion_tokens, 8));
    cr_assert(eq(u64, world.answer.usage.cached_tokens, 224));
    cr_assert(eq(sz, world.kinds[ANSWER_EVENT_USAGE_ONLY], 1));
    cr_assert(eq(sz, world.kinds[ANSWER_EVENT_CONTENT], 8));
    cr_assert(eq(sz, world.kinds[ANSWER_EVENT_OTHER], 1)); /* the role */
    cr_assert(eq(sz, world.kinds[ANSWER_EVENT_DONE], 1));
    cr_assert(world.answer.has_finished && world.answer.has_done && world.answer.is_learnable);
    answer_world_release(&world);
}

Test(answer_stream, usage_in_every_chunk_is_read_and_only_the_last_event_is_usage_alone)
{
    static const struct {
        const char *req;
        const char *resp;
        size_t content_count;
        uint64_t completion_tokens;
    } rows[] = {
        {"chat-stream-usage-each-chunk.req", "chat-stream-usage-each-chunk.resp", 8, 8},
        {"flags-force-usage-stream.req", "flags-force-usage-stream.resp", 3, 3},
    };

    for (size_t i = 0; i < array_count(rows); i++) {
        struct answer_world world;
        answer_world_init_from_recording(&world, API_CHAT, rows[i].req);

        answer_world_feed_recording(&world, rows[i].resp);

        cr_assert(eq(sz, world.kinds[ANSWER_EVENT_USAGE_ONLY], 1));
        cr_assert(eq(sz, world.kinds[ANSWER_EVENT_CONTENT], rows[i].content_count));
        cr_assert(eq(u64, world.answer.usage.prompt_tokens, 242));
        cr_assert(eq(u64, world.answer.usage.completion_tokens, rows[i].completion_tokens));
        cr_assert(eq(u64, world.answer.usage.cached_tokens, 224));
        answer_world_release(&world);
    }
}

Test(answer_stream, a_stream_without_usage_has_none)
{
    struct answer_world world;
    answer_world_init_from_recording(&world, API_CHAT, "chat-stream.req");

    answer_world_feed_recording(&world, "chat-stream.resp");

    cr_assert(not(world.answer.usage.is_known));
    cr_assert(not(world.answer.usage.has_cached));
    cr_assert(eq(sz, world.kinds[ANSWER_EVENT_USAGE_ONLY], 0));
    cr_assert(world.answer.has_finished && world.answer.has_done);
    answer_world_release(&world);
}

Test(answer_stream, several_choices_are_counted_but_not_learned)
{
    struct answer_world world;
    size_t count;
    answer_world_init_from_recording(&world, API_CHAT, "chat-n2-stream.req");

    answer_world_feed_recording(&world, "chat-n2-stream.resp");

    cr_assert(eq(u64, world.answer.usage.completion_tokens, 6));
    cr_assert(eq(sz, world.kinds[ANSWER_EVENT_CONTENT], 6));
    cr_assert(answer_stream_finish(&world.answer, &count) == NULL);
    cr_assert(eq(sz, count, 0));
    answer_world_release(&world);
}

Test(answer_stream, a_second_choice_nobody_asked_for_ends_learning)
{
    struct answer_world world;
    size_t count;
    answer_world_init(&world, API_CHAT, slice_of_string("{\"messages\":[" USER "]}"));

    answer_world_feed_text(&world, "{\"choices\":[{\"index\":1,\"delta\":{\"content\":\"x\"}}]}");
    answer_world_feed_text(&world, "{\"choices\":[{\"index\":0,\"finish_reason\":\"stop\"}]}");

    cr_assert(not(world.answer.is_learnable));
    cr_assert(answer_stream_finish(&world.answer, &count) == NULL);
    answer_world_release(&world);
}

Test(answer_stream, completions_of_a_real_engine_are_read)
{
    struct answer_world world;
    struct buf body;
    answer_world_init_from_recording(&world, API_COMPLETIONS, "completion-stream-ids-usage.req");
    answer_world_feed_recording(&world, "completion-stream-ids-usage.resp");

    cr_assert(eq(u64, world.answer.usage.cached_tokens, 96));
    cr_assert(eq(sz, world.kinds[ANSWER_EVENT_CONTENT], 4));
    cr_assert(eq(sz, world.kinds[ANSWER_EVENT_USAGE_ONLY], 1));
    answer_world_release(&world);

    answer_world_init_from_recording(&world, API_COMPLETIONS, "completion-two-prompts.req");
    recording_read(&body, answer_recordings, "completion-two-prompts.resp");
    cr_assert(answer_world_feed_body(&world, buf_slice(&body)));
    cr_assert(eq(u64, world.answer.usage.prompt_tokens, 7));
    cr_assert(world.answer.usage.has_cached);
    cr_assert(not(world.answer.is_learnable));
    buf_release(&body);
    answer_world_release(&world);
}

Test(answer_stream, a_recorded_first_turn_continues_into_the_recorded_second)
{
    struct answer_world world;
    struct prompt_world next;
    struct buf body;
    answer_world_init_from_recording(&world, API_CHAT, "chat-first.req");
    recording_read(&body, answer_recordings, "chat-first.resp");
    cr_assert(answer_world_feed_body(&world, buf_slice(&body)));
    buf_release(&body);
    recording_read(&body, answer_recordings, "chat-second-turn.req");
    cr_assert(eq(int, prompt_world_try(&next, API_CHAT, buf_slice(&body)), 0));

    answer_world_check_continues(&world, &next.prompt);

    prompt_world_release(&next);
    buf_release(&body);
    answer_world_release(&world);
}

/* Streams text as content in deltas of step bytes. */
static void stream_content(struct answer_world *world, const char *key, const char *text,
                           size_t step)
{
    for (size_t at = 0; at < strlen(text); at += step) {
        char event[1024];

        snprintf(event, sizeof event,
                 "{\"choices\":[{\"index\":0,\"delta\":{\"%s\":\"%.*s\"},\"finish_reason\":null}]}",
                 key, (int)step, text + at);
        answer_world_feed_text(world, event);
    }
}

static void finish_stream(struct answer_world *world, const char *reason)
{
    char event[256];

    snprintf(event, sizeof event,
             "{\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"%s\"}]}", reason);
    answer_world_feed_text(world, event);
    answer_world_feed_text(world, "[DONE]");
}

Test(answer_stream, content_streamed_in_any_split_is_the_next_turns_message)
{
    const char *prompt = "{\"model\":\"m\",\"messages\":[" USER "]}";
    const size_t steps[] = {1, 2, 7, 64, 299, 500};

    for (size_t i = 0; i < array_count(steps); i++) {
        struct answer_world world;
        answer_world_init(&world, API_CHAT, slice_of_string(prompt));

        answer_world_feed_text(&world,
                               "{\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\","
                               "\"content\":\"\"},\"finish_reason\":null}]}");
        stream_content(&world, "content", LONG, steps[i]);
        finish_stream(&world, "stop");

        answer_world_check_next(&world, API_CHAT,
                                "{\"model\":\"m\",\"messages\":[" USER ",{\"role\":\"assistant\","
                                "\"content\":\"" LONG "\"}," USER "]}");
        answer_world_release(&world);
    }
}

Test(answer_stream, a_short_answer_ends_in_a_node_of_its_own)
{
    struct answer_world world;
    size_t count;
    answer_world_init(&world, API_CHAT,
                      slice_of_string("{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}"));
    stream_content(&world, "content", "b", 1);
    finish_stream(&world, "stop");

    const struct block *blocks = answer_stream_finish(&world.answer, &count);

    cr_assert(eq(sz, count, 1));
    struct prompt_world same;
    prompt_world_init(&same, API_CHAT,
                      "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":"
                      "\"assistant\",\"content\":\"b\"}]}");
    cr_assert(eq(u64, blocks[0].hash, same.prompt.blocks[0].hash));
    prompt_world_release(&same);
    answer_world_release(&world);
}

Test(answer_stream, reasoning_is_kept_in_its_place_before_the_content)
{
    const char *const keys[] = {"reasoning", "reasoning_content"};

    for (size_t i = 0; i < array_count(keys); i++) {
        struct answer_world world;
        answer_world_init(&world, API_CHAT, slice_of_string("{\"messages\":[" USER "]}"));

        stream_content(&world, keys[i], HUNDRED, 7);
        stream_content(&world, "content", LONG, 7);
        finish_stream(&world, "stop");

        answer_world_check_next(&world, API_CHAT,
                                "{\"messages\":[" USER
                                ",{\"role\":\"assistant\",\"reasoning_content\":"
                                "\"" HUNDRED "\",\"content\":\"" LONG "\"}," USER "]}");
        answer_world_release(&world);
    }
}

static const char calls_next_turn[] =
    "{\"messages\":[" USER ",{\"role\":\"assistant\",\"content\":null,\"tool_calls\":["
    "{\"id\":\"c1\",\"type\":\"function\",\"function\":{\"name\":\"tea\",\"arguments\":"
    "\"{\\\"cups\\\":2}\"}},{\"id\":\"c2\",\"type\":\"function\",\"function\":{\"name\":\"sugar\","
    "\"arguments\":\"{}\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"c1\",\"content\":\"x\"}]}";

Test(answer_stream, tool_calls_streamed_by_index_are_the_next_turns_message)
{
    struct answer_world world;
    answer_world_init(&world, API_CHAT, slice_of_string("{\"messages\":[" USER "]}"));

    answer_world_feed_text(&world,
                           "{\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":null}}]}");
    answer_world_feed_text(
        &world, "{\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"c1\","
                "\"type\":\"function\",\"function\":{\"name\":\"tea\",\"arguments\":\"\"}}]}}]}");
    cr_assert(eq(int, world.last_kind, ANSWER_EVENT_CONTENT));
    answer_world_feed_text(&world,
                           "{\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":"
                           "{\"arguments\":\"{\\\"cups\"}}]}}]}");
    answer_world_feed_text(&world,
                           "{\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":"
                           "{\"arguments\":\"\\\":2}\"}}]}}]}");
    answer_world_feed_text(
        &world, "{\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":1,\"id\":\"c2\","
                "\"type\":\"function\",\"function\":{\"name\":\"sugar\",\"arguments\":\"{}\"}}"
                "]}}]}");
    finish_stream(&world, "tool_calls");

    answer_world_check_next(&world, API_CHAT, calls_next_turn);
    answer_world_release(&world);
}

Test(answer_stream, a_body_with_tool_calls_is_the_next_turns_message)
{
    struct answer_world world;
    answer_world_init(&world, API_CHAT, slice_of_string("{\"messages\":[" USER "]}"));

    bool is_understood = answer_world_feed_body(
        &world,
        SLICE("{\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"tool_calls\":"
              "[{\"id\":\"c1\",\"type\":\"function\",\"function\":{\"name\":\"tea\","
              "\"arguments\":\"{\\\"cups\\\":2}\"}},{\"id\":\"c2\",\"type\":\"function\","
              "\"function\":{\"name\":\"sugar\",\"arguments\":\"{}\"}}],\"content\":null,"
              "\"refusal\":null,\"annotations\":[],\"reasoning\":null},\"finish_reason\":"
              "\"tool_calls\"}],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3}}"));

    cr_assert(is_understood);
    cr_assert(eq(u64, world.answer.usage.completion_tokens, 3));
    cr_assert(not(world.answer.usage.has_cached));
    answer_world_check_next(&world, API_CHAT, calls_next_turn);
    answer_world_release(&world);
}

Test(answer_stream, a_completion_continues_the_text_of_its_prompt)
{
    struct answer_world world;
    answer_world_init(&world, API_COMPLETIONS, slice_of_string("{\"prompt\":\"" LONG "\"}"));

    for (size_t i = 0; i < 30; i++)
        answer_world_feed_text(&world, "{\"choices\":[{\"index\":0,\"text\":\"" TEN
                                       "\",\"finish_reason\":null}]}");
    answer_world_feed_text(
        &world, "{\"choices\":[{\"index\":0,\"text\":\"\",\"finish_reason\":\"length\"}]}");

    answer_world_check_next(&world, API_COMPLETIONS, "{\"prompt\":\"" LONG LONG "\"}");
    answer_world_release(&world);
}

Test(answer_stream, only_empty_choices_with_a_usage_object_are_usage_alone)
{
    static const struct {
        const char *event;
        enum answer_event_kind kind;
    } rows[] = {
        {"{\"choices\":[],\"usage\":{\"prompt_tokens\":1}}", ANSWER_EVENT_USAGE_ONLY},
        {"{\"choices\":[],\"usage\":{}}", ANSWER_EVENT_USAGE_ONLY},
        {"{\"choices\":[],\"usage\":null}", ANSWER_EVENT_OTHER},
        {"{\"choices\":[]}", ANSWER_EVENT_OTHER},
        {"{\"choices\":null,\"usage\":{\"prompt_tokens\":1}}", ANSWER_EVENT_OTHER},
        {"{\"choices\":{},\"usage\":{\"prompt_tokens\":1}}", ANSWER_EVENT_OTHER},
        {"{\"usage\":{\"prompt_tokens\":1}}", ANSWER_EVENT_OTHER},
        {"{\"choices\":[{}],\"usage\":{\"prompt_tokens\":1}}", ANSWER_EVENT_OTHER},
        {"{\"choices\":[{\"delta\":{\"content\":\"x\"}}],\"usage\":{}}", ANSWER_EVENT_CONTENT},
        {"{\"choices\":[{\"delta\":{\"content\":\"\"}}]}", ANSWER_EVENT_OTHER},
        {"{\"choices\":[{\"delta\":{\"reasoning\":\"x\"}}]}", ANSWER_EVENT_CONTENT},
        {"{\"choices\":[],\"usage\":{},\"error\":{\"message\":\"x\"}}", ANSWER_EVENT_ERROR},
        {"{\"error\":{\"message\":\"x\"}}", ANSWER_EVENT_ERROR},
        {"{\"object\":\"error\",\"message\":\"x\"}", ANSWER_EVENT_ERROR},
        {"{\"error\":null,\"choices\":[]}", ANSWER_EVENT_OTHER},
        {"[DONE]", ANSWER_EVENT_DONE},
        {"[DONE] ", ANSWER_EVENT_DONE},
        {"[]", ANSWER_EVENT_OTHER},
        {"", ANSWER_EVENT_OTHER},
        {"{\"choices\":[", ANSWER_EVENT_OTHER},
    };

    for (size_t i = 0; i < array_count(rows); i++) {
        struct answer_world world;
        answer_world_init(&world, API_CHAT, slice_of_string("{\"messages\":[" USER "]}"));

        answer_world_feed_text(&world, rows[i].event);

        cr_assert(eq(int, world.last_kind, rows[i].kind), "%s", rows[i].event);
        answer_world_release(&world);
    }
}

Test(answer_stream, what_the_next_turn_may_show_otherwise_is_not_learned)
{
    static const char *const events[] = {
        "{\"choices\":[{\"delta\":{\"refusal\":\"no\"}}]}",
        "{\"choices\":[{\"delta\":{\"audio\":{\"id\":\"a\"}}}]}",
        "{\"choices\":[{\"delta\":{\"content\":[{\"type\":\"text\",\"text\":\"x\"}]}}]}",
        "{\"choices\":[{\"delta\":{\"role\":\"tool\"}}]}",
        "{\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":1,\"function\":{\"name\":\"f\"}}]}}]"
        "}",
        "{\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"\"}}]"
        "}}]}",
        "{\"choices\":[{\"finish_reason\":\"abort\"}]}",
        "{\"error\":{\"message\":\"x\"}}",
        "not json",
    };

    for (size_t i = 0; i < array_count(events); i++) {
        struct answer_world world;
        size_t count;
        answer_world_init(&world, API_CHAT, slice_of_string("{\"messages\":[" USER "]}"));

        answer_world_feed_text(&world, events[i]);
        finish_stream(&world, "stop");

        cr_assert(answer_stream_finish(&world.answer, &count) == NULL, "%s", events[i]);
        answer_world_release(&world);
    }
}

Test(answer_stream, content_behind_a_tool_call_is_not_learned)
{
    struct answer_world world;
    size_t count;
    answer_world_init(&world, API_CHAT, slice_of_string("{\"messages\":[" USER "]}"));

    answer_world_feed_text(&world,
                           "{\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"c\","
                           "\"function\":{\"name\":\"f\",\"arguments\":\"\"}}]}}]}");
    cr_assert(world.answer.is_learnable);
    stream_content(&world, "content", "x", 1);
    finish_stream(&world, "stop");

    cr_assert(answer_stream_finish(&world.answer, &count) == NULL);
    answer_world_release(&world);
}

Test(answer_stream, an_answer_that_did_not_end_is_not_learned)
{
    struct answer_world world;
    size_t count;
    answer_world_init(&world, API_CHAT, slice_of_string("{\"messages\":[" USER "]}"));

    stream_content(&world, "content", LONG, 10);

    cr_assert(world.answer.is_learnable);
    cr_assert(answer_stream_finish(&world.answer, &count) == NULL);
    answer_world_release(&world);
}

Test(answer_stream, a_very_long_answer_is_learned_up_to_the_limit)
{
    struct answer_world world;
    size_t count;
    answer_world_init(&world, API_CHAT, slice_of_string("{\"messages\":[" USER "]}"));

    for (size_t i = 0; i < 1000; i++)
        stream_content(&world, "content", LONG, 300);
    finish_stream(&world, "stop");

    const struct block *blocks = answer_stream_finish(&world.answer, &count);
    cr_assert(eq(sz, count, ANSWER_BLOCK_COUNT_MAX));
    cr_assert(blocks != NULL);
    answer_world_release(&world);
}

Test(answer_stream, without_a_prompt_chain_usage_is_still_read)
{
    struct answer_world world;
    size_t count;
    answer_world_init(&world, API_CHAT, slice_of_string("{\"messages\":[" USER "]}"));
    answer_stream_init(&world.answer, &world.prompt.request, NULL);

    stream_content(&world, "content", "x", 1);
    answer_world_feed_text(
        &world, "{\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"prompt_tokens_details\":"
                "{\"cached_tokens\":4}}}");

    cr_assert(eq(u64, world.answer.usage.cached_tokens, 4));
    cr_assert(eq(sz, world.kinds[ANSWER_EVENT_CONTENT], 1));
    cr_assert(answer_stream_finish(&world.answer, &count) == NULL);
    answer_world_release(&world);
}

Test(answer_stream, an_error_body_is_an_error)
{
    struct answer_world world;
    struct buf body;
    answer_world_init(&world, API_CHAT, slice_of_string("{\"messages\":[" USER "]}"));
    recording_read(&body, answer_recordings, "err-unknown-model.resp");

    cr_assert(answer_world_feed_body(&world, buf_slice(&body)));

    cr_assert(world.answer.has_error);
    cr_assert(eq(u64, world.answer.error_code, 404));
    cr_assert(not(world.answer.is_learnable));
    cr_assert(not(answer_world_feed_body(&world, SLICE("<html>"))));
    buf_release(&body);
    answer_world_release(&world);
}
