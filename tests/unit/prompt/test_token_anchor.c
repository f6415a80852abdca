/* SPDX-License-Identifier: Apache-2.0 */

#include "router/prompt/token_anchor.h"
#include "tests/support/leak_check.h"
#include "tests/support/prompt_world.h"
#include "tests/support/recording.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <stdio.h>

static struct token_naming naming_of(uint32_t block_tokens)
{
    const uint8_t *secret = prompt_world_config().secret;

    return (struct token_naming){
        secret, token_name_root(secret, NULL, 0, NULL, 0), block_tokens, {0}};
}

typedef int read_fn(const struct token_naming *naming, struct json_scanner *scanner,
                    struct slice text, struct token_anchor *anchor);

static int read_text(read_fn *read, struct token_naming naming, struct slice text,
                     struct token_anchor *anchor)
{
    struct json_scanner *scanner = json_scanner_create();
    char *padded = calloc(1, text.len + JSON_PADDING);
    int status;

    memcpy(padded, text.ptr, text.len);
    status = read(&naming, scanner, slice_of(padded, text.len), anchor);
    free(padded);
    json_scanner_destroy(scanner);
    return status;
}

static int read_reply(uint32_t block_tokens, const char *text, struct token_anchor *anchor)
{
    return read_text(token_anchor_read_reply, naming_of(block_tokens), slice_of_string(text),
                     anchor);
}

TestSuite(token_anchor, .fini = leak_check);

Test(token_anchor, the_last_full_block_has_the_name_that_an_agent_gives_it)
{
    const struct token_naming naming = naming_of(2);
    const uint32_t first[] = {5, 6}, second[] = {7, 8};
    struct digest_128 name = token_name_next(naming.secret, naming.root, first, 2, 0);
    struct token_anchor anchor;

    name = token_name_next(naming.secret, name, second, 2, 0);
    cr_assert(eq(int,
                 read_reply(2,
                            "{\"count\":5,\"max_model_len\":64,\"tokens\":[5,6,7,8,9],"
                            "\"token_strs\":null}",
                            &anchor),
                 0));

    cr_assert(eq(u32, anchor.token_count, 5));
    cr_assert(eq(u64, anchor.last_block, name.low));
}

Test(token_anchor, a_prompt_of_ids_says_the_same_as_the_reply_about_it)
{
    struct token_anchor reply, prompt, only;

    cr_assert(eq(int, read_reply(2, "{\"count\":3,\"tokens\":[5,6,7]}", &reply), 0));
    cr_assert(eq(
        int,
        read_text(token_anchor_read_prompt, naming_of(2), SLICE("{\"prompt\":[5,6,7]}"), &prompt),
        0));
    cr_assert(eq(
        int,
        read_text(token_anchor_read_prompt, naming_of(2), SLICE("{\"prompt\":[[5,6,7]]}"), &only),
        0));

    cr_assert(eq(u64, prompt.last_block, reply.last_block));
    cr_assert(eq(u64, only.last_block, reply.last_block));
    cr_assert(eq(u32, prompt.token_count, 3));
}

Test(token_anchor, a_rendered_prompt_says_the_same)
{
    struct token_anchor reply, chat, text;

    cr_assert(eq(int, read_reply(2, "{\"count\":3,\"tokens\":[5,6,7]}", &reply), 0));
    cr_assert(eq(
        int, read_reply(2, "{\"request_id\":\"a\",\"token_ids\":[5,6,7],\"stream\":true}", &chat),
        0));
    cr_assert(eq(int, read_reply(2, "[{\"token_ids\":[5,6,7]}]", &text), 0));

    cr_assert(eq(u64, chat.last_block, reply.last_block));
    cr_assert(eq(u64, text.last_block, reply.last_block));
    cr_assert(eq(u32, text.token_count, 3));
}

Test(token_anchor, without_a_full_block_there_is_no_name)
{
    struct token_anchor anchor;

    cr_assert(eq(int, read_reply(4, "{\"count\":3,\"tokens\":[5,6,7]}", &anchor), 0));

    cr_assert(eq(u64, anchor.last_block, 0));
    cr_assert(eq(u32, anchor.token_count, 3));
}

Test(token_anchor, what_is_in_front_of_a_mark_is_named_like_a_prompt_of_its_own)
{
    const struct slice text = SLICE("{\"tokens\":[5,6,7,8,9,42,1,2,3]}");
    struct token_naming naming = naming_of(2);
    struct token_anchor marked, unmarked, front;

    cr_assert(eq(int, read_text(token_anchor_read_reply, naming, text, &unmarked), 0));
    naming.layout = (struct tool_layout){TOOLS_BEHIND_LAST_USER, true, 42};
    cr_assert(eq(int, read_text(token_anchor_read_reply, naming, text, &marked), 0));
    cr_assert(eq(int, read_reply(2, "{\"tokens\":[5,6,7,8,9]}", &front), 0));

    cr_assert(eq(u32, marked.before_tools, 5));
    cr_assert(eq(u64, marked.before_tools_block, front.last_block));
    cr_assert(eq(u64, marked.last_block, unmarked.last_block));
    cr_assert(eq(u64, unmarked.before_tools_block, 0));
}

Test(token_anchor, in_front_of_a_mark_there_may_be_no_full_block)
{
    struct token_naming naming = naming_of(4);
    struct token_anchor anchor;

    naming.layout = (struct tool_layout){TOOLS_BEHIND_LAST_USER, true, 42};
    cr_assert(
        eq(int,
           read_text(token_anchor_read_reply, naming, SLICE("{\"tokens\":[5,6,42,8,9]}"), &anchor),
           0));

    cr_assert(eq(u64, anchor.before_tools_block, 0));
    cr_assert(ne(u64, anchor.last_block, 0));
}

Test(token_anchor, another_salt_or_lora_is_another_name)
{
    const uint8_t *secret = prompt_world_config().secret;
    struct token_naming naming = naming_of(2);
    struct token_anchor plain, salted, adapted;

    cr_assert(eq(int, read_reply(2, "{\"tokens\":[5,6]}", &plain), 0));
    naming.root = token_name_root(secret, NULL, 0, "tenant", 6);
    cr_assert(eq(
        int, read_text(token_anchor_read_reply, naming, SLICE("{\"tokens\":[5,6]}"), &salted), 0));
    naming.root = token_name_root(secret, "tenant", 6, NULL, 0);
    cr_assert(eq(
        int, read_text(token_anchor_read_reply, naming, SLICE("{\"tokens\":[5,6]}"), &adapted), 0));

    cr_assert(ne(u64, plain.last_block, salted.last_block));
    cr_assert(ne(u64, plain.last_block, adapted.last_block));
    cr_assert(ne(u64, salted.last_block, adapted.last_block));
}

Test(token_anchor, what_makes_no_sense_is_refused)
{
    static const char *const replies[] = {
        "",
        "[]",
        "{\"count\":3}",
        "{\"count\":3,\"tokens\":null}",
        "{\"count\":3,\"tokens\":\"5,6,7\"}",
        "{\"count\":2,\"tokens\":[5,6,7]}",
        "{\"count\":\"3\",\"tokens\":[5,6,7]}",
        "{\"count\":3,\"tokens\":[5,6,-7]}",
        "{\"count\":3,\"tokens\":[5,6,7.5]}",
        "{\"count\":3,\"tokens\":[5,6,4294967296]}",
        "{\"count\":3,\"tokens\":[5,6,[7]]}",
        "{\"count\":3,\"tokens\":[5,6,7]",
        "{\"error\":{\"message\":\"no\"}}",
        "[{\"token_ids\":[5]},{\"token_ids\":[6]}]",
        "{\"token_ids\":7}",
    };
    struct token_anchor anchor;

    for (size_t i = 0; i < array_count(replies); i++)
        cr_assert(eq(int, read_reply(2, replies[i], &anchor), -EPROTO), "%s", replies[i]);
}

static struct token_anchor read_recording(const char *name)
{
    struct json_scanner *scanner = json_scanner_create();
    struct token_naming naming = naming_of(16);
    struct token_anchor anchor;
    struct buf body;

    recording_read(&body, TESTS_DIR "/fixtures/vllm-0.32.0/http", name);
    cr_assert(eq(int, token_anchor_read_reply(&naming, scanner, buf_slice(&body), &anchor), 0),
              "%s", name);
    buf_release(&body);
    json_scanner_destroy(scanner);
    return anchor;
}

Test(token_anchor, a_recorded_engine_is_understood)
{
    struct token_anchor prompt = read_recording("tokenize-prompt.resp");
    struct token_anchor chat = read_recording("tokenize-chat.resp");
    struct token_anchor open = read_recording("tokenize-chat-no-generation-prompt.resp");

    cr_assert(eq(u32, prompt.token_count, 11));
    cr_assert(eq(u64, prompt.last_block, 0));
    cr_assert(ne(u64, chat.last_block, 0));
    cr_assert(eq(u32, chat.token_count - open.token_count, 4)); /* <|im_start|>assistant\n */
}

Test(token_anchor, more_tokens_than_the_map_can_say_are_refused)
{
    size_t len = 32 + 2 * ((size_t)TOKEN_ANCHOR_COUNT_MAX + 1), at;
    char *text = calloc(1, len + JSON_PADDING);
    struct token_anchor anchor;

    at = (size_t)snprintf(text, len, "{\"tokens\":[1");
    for (uint32_t i = 0; i < TOKEN_ANCHOR_COUNT_MAX; i++) {
        text[at++] = ',';
        text[at++] = '1';
    }
    memcpy(text + at, "]}", 2);

    cr_assert(eq(int,
                 read_text(token_anchor_read_reply, naming_of(16), slice_of(text, at + 2), &anchor),
                 -E2BIG));
    free(text);
}
