/* SPDX-License-Identifier: Apache-2.0 */

#include "hashing/block_map.h"

#include "tests/support/leak_check.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <stdlib.h>

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

static void put(struct block_map *map, uint64_t hash, uint64_t value)
{
    uint64_t *place = block_map_claim(map, hash);

    cr_assert(ne(ptr, place, NULL));
    *place = value;
}

/* Random claims, removals and finds over few keys, against an array of what must be there. */
static void run_against_model(uint64_t seed, size_t key_count, unsigned claim_percent)
{
    uint64_t *model = calloc(key_count, sizeof *model);
    size_t count = 0;
    struct block_map map;
    block_map_init(&map, 1 << 20);

    for (size_t step = 0; step < 40 * key_count; step++) {
        size_t key = next_random(&seed) % key_count;

        if (next_random(&seed) % 100 < claim_percent) {
            uint64_t value = next_random(&seed) | 1;
            count += model[key] == 0;
            model[key] = value;
            put(&map, key + 1, value);
        } else {
            cr_assert(eq(int, block_map_remove(&map, key + 1), model[key] != 0));
            count -= model[key] != 0;
            model[key] = 0;
        }
        key = next_random(&seed) % key_count;
        uint64_t *found = block_map_find(&map, key + 1);
        cr_assert(eq(u64, found != NULL ? *found : 0, model[key]));
        cr_assert(eq(sz, block_map_count(&map), count));
    }
    for (size_t key = 0; key < key_count; key++) {
        uint64_t *found = block_map_find(&map, key + 1);
        cr_assert(eq(u64, found != NULL ? *found : 0, model[key]));
    }
    block_map_release(&map);
    free(model);
}

TestSuite(block_map, .fini = leak_check);

Test(block_map, it_agrees_with_a_model_under_random_operations)
{
    for (uint64_t seed = 1; seed <= 8; seed++) {
        run_against_model(seed, 40, 50);
        run_against_model(seed, 3000, 50);
        run_against_model(seed, 3000, 80);
    }
}

Test(block_map, growing_moves_a_few_slots_at_a_time)
{
    struct block_map map;
    size_t moved_max = 0;
    block_map_init(&map, 64 << 20);

    for (uint64_t hash = 1; hash <= 200000; hash++) {
        size_t old_count = map.old.count;
        bool is_growing = map.old.slots != NULL;
        put(&map, hash, hash);
        if (is_growing && old_count - map.old.count > moved_max)
            moved_max = old_count - map.old.count;
    }

    cr_assert(gt(sz, moved_max, 0));
    cr_assert(le(sz, moved_max, 8));
    for (uint64_t hash = 1; hash <= 200000; hash++)
        cr_assert(eq(u64, *block_map_find(&map, hash), hash));
    block_map_release(&map);
}

Test(block_map, a_full_map_refuses_what_is_new_and_keeps_what_it_has)
{
    enum { BYTES_MAX = 100000 };
    struct block_map map;
    uint64_t count = 0;
    size_t bytes_max = 0;
    block_map_init(&map, BYTES_MAX);

    for (uint64_t *place; (place = block_map_claim(&map, count + 1)) != NULL; count++) {
        *place = count;
        if (block_map_bytes(&map) > bytes_max)
            bytes_max = block_map_bytes(&map);
    }

    cr_assert(le(sz, bytes_max, BYTES_MAX));
    cr_assert(ge(u64, count, BYTES_MAX / 33));
    cr_assert(eq(sz, block_map_count(&map), count));
    cr_assert(eq(ptr, block_map_claim(&map, count + 1), NULL));
    for (uint64_t i = 0; i < count; i++)
        cr_assert(eq(u64, *block_map_find(&map, i + 1), i));
    cr_assert(block_map_remove(&map, 1));
    put(&map, count + 1, 7);
    block_map_release(&map);
}

Test(block_map, a_map_without_room_for_anything_is_merely_full)
{
    for (size_t bytes_max = 0; bytes_max < 200; bytes_max++) {
        struct block_map map;
        size_t count = 0;
        block_map_init(&map, bytes_max);

        while (count < 100 && block_map_claim(&map, count + 1) != NULL)
            count++;

        cr_assert(le(sz, count * sizeof(struct block_map_slot), bytes_max));
        cr_assert(eq(ptr, block_map_find(&map, 1000), NULL));
        cr_assert(not(block_map_remove(&map, 1000)));
        block_map_release(&map);
    }
}

Test(block_map, a_walk_sees_every_entry_even_while_it_removes)
{
    enum { COUNT = 5000 };
    static unsigned seen[COUNT + 1];
    struct block_map map;
    size_t cursor = 0;
    struct block_map_slot *slot;
    block_map_init(&map, 1 << 20);
    for (uint64_t hash = 1; hash <= COUNT; hash++)
        put(&map, hash, hash);

    while ((slot = block_map_next(&map, &cursor)) != NULL) {
        seen[slot->hash]++;
        if (slot->hash % 2 == 0)
            block_map_remove_at(&map, &cursor);
    }

    cr_assert(eq(sz, block_map_count(&map), COUNT / 2));
    for (uint64_t hash = 1; hash <= COUNT; hash++) {
        cr_assert(ge(uint, seen[hash], 1));
        cr_assert(eq(int, block_map_find(&map, hash) != NULL, hash % 2 == 1));
    }
    block_map_release(&map);
}
