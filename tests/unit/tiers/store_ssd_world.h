/* SPDX-License-Identifier: Apache-2.0 */

/* store_ssd_world: what tests of a tier_store with an SSD do and expect. */
#ifndef TESTS_UNIT_TIERS_STORE_SSD_WORLD_H
#define TESTS_UNIT_TIERS_STORE_SSD_WORLD_H

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include "tests/support/loop_fixture.h"
#include "tests/support/store_world.h"

enum { CPU = 1 << BLOCK_TIER_CPU, SSD = 1 << BLOCK_TIER_SSD };

static inline struct world *new_world(struct world_config config)
{
    struct world *world = world_create(loop_fixture_io(), config);

    world_settle(world);
    return world;
}

static inline struct tier_store_stats stats_of(const struct world *world)
{
    return tier_store_stats(world->store);
}

static inline void expect_sound(const struct world *world)
{
    cr_assert(block_table_is_sound(world->store->table));
    cr_assert(eq(u64, block_table_stats(world->store->table)->holds, 0));
    cr_assert(eq(u32, world->store->demoting, 0));
}

/* Saves first..first + count - 1 and uses them, so that they are on the SSD too. */
static inline void save_on_both(struct world *world, uint32_t first, uint32_t count)
{
    world_save(world, first, count);
    cr_assert(eq(u32, world_load(world, first, count), count));
    world_settle(world);
}

/* Leaves first..first + count - 1 on the SSD alone: others push them out of CPU memory. */
static inline void save_on_ssd(struct world *world, uint32_t first, uint32_t count)
{
    save_on_both(world, first, count);
    for (uint32_t others = 1000; world->told[first] != SSD; others += 100)
        world_save(world, others, 4);
    for (uint32_t i = 0; i < count; i++)
        cr_assert(eq(u8, world->told[first + i], SSD));
}

#endif
