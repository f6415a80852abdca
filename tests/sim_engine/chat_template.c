/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/chat_template.h"

#include <errno.h>

#include "backends/runtime/buf.h"
#include "tests/sim_engine/json_text.h"
#include "tests/sim_engine/tokenizer.h"

/*
 * DESIGN
 *
 *   [BEGIN role date? text? tools? END] ... [BEGIN assistant think? text calls END] [BEGIN
 * assistant
 *
 * Marks are ids that no text can give, so a user cannot write a turn of his own. An answer that is
 * sent back gives the tokens it was made of, mark by mark: that is what lets an engine find its own
 * answers in its cache.
 */

enum { IMAGE_TOKEN_COUNT = 64, TEXT_BYTES_MAX = 1 << 30 };

static const char *const habit_names[] = {
    [CHAT_PLAIN] = "plain",
    [CHAT_DROP_REASONING] = "drop_reasoning",
    [CHAT_TOOLS_LATE] = "tools_late",
    [CHAT_DATED] = "dated",
};
_Static_assert(array_count(habit_names) == CHAT_HABIT_COUNT, "every habit has a name");

int chat_habit_parse(struct slice name, enum chat_habit *habit)
{
    for (int i = 0; i < CHAT_HABIT_COUNT; i++) {
        if (slice_eq(name, slice_of_string(habit_names[i]))) {
            *habit = (enum chat_habit)i;
            return 0;
        }
    }
    return -EINVAL;
}

const char *chat_habit_name(enum chat_habit habit)
{
    return habit_names[habit];
}

static void render_role(struct slice role, struct token_list *ids)
{
    static const struct {
        struct slice name;
        uint32_t mark;
    } marks[] = {
        {SLICE("system"), TOKEN_SYSTEM}, {SLICE("developer"), TOKEN_SYSTEM},
        {SLICE("user"), TOKEN_USER},     {SLICE("assistant"), TOKEN_ASSISTANT},
        {SLICE("tool"), TOKEN_TOOL},
    };

    for (size_t i = 0; i < array_count(marks); i++) {
        if (slice_eq(role, marks[i].name)) {
            token_list_append(ids, marks[i].mark);
            return;
        }
    }
    tokenizer_encode(role, ids);
}

/* value as JSON text in tokens. */
static void render_json(struct json_value value, struct token_list *ids)
{
    struct buf text;

    buf_init(&text, TEXT_BYTES_MAX);
    json_put_value(&text, value);
    tokenizer_encode(buf_slice(&text), ids);
    buf_release(&text);
}

/* Each image its own run of ids, so that another image is another prefix. */
static void render_image(struct json_value part, struct token_list *ids)
{
    struct buf text;
    uint32_t seed;

    buf_init(&text, TEXT_BYTES_MAX);
    json_put_value(&text, part);
    seed = tokenizer_piece_id(buf_slice(&text));
    buf_release(&text);
    for (uint32_t i = 0; i < IMAGE_TOKEN_COUNT; i++)
        token_list_append(ids, i % 2 == 0 ? TOKEN_IMAGE : seed);
}

static void render_content(struct json_value content, struct token_list *ids)
{
    struct json_iterator iterator = json_iterate(content);
    struct json_value part;

    if (json_type(content) == JSON_STRING) {
        tokenizer_encode(json_string(content), ids);
        return;
    }
    if (json_type(content) != JSON_ARRAY)
        return;
    while (json_next_element(&iterator, &part)) {
        if (slice_eq(json_string(json_get(part, "type")), SLICE("text")))
            tokenizer_encode(json_string(json_get(part, "text")), ids);
        else
            render_image(part, ids);
    }
}

static void render_reasoning(struct json_value message, struct token_list *ids)
{
    struct json_value reasoning = json_get(message, "reasoning");

    if (json_type(reasoning) != JSON_STRING)
        reasoning = json_get(message, "reasoning_content");
    if (json_type(reasoning) != JSON_STRING || json_string(reasoning).len == 0)
        return;
    token_list_append(ids, TOKEN_THINK_BEGIN);
    tokenizer_encode(json_string(reasoning), ids);
    token_list_append(ids, TOKEN_THINK_END);
}

static void render_tool_calls(struct json_value message, struct token_list *ids)
{
    struct json_iterator iterator = json_iterate(json_get(message, "tool_calls"));
    struct json_value call;

    while (json_next_element(&iterator, &call)) {
        struct json_value function = json_get(call, "function");

        token_list_append(ids, TOKEN_TOOL_CALL);
        tokenizer_encode(json_string(json_get(function, "name")), ids);
        tokenizer_encode(json_string(json_get(function, "arguments")), ids);
    }
}

static void render_tools(struct json_value tools, struct token_list *ids)
{
    struct json_iterator iterator = json_iterate(tools);
    struct json_value tool;

    if (json_count(tools) == 0)
        return;
    token_list_append(ids, TOKEN_TOOLS_BEGIN);
    while (json_next_element(&iterator, &tool))
        render_json(tool, ids);
    token_list_append(ids, TOKEN_TOOLS_END);
}

static bool has_role(struct json_value message, struct slice role)
{
    return slice_eq(json_string(json_get(message, "role")), role);
}

/* SIZE_MAX: there is none. */
static size_t last_user_index(struct json_value messages)
{
    struct json_iterator iterator = json_iterate(messages);
    struct json_value message;
    size_t last = SIZE_MAX;

    for (size_t i = 0; json_next_element(&iterator, &message); i++) {
        if (has_role(message, SLICE("user")))
            last = i;
    }
    return last;
}

/* Where the tools are rendered: right behind the content of this message. */
static size_t tools_index(const struct chat_template *chat_template, size_t last_user)
{
    return chat_template->habit == CHAT_TOOLS_LATE && last_user != SIZE_MAX ? last_user : 0;
}

void chat_template_render(const struct chat_template *chat_template, struct chat_input input,
                          struct token_list *ids)
{
    struct json_iterator iterator = json_iterate(input.messages);
    struct json_value message;
    size_t last_user = last_user_index(input.messages);

    for (size_t i = 0; json_next_element(&iterator, &message); i++) {
        bool drops_reasoning =
            chat_template->habit == CHAT_DROP_REASONING && last_user != SIZE_MAX && i < last_user;

        token_list_append(ids, TOKEN_TURN_BEGIN);
        render_role(json_string(json_get(message, "role")), ids);
        if (i == 0 && chat_template->habit == CHAT_DATED)
            tokenizer_encode(chat_template->date, ids);
        if (!drops_reasoning)
            render_reasoning(message, ids);
        render_content(json_get(message, "content"), ids);
        render_tool_calls(message, ids);
        if (i == tools_index(chat_template, last_user))
            render_tools(input.tools, ids);
        token_list_append(ids, TOKEN_TURN_END);
    }
    if (input.add_generation_prompt) {
        token_list_append(ids, TOKEN_TURN_BEGIN);
        token_list_append(ids, TOKEN_ASSISTANT);
        if (input.skips_thinking) {
            token_list_append(ids, TOKEN_THINK_BEGIN);
            token_list_append(ids, TOKEN_THINK_END);
        }
    }
}
