/* SPDX-License-Identifier: Apache-2.0 */

#include "router/prompt/tool_survey.h"
#include "tests/support/leak_check.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* A template of bytes as tokens. */
enum habit {
    HABIT_PLAIN,       /* tools in front */
    HABIT_BEHIND_LEAD, /* behind an instruction of the template's own, with a date */
    HABIT_FIRST_USER,  /* in the first user message, behind its text */
    HABIT_NO_TOOLS,    /* not printed */
    HABIT_BEFORE,      /* in front of the last user message */
    HABIT_WITHIN,      /* in it, in front of its text */
    HABIT_BEHIND,      /* in it, behind its text */
    HABIT_BEHIND_END,  /* behind its end */
    HABIT_COUNT
};

static const enum tool_place places[] = {
    [HABIT_PLAIN] = TOOLS_FIRST,
    [HABIT_BEHIND_LEAD] = TOOLS_FIRST,
    [HABIT_FIRST_USER] = TOOLS_FIRST,
    [HABIT_NO_TOOLS] = TOOLS_FIRST,
    [HABIT_BEFORE] = TOOLS_BEFORE_LAST_USER,
    [HABIT_WITHIN] = TOOLS_BEFORE_LAST_USER,
    [HABIT_BEHIND] = TOOLS_BEHIND_LAST_USER,
    [HABIT_BEHIND_END] = TOOLS_BEHIND_LAST_USER,
};
_Static_assert(array_count(places) == HABIT_COUNT, "every habit has a place");

static struct slice tools_text = SLICE("{measure}"); /* a test's own: each is a process */

static void put(struct buf *text, struct slice more)
{
    cr_assert(eq(int, buf_append(text, more), 0));
}

/* The mark where habit has the tools at this stage of a user message. */
static void put_tools(struct buf *text, enum habit habit, enum habit stage, bool has_tools)
{
    if (has_tools && habit == stage)
        put(text, tools_text);
}

static void put_user(struct buf *text, enum habit habit, struct slice content, bool has_tools)
{
    put_tools(text, habit, HABIT_BEFORE, has_tools);
    put(text, SLICE("<user>"));
    put_tools(text, habit, HABIT_WITHIN, has_tools);
    put(text, content);
    put_tools(text, habit, HABIT_BEHIND, has_tools);
    put(text, SLICE("<end>"));
    put_tools(text, habit, HABIT_BEHIND_END, has_tools);
}

static void render(enum habit habit, struct json_value root, struct buf *text)
{
    struct json_value messages = json_get(root, "messages"), message;
    const bool has_tools = json_type(json_get(root, "tools")) == JSON_ARRAY;
    struct json_iterator elements = json_iterate(messages);
    const size_t count = json_count(messages);

    if (habit == HABIT_BEHIND_LEAD)
        put(text, SLICE("<system>Today is Monday.<end>"));
    if (habit == HABIT_PLAIN || habit == HABIT_BEHIND_LEAD)
        put(text, has_tools ? tools_text : SLICE(""));
    for (size_t i = 0; json_next_element(&elements, &message); i++) {
        struct slice content = json_string(json_get(message, "content"));

        if (slice_eq(json_string(json_get(message, "role")), SLICE("user"))) {
            put_user(text, habit == HABIT_FIRST_USER ? HABIT_BEHIND : habit, content,
                     has_tools && (habit == HABIT_FIRST_USER ? i == 0 : i + 1 == count));
        } else {
            put(text, SLICE("<assistant>"));
            put(text, content);
            put(text, SLICE("<end>"));
        }
    }
    put(text, SLICE("<assistant>"));
}

/* What an engine of that habit replies to a question. */
static void reply(enum habit habit, struct json_scanner *scanner, struct buf *body, struct buf *out)
{
    struct parse_error error;
    struct json_value root;
    struct buf text;

    buf_init(&text, 1 << 20);
    cr_assert(eq(int, json_scan(scanner, buf_slice(body), &root, &error), 0));
    render(habit, root, &text);
    put(out, SLICE("{\"count\":1,\"tokens\":["));
    for (size_t i = 0; i < buf_len(&text); i++)
        cr_assert(eq(int,
                     buf_printf(out, "%s%u", i > 0 ? "," : "",
                                (unsigned)(unsigned char)buf_slice(&text).ptr[i]),
                     0));
    put(out, SLICE("]}"));
    buf_release(&text);
}

static struct tool_layout survey_of(enum habit habit)
{
    struct tool_survey *survey = calloc(1, sizeof *survey);
    struct json_scanner *scanner = json_scanner_create();
    struct tool_layout layout;

    for (unsigned i = 0; i < TOOL_SURVEY_QUESTION_COUNT; i++) {
        struct buf body, out;

        buf_init(&body, 1 << 20);
        buf_init(&out, 1 << 20);
        cr_assert(eq(int, tool_survey_ask(i, SLICE("tiny \"m\""), &body), 0));
        reply(habit, scanner, &body, &out);
        cr_assert(eq(int, tool_survey_read(survey, i, scanner, buf_slice(&out)), 0));
        buf_release(&body);
        buf_release(&out);
    }
    layout = tool_survey_conclude(survey);
    json_scanner_destroy(scanner);
    free(survey);
    return layout;
}

TestSuite(tool_survey, .fini = leak_check);

Test(tool_survey, finds_the_place_of_every_habit)
{
    for (enum habit habit = 0; habit < HABIT_COUNT; habit++)
        cr_assert(eq(int, survey_of(habit).place, places[habit]), "habit %d", (int)habit);
}

/* Tokens are bytes here: a brace is in nothing but the tools, a bracket is everywhere. */
Test(tool_survey, late_tools_are_known_by_a_token_that_is_nowhere_else)
{
    for (enum habit habit = 0; habit < HABIT_COUNT; habit++) {
        struct tool_layout layout = survey_of(habit);

        cr_assert(eq(int, layout.has_mark, places[habit] != TOOLS_FIRST), "habit %d", (int)habit);
        cr_assert(eq(u32, layout.has_mark ? layout.mark : '{', '{'));
    }
    tools_text = SLICE("<tools>");
    cr_assert(eq(int, survey_of(HABIT_BEFORE).place, TOOLS_BEFORE_LAST_USER));
    cr_assert(not(survey_of(HABIT_BEFORE).has_mark));
}

Test(tool_survey, what_is_no_list_of_tokens_is_refused)
{
    static const char *const replies[] = {
        "",
        "{}",
        "[1,2]",
        "{\"tokens\":7}",
        "{\"tokens\":[]}",
        "{\"tokens\":[1,-1]}",
        "{\"tokens\":[4294967296]}",
        "{\"tokens\":[1.5]}",
        "{\"tokens\":[\"a\"]}",
        "{\"tokens\":[1",
    };
    struct tool_survey *survey = calloc(1, sizeof *survey);
    struct json_scanner *scanner = json_scanner_create();

    for (size_t i = 0; i < array_count(replies); i++) {
        char text[64 + JSON_PADDING] = "";

        memcpy(text, replies[i], strlen(replies[i]));
        cr_assert(eq(int, tool_survey_read(survey, 0, scanner, slice_of(text, strlen(replies[i]))),
                     -EPROTO),
                  "%s", replies[i]);
    }
    json_scanner_destroy(scanner);
    free(survey);
}

Test(tool_survey, a_reply_longer_than_a_short_chat_can_be_is_refused)
{
    struct tool_survey *survey = calloc(1, sizeof *survey);
    struct json_scanner *scanner = json_scanner_create();
    struct buf text;

    buf_init(&text, 1 << 20);
    put(&text, SLICE("{\"tokens\":[1"));
    for (int i = 1; i < TOOL_SURVEY_TOKENS_MAX; i++)
        put(&text, SLICE(",1"));
    put(&text, SLICE("]}"));
    cr_assert(eq(int, tool_survey_read(survey, 0, scanner, buf_slice(&text)), 0));

    buf_clear(&text);
    put(&text, SLICE("{\"tokens\":[1"));
    for (int i = 0; i < TOOL_SURVEY_TOKENS_MAX; i++)
        put(&text, SLICE(",1"));
    put(&text, SLICE("]}"));

    cr_assert(eq(int, tool_survey_read(survey, 0, scanner, buf_slice(&text)), -EPROTO));
    buf_release(&text);
    json_scanner_destroy(scanner);
    free(survey);
}
