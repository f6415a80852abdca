/* SPDX-License-Identifier: Apache-2.0 */

/* token_list: a growing array of token ids. Memory that cannot be had ends the program: the ids of
 * one request are bounded by its body. One thread at a time. */
#ifndef TESTS_SIM_ENGINE_TOKEN_LIST_H
#define TESTS_SIM_ENGINE_TOKEN_LIST_H

#include <stddef.h>
#include <stdint.h>

struct token_list {
    uint32_t *ids;
    size_t count;
    size_t capacity;
};

/* The zeroed list is empty and ready. */
void token_list_append(struct token_list *list, uint32_t id);
void token_list_append_all(struct token_list *list, const uint32_t *ids, size_t count);

/* Keeps only the last count ids. */
void token_list_keep_last(struct token_list *list, size_t count);

void token_list_release(struct token_list *list);

#endif
