/* SPDX-License-Identifier: Apache-2.0 */

/*
 * chat_template: the messages and tools of a chat request as the model's prompt in token ids. The
 * habits are those of real templates that make the text of turn N no prefix of turn N+1's tokens.
 * Pure.
 */
#ifndef TESTS_SIM_ENGINE_CHAT_TEMPLATE_H
#define TESTS_SIM_ENGINE_CHAT_TEMPLATE_H

#include <stdbool.h>

#include "backends/json/json_scan.h"
#include "backends/runtime/must_check.h"
#include "backends/runtime/slice.h"
#include "tests/sim_engine/token_list.h"

enum chat_habit {
    CHAT_PLAIN,          /* turn N's prompt and answer are a prefix of turn N+1's prompt */
    CHAT_DROP_REASONING, /* answers think first; reasoning before the last user message is dropped
                          */
    CHAT_TOOLS_LATE,     /* tools come with the last user message instead of the first */
    CHAT_DATED,          /* the system prompt begins with today's date */
    CHAT_HABIT_COUNT
};

struct chat_input {
    struct json_value messages; /* an array */
    struct json_value tools;    /* an array, or JSON_NONE */
    bool add_generation_prompt; /* end with the beginning of the assistant's turn */
    bool skips_thinking;        /* and with a thought that is empty, so that none comes */
};

struct chat_template {
    enum chat_habit habit;
    struct slice date; /* for CHAT_DATED: "2026-11-29" */
};

/* The habit called name. -EINVAL: there is none. */
MUST_CHECK int chat_habit_parse(struct slice name, enum chat_habit *habit);
const char *chat_habit_name(enum chat_habit habit);

/* Appends the prompt to ids. Messages of odd shape count as empty. */
void chat_template_render(const struct chat_template *chat_template, struct chat_input input,
                          struct token_list *ids);

#endif
