/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/tier_store.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>

#include "tests/support/loop_fixture.h"
#include "tests/support/store_world.h"

TestSuite(tier_hold, .init = loop_fixture_init, .fini = loop_fixture_fini);

static struct world *new_world(uint32_t cpu_slots)
{
    return world_create(loop_fixture_io(), (struct world_config){.cpu_slots = cpu_slots});
}

static uint64_t holds_of(const struct world *world)
{
    return tier_store_stats(world->store).blocks->holds;
}

Test(tier_hold, what_is_held_stays_whoever_needs_room)
{
    struct world *world = new_world(8);
    world_save(world, 1, 4);
    struct tier_hold *hold = world_hold(world, 1, 4, 10000);

    struct tier_saved saved = world_save(world, 101, 8);

    cr_assert(eq(u32, saved.saved, 4));
    cr_assert(eq(sz, world_match(world, 1, 4, NULL), 4));
    tier_hold_release(&hold);
    cr_assert(eq(ptr, hold, NULL));
    cr_assert(eq(u64, holds_of(world), 0));
    world_destroy(world);
}

Test(tier_hold, it_is_of_what_is_there_from_the_first_on)
{
    struct world *world = new_world(8);
    world_save(world, 1, 4);

    struct tier_hold *some = world_hold(world, 1, 7, 10000);
    struct tier_hold *none = world_hold(world, 5, 2, 10000);

    cr_assert(eq(sz, tier_hold_count(some), 4));
    cr_assert(eq(ptr, none, NULL));
    tier_hold_release(&some);
    world_destroy(world);
}

Test(tier_hold, one_that_expires_lets_go_and_can_load_nothing)
{
    struct world *world = new_world(8);
    struct world_load load = {0};
    world_save(world, 1, 4);
    struct tier_hold *hold = world_hold(world, 1, 4, 5);

    while (holds_of(world) > 0)
        world_run(world);
    int status = world_begin_load(world, &load, hold, 0, 4);

    cr_assert(eq(int, status, -ESTALE));
    cr_assert(eq(sz, tier_hold_count(hold), 0));
    cr_assert(eq(u64, tier_store_stats(world->store).holds_expired, 1));
    cr_assert(eq(u32, world_save(world, 101, 8).saved, 8));
    tier_hold_release(&hold);
    world_destroy(world);
}

Test(tier_hold, of_several_each_expires_at_its_own_time)
{
    struct world *world = new_world(8);
    world_save(world, 1, 4);
    struct tier_hold *longer = world_hold(world, 1, 4, 100000);
    struct tier_hold *shorter = world_hold(world, 1, 3, 5);

    while (tier_store_stats(world->store).holds_expired == 0)
        world_run(world);

    cr_assert(eq(sz, tier_hold_count(longer), 4));
    cr_assert(eq(sz, tier_hold_count(shorter), 0));
    cr_assert(eq(u64, holds_of(world), 4));
    tier_hold_release(&shorter);
    tier_hold_release(&longer);
    world_destroy(world);
}

Test(tier_hold, one_that_is_extended_lives_on)
{
    struct world *world = new_world(8);
    world_save(world, 1, 4);
    struct tier_hold *extended = world_hold(world, 1, 4, 5);
    struct tier_hold *other = world_hold(world, 1, 1, 30);

    tier_hold_extend(extended, 100000);
    while (tier_store_stats(world->store).holds_expired == 0)
        world_run(world);

    cr_assert(eq(sz, tier_hold_count(other), 0));
    cr_assert(eq(sz, tier_hold_count(extended), 4));
    tier_hold_release(&other);
    tier_hold_release(&extended);
    world_destroy(world);
}

Test(tier_hold, what_is_trimmed_away_is_let_go_and_the_rest_keeps_its_numbers)
{
    struct world *world = new_world(8);
    struct world_load load = {0}, outside = {0};
    world_save(world, 1, 6);
    struct tier_hold *hold = world_hold(world, 1, 6, 10000);

    tier_hold_trim(hold, 2, 3);

    cr_assert(eq(sz, tier_hold_count(hold), 3));
    cr_assert(eq(u64, holds_of(world), 3));
    cr_assert(eq(int, world_begin_load(world, &outside, hold, 1, 2), -EINVAL));
    cr_assert(eq(int, world_begin_load(world, &outside, hold, 4, 2), -EINVAL));
    cr_assert(eq(int, world_begin_load(world, &load, hold, 2, 3), 0));
    while (!load.is_done)
        world_run(world);
    cr_assert(eq(u32, load.loaded, 3));
    for (uint32_t i = 0; i < 3; i++)
        cr_assert(world_is_page(world->engine->pages[i], 3 + i));
    tier_hold_release(&hold);
    cr_assert(eq(u64, holds_of(world), 0));
    world_destroy(world);
}

Test(tier_hold, released_under_a_load_it_leaves_what_is_read_until_that_is_done)
{
    struct world *world = new_world(8);
    struct world_load load = {0};
    world_save(world, 1, 8);
    struct tier_hold *hold = world_hold(world, 1, 8, 10000);
    atomic_store(&world->device.delay_us, 3000);
    cr_assert(eq(int, world_begin_load(world, &load, hold, 0, 8), 0));

    tier_hold_release(&hold);
    struct tier_saved saved = world_save(world, 101, 4); /* wants room while the load reads */

    cr_assert(load.is_done || saved.saved == 0);
    while (!load.is_done)
        world_run(world);
    for (uint32_t i = 0; i < load.loaded; i++)
        cr_assert(world_is_page(world->engine->pages[i], 1 + i));
    world_settle(world);
    cr_assert(block_table_is_sound(world->store->table));
    world_destroy(world);
}

Test(tier_hold, the_oldest_ones_age_is_known)
{
    struct world *world = new_world(8);
    world_save(world, 1, 4);
    cr_assert(eq(u64, tier_store_stats(world->store).hold_oldest_ms, 0));
    struct tier_hold *hold = world_hold(world, 1, 4, 10000);
    const uint64_t taken_ms = io_loop_now_ms(world->io);

    while (io_loop_now_ms(world->io) < taken_ms + 3)
        world_run(world);

    cr_assert(ge(u64, tier_store_stats(world->store).hold_oldest_ms, 3));
    tier_hold_release(&hold);
    cr_assert(eq(u64, tier_store_stats(world->store).hold_oldest_ms, 0));
    world_destroy(world);
}

static uint32_t uses_of(const struct world *world, uint32_t number)
{
    const struct block_table *table = world->store->table;

    return block_table_at(table, block_table_find_key(table, world_key(number)))->uses;
}

/* An engine that got blocks by a hold names them again when it saves its prompt. */
Test(tier_hold, what_a_request_loads_and_then_saves_it_has_used_once)
{
    struct world *world = new_world(16);
    world_save(world, 1, 4);
    struct world_save save = {.has_used = 2};
    struct tier_hold *hold = world_hold(world, 1, 2, 10000);
    tier_hold_release(&hold);

    cr_assert(eq(int, world_begin_save_at(world, &save, 1, 4, 0, 0), 0));
    while (!save.is_done)
        world_run(world);

    cr_assert(eq(u32, save.saved.known, 4));
    for (uint32_t number = 1; number <= 4; number++)
        cr_assert(eq(u32, uses_of(world, number), 1), "block %u", number);
    world_destroy(world);
}
