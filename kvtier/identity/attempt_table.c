/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/identity/attempt_table.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

/*
 * DESIGN
 *
 * All wait equally long, so the order of arrival is the order of expiry: a ring, with holes where
 * an attempt was joined before its time. A hole is closed when it becomes the oldest.
 */

enum { MAP_BYTES_PER_ENTRY = 48, MAP_BYTES_MIN = 4096 };

int attempt_table_init(struct attempt_table *table, uint32_t count_max, uint32_t wait_ms)
{
    *table = (struct attempt_table){.count_max = count_max, .wait_ms = wait_ms};
    if (count_max == 0 || wait_ms == 0)
        return -EINVAL;
    table->attempts = calloc(count_max, sizeof *table->attempts);
    if (table->attempts == NULL)
        return -ENOMEM;
    block_map_init(&table->by_key, (size_t)count_max * MAP_BYTES_PER_ENTRY + MAP_BYTES_MIN);
    return 0;
}

static struct attempt *at(struct attempt_table *table, uint64_t number)
{
    return &table->attempts[number % table->count_max];
}

void attempt_table_remove(struct attempt_table *table, struct attempt *attempt)
{
    assert(attempt->key != 0);

    block_map_remove(&table->by_key, attempt->key);
    *attempt = (struct attempt){.key = 0};
    while (table->oldest != table->next && at(table, table->oldest)->key == 0)
        table->oldest++;
}

struct attempt *attempt_table_claim(struct attempt_table *table, uint64_t key, uint64_t now_ms)
{
    uint64_t *number = block_map_find(&table->by_key, key);
    struct attempt *attempt;

    if (number != NULL)
        return at(table, *number - 1);
    if (table->next - table->oldest == table->count_max) {
        table->pushed_out++;
        attempt_table_remove(table, at(table, table->oldest));
    }
    number = block_map_claim(&table->by_key, key);
    assert(number != NULL); /* only out of memory at a growth of a small map: bookkeeping dies */
    *number = table->next + 1;
    attempt = at(table, table->next++);
    *attempt = (struct attempt){.key = key, .due_ms = now_ms + table->wait_ms};
    return attempt;
}

struct attempt *attempt_table_next(struct attempt_table *table, uint64_t *cursor)
{
    if (*cursor < table->oldest)
        *cursor = table->oldest;
    while (*cursor < table->next) {
        struct attempt *attempt = at(table, (*cursor)++);

        if (attempt->key != 0)
            return attempt;
    }
    return NULL;
}

void attempt_table_expire(struct attempt_table *table, uint64_t now_ms)
{
    while (table->oldest != table->next && at(table, table->oldest)->due_ms <= now_ms) {
        table->expired++;
        attempt_table_remove(table, at(table, table->oldest));
    }
}

void attempt_table_release(struct attempt_table *table)
{
    free(table->attempts);
    table->attempts = NULL;
    block_map_release(&table->by_key);
}
