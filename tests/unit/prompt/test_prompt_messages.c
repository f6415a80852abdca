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
#define USER    "{\"role\":\"user\",\"content\":\"" LONG "\"}"
#define MARK    ",\"cache_control\":{\"type\":\"ephemeral\",\"ttl\":\"1h\"}"

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
    cr_assert(eq(sz, prompt_world_compare(API_MESSAGES, a, API_MESSAGES, b).shared, 0), "%s", b);
}

TestSuite(prompt_messages, .fini = leak_check);

Test(prompt_messages, a_recorded_request_is_named_whether_it_is_streamed_or_not)
{
    struct prompt_world plain, streamed;
    struct buf plain_body, streamed_body;
    recording_read(&plain_body, recordings, "messages-system-hit.req");
    recording_read(&streamed_body, recordings, "messages-system-hit-stream.req");

    cr_assert(eq(int, prompt_world_try(&plain, API_MESSAGES, buf_slice(&plain_body)), 0));
    cr_assert(eq(int, prompt_world_try(&streamed, API_MESSAGES, buf_slice(&streamed_body)), 0));

    cr_assert(eq(sz, plain.prompt.block_count, 4)); /* system: three, as text or as a block; user */
    cr_assert(eq(sz, prompt_shared_count(&plain.prompt, &streamed.prompt), 4));
    cr_assert(eq(u64, plain.request.answer_tokens_max, 8));
    prompt_world_release(&plain);
    prompt_world_release(&streamed);
    buf_release(&plain_body);
    buf_release(&streamed_body);
}

Test(prompt_messages, a_conversation_has_the_names_it_has_in_chat)
{
    check_same(API_CHAT,
               "{\"model\":\"m\",\"reasoning_effort\":\"low\",\"tools\":[{\"type\":\"function\","
               "\"function\":{\"name\":\"tea\",\"description\":\"" LONG
               "\",\"parameters\":{\"type\":\"object\"}}}],\"messages\":["
               "{\"role\":\"system\",\"content\":\"" LONG "ab\"}," USER ","
               "{\"role\":\"assistant\",\"reasoning\":\"hm" TEN "\",\"content\":\"" LONG "\"},"
               "{\"role\":\"tool\",\"tool_call_id\":\"c1\",\"content\":\"hot\\ntea\"},"
               "{\"role\":\"tool\",\"tool_call_id\":\"c2\",\"content\":\"cold\"},"
               "{\"role\":\"user\",\"content\":\"go on\"}]}",
               API_MESSAGES,
               "{\"model\":\"m\",\"output_config\":{\"effort\":\"low\"},\"max_tokens\":5" MARK ","
               "\"tools\":[{\"name\":\"tea\",\"description\":\"" LONG
               "\",\"input_schema\":{\"type\":\"object\"}" MARK "}],"
               "\"system\":[{\"type\":\"text\",\"text\":\"x-anthropic-billing-header: cch=1f;\"},"
               "{\"type\":\"text\",\"text\":\"" LONG "\"" MARK "},{\"type\":\"text\",\"text\":"
               "\"ab\"}],\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":"
               "\"" LONG "\"" MARK "}]},"
               "{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\",\"thinking\":\"hm\","
               "\"signature\":\"s\"},{\"type\":\"redacted_thinking\",\"data\":\"x\"},"
               "{\"type\":\"thinking\",\"thinking\":\"" TEN
               "\"},{\"type\":\"text\",\"text\":\"" LONG "\",\"citations\":null}]},"
               "{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"c1\","
               "\"content\":[{\"type\":\"text\",\"text\":\"hot\"" MARK "},{\"type\":\"text\","
               "\"text\":\"tea\"}],\"is_error\":false},"
               "{\"type\":\"text\",\"text\":\"go on\"},"
               "{\"type\":\"tool_result\",\"tool_use_id\":\"c2\",\"content\":\"cold\"" MARK
               "}]}]}");
}

Test(prompt_messages, each_turn_is_a_prefix_of_the_next_wherever_the_cache_marks_stand)
{
#define CALL                                                                                       \
    "{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\",\"thinking\":\"hm\"},"            \
    "{\"type\":\"tool_use\",\"id\":\"c1\",\"name\":\"tea\",\"input\":{\"cups\":2}}]}"
#define RESULT(mark)                                                                               \
    "{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"c1\","            \
    "\"content\":\"" LONG "\"" mark "}]}"
#define SAID(mark)                                                                                 \
    "{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"" LONG "\"" mark "}]}"
    static const char *const messages[] = {
        USER,
        USER "," CALL "," RESULT(MARK),
        USER "," CALL "," RESULT("") "," SAID("") "," USER,
        USER "," CALL "," RESULT("") "," SAID(MARK) "," USER "," SAID("") "," USER,
    };

    for (size_t turn = 0; turn + 1 < array_count(messages); turn++) {
        char now[4096], next[4096];
        struct prompt_world world;
        snprintf(now, sizeof now, "{\"system\":\"x\",\"messages\":[%s]}", messages[turn]);
        snprintf(next, sizeof next, "{\"system\":\"x\",\"messages\":[%s]}", messages[turn + 1]);
        prompt_world_init(&world, API_MESSAGES, now);

        struct prompt_overlap overlap = prompt_world_compare(API_MESSAGES, now, API_MESSAGES, next);

        cr_assert(ge(sz, overlap.shared, world.prompt.closed_count));
        cr_assert(gt(sz, overlap.b_count, overlap.a_count));
        prompt_world_release(&world);
    }
}

Test(prompt_messages, other_spelling_of_the_same_meaning_is_the_same)
{
    check_same(API_MESSAGES,
               "{\"system\":\"" LONG "\",\"messages\":[" USER ",{\"role\":\"assistant\","
               "\"content\":[{\"type\":\"tool_use\",\"id\":\"c\",\"name\":\"f\",\"input\":"
               "{\"a\":[1,2.5,\"\\u00e9\",true,null]}}]}]}",
               API_MESSAGES,
               "{\"metadata\":{\"user_id\":\"u\"},\"stream\":true,\"temperature\":1,"
               "\"stop_sequences\":[\"x\"],\"thinking\":null,\"output_config\":{\"format\":{}},"
               "\"messages\":[" USER ",{\"content\":[{\"type\":\"text\",\"text\":\"\"},"
               "{\"input\" : {\"a\": [1, 2.50, \"é\", true, null]},\"name\":\"f\",\"id\":\"c\","
               "\"caller\":{\"type\":\"direct\"},\"type\":\"tool_use\"}],\"role\":\"assistant\"}],"
               "\"system\":[{\"type\":\"text\",\"text\":\"" LONG "\"}]}");
    check_same(API_MESSAGES,
               "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"document\",\"source\":"
               "{\"type\":\"content\",\"content\":[{\"type\":\"text\",\"text\":\"t\"}]}}]}]}",
               API_MESSAGES,
               "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"document\",\"source\":"
               "{\"type\":\"content\",\"content\":[{\"type\":\"text\",\"text\":\"t\"" MARK
               "}]}" MARK "}]}]}");
    check_same(API_MESSAGES,
               "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"thinking\":{\"type\":"
               "\"enabled\",\"budget_tokens\":1024}}",
               API_MESSAGES,
               "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"thinking\":{\"type\":"
               "\"enabled\",\"budget_tokens\":2048}}");
}

Test(prompt_messages, what_changes_the_prompt_changes_its_names)
{
#define X              "{\"role\":\"user\",\"content\":\"x\"}"
#define BLOCKS(blocks) "{\"messages\":[{\"role\":\"user\",\"content\":[" blocks "]}]}"
    static const char *const bodies[] = {
        "{\"messages\":[" X "]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"y\"}]}",
        "{\"messages\":[{\"role\":\"assistant\",\"content\":\"x\"}]}",
        "{\"messages\":[{\"role\":\"system\",\"content\":\"x\"}]}",
        "{\"system\":\"s\",\"messages\":[" X "]}",
        "{\"model\":\"m\",\"messages\":[" X "]}",
        "{\"cache_salt\":\"s\",\"messages\":[" X "]}",
        "{\"thinking\":{\"type\":\"enabled\"},\"messages\":[" X "]}",
        "{\"thinking\":{\"type\":\"disabled\"},\"messages\":[" X "]}",
        "{\"output_config\":{\"effort\":\"high\"},\"messages\":[" X "]}",
        "{\"tools\":[{\"name\":\"f\",\"input_schema\":{}}],\"messages\":[" X "]}",
        "{\"tools\":[{\"name\":\"f\",\"input_schema\":{}}],\"tool_choice\":{\"type\":\"none\"},"
        "\"messages\":[" X "]}",
        "{\"tools\":[{\"type\":\"bash_20250124\",\"name\":\"bash\"}],\"messages\":[" X "]}",
        BLOCKS("{\"type\":\"text\",\"text\":\"x\"},{\"type\":\"text\",\"text\":\"x\"}"),
        BLOCKS("{\"type\":\"image\",\"source\":{\"type\":\"base64\",\"data\":\"AA\"}}"),
        BLOCKS("{\"type\":\"image\",\"source\":{\"type\":\"base64\",\"data\":\"AB\"}}"),
        BLOCKS("{\"type\":\"tool_result\",\"tool_use_id\":\"c\",\"content\":\"x\"}"),
        BLOCKS("{\"type\":\"tool_result\",\"tool_use_id\":\"d\",\"content\":\"x\"}"),
        BLOCKS(
            "{\"type\":\"tool_result\",\"tool_use_id\":\"d\",\"content\":[{\"type\":\"image\"}]}"),
        "{\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\",\"thinking\":"
        "\"x\"}]}]}",
        "{\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"c\","
        "\"name\":\"f\",\"input\":{}}]}]}",
        "{\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"c\","
        "\"name\":\"f\",\"input\":{\"a\":1}}]}]}",
    };

    for (size_t i = 0; i < array_count(bodies); i++)
        for (size_t j = 0; j < i; j++)
            check_nothing_shared(bodies[j], bodies[i]);
}

Test(prompt_messages, an_assistant_message_at_the_end_is_left_open)
{
    struct prompt_overlap overlap = prompt_world_compare(
        API_MESSAGES, "{\"messages\":[{\"role\":\"assistant\",\"content\":\"" LONG "\"}]}",
        API_MESSAGES, "{\"messages\":[{\"role\":\"assistant\",\"content\":\"" LONG LONG "\"}]}");

    cr_assert(eq(sz, overlap.shared, 1));
}

Test(prompt_messages, what_has_no_meaning_is_refused_with_its_field)
{
    static const struct {
        const char *body;
        const char *param;
    } rows[] = {
        {"{}", "messages"},
        {"{\"messages\":[]}", "messages"},
        {"{\"messages\":[7]}", "messages"},
        {"{\"messages\":[{\"content\":\"x\"}]}", "messages"},
        {"{\"messages\":[{\"role\":7,\"content\":\"x\"}]}", "messages"},
        {"{\"messages\":[{\"role\":\"user\"}]}", "messages.content"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":null}]}", "messages.content"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[\"x\"]}]}", "messages.content"},
        {"{\"system\":[\"x\"],\"messages\":[" X "]}", "system"},
    };

    for (size_t i = 0; i < array_count(rows); i++) {
        struct prompt_world world;

        int status = prompt_world_try(&world, API_MESSAGES, slice_of_string(rows[i].body));

        cr_assert(eq(int, status, -EINVAL), "%s", rows[i].body);
        cr_assert(eq(str, world.fault.param, (char *)rows[i].param), "%s", rows[i].body);
        prompt_world_release(&world);
    }
}
