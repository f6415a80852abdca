/* SPDX-License-Identifier: Apache-2.0 */

#include "router/response_table.h"

#include "backends/runtime/list.h"
#include "backends/runtime/must_check.h"
#include "hashing/block_map.h"
#include "hashing/digest.h"

#include <assert.h>
#include <stdlib.h>

/*
 * DESIGN
 *
 *   places:  digest of id -> 1 + index in entries
 *   recent:  oldest use <-> ... <-> newest use     every entry in use
 *   unused:  entries that were freed; those at fresh and above never were in use
 *
 * Ids come from engines and are looked up with what clients write. Only their keyed digest is kept:
 * an id of any length costs the same, and no client can aim at another one's place.
 */
struct response_entry {
    struct list_node in_order; /* in recent, or in unused */
    uint64_t key;
    uint32_t worker;
};

struct response_table {
    const uint8_t *secret;
    struct block_map places;
    struct list recent;
    struct list unused;
    size_t fresh;
    size_t count_max;
    uint64_t evicted_total;
    struct response_entry entries[];
};

/* Of the map: filled to 3/4, at 16 bytes a slot, beside a table half its size while it grows. */
enum { PLACE_BYTES = 48, PLACES_BYTES_MIN = 4096 };

struct response_table *response_table_create(const uint8_t *secret, size_t count_max)
{
    struct response_table *table;

    assert(count_max > 0);

    /* Pages that were never touched cost nothing. */
    table = calloc(1, sizeof *table + count_max * sizeof table->entries[0]);
    if (table == NULL)
        return NULL;
    table->secret = secret;
    table->count_max = count_max;
    block_map_init(&table->places, PLACES_BYTES_MIN + count_max * PLACE_BYTES);
    list_init(&table->recent);
    list_init(&table->unused);
    return table;
}

void response_table_destroy(struct response_table *table)
{
    if (table == NULL)
        return;
    block_map_release(&table->places);
    free(table);
}

static struct response_entry *entry_of(struct list_node *node)
{
    return container_of(node, struct response_entry, in_order);
}

static uint64_t key_of(const struct response_table *table, struct slice id)
{
    uint64_t key = digest_64(table->secret, DIGEST_RESPONSE, id.ptr, id.len);

    return key != 0 ? key : 1; /* the map's word for a free slot */
}

static struct response_entry *find(struct response_table *table, uint64_t key)
{
    const uint64_t *place = block_map_find(&table->places, key);

    return place != NULL ? &table->entries[*place - 1] : NULL;
}

static void drop(struct response_table *table, struct response_entry *entry)
{
    bool was_there = block_map_remove(&table->places, entry->key);

    assert(was_there);
    list_remove(&table->recent, &entry->in_order);
    list_append(&table->unused, &entry->in_order);
}

static void use(struct response_table *table, struct response_entry *entry)
{
    list_remove(&table->recent, &entry->in_order);
    list_append(&table->recent, &entry->in_order);
}

/* An entry on no list. */
static struct response_entry *take_entry(struct response_table *table)
{
    struct response_entry *entry;

    if (table->unused.count == 0 && table->fresh < table->count_max) {
        entry = &table->entries[table->fresh++];
        list_node_init(&entry->in_order);
        return entry;
    }
    if (table->unused.count == 0) {
        drop(table, entry_of(table->recent.head.next));
        table->evicted_total++;
    }
    entry = entry_of(table->unused.head.next);
    list_remove(&table->unused, &entry->in_order);
    return entry;
}

static void add(struct response_table *table, uint64_t key, uint32_t worker)
{
    struct response_entry *entry = take_entry(table);
    uint64_t *place = block_map_claim(&table->places, key);

    if (place == NULL) {
        list_append(&table->unused, &entry->in_order);
        return;
    }
    *place = 1 + (uint64_t)(entry - table->entries);
    entry->key = key;
    entry->worker = worker;
    list_append(&table->recent, &entry->in_order);
}

void response_table_learn(struct response_table *table, struct slice id, uint32_t worker)
{
    uint64_t key = key_of(table, id);
    struct response_entry *entry = find(table, key);

    if (entry == NULL) {
        add(table, key, worker);
        return;
    }
    entry->worker = worker;
    use(table, entry);
}

bool response_table_find(struct response_table *table, struct slice id, uint32_t *worker)
{
    struct response_entry *entry = find(table, key_of(table, id));

    if (entry == NULL)
        return false;
    use(table, entry);
    *worker = entry->worker;
    return true;
}

void response_table_forget(struct response_table *table, struct slice id)
{
    struct response_entry *entry = find(table, key_of(table, id));

    if (entry != NULL)
        drop(table, entry);
}

void response_table_forget_worker(struct response_table *table, uint32_t worker)
{
    struct list_node *node = table->recent.head.next;

    while (node != &table->recent.head) {
        struct response_entry *entry = entry_of(node);

        node = node->next;
        if (entry->worker == worker)
            drop(table, entry);
    }
}

struct response_table_stats response_table_stats(const struct response_table *table)
{
    return (struct response_table_stats){table->recent.count, table->evicted_total};
}
