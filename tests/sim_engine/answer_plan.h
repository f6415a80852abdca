/* SPDX-License-Identifier: Apache-2.0 */

/*
 * answer_plan: what the model will say, known before it begins: pseudo-words, or a call of a tool
 * with arguments that fit its schema. The same seed always gives the same answer, and an answer
 * that is sent back tokenises to the ids it was made of, unless it is wished otherwise. Pure.
 */
#ifndef TESTS_SIM_ENGINE_ANSWER_PLAN_H
#define TESTS_SIM_ENGINE_ANSWER_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "backends/json/json_scan.h"
#include "backends/runtime/buf.h"
#include "backends/runtime/slice.h"
#include "tests/sim_engine/token_list.h"

struct answer_wish {
    uint64_t seed;          /* of everything that decides: engine seed, prompt, choice */
    size_t token_count;     /* as many as asked for; a tool call may end earlier */
    bool splits_word;       /* two tokens make one word of the talk: its text tokenises otherwise */
    bool thinks_first;      /* a quarter of the tokens are reasoning, between marks of their own */
    struct json_value tool; /* the tool to call, an element of tools; JSON_NONE: just talk */
};

enum answer_piece_kind {
    ANSWER_SILENT, /* a mark, or part of a tool's name: nothing to show yet */
    ANSWER_CONTENT,
    ANSWER_REASONING,
    ANSWER_TOOL_NAME,      /* the whole name at once */
    ANSWER_TOOL_ARGUMENTS, /* a piece of JSON text */
};

/* What one token shows. */
struct answer_piece {
    enum answer_piece_kind kind;
    struct slice text;
    uint32_t id;
};

struct answer_plan {
    struct token_list ids;
    struct buf text;
    size_t *ends;           /* in text, one an id: just past what it stands for */
    size_t reasoning_count; /* leading ids, marks included */
    size_t name_count;      /* of a tool call: leading ids, mark included; 0: no tool call */
};

/* Fills plan, which has at least one token. */
void answer_plan_init(struct answer_plan *plan, const struct answer_wish *wish);

struct answer_piece answer_plan_piece(const struct answer_plan *plan, size_t index);

/* What ids [0, count) say in that kind. Pieces of one kind are next to each other. */
struct slice answer_plan_text(const struct answer_plan *plan, enum answer_piece_kind kind,
                              size_t count);

/* Every letter that ids [first, ...) say becomes an X: an answer to something else than was asked.
 */
void answer_plan_spoil(struct answer_plan *plan, size_t first);

bool answer_plan_is_tool_call(const struct answer_plan *plan);

void answer_plan_release(struct answer_plan *plan);

#endif
