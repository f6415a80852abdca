/* SPDX-License-Identifier: Apache-2.0 */

#include "router/prompt/prompt_stream.h"
#include "tests/support/leak_check.h"
#include "tests/support/prompt_world.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <stdio.h>

/* 300 bytes of text, so that a message always closes a block. */
#define TEN     "abcdefghij"
#define HUNDRED TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN
#define LONG    HUNDRED HUNDRED HUNDRED

#define SYSTEM   "{\"role\":\"system\",\"content\":\"" LONG "\"}"
#define USER     "{\"role\":\"user\",\"content\":\"" LONG "?\"}"
#define MESSAGES "\"messages\":[" SYSTEM "," USER "]"
#define TOOL                                                                                       \
    "{\"type\":\"function\",\"function\":{\"name\":\"tea\",\"description\":\"" LONG                \
    "\",\"parameters\":{\"type\":\"object\",\"properties\":{\"cups\":{\"type\":\"integer\","       \
    "\"maximum\":1.5}},\"required\":[\"cups\"]}}}"

static struct prompt_overlap compare(enum api api, const char *a, const char *b)
{
    return prompt_world_compare(api, a, api, b);
}

static void check_same(enum api api, const char *a, const char *b)
{
    struct prompt_overlap overlap = compare(api, a, b);

    cr_assert(gt(sz, overlap.shared, 0), "%s", b);
    cr_assert(eq(sz, overlap.shared, overlap.a_count), "%s", b);
    cr_assert(eq(sz, overlap.shared, overlap.b_count), "%s", b);
}

static void check_nothing_shared(enum api api, const char *a, const char *b)
{
    cr_assert(eq(sz, compare(api, a, b).shared, 0), "%s", b);
}

TestSuite(prompt_stream, .fini = leak_check);

Test(prompt_stream, closed_blocks_of_a_turn_are_a_prefix_of_the_next_turn)
{
    static const char *const turns[] = {
        "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}",
        "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"},"
        "{\"role\":\"assistant\",\"content\":\"" LONG
        "\"},{\"role\":\"user\",\"content\":\"and\"}]}",
        "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"},"
        "{\"role\":\"assistant\",\"content\":\"" LONG "\"},{\"role\":\"user\",\"content\":\"and\"},"
        "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"c1\",\"type\":"
        "\"function\",\"function\":{\"name\":\"tea\",\"arguments\":\"{\\\"cups\\\":2}\"}}]},"
        "{\"role\":\"tool\",\"tool_call_id\":\"c1\",\"content\":\"" LONG "\"}]}",
        "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"},"
        "{\"role\":\"assistant\",\"content\":\"" LONG "\"},{\"role\":\"user\",\"content\":\"and\"},"
        "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"c1\",\"type\":"
        "\"function\",\"function\":{\"name\":\"tea\",\"arguments\":\"{\\\"cups\\\":2}\"}}]},"
        "{\"role\":\"tool\",\"tool_call_id\":\"c1\",\"content\":\"" LONG "\"},"
        "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"" LONG "\"},{\"type\":"
        "\"image_url\",\"image_url\":{\"url\":\"data:image/png;base64,AAAA\"}}]}]}",
    };

    for (size_t turn = 0; turn + 1 < array_count(turns); turn++) {
        struct prompt_world now, next;
        prompt_world_init(&now, API_CHAT, turns[turn]);
        prompt_world_init(&next, API_CHAT, turns[turn + 1]);

        size_t shared = prompt_shared_count(&now.prompt, &next.prompt);

        cr_assert(ge(sz, shared, now.prompt.closed_count));
        cr_assert(gt(u64, next.prompt.bytes, now.prompt.bytes));
        prompt_world_release(&now);
        prompt_world_release(&next);
    }
}

Test(prompt_stream, block_ends_rise_to_the_length_of_the_stream)
{
    struct prompt_world world;
    uint64_t end = 0;
    prompt_world_init(&world, API_CHAT, "{\"tools\":[" TOOL "]," MESSAGES "}");

    for (size_t i = 0; i < world.prompt.block_count; i++) {
        cr_assert(gt(u64, world.prompt.blocks[i].end, end));
        end = world.prompt.blocks[i].end;
    }

    cr_assert(eq(u64, end, world.prompt.bytes));
    cr_assert(le(sz, world.prompt.block_count - world.prompt.closed_count, 1));
    cr_assert(eq(sz, world.prompt.closed_count, world.prompt.chain.block_count));
    prompt_world_release(&world);
}

Test(prompt_stream, other_spelling_of_the_same_meaning_is_the_same)
{
    const char *plain = "{\"model\":\"m\",\"chat_template_kwargs\":{\"a\":1.5,\"b\":[true,null]},"
                        "\"tools\":[" TOOL "]," MESSAGES "}";
    static const char *const others[] = {
        /* white space, order of members in the root */
        " { \"tools\" :\n[ " TOOL
        " ] ,\t\"chat_template_kwargs\": {\"b\":[true , null],\"a\":1.50},"
        "\"model\":\"m\"," MESSAGES "} ",
        /* escapes */
        "{\"model\":\"\\u006d\",\"chat_template_kwargs\":{\"a\":15e-1,\"b\":[true,null]},"
        "\"tools\":[" TOOL "],\"mess\\u0061ges\":[{\"role\":\"syste\\u006d\",\"content\":"
        "\"\\u0061bcdefghij" TEN TEN TEN TEN TEN TEN TEN TEN TEN HUNDRED HUNDRED "\"}," USER "]}",
        /* order within a message, null against absent, content in one part */
        "{\"model\":\"m\",\"chat_template_kwargs\":{\"a\":1.5,\"b\":[true,null]},\"tools\":[" TOOL
        "],\"messages\":[{\"content\":[{\"text\":\"" LONG
        "\",\"type\":\"text\"}],\"name\":null,\"refusal\":null,\"tool_calls\":[],\"role\":"
        "\"system\"}," USER "]}",
        /* numbers within a tool */
        "{\"model\":\"m\",\"chat_template_kwargs\":{\"a\":1.5,\"b\":[true,null]},\"tools\":["
        "{\"type\":\"function\",\"function\":{\"name\":\"te\\u0061\",\"description\":\"" LONG
        "\", \"parameters\":{\"type\":\"object\",\"properties\":{\"cups\":{\"type\":\"integer\","
        "\"maximum\":0.15e1}},\"required\":[\"cups\"]}}}]," MESSAGES "}",
        /* what decides the answer, not the prompt */
        "{\"model\":\"m\",\"chat_template_kwargs\":{\"a\":1.5,\"b\":[true,null]},\"tools\":[" TOOL
        "]," MESSAGES ",\"temperature\":0.3,\"seed\":4,\"n\":3,\"stop\":[\"x\"],\"user\":\"u\","
        "\"metadata\":{\"a\":\"b\"},\"prompt_cache_key\":\"k\",\"stream\":true,\"stream_options\":"
        "{\"include_usage\":true},\"logit_bias\":{\"7\":1},\"response_format\":{\"type\":\"text\"},"
        "\"max_tokens\":5,\"tool_choice\":\"auto\",\"reasoning_effort\":null,\"documents\":[],"
        "\"add_generation_prompt\":true,\"priority\":3}",
        /* cache marks move from turn to turn */
        "{\"model\":\"m\",\"chat_template_kwargs\":{\"a\":1.5,\"b\":[true,null]},\"tools\":[" TOOL
        "],\"messages\":[{\"role\":\"system\",\"content\":[{\"type\":\"text\",\"text\":\"" LONG
        "\",\"cache_control\":{\"type\":\"ephemeral\"}}],\"cache_control\":{\"type\":"
        "\"ephemeral\"}}," USER "]}",
    };

    for (size_t i = 0; i < array_count(others); i++)
        check_same(API_CHAT, plain, others[i]);
}

Test(prompt_stream, any_field_of_the_root_changes_every_name)
{
    const char *plain = "{\"model\":\"m\"," MESSAGES "}";
    static const char *const fields[] = {
        "\"model\":\"m2\",",
        "\"model\":\"m\",\"cache_salt\":\"s\",",
        "\"model\":\"m\",\"chat_template\":\"{{x}}\",",
        "\"model\":\"m\",\"chat_template_kwargs\":{\"enable_thinking\":false},",
        "\"model\":\"m\",\"chat_template_kwargs\":{\"never_heard_of\":1},",
        "\"model\":\"m\",\"reasoning_effort\":\"high\",",
        "\"model\":\"m\",\"documents\":[{\"text\":\"d\"}],",
        "\"model\":\"m\",\"mm_processor_kwargs\":{\"fps\":2},",
        "\"model\":\"m\",\"add_special_tokens\":true,",
        "\"model\":\"m\",\"truncate_prompt_tokens\":9,",
        "\"model\":\"m\",\"lora_path\":\"l\",",
        "\"model\":\"m\",\"functions\":[{\"name\":\"f\"}],",
    };
    const char *seen[array_count(fields) + 1];
    char bodies[array_count(fields)][2048];
    seen[0] = plain;

    for (size_t i = 0; i < array_count(fields); i++) {
        snprintf(bodies[i], sizeof bodies[i], "{%s%s}", fields[i], MESSAGES);
        seen[i + 1] = bodies[i];
        for (size_t j = 0; j <= i; j++) /* each differs from each */
            check_nothing_shared(API_CHAT, seen[j], seen[i + 1]);
    }
}

Test(prompt_stream, tool_choice_counts_only_where_it_takes_the_tools_out)
{
    check_same(API_CHAT, "{\"tools\":[" TOOL "]," MESSAGES "}",
               "{\"tools\":[" TOOL "],\"tool_choice\":\"required\"," MESSAGES "}");
    check_same(API_CHAT, "{" MESSAGES "}", "{\"tool_choice\":\"none\"," MESSAGES "}");
    check_nothing_shared(API_CHAT, "{\"tools\":[" TOOL "]," MESSAGES "}",
                         "{\"tools\":[" TOOL "],\"tool_choice\":\"none\"," MESSAGES "}");
}

Test(prompt_stream, a_change_in_a_message_changes_names_from_there_on_and_not_before)
{
    const char *plain = "{\"messages\":[" SYSTEM "," USER "," USER "]}";
    static const char *const changed[] = {
        "{\"role\":\"assistant\",\"content\":\"" LONG "?\"}",
        "{\"role\":\"user\",\"content\":\"" LONG "!\"}",
        "{\"role\":\"user\",\"name\":\"n\",\"content\":\"" LONG "?\"}",
        "{\"role\":\"user\",\"tool_call_id\":\"n\",\"content\":\"" LONG "?\"}",
        "{\"role\":\"user\",\"reasoning_content\":\"n\",\"content\":\"" LONG "?\"}",
        "{\"role\":\"user\",\"refusal\":\"n\",\"content\":\"" LONG "?\"}",
        "{\"role\":\"user\",\"unknown\":\"n\",\"content\":\"" LONG "?\"}",
        "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"" LONG
        "\"},{\"type\":\"text\",\"text\":\"?\"}]}",
        "{\"role\":\"user\",\"content\":\"" LONG "?\",\"tool_calls\":[{\"id\":\"1\",\"function\":"
        "{\"name\":\"f\",\"arguments\":\"\"}}]}",
    };
    struct prompt_world system_only;
    prompt_world_init(&system_only, API_CHAT, "{\"messages\":[" SYSTEM "]}");
    size_t system_count = system_only.prompt.closed_count;
    prompt_world_release(&system_only);

    for (size_t i = 0; i < array_count(changed); i++) {
        char body[4096];
        snprintf(body, sizeof body, "{\"messages\":[%s,%s,%s]}", SYSTEM, changed[i], USER);
        struct prompt_overlap overlap = compare(API_CHAT, plain, body);

        cr_assert(ge(sz, overlap.shared, system_count), "%s", changed[i]);
        cr_assert(lt(sz, overlap.shared, overlap.a_count - 1), "%s", changed[i]);
    }
}

Test(prompt_stream, tools_stand_behind_the_instructions_in_their_own_order)
{
    const char *one = "{\"tools\":[" TOOL ",{\"name\":\"a\",\"b\":1}]," MESSAGES "}";
    const char *two = "{\"tools\":[" TOOL ",{\"b\":1,\"name\":\"a\"}]," MESSAGES "}";
    const char *swapped = "{\"tools\":[{\"name\":\"a\",\"b\":1}," TOOL "]," MESSAGES "}";

    struct prompt_overlap members = compare(API_CHAT, one, two);
    struct prompt_overlap order = compare(API_CHAT, one, swapped);

    cr_assert(gt(sz, members.shared, order.shared)); /* the first tool too */
    cr_assert(lt(sz, members.shared, members.a_count - 1));
    cr_assert(gt(sz, order.shared, 0)); /* the instructions */
}

/* A new system prompt with the tools of others is not told that these are in the cache: in most
 * templates they stand behind it. */
Test(prompt_stream, under_other_instructions_equal_tools_share_no_name)
{
#define SAYS(role, text)     "{\"role\":\"" role "\",\"content\":\"" text LONG "\"}"
#define WITH_TOOLS(messages) "{\"tools\":[" TOOL "],\"messages\":[" messages "]}"

    check_nothing_shared(API_CHAT, WITH_TOOLS(SAYS("system", "a") "," USER),
                         WITH_TOOLS(SAYS("system", "b") "," USER));
    check_nothing_shared(API_CHAT, WITH_TOOLS(SAYS("developer", "a") "," USER),
                         WITH_TOOLS(SAYS("developer", "b") "," USER));
    check_nothing_shared(API_MESSAGES,
                         "{\"tools\":[" TOOL "],\"system\":\"a" LONG "\",\"messages\":[" USER "]}",
                         "{\"tools\":[" TOOL "],\"system\":\"b" LONG "\",\"messages\":[" USER "]}");
    check_nothing_shared(API_RESPONSES,
                         "{\"tools\":[" TOOL "],\"instructions\":\"a" LONG "\",\"input\":\"x\"}",
                         "{\"tools\":[" TOOL "],\"instructions\":\"b" LONG "\",\"input\":\"x\"}");
    check_nothing_shared(API_RESPONSES,
                         "{\"tools\":[" TOOL "],\"input\":[" SAYS("system", "a") "," USER "]}",
                         "{\"tools\":[" TOOL "],\"input\":[" SAYS("system", "b") "," USER "]}");
}

Test(prompt_stream, without_instructions_tools_come_first)
{
    struct prompt_overlap overlap =
        compare(API_CHAT, WITH_TOOLS(SAYS("user", "a")), WITH_TOOLS(SAYS("user", "b")));

    cr_assert(gt(sz, overlap.shared, 0));
    cr_assert(lt(sz, overlap.shared, overlap.a_count - 1));
}

Test(prompt_stream, whatever_else_a_tool_call_or_its_function_holds_counts)
{
#define CALL(in_function, in_call)                                                                 \
    "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"1\",\"function\":{\"name\":" \
    "\"f\",\"arguments\":\"{}\"" in_function "}" in_call "}]}]}"

    check_nothing_shared(API_CHAT, CALL("", ""), CALL(",\"strict\":true", ""));
    check_nothing_shared(API_CHAT, CALL("", ""), CALL("", ",\"strict\":true"));
    check_nothing_shared(API_CHAT, CALL(",\"strict\":true", ""), CALL("", ",\"strict\":true"));
    check_same(API_CHAT, CALL("", ""), CALL(",\"strict\":null", ",\"type\":\"function\""));
}

Test(prompt_stream, cache_marks_count_nowhere_in_a_part)
{
#define DOCUMENT(mark)                                                                             \
    "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"file\",\"file\":{\"a\":[{\"b\":"   \
    "1" mark "}]}" mark "}]" mark "}]" mark "}"

    check_same(API_CHAT, DOCUMENT(""), DOCUMENT(",\"cache_control\":{\"type\":\"ephemeral\"}"));
}

Test(prompt_stream, the_order_of_messages_matters)
{
    check_nothing_shared(API_CHAT, "{\"messages\":[" SYSTEM "," USER "]}",
                         "{\"messages\":[" USER "," SYSTEM "]}");
}

Test(prompt_stream, bytes_cannot_be_shifted_from_one_field_into_the_next)
{
    static const char *const bodies[] = {
        "{\"messages\":[{\"role\":\"user\",\"content\":\"ab\"}]}",
        "{\"messages\":[{\"role\":\"usera\",\"content\":\"b\"}]}",
        "{\"messages\":[{\"role\":\"user\",\"name\":\"a\",\"content\":\"b\"}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"b\"}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":[\"a\",\"b\"]}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"tab\"}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\",\"refusal\":\"b\"}]}",
    };

    for (size_t i = 0; i < array_count(bodies); i++)
        for (size_t j = 0; j < i; j++)
            check_nothing_shared(API_CHAT, bodies[j], bodies[i]);
}

Test(prompt_stream, an_image_counts_by_its_digest_and_its_options)
{
#define IMAGE(url, rest)                                                                           \
    "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{"       \
    "\"url\":\"" url "\"}" rest "},{\"type\":\"text\",\"text\":\"what\"}]}]}"
    struct prompt_world small, large;
    prompt_world_init(&small, API_CHAT, IMAGE("data:image/png;base64,AA", ""));
    prompt_world_init(&large, API_CHAT, IMAGE("data:image/png;base64," LONG LONG, ""));

    cr_assert(eq(u64, small.prompt.bytes, large.prompt.bytes));
    cr_assert(eq(sz, prompt_shared_count(&small.prompt, &large.prompt), 0));
    check_same(API_CHAT, IMAGE("http://x/a.png", ""),
               IMAGE("http:\\/\\/x\\/a.png", ",\"cache_control\":{\"type\":\"ephemeral\"}"));
    check_nothing_shared(API_CHAT, IMAGE("http://x/a.png", ""), IMAGE("http://x/b.png", ""));
    check_nothing_shared(API_CHAT, IMAGE("http://x/a.png", ""),
                         IMAGE("http://x/a.png", ",\"uuid\":\"7\""));
    prompt_world_release(&small);
    prompt_world_release(&large);
}

Test(prompt_stream, a_message_left_open_shares_its_blocks_with_longer_forms)
{
    struct prompt_world open, longer;
    prompt_world_init(&open, API_CHAT,
                      "{\"continue_final_message\":true,\"add_generation_prompt\":false,"
                      "\"messages\":[{\"role\":\"assistant\",\"content\":\"" LONG "\"}]}");
    prompt_world_init(&longer, API_CHAT,
                      "{\"messages\":[{\"role\":\"assistant\",\"content\":\"" LONG LONG "\"}]}");

    cr_assert(eq(sz, open.prompt.closed_count, 1));
    cr_assert(eq(sz, prompt_shared_count(&open.prompt, &longer.prompt), 1));
    cr_assert(not(open.request.is_answer_learnable));
    prompt_world_release(&open);
    prompt_world_release(&longer);
}

Test(prompt_stream, texts_of_completions_grow_by_prefix_whatever_their_form)
{
    check_same(API_COMPLETIONS, "{\"prompt\":\"" LONG "\"}", "{\"prompt\":[\"" LONG "\"]}");

    struct prompt_overlap longer =
        compare(API_COMPLETIONS, "{\"prompt\":\"" LONG "\"}", "{\"prompt\":\"" LONG LONG "\"}");
    cr_assert(eq(sz, longer.shared, 1));
    check_nothing_shared(API_COMPLETIONS, "{\"prompt\":\"" LONG "\"}",
                         "{\"prompt\":\"" LONG "\",\"suffix\":\"s\"}");
}

Test(prompt_stream, the_first_of_several_prompts_is_named_and_all_are_counted)
{
    struct prompt_world one, two, ids;
    prompt_world_init(&one, API_COMPLETIONS, "{\"prompt\":\"" LONG "\"}");
    prompt_world_init(&two, API_COMPLETIONS, "{\"prompt\":[\"" LONG "\",\"" HUNDRED "\"]}");
    prompt_world_init(&ids, API_COMPLETIONS, "{\"prompt\":[[1,2,3],[4,5]]}");

    cr_assert(eq(sz, prompt_shared_count(&one.prompt, &two.prompt), one.prompt.block_count));
    cr_assert(eq(u64, one.prompt.bytes, 300));
    cr_assert(eq(u64, two.prompt.bytes, 400));
    cr_assert(eq(u64, ids.prompt.token_ids, 5));
    prompt_world_release(&one);
    prompt_world_release(&two);
    prompt_world_release(&ids);
}

/* {"prompt":[first,first+1,...]} with count ids. */
static void ids_body(char *body, size_t size, unsigned first, size_t count)
{
    size_t len = (size_t)snprintf(body, size, "{\"prompt\":[");

    for (size_t i = 0; i < count; i++)
        len +=
            (size_t)snprintf(body + len, size - len, "%s%u", i > 0 ? "," : "", first + (unsigned)i);
    snprintf(body + len, size - len, "]}");
}

Test(prompt_stream, token_ids_are_cut_every_64_and_share_nothing_with_text)
{
    char shorter[8192], longer[8192];
    struct prompt_world world;
    ids_body(shorter, sizeof shorter, 1000, 640);
    ids_body(longer, sizeof longer, 1000, 641);

    prompt_world_init(&world, API_COMPLETIONS, shorter);
    cr_assert(eq(sz, world.prompt.block_count, 10));
    cr_assert(eq(u64, world.prompt.token_ids, 640));
    cr_assert(eq(sz, compare(API_COMPLETIONS, shorter, longer).shared, 10));
    check_nothing_shared(API_COMPLETIONS, "{\"prompt\":[1684234849]}", "{\"prompt\":\"abcd\"}");
    prompt_world_release(&world);
}

Test(prompt_stream, what_has_no_meaning_is_refused_with_its_field)
{
    static const struct {
        enum api api;
        const char *body;
        const char *param;
    } rows[] = {
        {API_CHAT, "{}", "messages"},
        {API_CHAT, "{\"messages\":null}", "messages"},
        {API_CHAT, "{\"messages\":[]}", "messages"},
        {API_CHAT, "{\"messages\":[\"hi\"]}", "messages"},
        {API_CHAT, "{\"messages\":[{\"content\":\"hi\"}]}", "messages"},
        {API_CHAT, "{\"messages\":[{\"role\":7}]}", "messages"},
        {API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":7}]}", "messages.content"},
        {API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[7]}]}", "messages.content"},
        {API_CHAT, "{\"messages\":[{\"role\":\"a\",\"tool_calls\":[7]}]}", "messages.tool_calls"},
        {API_COMPLETIONS, "{}", "prompt"},
        {API_COMPLETIONS, "{\"prompt\":[]}", "prompt"},
        {API_COMPLETIONS, "{\"prompt\":[1,\"a\"]}", "prompt"},
        {API_COMPLETIONS, "{\"prompt\":[\"a\",1]}", "prompt"},
        {API_COMPLETIONS, "{\"prompt\":[-1]}", "prompt"},
        {API_COMPLETIONS, "{\"prompt\":[1.5]}", "prompt"},
        {API_COMPLETIONS, "{\"prompt\":[4294967296]}", "prompt"},
        {API_COMPLETIONS, "{\"prompt\":[[1],[\"a\"],\"b\"]}", "prompt"},
        {API_COMPLETIONS, "{\"prompt\":[{}]}", "prompt"},
    };

    for (size_t i = 0; i < array_count(rows); i++) {
        struct prompt_world world;

        int status = prompt_world_try(&world, rows[i].api, slice_of_string(rows[i].body));

        cr_assert(eq(int, status, -EINVAL), "%s", rows[i].body);
        cr_assert(eq(str, world.fault.param, (char *)rows[i].param), "%s", rows[i].body);
        cr_assert(gt(sz, strlen(world.fault.message), 10));
        prompt_world_release(&world);
    }
}

Test(prompt_stream, a_limit_on_blocks_keeps_the_first_ones)
{
    struct prompt_world world;
    struct prompt_blocks few;
    prompt_world_init(&world, API_COMPLETIONS, "{\"prompt\":\"" LONG LONG LONG LONG "\"}");
    cr_assert(eq(sz, world.prompt.block_count, 5));

    for (size_t max = 0; max <= 6; max++) {
        int status = prompt_stream_write(prompt_world_config(), &world.request, &world.arena, max,
                                         &few, &world.fault);

        cr_assert(eq(int, status, max < 5 ? -ENOBUFS : 0));
        cr_assert(eq(sz, few.block_count, max < 5 ? max : 5));
        cr_assert(eq(sz, prompt_shared_count(&few, &world.prompt), few.block_count));
    }
    prompt_world_release(&world);
}

Test(prompt_stream, an_arena_too_small_is_out_of_memory)
{
    struct prompt_world world;
    struct prompt_blocks out;
    struct arena arena;
    prompt_world_init(&world, API_COMPLETIONS, "{\"prompt\":\"" LONG "\"}");
    arena_init(&arena, 16);

    int status =
        prompt_stream_write(prompt_world_config(), &world.request, &arena, 64, &out, &world.fault);

    cr_assert(eq(int, status, -ENOMEM));
    arena_release(&arena);
    prompt_world_release(&world);
}
