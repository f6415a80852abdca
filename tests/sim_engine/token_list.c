/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/token_list.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { TOKEN_LIST_CAPACITY_MIN = 64 };

static void reserve(struct token_list *list, size_t more)
{
    size_t needed = list->count + more;
    size_t capacity = list->capacity > 0 ? list->capacity : TOKEN_LIST_CAPACITY_MIN;

    if (needed <= list->capacity)
        return;
    while (capacity < needed)
        capacity *= 2;
    list->ids = realloc(list->ids, capacity * sizeof *list->ids);
    assert(list->ids != NULL);
    list->capacity = capacity;
}

void token_list_append(struct token_list *list, uint32_t id)
{
    reserve(list, 1);
    list->ids[list->count++] = id;
}

void token_list_append_all(struct token_list *list, const uint32_t *ids, size_t count)
{
    if (count == 0)
        return;
    reserve(list, count);
    memcpy(list->ids + list->count, ids, count * sizeof *ids);
    list->count += count;
}

void token_list_keep_last(struct token_list *list, size_t count)
{
    if (count >= list->count)
        return;
    memmove(list->ids, list->ids + list->count - count, count * sizeof *list->ids);
    list->count = count;
}

void token_list_release(struct token_list *list)
{
    free(list->ids);
    *list = (struct token_list){0};
}
