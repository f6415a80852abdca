/* SPDX-License-Identifier: Apache-2.0 */

#include "router/join/tail_table.h"

#include <assert.h>

bool tail_table_find(const struct tail_table *table, uint64_t name, uint64_t now_ms,
                     uint32_t *tokens)
{
    const struct tail *tail = &table->tails[name % TAIL_TABLE_COUNT];

    assert(name != 0);

    if (tail->name != name || now_ms - tail->found_ms > TAIL_TABLE_MS_MAX)
        return false;
    *tokens = tail->tokens;
    return true;
}

void tail_table_set(struct tail_table *table, uint64_t name, uint32_t tokens, uint64_t now_ms)
{
    assert(name != 0);
    assert(tokens <= TAIL_TOKENS_MAX);

    table->tails[name % TAIL_TABLE_COUNT] = (struct tail){name, now_ms, tokens};
}
