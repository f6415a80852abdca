/* SPDX-License-Identifier: Apache-2.0 */

#include "router/prompt/prompt_stream.h"
#include "tests/support/leak_check.h"
#include "tests/support/prompt_world.h"
#include "tests/support/recording.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <stdio.h>

/* 300 bytes of text, so that a message always closes a block. */
#define TEN     "abcdefghij"
#define HUNDRED TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN
#define LONG    HUNDRED HUNDRED HUNDRED

static const char recordings[] = TESTS_DIR "/fixtures/vllm-0.32.0/http";

static void check_same(enum api a_api, const char *a, enum api b_api, const char *b)
{
    struct prompt_overlap overlap = prompt_world_compare(a_api, a, b_api, b);

    cr_assert(gt(sz, overlap.shared, 0), "%s", b);
    cr_assert(eq(sz, overlap.shared, overlap.a_count), "%s", b);
    cr_assert(eq(sz, overlap.shared, overlap.b_count), "%s", b);
}

static void check_nothing_shared(const char *a, const char *b)
{
    cr_assert(eq(sz, prompt_world_compare(API_RESPONSES, a, API_RESPONSES, b).shared, 0), "%s", b);
}

TestSuite(prompt_responses, .fini = leak_check);

Test(prompt_responses, a_recorded_request_has_the_names_of_the_chat_that_the_engine_makes_of_it)
{
    struct prompt_world world, chat;
    struct buf body;
    recording_read(&body, recordings, "responses-plain.req");

    cr_assert(eq(int, prompt_world_try(&world, API_RESPONSES, buf_slice(&body)), 0));

    prompt_world_init(&chat, API_CHAT,
                      "{\"model\":\"tiny\",\"messages\":[{\"role\":\"user\",\"content\":"
                      "\"hello, where is the samovar?\"}]}");
    cr_assert(eq(sz, world.prompt.block_count, 1));
    cr_assert(eq(sz, prompt_shared_count(&world.prompt, &chat.prompt), 1));
    prompt_world_release(&chat);
    prompt_world_release(&world);
    buf_release(&body);
}

/* The engine counted 156 tokens in both, whose tools hold the same members in another order. */
Test(prompt_responses, a_recorded_prompt_with_tools_has_the_same_names_in_two_apis)
{
    struct prompt_world responses, messages;
    struct buf responses_body, messages_body;
    recording_read(&responses_body, recordings, "responses-tools-required.req");
    recording_read(&messages_body, recordings, "messages-tools-any.req");

    cr_assert(eq(int, prompt_world_try(&responses, API_RESPONSES, buf_slice(&responses_body)), 0));
    cr_assert(eq(int, prompt_world_try(&messages, API_MESSAGES, buf_slice(&messages_body)), 0));

    cr_assert(gt(sz, responses.prompt.block_count, 1));
    cr_assert(eq(sz, prompt_shared_count(&responses.prompt, &messages.prompt),
                 responses.prompt.block_count));
    prompt_world_release(&responses);
    prompt_world_release(&messages);
    buf_release(&responses_body);
    buf_release(&messages_body);
}

/* The engine counted 242 tokens in each of them, and found 224 in its cache. */
Test(prompt_responses, one_recorded_prompt_has_the_same_names_in_three_apis)
{
    static const struct {
        enum api api;
        const char *name;
    } rows[] = {
        {API_CHAT, "chat-stream-usage.req"},
        {API_RESPONSES, "responses-instructions-hit.req"},
        {API_MESSAGES, "messages-system-hit.req"},
    };
    struct prompt_world worlds[array_count(rows)];

    for (size_t i = 0; i < array_count(rows); i++) {
        struct buf body;
        recording_read(&body, recordings, rows[i].name);

        cr_assert(eq(int, prompt_world_try(&worlds[i], rows[i].api, buf_slice(&body)), 0));

        cr_assert(gt(sz, worlds[i].prompt.block_count, 2));
        cr_assert(eq(sz, prompt_shared_count(&worlds[0].prompt, &worlds[i].prompt),
                     worlds[0].prompt.block_count),
                  "%s", rows[i].name);
        cr_assert(eq(u64, worlds[i].prompt.bytes, worlds[0].prompt.bytes));
        buf_release(&body);
    }
    for (size_t i = 0; i < array_count(rows); i++)
        prompt_world_release(&worlds[i]);
}

Test(prompt_responses, a_conversation_has_the_names_it_has_in_chat)
{
    check_same(API_CHAT,
               "{\"model\":\"m\",\"reasoning_effort\":\"low\",\"tools\":[{\"type\":\"function\","
               "\"function\":{\"name\":\"tea\",\"description\":\"" LONG
               "\",\"parameters\":{\"type\":\"object\"}}}],\"messages\":["
               "{\"role\":\"system\",\"content\":\"" LONG "\"},"
               "{\"role\":\"user\",\"content\":\"" LONG "\"},"
               "{\"role\":\"assistant\",\"reasoning\":\"hm\",\"content\":\"" LONG
               "\",\"tool_calls\":[{\"id\":\"c1\",\"type\":\"function\",\"function\":{\"name\":"
               "\"tea\",\"arguments\":\"{\\\"cups\\\":2}\"}},{\"id\":\"c2\",\"function\":{"
               "\"name\":\"tea\",\"arguments\":\"{}\"}}]},"
               "{\"role\":\"tool\",\"tool_call_id\":\"c1\",\"content\":\"hot\"},"
               "{\"role\":\"tool\",\"tool_call_id\":\"c2\",\"content\":\"hot\"}]}",
               API_RESPONSES,
               "{\"model\":\"m\",\"reasoning\":{\"effort\":\"low\",\"summary\":\"auto\"},"
               "\"tools\":[{\"type\":\"function\",\"name\":\"tea\",\"description\":\"" LONG
               "\",\"parameters\":{\"type\":\"object\"},\"strict\":null}],"
               "\"instructions\":\"" LONG "\",\"input\":["
               "{\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"" LONG "\"}]},"
               "{\"type\":\"reasoning\",\"id\":\"rs_1\",\"summary\":[],\"content\":[{\"type\":"
               "\"reasoning_text\",\"text\":\"hm\"}]},"
               "{\"type\":\"message\",\"role\":\"assistant\",\"id\":\"msg_1\",\"status\":"
               "\"completed\",\"content\":[{\"type\":\"output_text\",\"text\":\"" LONG
               "\",\"annotations\":[]}]},"
               "{\"type\":\"function_call\",\"id\":\"fc_1\",\"call_id\":\"c1\",\"name\":\"tea\","
               "\"arguments\":\"{\\\"cups\\\":2}\",\"status\":\"completed\"},"
               "{\"type\":\"function_call\",\"call_id\":\"c2\",\"name\":\"tea\",\"arguments\":"
               "\"{}\"},"
               "{\"type\":\"function_call_output\",\"call_id\":\"c1\",\"output\":\"hot\"},"
               "{\"type\":\"function_call_output\",\"call_id\":\"c2\",\"output\":[{\"type\":"
               "\"input_text\",\"text\":\"hot\"}]}]}");
}

Test(prompt_responses, each_turn_is_a_prefix_of_the_next)
{
#define TURN1 "{\"role\":\"user\",\"content\":\"" LONG "\"}"
#define TURN2                                                                                      \
    TURN1 ",{\"type\":\"reasoning\",\"summary\":[{\"type\":\"summary_text\",\"text\":\"hm\"}]},"   \
          "{\"type\":\"function_call\",\"call_id\":\"c1\",\"name\":\"tea\",\"arguments\":"         \
          "\"{}\"},{\"type\":\"function_call_output\",\"call_id\":\"c1\",\"output\":\"" LONG "\"}"
#define TURN3                                                                                      \
    TURN2 ",{\"role\":\"assistant\",\"content\":\"" LONG "\"},{\"role\":\"user\",\"content\":["    \
          "{\"type\":\"input_image\",\"image_url\":\"data:image/png;base64,AA\",\"detail\":"       \
          "\"auto\"},{\"type\":\"input_text\",\"text\":\"what\"}]}"
    static const char *const inputs[] = {"[" TURN1 "]", "[" TURN2 "]", "[" TURN3 "]"};

    for (size_t turn = 0; turn + 1 < array_count(inputs); turn++) {
        char now[4096], next[4096];
        struct prompt_world world;
        snprintf(now, sizeof now, "{\"instructions\":\"x\",\"input\":%s}", inputs[turn]);
        snprintf(next, sizeof next, "{\"instructions\":\"x\",\"input\":%s}", inputs[turn + 1]);
        prompt_world_init(&world, API_RESPONSES, now);

        struct prompt_overlap overlap =
            prompt_world_compare(API_RESPONSES, now, API_RESPONSES, next);

        cr_assert(ge(sz, overlap.shared, world.prompt.closed_count));
        cr_assert(gt(sz, overlap.b_count, overlap.a_count));
        prompt_world_release(&world);
    }
}

Test(prompt_responses, items_in_a_row_are_one_message_as_long_as_it_has_a_place_for_them)
{
#define SAID(text)    "{\"role\":\"assistant\",\"content\":\"" text "\"}"
#define THOUGHT(text) "{\"type\":\"reasoning\",\"content\":[{\"text\":\"" text "\"}]}"
#define CALLED(id)                                                                                 \
    "{\"type\":\"function_call\",\"call_id\":\"" id "\",\"name\":\"f\",\"arguments\":\"\"}"
#define CHAT_CALL(id) "{\"id\":\"" id "\",\"function\":{\"name\":\"f\",\"arguments\":\"\"}}"
    static const struct {
        const char *input;
        const char *messages;
    } rows[] = {
        {SAID("a") "," SAID("b"),
         "{\"role\":\"assistant\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"}"},
        {THOUGHT("a") "," THOUGHT("b"),
         "{\"role\":\"assistant\",\"reasoning\":\"a\"},{\"role\":\"assistant\",\"reasoning\":"
         "\"b\"}"},
        {SAID("a") "," THOUGHT("b"),
         "{\"role\":\"assistant\",\"reasoning\":\"b\",\"content\":\"a\"}"},
        {CALLED("1") "," SAID("a") "," CALLED("2"),
         "{\"role\":\"assistant\",\"content\":\"a\",\"tool_calls\":[" CHAT_CALL("1") "," CHAT_CALL(
             "2") "]}"},
        {CALLED("1") "," SAID("a") "," SAID("b") "," CALLED("2"),
         "{\"role\":\"assistant\",\"content\":\"a\",\"tool_calls\":[" CHAT_CALL("1") "]},{\"role\":"
                                                                                     "\"assistant\""
                                                                                     ",\"content\":"
                                                                                     "\"b\",\"tool_"
                                                                                     "calls\":"
                                                                                     "[" CHAT_CALL(
                                                                                         "2") "]"
                                                                                              "}"},
    };

    for (size_t i = 0; i < array_count(rows); i++) {
        char responses[2048], chat[2048];
        snprintf(responses, sizeof responses, "{\"input\":[%s]}", rows[i].input);
        snprintf(chat, sizeof chat, "{\"messages\":[%s]}", rows[i].messages);

        check_same(API_CHAT, chat, API_RESPONSES, responses);
    }
}

Test(prompt_responses, what_the_router_need_not_see_changes_no_name)
{
    const char *plain = "{\"input\":[{\"role\":\"user\",\"content\":\"" LONG "\"},"
                        "{\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"f\","
                        "\"arguments\":\"{}\"},{\"type\":\"custom_tool_call\",\"call_id\":\"d\","
                        "\"name\":\"g\",\"input\":\"x\"}]}";
    static const char *const others[] = {
        "{\"temperature\":1,\"metadata\":{\"a\":\"b\"},\"user\":\"u\",\"stream\":true,"
        "\"max_output_tokens\":5,\"store\":false,\"text\":{\"format\":{\"type\":\"text\"}},"
        "\"truncation\":\"disabled\",\"reasoning\":{\"summary\":\"auto\"},\"tools\":[],"
        "\"prompt_cache_key\":\"k\",\"input\":[{\"type\":\"message\",\"status\":\"completed\","
        "\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"" LONG "\"}]},"
        "{\"type\":\"function_call\",\"id\":\"fc_1\",\"status\":\"completed\",\"call_id\":\"c\","
        "\"name\":\"f\",\"namespace\":null,\"arguments\":\"{}\"},{\"type\":\"custom_tool_call\","
        "\"id\":\"ctc_1\",\"call_id\":\"d\",\"name\":\"g\",\"input\":\"x\"}]}",
    };

    for (size_t i = 0; i < array_count(others); i++)
        check_same(API_RESPONSES, plain, API_RESPONSES, others[i]);
    check_same(API_RESPONSES, "{\"input\":\"" LONG "\"}", API_RESPONSES,
               "{\"input\":[{\"role\":\"user\",\"content\":\"" LONG "\"}]}");
}

Test(prompt_responses, what_changes_the_prompt_changes_its_names)
{
    static const char *const bodies[] = {
        "{\"input\":\"x\"}",
        "{\"input\":\"y\"}",
        "{\"input\":\"x\",\"instructions\":\"i\"}",
        "{\"input\":\"x\",\"reasoning\":{\"effort\":\"high\"}}",
        "{\"input\":\"x\",\"reasoning\":{\"effort\":\"low\"}}",
        "{\"input\":\"x\",\"reasoning\":{\"context\":\"all_turns\"}}",
        "{\"input\":\"x\",\"truncation\":\"auto\"}",
        "{\"input\":\"x\",\"cache_salt\":\"s\"}",
        "{\"input\":\"x\",\"model\":\"m\"}",
        "{\"input\":\"x\",\"tools\":[{\"type\":\"web_search\"}]}",
        "{\"input\":\"x\",\"tools\":[{\"type\":\"function\",\"name\":\"f\"}]}",
        "{\"input\":\"x\",\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"strict\":true}]}",
        "{\"input\":\"x\",\"tool_choice\":\"none\",\"tools\":[{\"type\":\"web_search\"}]}",
        "{\"input\":[{\"role\":\"developer\",\"content\":\"x\"}]}",
        "{\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_image\",\"file_id\":\"x\"}]}"
        "]}",
        "{\"input\":[{\"type\":\"item_reference\",\"id\":\"x\"}]}",
        "{\"input\":[{\"id\":\"x\"}]}",
        "{\"input\":[{\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"f\",\"arguments\":"
        "\"x\"}]}",
        "{\"input\":[{\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"f\",\"namespace\":"
        "\"n\",\"arguments\":\"x\"}]}",
        "{\"input\":[{\"type\":\"custom_tool_call\",\"call_id\":\"c\",\"name\":\"f\",\"input\":"
        "\"x\"}]}",
        "{\"input\":[{\"type\":\"function_call_output\",\"call_id\":\"c\",\"output\":\"x\"}]}",
        "{\"input\":[{\"type\":\"function_call_output\",\"call_id\":\"d\",\"output\":\"x\"}]}",
    };

    for (size_t i = 0; i < array_count(bodies); i++)
        for (size_t j = 0; j < i; j++)
            check_nothing_shared(bodies[j], bodies[i]);
}

Test(prompt_responses, a_message_in_progress_is_left_open)
{
    struct prompt_overlap overlap = prompt_world_compare(
        API_RESPONSES,
        "{\"input\":[{\"role\":\"assistant\",\"status\":\"incomplete\",\"content\":\"" LONG "\"}]}",
        API_RESPONSES, "{\"input\":[{\"role\":\"assistant\",\"content\":\"" LONG LONG "\"}]}");

    cr_assert(eq(sz, overlap.shared, 1));
}

Test(prompt_responses, nothing_is_claimed_behind_what_an_engine_holds)
{
    static const char *const states[] = {
        "\"previous_response_id\":\"resp_1\"",
        "\"conversation\":\"conv_1\"",
        "\"prompt\":{\"id\":\"pmpt_1\"}",
    };

    for (size_t i = 0; i < array_count(states); i++) {
        char body[1024];
        struct prompt_world world;
        snprintf(body, sizeof body, "{%s,\"instructions\":\"abc\",\"input\":\"" LONG "\"}",
                 states[i]);

        prompt_world_init(&world, API_RESPONSES, body);

        cr_assert(eq(sz, world.prompt.block_count, 0));
        cr_assert(eq(sz, world.prompt.closed_count, 0));
        cr_assert(eq(u64, world.prompt.bytes, 303));
        prompt_world_release(&world);
    }
}

Test(prompt_responses, what_has_no_meaning_is_refused_with_its_field)
{
    static const struct {
        const char *body;
        const char *param;
    } rows[] = {
        {"{}", "input"},
        {"{\"input\":null}", "input"},
        {"{\"input\":[7]}", "input"},
        {"{\"input\":[{}]}", "input"},
        {"{\"input\":[{\"role\":7}]}", "input"},
        {"{\"input\":[{\"type\":\"message\"}]}", "input"},
        {"{\"input\":[{\"role\":\"user\",\"content\":7}]}", "input.content"},
        {"{\"input\":[{\"role\":\"assistant\",\"content\":[7]}]}", "input.content"},
        {"{\"input\":[{\"type\":\"function_call_output\",\"output\":7}]}", "input.output"},
    };

    for (size_t i = 0; i < array_count(rows); i++) {
        struct prompt_world world;

        int status = prompt_world_try(&world, API_RESPONSES, slice_of_string(rows[i].body));

        cr_assert(eq(int, status, -EINVAL), "%s", rows[i].body);
        cr_assert(eq(str, world.fault.param, (char *)rows[i].param), "%s", rows[i].body);
        prompt_world_release(&world);
    }
}

Test(prompt_responses, what_leaves_no_prefix_has_a_size_and_no_names)
{
    static const struct {
        enum api api;
        const char *body;
        uint64_t bytes;
    } rows[] = {
        {API_EMBEDDINGS, "{\"input\":\"" HUNDRED "\"}", 100},
        {API_EMBEDDINGS, "{\"input\":[\"" HUNDRED "\",\"" TEN "\"]}", 110},
        {API_EMBEDDINGS, "{\"input\":[[1,2],[3]]}", 12},
        {API_EMBEDDINGS,
         "{\"messages\":[{\"content\":[{\"image_url\":{\"url\":\"" LONG "\"}},{\"text\":\"" TEN
         "\"}]}]}",
         10},
        {API_EMBEDDINGS, "{\"input\":{}}", 0},
        {API_RERANK,
         "{\"query\":\"" TEN "\",\"documents\":[\"" TEN "\",{\"text\":\"" HUNDRED "\"}]}", 130},
        {API_SCORE, "{\"text_1\":\"" TEN "\",\"text_2\":[\"" TEN "\",\"" TEN "\",\"" TEN "\"]}",
         60},
        {API_SCORE,
         "{\"queries\":[\"" TEN "\",\"" TEN "\"],\"documents\":[\"" TEN "\",\"" TEN "\"]}", 40},
        {API_COUNT_TOKENS, "{\"messages\":[{\"role\":\"user\",\"content\":\"" TEN "\"}]}", 0},
        {API_TOKENIZE, "{\"prompt\":\"" TEN "\"}", 0},
        {API_DETOKENIZE, "{\"tokens\":[1,2,3]}", 0},
    };

    for (size_t i = 0; i < array_count(rows); i++) {
        struct prompt_world world;

        prompt_world_init(&world, rows[i].api, rows[i].body);

        cr_assert(eq(u64, world.prompt.bytes, rows[i].bytes), "%s", rows[i].body);
        cr_assert(eq(sz, world.prompt.block_count, 0));
        cr_assert(eq(u64, world.prompt.token_ids, 0));
        prompt_world_release(&world);
    }
}
