/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/chat_template.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>

#include "tests/sim_engine/tokenizer.h"
#include "tests/support/leak_check.h"

#define SYSTEM "{\"role\":\"system\",\"content\":\"You know tea.\"}"
#define USER   "{\"role\":\"user\",\"content\":\"Where is the samovar?\"}"
#define THOUGHT                                                                                    \
    "{\"role\":\"assistant\",\"reasoning_content\":\"Tables hold things.\","                       \
    "\"content\":\" On the table.\"}"
#define AGAIN "{\"role\":\"user\",\"content\":\"Is it hot?\"}"
#define TOOLS "[{\"type\":\"function\",\"function\":{\"name\":\"get_tea\"}}]"

/* The ids of messages and tools (JSON texts; tools may be NULL) under a habit. */
static struct token_list render(enum chat_habit habit, const char *messages, const char *tools)
{
    struct chat_template chat_template = {.habit = habit, .date = SLICE("2026-11-29")};
    struct json_scanner *scanner = json_scanner_create();
    struct json_scanner *tools_scanner = json_scanner_create();
    struct chat_input input = {.add_generation_prompt = true};
    struct token_list ids = {0};
    struct parse_error error;

    cr_assert(
        eq(int, json_scan_copy(scanner, slice_of_string(messages), &input.messages, &error), 0));
    if (tools != NULL)
        cr_assert(eq(
            int, json_scan_copy(tools_scanner, slice_of_string(tools), &input.tools, &error), 0));
    chat_template_render(&chat_template, input, &ids);
    json_scanner_destroy(scanner);
    json_scanner_destroy(tools_scanner);
    return ids;
}

static size_t shared_count(const struct token_list *a, const struct token_list *b)
{
    size_t count = 0;

    while (count < a->count && count < b->count && a->ids[count] == b->ids[count])
        count++;
    return count;
}

static size_t count_of(const struct token_list *ids, uint32_t id)
{
    size_t count = 0;

    for (size_t i = 0; i < ids->count; i++)
        count += ids->ids[i] == id;
    return count;
}

TestSuite(chat_template, .fini = leak_check);

Test(chat_template, names_of_habits_are_read_back)
{
    enum chat_habit habit;

    for (int i = 0; i < CHAT_HABIT_COUNT; i++) {
        struct slice name = slice_of_string(chat_habit_name((enum chat_habit)i));

        cr_assert(eq(int, chat_habit_parse(name, &habit), 0));
        cr_assert(eq(int, habit, i));
    }
    cr_assert(eq(int, chat_habit_parse(SLICE("fancy"), &habit), -EINVAL));
}

Test(chat_template, plain_makes_a_turn_and_its_answer_a_prefix_of_the_next_turn)
{
    struct token_list turn = render(CHAT_PLAIN, "[" SYSTEM "," USER "]", TOOLS);
    struct token_list next =
        render(CHAT_PLAIN, "[" SYSTEM "," USER "," THOUGHT "," AGAIN "]", TOOLS);

    cr_assert(eq(sz, shared_count(&turn, &next), turn.count));
    cr_assert(eq(u32, turn.ids[turn.count - 1], TOKEN_ASSISTANT));
    cr_assert(eq(u32, next.ids[turn.count], TOKEN_THINK_BEGIN));
    token_list_release(&turn);
    token_list_release(&next);
}

Test(chat_template, drop_reasoning_keeps_it_only_behind_the_last_user_message)
{
    struct token_list last = render(CHAT_DROP_REASONING, "[" SYSTEM "," USER "," THOUGHT "]", NULL);
    struct token_list earlier =
        render(CHAT_DROP_REASONING, "[" SYSTEM "," USER "," THOUGHT "," AGAIN "]", NULL);

    cr_assert(eq(sz, count_of(&last, TOKEN_THINK_BEGIN), 1));
    cr_assert(eq(sz, count_of(&earlier, TOKEN_THINK_BEGIN), 0));
    token_list_release(&last);
    token_list_release(&earlier);
}

Test(chat_template, tools_late_parts_the_turns_where_the_last_user_message_was)
{
    struct token_list turn = render(CHAT_TOOLS_LATE, "[" SYSTEM "," USER "]", TOOLS);
    struct token_list next =
        render(CHAT_TOOLS_LATE, "[" SYSTEM "," USER "," THOUGHT "," AGAIN "]", TOOLS);
    struct token_list bare = render(CHAT_TOOLS_LATE, "[" SYSTEM "]", NULL);

    cr_assert(eq(sz, count_of(&turn, TOKEN_TOOLS_BEGIN), 1));
    cr_assert(eq(sz, count_of(&next, TOKEN_TOOLS_BEGIN), 1));
    cr_assert(lt(sz, shared_count(&turn, &next), turn.count - 2));
    cr_assert(gt(sz, shared_count(&turn, &next), bare.count - 2)); /* generation prompt: 2 */
    token_list_release(&turn);
    token_list_release(&next);
    token_list_release(&bare);
}

Test(chat_template, dated_begins_with_the_date_and_changes_with_it)
{
    struct token_list plain = render(CHAT_PLAIN, "[" SYSTEM "," USER "]", NULL);
    struct token_list dated = render(CHAT_DATED, "[" SYSTEM "," USER "]", NULL);

    cr_assert(eq(sz, shared_count(&plain, &dated), 2)); /* turn and role */
    cr_assert(gt(sz, dated.count, plain.count));
    token_list_release(&plain);
    token_list_release(&dated);
}

Test(chat_template, text_parts_are_text_and_another_image_is_another_prompt)
{
    struct token_list text = render(CHAT_PLAIN, "[" USER "]", NULL);
    struct token_list part = render(CHAT_PLAIN,
                                    "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":"
                                    "\"Where is the samovar?\"}]}]",
                                    NULL);
    struct token_list one = render(CHAT_PLAIN,
                                   "[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\","
                                   "\"image_url\":{\"url\":\"a\"}}]}]",
                                   NULL);
    struct token_list other = render(CHAT_PLAIN,
                                     "[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\","
                                     "\"image_url\":{\"url\":\"b\"}}]}]",
                                     NULL);

    cr_assert(eq(sz, shared_count(&text, &part), text.count));
    cr_assert(eq(sz, text.count, part.count));
    cr_assert(eq(sz, one.count, other.count));
    cr_assert(lt(sz, shared_count(&one, &other), 4));
    token_list_release(&text);
    token_list_release(&part);
    token_list_release(&one);
    token_list_release(&other);
}
