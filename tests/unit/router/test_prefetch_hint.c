/* SPDX-License-Identifier: Apache-2.0 */

#include "router/prefetch_hint.h"

#include "tests/support/leak_check.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

enum { HOLDER = 5, COUNT = PREFETCH_HINT_BLOCK_COUNT_MAX + 100, BLOCK_BYTES = 200 };

struct world {
    struct residency_index *index;
    struct block blocks[COUNT];
    struct prefetch_cold cold;
};

static struct world *world_create(void)
{
    static struct world world;

    world.index = residency_index_create(1 << 22);
    cr_assert(ne(ptr, world.index, NULL));
    for (uint64_t i = 0; i < COUNT; i++)
        world.blocks[i] = (struct block){1000 + i, (i + 1) * BLOCK_BYTES};
    return &world;
}

static void hold(struct world *world, size_t from, size_t to, uint8_t tiers)
{
    for (size_t i = from; i < to; i++)
        cr_assert(eq(
            int, residency_index_store(world->index, world->blocks[i].hash, HOLDER, tiers, 0), 0));
}

TestSuite(prefetch_hint, .fini = leak_check);

Test(prefetch_hint, only_what_lies_nowhere_nearer_is_cold)
{
    struct world *world = world_create();
    hold(world, 0, 3, RESIDENCY_HBM);
    hold(world, 3, 5, RESIDENCY_CPU | RESIDENCY_SSD);
    hold(world, 5, 8, RESIDENCY_SSD);
    hold(world, 8, 9, RESIDENCY_CPU); /* was brought by somebody else */
    hold(world, 9, 10, RESIDENCY_SSD);

    prefetch_hint_find(world->index, HOLDER, world->blocks, 12, &world->cold);

    cr_assert(eq(sz, world->cold.block_count, 4));
    cr_assert(eq(u64, world->cold.start, world->blocks[4].hash));
    cr_assert(eq(u64, world->cold.blocks[0].hash, world->blocks[5].hash));
    cr_assert(eq(u64, world->cold.blocks[3].hash, world->blocks[9].hash));
    for (size_t i = 0; i < 4; i++)
        cr_assert(eq(u32, world->cold.blocks[i].bytes, BLOCK_BYTES));
    residency_index_destroy(world->index);
}

Test(prefetch_hint, a_prompt_that_is_cold_from_its_first_block_has_no_start)
{
    struct world *world = world_create();
    hold(world, 0, 2, RESIDENCY_SSD);

    prefetch_hint_find(world->index, HOLDER, world->blocks, 2, &world->cold);

    cr_assert(eq(sz, world->cold.block_count, 2));
    cr_assert(eq(u64, world->cold.start, 0));
    residency_index_destroy(world->index);
}

Test(prefetch_hint, of_too_many_blocks_the_first_are_wanted)
{
    struct world *world = world_create();
    hold(world, 0, COUNT, RESIDENCY_SSD);

    prefetch_hint_find(world->index, HOLDER, world->blocks, COUNT, &world->cold);

    cr_assert(eq(sz, world->cold.block_count, PREFETCH_HINT_BLOCK_COUNT_MAX));
    cr_assert(eq(u64, world->cold.blocks[0].hash, world->blocks[0].hash));
    residency_index_destroy(world->index);
}

Test(prefetch_hint, what_another_holds_is_not_asked_for)
{
    struct world *world = world_create();
    hold(world, 0, 4, RESIDENCY_SSD);

    prefetch_hint_find(world->index, HOLDER + 1, world->blocks, 4, &world->cold);

    cr_assert(eq(sz, world->cold.block_count, 0));
    residency_index_destroy(world->index);
}
