/* SPDX-License-Identifier: Apache-2.0 */

#include "router/residency/block_table.h"

#include "tests/support/leak_check.h"
#include "tests/unit/residency/world.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <string.h>

static void put(struct block_table *table, uint64_t hash, uint64_t value, struct block_trail *trail)
{
    uint64_t *place = block_table_claim(table, hash, trail);

    cr_assert(ne(ptr, place, NULL));
    *place = value;
}

static uint64_t got(const struct block_table *table, uint64_t hash)
{
    uint64_t *place = block_table_find(table, hash, &(struct block_trail){.entry = 0});

    return place != NULL ? *place : 0;
}

static void drop(struct block_table *table, uint64_t hash, struct block_trail *trail)
{
    uint64_t *place = block_table_find(table, hash, trail);

    if (place != NULL)
        block_table_remove(table, place, trail);
}

/* All blocks of a prompt, however many a call gives. */
static void follow(const struct block_table *table, const struct block *blocks, size_t count,
                   uint64_t *values)
{
    struct block_trail trail = {.entry = 0};
    uint64_t batch[BLOCK_TABLE_BATCH_MAX];

    for (size_t at = 0; at < count;) {
        size_t n = block_table_follow(table, blocks + at, count - at, &trail, batch);
        cr_assert(gt(sz, n, 0));
        cr_assert(le(sz, n, count - at));
        memcpy(values + at, batch, n * sizeof *batch);
        at += n;
    }
}

TestSuite(block_table, .fini = leak_check);

/* keys: so many different hashes. A multiple of mixed hashes makes long runs of full buckets. */
static void compare_with_model(uint64_t seed, size_t bytes_max, uint64_t keys, uint64_t multiple)
{
    static uint64_t model[4000];
    static struct block blocks[4000];
    static uint64_t values[4000];
    struct block_table table;
    struct block_trail adding = {0}, removing = {0};
    uint64_t random = seed, key = 0;
    size_t count = 0;
    block_table_init(&table, bytes_max);
    memset(model, 0, sizeof model);
    for (size_t i = 0; i < keys; i++)
        blocks[i] = (struct block){(i + 1) * multiple, (i + 1) * WORLD_BLOCK_BYTES};

    for (unsigned step = 0; step < 60000; step++) {
        key = world_random(&random) % 4 > 0 ? (key + 1) % keys : world_random(&random) % keys;
        if (world_random(&random) % 100 < (step / 6000 % 2 == 0 ? 60u : 40u)) {
            count += model[key] == 0;
            put(&table, blocks[key].hash, model[key] = step + 1, &adding);
        } else {
            count -= model[key] != 0;
            drop(&table, blocks[key].hash, &removing);
            model[key] = 0;
        }
        cr_assert(eq(sz, block_table_count(&table), count));
        cr_assert(eq(u64, got(&table, blocks[key].hash), model[key]));
        cr_assert(le(sz, block_table_bytes(&table), bytes_max));
        if (step % 500 > 0)
            continue;
        follow(&table, blocks, keys, values);
        for (size_t i = 0; i < keys; i++) {
            cr_assert(eq(u64, values[i], model[i]));
            cr_assert(eq(u64, got(&table, blocks[i].hash), model[i]));
        }
    }
    block_table_release(&table);
}

Test(block_table, it_agrees_with_a_model_under_random_operations)
{
    compare_with_model(1, 1 << 20, 4000, 1);
    compare_with_model(2, 1 << 20, 3000, 0x9e3779b97f4a7c15);
    compare_with_model(3, 2000, 40, 0x123456789abcdef1);
}

Test(block_table, hashes_that_all_want_the_same_bucket_are_found_too)
{
    /* Undoes the mixing: i << 20 begins with as many zeros as the first bucket's tags, and its
     * negative with as many ones as the last's, where what is displaced goes on at the front. */
    const uint64_t inverse = 0xf1de83e19937733d;

    compare_with_model(4, 1 << 16, 900, inverse << 20);
    compare_with_model(5, 1 << 16, 900, 0 - (inverse << 20));
}

Test(block_table, growing_loses_nothing_and_moves_no_value)
{
    enum { COUNT = 200000, WATCHED = 100 };
    struct block_table table;
    struct block_trail trail = {0};
    uint64_t *first;
    block_table_init(&table, (size_t)16 << 20);
    put(&table, 7, WATCHED, &trail);
    first = block_table_find(&table, 7, &trail);

    for (uint64_t i = 8; i < COUNT; i++) {
        put(&table, i, i, &trail);
        if (i % 1000 == 0)
            cr_assert(eq(u64, got(&table, i / 2 + 4), i / 2 + 4));
    }

    cr_assert(eq(ptr, block_table_find(&table, 7, &trail), first));
    cr_assert(eq(u64, *first, WATCHED));
    for (uint64_t i = 8; i < COUNT; i++)
        cr_assert(eq(u64, got(&table, i), i));
    block_table_release(&table);
}

Test(block_table, a_full_table_refuses_what_is_new_and_keeps_what_it_has)
{
    for (size_t bytes_max = 0; bytes_max < 40000; bytes_max += 777) {
        struct block_table table;
        struct block_trail trail = {0};
        uint64_t count = 0;
        block_table_init(&table, bytes_max);

        for (uint64_t *place; (place = block_table_claim(&table, count + 1, &trail)) != NULL;) {
            *place = ++count;
            cr_assert(le(sz, block_table_bytes(&table), bytes_max));
        }

        cr_assert(eq(u64, count,
                     bytes_max < 16 ? 0
                                    : (bytes_max - 16) / 168 * 13 /
                                          2)); /* 64 + 6.5 * 16 bytes for 6.5 blocks */
        for (uint64_t i = 1; i <= count; i++)
            cr_assert(eq(u64, got(&table, i), i));
        if (count > 0) {
            drop(&table, 1, &trail);
            put(&table, count + 1, 5, &trail);
            cr_assert(eq(ptr, block_table_claim(&table, count + 2, &trail), NULL));
        }
        block_table_release(&table);
    }
}

Test(block_table, a_walk_between_changes_sees_who_stays_exactly_once)
{
    enum { STAYING = 3000, COUNT = 9000 };
    static uint8_t seen[COUNT + 1];
    struct block_table table;
    struct block_trail trail = {0};
    struct block_entry *entry;
    size_t cursor = 0, budget = 5;
    block_table_init(&table, 1 << 20);
    for (uint64_t i = 1; i <= STAYING; i++)
        put(&table, i, 1, &trail);

    for (uint64_t i = STAYING + 1; budget == 0 || i < STAYING + 10; i++) {
        if (i <= COUNT)
            put(&table, i, 1, &trail);
        if (i % 3 == 0)
            drop(&table, i - 2, &trail);
        for (budget = 5; (entry = block_table_next(&table, &cursor, &budget)) != NULL;)
            seen[entry->hash]++;
    }

    for (uint64_t i = 1; i <= STAYING; i++)
        cr_assert(eq(u8, seen[i], 1));
    block_table_release(&table);
}

Test(block_table, what_left_from_its_end_makes_room_in_order)
{
    enum { COUNT = 1000 };
    static struct block blocks[COUNT];
    struct block_table table;
    struct block_trail trail = {0};
    uint64_t values[BLOCK_TABLE_BATCH_MAX];
    block_table_init(&table, 1 << 20);
    world_prompt(blocks, COUNT, 1);
    for (size_t i = 0; i < COUNT; i++)
        put(&table, blocks[i].hash, i + 1, &trail);
    for (size_t i = COUNT; i-- > COUNT / 4;)
        drop(&table, blocks[i].hash, &trail);

    world_prompt(blocks, COUNT, 2);
    for (size_t i = 0; i < COUNT / 2; i++)
        put(&table, blocks[i].hash, i + 1, &trail);

    trail = (struct block_trail){.entry = 0};
    for (size_t at = 0, n = 1; at < COUNT / 2; at += n) { /* one batch to begin with, then runs */
        n = block_table_follow(&table, blocks + at, COUNT / 2 - at, &trail, values);
        cr_assert(eq(sz, n,
                     at == 0                                  ? 4
                     : COUNT / 2 - at < BLOCK_TABLE_BATCH_MAX ? COUNT / 2 - at
                                                              : BLOCK_TABLE_BATCH_MAX));
    }
    block_table_release(&table);
}
