/* SPDX-License-Identifier: Apache-2.0 */

/*
 * tokenizer: text -> token ids, about four bytes a token. It has no vocabulary file: a piece of
 * text always has the same id, and a prefix that ends where a piece ends has a prefix of the ids.
 * Nothing outside the simulated engine may know how it cuts: routers are to work without. Pure.
 */
#ifndef TESTS_SIM_ENGINE_TOKENIZER_H
#define TESTS_SIM_ENGINE_TOKENIZER_H

#include <stdint.h>

#include "backends/runtime/slice.h"
#include "tests/sim_engine/token_list.h"

enum {
    TOKENIZER_VOCABULARY = 32768,
    TOKENIZER_SPECIAL_COUNT = 16, /* ids below are marks that no text gives: enum token_mark */
    TOKENIZER_PIECE_BYTES_MAX = 6 /* more only to finish one UTF-8 character */
};

enum token_mark {
    TOKEN_TURN_BEGIN = 1,
    TOKEN_TURN_END,
    TOKEN_SYSTEM,
    TOKEN_USER,
    TOKEN_ASSISTANT,
    TOKEN_TOOL,
    TOKEN_TOOLS_BEGIN,
    TOKEN_TOOLS_END,
    TOKEN_TOOL_CALL,
    TOKEN_THINK_BEGIN,
    TOKEN_THINK_END,
    TOKEN_IMAGE,
};

/* The first piece of text, which must not be empty. */
struct slice tokenizer_first_piece(struct slice text);

/* The id of a piece: in [TOKENIZER_SPECIAL_COUNT, TOKENIZER_VOCABULARY). */
uint32_t tokenizer_piece_id(struct slice piece);

/* Appends the ids of text. */
void tokenizer_encode(struct slice text, struct token_list *ids);

#endif
