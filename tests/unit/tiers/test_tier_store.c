/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/tier_store.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>

#include "tests/support/loop_fixture.h"
#include "tests/support/store_world.h"

TestSuite(tier_store, .init = loop_fixture_init, .fini = loop_fixture_fini);

static struct world *new_world(struct world_config config)
{
    return world_create(loop_fixture_io(), config);
}

static void expect_sound(const struct world *world)
{
    cr_assert(block_table_is_sound(world->store->table));
    cr_assert(eq(u64, block_table_stats(world->store->table)->holds, 0));
}

/* ---- save, hold, load ---- */

Test(tier_store, what_was_saved_is_told_found_and_loaded_as_it_was)
{
    struct world *world = new_world((struct world_config){.cpu_slots = 16});

    struct tier_saved saved = world_save(world, 1, 10);
    uint8_t tiers[10];
    size_t matched = world_match(world, 1, 10, tiers);
    uint32_t loaded = world_load(world, 1, 10);

    cr_assert(eq(u32, saved.saved, 10));
    cr_assert(eq(sz, matched, 10));
    cr_assert(eq(u32, loaded, 10));
    for (uint32_t i = 0; i < 10; i++) {
        cr_assert(eq(u8, tiers[i], 1 << BLOCK_TIER_CPU));
        cr_assert(eq(u8, world->told[1 + i], 1 << BLOCK_TIER_CPU));
    }
    cr_assert(eq(u64, tier_store_stats(world->store).loaded_cpu_blocks, 10));
    expect_sound(world);
    world_destroy(world);
}

Test(tier_store, what_is_held_is_not_saved_again)
{
    struct world *world = new_world((struct world_config){.cpu_slots = 16});
    world_save(world, 1, 4);

    struct tier_saved saved = world_save(world, 1, 8);

    cr_assert(eq(u32, saved.known, 4));
    cr_assert(eq(u32, saved.saved, 4));
    cr_assert(eq(u32, atomic_load(&world->device.page_count), 8));
    expect_sound(world);
    world_destroy(world);
}

Test(tier_store, what_is_being_written_is_not_written_twice)
{
    struct world *world = new_world((struct world_config){.cpu_slots = 16});
    struct world_save first = {0}, second = {0};

    cr_assert(eq(int, world_begin_save_at(world, &first, 1, 4, 0, 0), 0));
    cr_assert(eq(int, world_begin_save_at(world, &second, 1, 4, 0, 0), 0));
    world_settle(world);

    cr_assert(first.is_done && second.is_done);
    cr_assert(eq(u32, first.saved.saved, 4));
    cr_assert(eq(u32, second.saved.known, 4));
    expect_sound(world);
    world_destroy(world);
}

Test(tier_store, pages_that_may_have_changed_under_the_copy_are_thrown_away)
{
    struct world *world = new_world((struct world_config){.cpu_slots = 16});
    struct world_save save = {.may_not_commit = true};

    cr_assert(eq(int, world_begin_save_at(world, &save, 1, 4, 0, 0), 0));
    world_settle(world);

    cr_assert(save.is_done);
    cr_assert(eq(u32, save.saved.saved, 0));
    cr_assert(eq(sz, world_match(world, 1, 4, NULL), 0));
    cr_assert(eq(u32, world->told_count, 0));
    cr_assert(eq(u64, tier_store_stats(world->store).blocks->free_slots[BLOCK_TIER_CPU], 16));
    expect_sound(world);
    world_destroy(world);
}

Test(tier_store, a_block_that_could_never_be_reached_is_refused)
{
    struct world *world = new_world((struct world_config){.cpu_slots = 16});

    struct tier_saved saved = world_save_behind(world, 5, 3, 4, 4);

    cr_assert(eq(u32, saved.refused, 3));
    cr_assert(eq(u32, saved.saved, 0));
    cr_assert(eq(u64, tier_store_stats(world->store).save_refused_blocks, 3));
    expect_sound(world);
    world_destroy(world);
}

Test(tier_store, a_copy_that_fails_leaves_nothing_behind)
{
    struct world *world = new_world((struct world_config){.cpu_slots = 16});
    atomic_store(&world->device.status, -EIO);

    struct tier_saved saved = world_save(world, 1, 4);

    cr_assert(eq(u32, saved.saved, 0));
    cr_assert(eq(u64, tier_store_stats(world->store).save_failed_blocks, 4));
    cr_assert(eq(sz, world_match(world, 1, 4, NULL), 0));
    expect_sound(world);
    world_destroy(world);
}

Test(tier_store, a_save_larger_than_memory_keeps_a_beginning)
{
    struct world *world = new_world((struct world_config){.cpu_slots = 8});

    struct tier_saved saved = world_save(world, 1, 12);

    cr_assert(eq(u32, saved.saved, 8));
    cr_assert(eq(u32, saved.refused, 4));
    cr_assert(eq(sz, world_match(world, 1, 12, NULL), 8));
    cr_assert(eq(u32, world_load(world, 1, 8), 8));
    expect_sound(world);
    world_destroy(world);
}

Test(tier_store, who_was_used_longest_ago_makes_room_and_is_withdrawn_first)
{
    struct world *world = new_world((struct world_config){.cpu_slots = 8});
    world_save(world, 1, 4);
    world_save(world, 101, 4);
    cr_assert(eq(u32, world_load(world, 1, 4), 4));

    struct tier_saved saved = world_save(world, 201, 2);

    cr_assert(eq(u32, saved.saved, 2));
    cr_assert(eq(sz, world_match(world, 1, 4, NULL), 4));
    cr_assert(eq(sz, world_match(world, 101, 4, NULL), 2));
    cr_assert(eq(u8, world->told[104], 0));
    cr_assert(eq(u64, tier_store_stats(world->store).evicted_cpu_blocks, 2));
    expect_sound(world);
    world_destroy(world);
}

Test(tier_store, the_end_of_a_chain_does_not_push_out_its_beginning)
{
    struct world *world = new_world((struct world_config){.cpu_slots = 4});
    world_save(world, 1, 4);

    struct tier_saved saved = world_save_behind(world, 5, 4, 4, 4);

    cr_assert(eq(u32, saved.saved, 0));
    cr_assert(eq(u32, saved.refused, 4));
    cr_assert(eq(sz, world_match(world, 1, 4, NULL), 4));
    expect_sound(world);
    world_destroy(world);
}

Test(tier_store, more_jobs_than_may_wait_are_refused)
{
    struct world *world = new_world((struct world_config){.cpu_slots = 16, .job_count_max = 2});
    struct world_save saves[3] = {0};

    cr_assert(eq(int, world_begin_save_at(world, &saves[0], 1, 2, 0, 0), 0));
    cr_assert(eq(int, world_begin_save_at(world, &saves[1], 11, 2, 0, 0), 0));
    int status = world_begin_save_at(world, &saves[2], 21, 2, 0, 0);

    cr_assert(eq(int, status, -EBUSY));
    world_settle(world);
    cr_assert(saves[0].is_done && saves[1].is_done && !saves[2].is_done);
    expect_sound(world);
    world_destroy(world);
}

/* ---- corrupt ---- */

static void flip_in_cpu(struct world *world, uint32_t number)
{
    struct tier *cpu = world->store->tiers[BLOCK_TIER_CPU];
    const uint32_t block = block_table_find_key(world->store->table, world_key(number));
    uint8_t *page =
        cpu->ops->payload(cpu, tier_index_at(world->store, block)->slot[BLOCK_TIER_CPU]);

    page[77] ^= 4;
}

Test(tier_store, a_flipped_bit_is_a_miss_and_is_withdrawn)
{
    struct world *world = new_world((struct world_config){.cpu_slots = 16});
    world_save(world, 1, 8);
    flip_in_cpu(world, 4);
    world->checks_order = false; /* what fails its check leaves alone */

    uint32_t loaded = world_load(world, 1, 8);

    cr_assert(eq(u32, loaded, 3));
    cr_assert(eq(sz, world_match(world, 1, 8, NULL), 3));
    cr_assert(eq(u8, world->told[4], 0));
    cr_assert(eq(u64, tier_store_stats(world->store).corrupt_blocks, 1));
    cr_assert(eq(u64, tier_store_stats(world->store).load_failed_blocks, 5));
    expect_sound(world);
    world_destroy(world);
}

Test(tier_store, what_a_corrupt_block_cut_off_is_there_again_when_it_is_saved_again)
{
    struct world *world = new_world((struct world_config){.cpu_slots = 16});
    world_save(world, 1, 8);
    flip_in_cpu(world, 4);
    world->checks_order = false;
    world_load(world, 1, 8);

    struct tier_saved saved = world_save_behind(world, 4, 1, 3, 3);

    cr_assert(eq(u32, saved.saved, 1));
    cr_assert(eq(u32, world_load(world, 1, 8), 8));
    expect_sound(world);
    world_destroy(world);
}

/* ---- life ---- */

Test(tier_store, closing_with_jobs_under_way_answers_each_once)
{
    struct world *world = new_world((struct world_config){.cpu_slots = 64});
    struct world_save saves[4] = {0};
    struct world_load load = {0};
    world_save(world, 1, 8);
    atomic_store(&world->device.delay_us, 2000);
    struct tier_hold *hold = world_hold(world, 1, 8, 10000);
    cr_assert(eq(int, world_begin_load(world, &load, hold, 0, 8), 0));
    for (uint32_t i = 0; i < 4; i++)
        cr_assert(eq(int, world_begin_save_at(world, &saves[i], 100 * (i + 1), 5, 0, 0), 0));

    world_close(world);

    cr_assert(load.is_done);
    for (uint32_t i = 0; i < 4; i++) {
        cr_assert(saves[i].is_done);
        cr_assert(eq(u32, saves[i].saved.saved, 0));
    }
    world_destroy(world);
}

Test(tier_store, clearing_withdraws_all_children_first_and_voids_what_runs)
{
    struct world *world = new_world((struct world_config){.cpu_slots = 64});
    struct world_save save = {0};
    world_save(world, 1, 8);
    cr_assert(eq(int, world_begin_save_at(world, &save, 9, 8, 8, 8), 0));

    tier_store_clear(world->store, NULL);
    world_settle(world);

    cr_assert(save.is_done);
    cr_assert(eq(u32, save.saved.saved, 0));
    cr_assert(eq(sz, world_match(world, 1, 8, NULL), 0));
    for (uint32_t number = 1; number <= 16; number++)
        cr_assert(eq(u8, world->told[number], 0));
    cr_assert(eq(u64, tier_store_stats(world->store).blocks->free_slots[BLOCK_TIER_CPU], 64));
    cr_assert(eq(u32, world_save(world, 1, 8).saved, 8));
    expect_sound(world);
    world_destroy(world);
}

struct told {
    uint32_t numbers[64];
    size_t count;
};

static void note(void *ctx, struct block_key key, struct digest_128 parent, uint32_t depth,
                 uint8_t tiers)
{
    struct told *told = ctx;

    (void)parent;
    (void)depth;
    cr_assert(eq(u8, tiers, 1 << BLOCK_TIER_CPU));
    told->numbers[told->count++] = (uint32_t)key.name.low;
}

Test(tier_store, a_newcomer_is_told_of_all_parents_first)
{
    struct world *world = new_world((struct world_config){.cpu_slots = 16});
    struct told told = {0};
    world_save(world, 9, 4);
    world_save_behind(world, 3, 2, 10, 2);

    tier_store_tell(world->store, note, &told);

    cr_assert(eq(sz, told.count, 6));
    for (size_t i = 0; i < told.count; i++) {
        for (size_t later = i; later < told.count; later++)
            cr_assert(world->parents[told.numbers[i]] != told.numbers[later]);
    }
    world_destroy(world);
}

/* ---- what a load takes ---- */

static struct tier_load_stats load_stats(const struct world *world, enum block_tier tier)
{
    return tier_store_stats(world->store).load[tier];
}

Test(tier_store, the_time_of_a_load_is_learned)
{
    struct world *world = new_world((struct world_config){.cpu_slots = 8});
    world_save(world, 1, 4);
    const struct tier_load_stats before = load_stats(world, BLOCK_TIER_CPU);
    atomic_store(&world->device.delay_us, 3000);

    cr_assert(eq(u32, world_load(world, 1, 4), 4));

    const struct tier_load_stats load = load_stats(world, BLOCK_TIER_CPU);
    cr_assert(not(before.is_measured));
    cr_assert(gt(dbl, before.cost.start_ms, 0), "assumed");
    cr_assert(load.is_measured);
    cr_assert(eq(u64, load.timed_count, 1));
    cr_assert(ge(u64, load.timed_us, 3000));
    cr_assert(epsilon_eq(dbl, cost_ms(load.cost, 4 * WORLD_PAGE_BYTES), (double)load.timed_us / 1e3,
                         1e-6));
    cr_assert(not(load_stats(world, BLOCK_TIER_SSD).is_measured));
    world_destroy(world);
}

/* What others make it wait is the queue, which is told apart. */
Test(tier_store, the_time_of_loads_that_run_side_by_side_is_not_learned)
{
    struct world *world = new_world((struct world_config){.cpu_slots = 8});
    struct world_load loads[2] = {{0}};
    world_save(world, 1, 4);
    struct tier_hold *hold = world_hold(world, 1, 4, 10000);

    for (size_t i = 0; i < 2; i++)
        cr_assert(eq(int, world_begin_load(world, &loads[i], hold, 0, 4), 0));
    while (!loads[0].is_done || !loads[1].is_done)
        world_run(world);

    cr_assert(eq(u32, loads[0].loaded + loads[1].loaded, 8));
    cr_assert(not(load_stats(world, BLOCK_TIER_CPU).is_measured));
    tier_hold_release(&hold);
    world_destroy(world);
}

Test(tier_store, the_time_of_a_load_that_failed_is_not_learned)
{
    struct world *world = new_world((struct world_config){.cpu_slots = 8});
    world_save(world, 1, 4);
    atomic_store(&world->device.status, -EIO);

    cr_assert(eq(u32, world_load(world, 1, 4), 0));

    cr_assert(not(load_stats(world, BLOCK_TIER_CPU).is_measured));
    world_destroy(world);
}
