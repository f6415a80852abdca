/* SPDX-License-Identifier: Apache-2.0 */

/*
 * tool_survey: finds out where a model's template prints the tools, from what an engine makes of
 * four short chats. It writes the questions, reads the replies and draws the conclusion; who asks:
 * place_asker. Pure; any thread.
 */
#ifndef ROUTER_PROMPT_TOOL_SURVEY_H
#define ROUTER_PROMPT_TOOL_SURVEY_H

#include <stdint.h>

#include "backends/json/json_scan.h"
#include "backends/runtime/buf.h"
#include "backends/runtime/must_check.h"
#include "backends/runtime/slice.h"
#include "router/prompt/tool_place.h"

enum {
    TOOL_SURVEY_QUESTION_COUNT = 4,
    TOOL_SURVEY_TOKENS_MAX = 8192, /* of a reply; a template that says more is not understood */
};

struct tool_survey { /* all zero: nothing was read yet */
    uint32_t counts[TOOL_SURVEY_QUESTION_COUNT];
    uint32_t ids[TOOL_SURVEY_QUESTION_COUNT][TOOL_SURVEY_TOKENS_MAX];
};

/* Appends the body of a question to /tokenize. -ENOMEM, -ENOBUFS as buf_append(). */
MUST_CHECK int tool_survey_ask(unsigned question, struct slice model, struct buf *body);

/* Takes the reply to it; text has JSON_PADDING readable bytes behind it. -EPROTO: it is none, or
 * too long; -ENOMEM. The scanner is left with bounded memory. */
MUST_CHECK int tool_survey_read(struct tool_survey *survey, unsigned question,
                                struct json_scanner *scanner, struct slice text);

/* When all were read. */
struct tool_layout tool_survey_conclude(const struct tool_survey *survey);

#endif
