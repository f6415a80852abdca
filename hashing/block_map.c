/* SPDX-License-Identifier: Apache-2.0 */

#include "hashing/block_map.h"

#include <assert.h>
#include <stdlib.h>
#include <sys/mman.h>

/*
 * DESIGN
 *
 * Linear probing over 16-byte slots, four to a cache line, filled to 3/4 at most: a find touches
 * one line, rarely two. Removal shifts the entries behind it back, so there are no tombstones and
 * probes stay short under churn.
 *
 *   home(hash) = high half of (mixed(hash) * slot_count)
 *
 * keeps the order of mixed hashes for any slot_count. So the sizes need not be powers of two: they
 * are slot_count_max halved again and again, and the last growth uses all that was allowed. And a
 * growth reads the old table and writes the new one from front to back.
 *
 *   old    [......xxxxxxxxx]      each claim and remove looks at DRAIN_SLOTS of old from drain_at;
 *   table  [xxxx...........]      what is there is removed from old and added to table.
 *
 * Old holds 3/4 of S slots, table takes 3/4 of S more before it is full itself: looking at 2 slots
 * a claim would do; at 8 the time with two tables is short. New slots come from calloc(), which
 * gets large tables from the kernel page by page, zeroed as they are touched.
 *
 * Mixing costs a multiplication and makes the map indifferent to small or sequential hashes.
 */

enum {
    SLOT_COUNT_MIN = 64,
    DRAIN_SLOTS = 8,
    HUGE_PAGE_BYTES = 2 << 20,
    HUGE_TABLE_BYTES_MIN = 8 << 20,
    /* While a table of T slots is filled, one of T/2 may still be there. */
    BYTES_PER_SLOT_MAX = (int)(sizeof(struct block_map_slot) * 3 / 2),
};

/* Fibonacci hashing (Knuth 6.4): an odd multiplier loses nothing, and only high bits are used. */
static uint64_t mixed(uint64_t hash)
{
    return hash * 0x9e3779b97f4a7c15;
}

static size_t home(const struct block_map_table *table, uint64_t hash)
{
    return (size_t)((unsigned __int128)mixed(hash) * table->slot_count >> 64);
}

static size_t after(const struct block_map_table *table, size_t at)
{
    return at + 1 < table->slot_count ? at + 1 : 0;
}

static size_t distance(const struct block_map_table *table, size_t from, size_t to)
{
    return to >= from ? to - from : to + table->slot_count - from;
}

/* Rounded so that one slot is always free: it ends every probe. */
static bool is_filled(const struct block_map_table *table)
{
    return table->count >= table->slot_count - (table->slot_count + 3) / 4;
}

/* The slot of hash, or the free one where it would go; the table has a free slot. */
static struct block_map_slot *probe(const struct block_map_table *table, uint64_t hash)
{
    size_t at = home(table, hash);

    while (table->slots[at].hash != hash && table->slots[at].hash != 0)
        at = after(table, at);
    return &table->slots[at];
}

static struct block_map_slot *find_slot(const struct block_map_table *table, uint64_t hash)
{
    struct block_map_slot *slot;

    if (table->count == 0)
        return NULL;
    slot = probe(table, hash);
    return slot->hash == hash ? slot : NULL;
}

/* Frees slot `at`, and moves up whoever was displaced by it. */
static void vacate(struct block_map_table *table, size_t at)
{
    assert(table->slots[at].hash != 0);
    assert(table->count > 0);

    for (size_t i = after(table, at); table->slots[i].hash != 0; i = after(table, i)) {
        if (distance(table, home(table, table->slots[i].hash), i) < distance(table, at, i))
            continue;
        table->slots[at] = table->slots[i];
        at = i;
    }
    table->slots[at] = (struct block_map_slot){0, 0};
    table->count--;
}

static void drop_old(struct block_map *map)
{
    free(map->old.slots);
    map->old = (struct block_map_table){NULL, 0, 0};
}

static void drain(struct block_map *map)
{
    for (unsigned i = 0; i < DRAIN_SLOTS && map->old.count > 0; i++) {
        struct block_map_slot *slot = &map->old.slots[map->drain_at];

        if (slot->hash == 0) {
            map->drain_at = after(&map->old, map->drain_at);
            continue;
        }
        *probe(&map->table, slot->hash) = *slot;
        map->table.count++;
        vacate(&map->old, map->drain_at); /* the next one may have moved here: stay */
    }
    if (map->old.slots != NULL && map->old.count == 0)
        drop_old(map);
}

/* The smallest of the halvings of slot_count_max that is more than slot_count. */
static size_t next_slot_count(const struct block_map *map, size_t slot_count)
{
    size_t next = map->slot_count_max;

    while (next / 2 > slot_count && next / 2 >= SLOT_COUNT_MIN)
        next /= 2;
    return next;
}

/*
 * Zeroed slots. A large table is looked up at random: with 4 KiB pages nearly every find would also
 * miss the TLB, so huge ones are asked for, before the first touch. A refusal costs only speed.
 */
static struct block_map_slot *allocate(size_t slot_count)
{
    const size_t size = slot_count * sizeof(struct block_map_slot);
    struct block_map_slot *slots = calloc(slot_count, sizeof *slots);
    uintptr_t begin = ((uintptr_t)slots + HUGE_PAGE_BYTES - 1) & ~(uintptr_t)(HUGE_PAGE_BYTES - 1);

    if (slots != NULL && size >= HUGE_TABLE_BYTES_MIN)
        (void)madvise((void *)begin, size - (begin - (uintptr_t)slots), MADV_HUGEPAGE);
    return slots;
}

/* False: already as large as allowed, or no memory. */
static bool grow(struct block_map *map)
{
    struct block_map_table larger = {.slot_count = next_slot_count(map, map->table.slot_count)};

    if (larger.slot_count <= map->table.slot_count)
        return false;
    assert(map->old.slots == NULL); /* emptied long before table could fill up */

    larger.slots = allocate(larger.slot_count);
    if (larger.slots == NULL)
        return false;
    map->old = map->table;
    map->table = larger;
    map->drain_at = 0;
    drain(map);
    return true;
}

void block_map_init(struct block_map *map, size_t bytes_max)
{
    *map = (struct block_map){.slot_count_max = bytes_max / BYTES_PER_SLOT_MAX};
    if (map->slot_count_max < 2)
        map->slot_count_max = 0; /* one slot could hold nothing beside the free one */
}

uint64_t *block_map_find(const struct block_map *map, uint64_t hash)
{
    struct block_map_slot *slot = find_slot(&map->table, hash);

    if (slot == NULL)
        slot = find_slot(&map->old, hash);
    return slot != NULL ? &slot->value : NULL;
}

uint64_t *block_map_claim(struct block_map *map, uint64_t hash)
{
    struct block_map_slot *slot, *old;

    assert(hash != 0);

    drain(map);
    slot = map->table.slots != NULL ? probe(&map->table, hash) : NULL;
    if (slot != NULL && slot->hash == hash)
        return &slot->value;
    old = find_slot(&map->old, hash);
    if (old != NULL)
        return &old->value;
    if (is_filled(&map->table)) {
        if (!grow(map))
            return NULL;
        slot = probe(&map->table, hash);
    }
    *slot = (struct block_map_slot){hash, 0};
    map->table.count++;
    return &slot->value;
}

bool block_map_remove(struct block_map *map, uint64_t hash)
{
    struct block_map_table *table = &map->table;
    struct block_map_slot *slot;

    drain(map);
    slot = find_slot(table, hash);
    if (slot == NULL) {
        table = &map->old;
        slot = find_slot(table, hash);
    }
    if (slot == NULL)
        return false;
    vacate(table, (size_t)(slot - table->slots));
    return true;
}

void block_map_remove_value(struct block_map *map, uint64_t *value)
{
    struct block_map_slot *slot = (struct block_map_slot *)(void *)(value - 1);
    struct block_map_table *table = &map->table;

    static_assert(offsetof(struct block_map_slot, value) == sizeof *value, "hash, then value");
    if (slot < table->slots || slot >= table->slots + table->slot_count)
        table = &map->old;
    vacate(table, (size_t)(slot - table->slots));
}

void block_map_prefetch(const struct block_map *map, uint64_t hash)
{
    if (map->table.slots != NULL)
        __builtin_prefetch(&map->table.slots[home(&map->table, hash)]);
    if (map->old.slots != NULL)
        __builtin_prefetch(&map->old.slots[home(&map->old, hash)]);
}

/* Cursor c > 0 stands for slot c - 1 of table, then of old: the entry given last. */
static struct block_map_slot *slot_at(struct block_map *map, size_t index)
{
    if (index < map->table.slot_count)
        return &map->table.slots[index];
    return &map->old.slots[index - map->table.slot_count];
}

struct block_map_slot *block_map_next(struct block_map *map, size_t *cursor)
{
    const size_t slot_count = map->table.slot_count + map->old.slot_count;

    while (*cursor < slot_count) {
        struct block_map_slot *slot = slot_at(map, (*cursor)++);

        if (slot->hash != 0)
            return slot;
    }
    return NULL;
}

void block_map_remove_at(struct block_map *map, size_t *cursor)
{
    size_t index = *cursor - 1;

    assert(*cursor > 0);

    if (index < map->table.slot_count)
        vacate(&map->table, index);
    else
        vacate(&map->old, index - map->table.slot_count);
    (*cursor)--; /* who moved up into this slot has not been seen */
}

size_t block_map_count(const struct block_map *map)
{
    return map->table.count + map->old.count;
}

size_t block_map_bytes(const struct block_map *map)
{
    return (map->table.slot_count + map->old.slot_count) * sizeof(struct block_map_slot);
}

void block_map_release(struct block_map *map)
{
    drop_old(map);
    free(map->table.slots);
    map->table = (struct block_map_table){NULL, 0, 0};
}
