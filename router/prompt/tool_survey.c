/* SPDX-License-Identifier: Apache-2.0 */

#include "router/prompt/tool_survey.h"

#include <assert.h>
#include <errno.h>

#include "backends/json/json_write.h"

/*
 * DESIGN
 *
 *   TURN   user river, assistant nile, user hill                          with a tool
 *   NEXT   user river, assistant nile, user hill, assistant peak, user thanks   with it
 *   BARE   user river, assistant nile, user hill                          without
 *   OTHER  user river, assistant nile, user lake                          without
 *
 * TURN parts from BARE where its tools begin. If NEXT goes on from TURN, as of most templates, it
 * shares more with it than that: the tools, and what follows. If NEXT has its tools further behind,
 * it is bare where TURN has them, and parts from it in the same place: they are late. They are
 * before the last user message if they begin no later than its text does, which is where BARE and
 * OTHER part, else behind it.
 *
 * Nothing is counted or guessed from lengths, so it does not matter what else a template prints,
 * such as a date or instructions of its own. Nor does it matter much that a mark could be wrong: a
 * user who writes one moves a text's place, until the next prompt corrects it. A template
 * that shows no tools at all has them nowhere, which is as good as in front.
 */
enum { QUESTION_TURN, QUESTION_NEXT, QUESTION_BARE, QUESTION_OTHER };

#define BEGIN                                                                                      \
    "\"messages\":[{\"role\":\"user\",\"content\":\"Which river is the longest?\"},"               \
    "{\"role\":\"assistant\",\"content\":\"The Nile is.\"},"
#define HILL "{\"role\":\"user\",\"content\":\"And which hill is the highest of them all?\"}"
#define MORE                                                                                       \
    ",{\"role\":\"assistant\",\"content\":\"Everest is.\"},"                                       \
    "{\"role\":\"user\",\"content\":\"Thank you very much.\"}"
#define LAKE "{\"role\":\"user\",\"content\":\"Name a deep lake.\"}"
#define TOOL                                                                                       \
    ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"measure\",\"description\":"       \
    "\"Measures a thing.\",\"parameters\":{\"type\":\"object\",\"properties\":{\"thing\":"         \
    "{\"type\":\"string\"}}}}}]"

static const struct slice questions[] = {
    [QUESTION_TURN] = SLICE(BEGIN HILL "]" TOOL),
    [QUESTION_NEXT] = SLICE(BEGIN HILL MORE "]" TOOL),
    [QUESTION_BARE] = SLICE(BEGIN HILL "]"),
    [QUESTION_OTHER] = SLICE(BEGIN LAKE "]"),
};
_Static_assert(array_count(questions) == TOOL_SURVEY_QUESTION_COUNT, "every question has a text");

int tool_survey_ask(unsigned question, struct slice model, struct buf *body)
{
    int status;

    assert(question < TOOL_SURVEY_QUESTION_COUNT);

    if ((status = buf_append(body, SLICE("{\"model\":"))) < 0 ||
        (status = json_write_string(body, model)) < 0 ||
        (status = buf_append(body, SLICE(","))) < 0 ||
        (status = buf_append(body, questions[question])) < 0)
        return status;
    return buf_append(body, SLICE("}"));
}

static int read_ids(struct tool_survey *survey, unsigned question, struct json_value ids)
{
    struct json_iterator elements = json_iterate(ids);
    struct json_value element;
    uint32_t count = 0;

    if (json_type(ids) != JSON_ARRAY || json_count(ids) > TOOL_SURVEY_TOKENS_MAX)
        return -EPROTO;
    while (json_next_element(&elements, &element)) {
        const int64_t id = json_int64(element);

        if (json_type(element) != JSON_INT64 || id < 0 || id > UINT32_MAX)
            return -EPROTO;
        survey->ids[question][count++] = (uint32_t)id;
    }
    survey->counts[question] = count;
    return count > 0 ? 0 : -EPROTO;
}

int tool_survey_read(struct tool_survey *survey, unsigned question, struct json_scanner *scanner,
                     struct slice text)
{
    struct parse_error error;
    struct json_value root;
    int status;

    assert(question < TOOL_SURVEY_QUESTION_COUNT);

    status = json_scan(scanner, text, &root, &error);
    if (status == 0)
        status = read_ids(survey, question, json_get(root, "tokens"));
    json_scanner_trim(scanner);
    return status == -EINVAL ? -EPROTO : status;
}

static uint32_t shared_count(const struct tool_survey *survey, unsigned a, unsigned b)
{
    uint32_t count = 0;

    while (count < survey->counts[a] && count < survey->counts[b] &&
           survey->ids[a][count] == survey->ids[b][count])
        count++;
    return count;
}

static uint32_t count_of(const struct tool_survey *survey, unsigned question, uint32_t id)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < survey->counts[question]; i++)
        count += survey->ids[question][i] == id;
    return count;
}

/* The first token of tools that begin there; it is a mark if it stands only there. */
static void find_mark(const struct tool_survey *survey, uint32_t tools_begin,
                      struct tool_layout *layout)
{
    if (tools_begin == survey->counts[QUESTION_TURN])
        return;
    layout->mark = survey->ids[QUESTION_TURN][tools_begin];
    layout->has_mark = count_of(survey, QUESTION_TURN, layout->mark) == 1 &&
                       count_of(survey, QUESTION_NEXT, layout->mark) == 1 &&
                       count_of(survey, QUESTION_BARE, layout->mark) == 0;
}

struct tool_layout tool_survey_conclude(const struct tool_survey *survey)
{
    const uint32_t tools_begin = shared_count(survey, QUESTION_TURN, QUESTION_BARE);
    const bool are_shown =
        tools_begin < survey->counts[QUESTION_TURN] || tools_begin < survey->counts[QUESTION_BARE];
    struct tool_layout layout = {.place = TOOLS_FIRST};

    if (!are_shown || shared_count(survey, QUESTION_TURN, QUESTION_NEXT) > tools_begin)
        return layout;
    layout.place = tools_begin <= shared_count(survey, QUESTION_BARE, QUESTION_OTHER)
                       ? TOOLS_BEFORE_LAST_USER
                       : TOOLS_BEHIND_LAST_USER;
    find_mark(survey, tools_begin, &layout);
    return layout;
}
