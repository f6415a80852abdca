/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/tier_store.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>

#include "tests/support/loop_fixture.h"
#include "tests/support/store_world.h"
#include "tests/unit/tiers/store_ssd_world.h"

TestSuite(tier_store_erase, .init = loop_fixture_init, .fini = loop_fixture_fini);

/* ---- cleared ---- */

struct told_clear {
    struct tier_clear clear;
    unsigned count;
};

static void on_cleared(struct tier_clear *clear)
{
    container_of(clear, struct told_clear, clear)->count++;
}

static void clear(struct world *world, struct told_clear *told)
{
    *told = (struct told_clear){.count = 0};
    tier_clear_init(&told->clear, on_cleared);
    tier_store_clear(world->store, &told->clear);
}

static void reopen(struct world *world)
{
    world_close(world);
    memset(world->told, 0, sizeof world->told);
    world_open(world);
    world_settle(world);
}

static void expect_none(struct world *world, uint32_t first, uint32_t count)
{
    for (uint32_t number = first; number < first + count; number++)
        cr_assert(eq(u8, world->told[number], 0));
    cr_assert(eq(sz, world_match(world, first, count, NULL), 0));
}

Test(tier_store_erase, what_was_cleared_is_not_found_after_a_restart)
{
    struct world *world = new_world((struct world_config){.cpu_slots = 64, .ssd_slots = 64});
    struct told_clear told;
    save_on_both(world, 1, 8);

    clear(world, &told);
    expect_none(world, 1, 8);
    cr_assert(eq(u32, told.count, 0)); /* the disk has not been asked yet */
    world_settle(world);
    cr_assert(eq(u32, told.count, 1));
    reopen(world);

    cr_assert(eq(u64, stats_of(world).scanned_blocks, 0));
    expect_none(world, 1, 8);
    expect_sound(world);
    world_destroy(world);
}

Test(tier_store_erase, what_is_saved_after_a_clear_is_found_after_a_restart)
{
    struct world *world = new_world((struct world_config){.cpu_slots = 64, .ssd_slots = 64});
    save_on_both(world, 1, 8);
    tier_store_clear(world->store, NULL);
    world_settle(world);

    save_on_both(world, 21, 4);
    reopen(world);

    cr_assert(eq(u64, stats_of(world).scanned_blocks, 4));
    cr_assert(eq(u32, world_load(world, 21, 4), 4));
    expect_none(world, 1, 8);
    world_settle(world);
    expect_sound(world);
    world_destroy(world);
}

Test(tier_store_erase, a_clear_in_the_middle_of_a_scan_ends_it_and_nothing_is_found)
{
    struct world *world = new_world((struct world_config){.cpu_slots = 64, .ssd_slots = 64});
    struct told_clear told;
    save_on_both(world, 1, 8);
    world_close(world);
    memset(world->told, 0, sizeof world->told);
    world_open(world);
    atomic_store(&world->ssd->delay_us, 1000);
    cr_assert(stats_of(world).is_scanning);

    clear(world, &told);
    world_settle(world);

    cr_assert(eq(u32, told.count, 1));
    expect_none(world, 1, 8);
    cr_assert(eq(u32, world_save(world, 1, 8).saved, 8));
    world_settle(world);
    expect_sound(world);
    world_destroy(world);
}

Test(tier_store_erase, what_is_on_its_way_down_when_all_is_cleared_is_not_found_after_a_restart)
{
    struct world *world = new_world((struct world_config){.cpu_slots = 64, .ssd_slots = 64});
    struct told_clear told;
    world_save(world, 1, 8);
    atomic_store(&world->ssd->delay_us, 2000);
    cr_assert(eq(u32, world_load(world, 1, 8), 8));
    cr_assert(gt(u32, world->store->demoting, 0));

    clear(world, &told);
    world_settle(world);
    cr_assert(eq(u32, told.count, 1));
    reopen(world);

    cr_assert(eq(u64, stats_of(world).scanned_blocks, 0));
    expect_none(world, 1, 8);
    expect_sound(world);
    world_destroy(world);
}

Test(tier_store_erase, a_clear_that_the_disk_does_not_take_is_not_done_until_it_does)
{
    struct world *world = new_world((struct world_config){.cpu_slots = 64, .ssd_slots = 64});
    struct told_clear first, second;
    save_on_both(world, 1, 8);
    const unsigned written = atomic_load(&world->ssd->write_count);
    atomic_store(&world->ssd->clear_status, -EIO);
    world->store->eraser.retry_ms = 1;

    clear(world, &first);
    expect_none(world, 1, 8);
    while (atomic_load(&world->ssd->clear_count) < 3)
        world_run(world);
    clear(world, &second);
    world_save(world, 21, 4);
    cr_assert(eq(u32, world_load(world, 21, 4), 4)); /* memory is there; the disk is left alone */

    cr_assert(eq(u32, first.count + second.count, 0));
    cr_assert(not(stats_of(world).is_ssd_writable));
    cr_assert(eq(u32, atomic_load(&world->ssd->write_count), written));
    atomic_store(&world->ssd->clear_status, 0);
    while (first.count == 0)
        world_run(world);
    cr_assert(eq(u32, second.count, 1));
    cr_assert(stats_of(world).is_ssd_writable);
    save_on_both(world, 31, 4);
    reopen(world);
    cr_assert(eq(u64, stats_of(world).scanned_blocks, 4));
    expect_none(world, 1, 8);
    expect_sound(world);
    world_destroy(world);
}

Test(tier_store_erase, who_does_not_wait_for_a_clear_any_more_is_told_nothing)
{
    struct world *world = new_world((struct world_config){.cpu_slots = 64, .ssd_slots = 64});
    struct told_clear gone, stays;

    clear(world, &gone);
    clear(world, &stays);
    tier_clear_cancel(world->store, &gone.clear);
    tier_clear_cancel(world->store, &gone.clear);
    world_settle(world);

    cr_assert(eq(u32, gone.count, 0));
    cr_assert(eq(u32, stays.count, 1));
    clear(world, &gone);
    world_destroy(world); /* closed before it is done */
    cr_assert(eq(u32, gone.count, 0));
}

Test(tier_store_erase, without_an_ssd_a_clear_is_done_at_once)
{
    struct world *world = new_world((struct world_config){.cpu_slots = 64});
    struct told_clear told;
    world_save(world, 1, 4);

    clear(world, &told);

    cr_assert(eq(u32, told.count, 1));
    expect_none(world, 1, 4);
    world_destroy(world);
}

/* ---- gone bad ---- */

static struct fake_slot *disk_slot(struct world *world, uint32_t number)
{
    const uint32_t block = block_table_find_key(world->store->table, world_key(number));

    return &world->disk[tier_index_at(world->store, block)->slot[BLOCK_TIER_SSD]];
}

Test(tier_store_erase, a_slot_that_went_bad_is_erased_and_found_by_no_restart)
{
    struct world *world = new_world((struct world_config){.cpu_slots = 16, .ssd_slots = 32});
    struct fake_slot *bad;
    save_on_ssd(world, 1, 4);
    bad = disk_slot(world, 4);
    bad->is_spoilt = true;

    cr_assert(eq(u32, world_load(world, 1, 4), 3));
    world_settle(world);

    cr_assert(not(bad->is_written));
    cr_assert(eq(u32, atomic_load(&world->ssd->erase_count), 1));
    cr_assert(eq(u64, stats_of(world).corrupt_blocks, 1));
    expect_sound(world);
    reopen(world);
    cr_assert(eq(sz, world_match(world, 1, 4, NULL), 3));
    world_destroy(world);
}

/* The erasing thread is slow: what is written meanwhile goes elsewhere. */
Test(tier_store_erase, the_slot_of_one_that_went_bad_is_nobody_elses_before_it_is_erased)
{
    struct world *world = new_world((struct world_config){.cpu_slots = 16, .ssd_slots = 5});
    struct fake_slot *bad;
    save_on_ssd(world, 1, 4);
    bad = disk_slot(world, 4);
    bad->is_spoilt = true;
    atomic_store(&world->ssd->delay_us, 3000);

    cr_assert(eq(u32, world_load(world, 1, 4), 3));
    cr_assert(tier_erase_is_busy(world->store));
    save_on_both(world, 51, 2);

    atomic_store(&world->ssd->delay_us, 0);
    world_settle(world);
    if (bad->is_written)
        cr_assert(ne(u64, bad->found.key.name.low, 4));
    cr_assert(gt(u64,
                 stats_of(world).blocks->free_slots[BLOCK_TIER_SSD] +
                     stats_of(world).blocks->held[BLOCK_TIER_SSD],
                 4));
    reopen(world);
    cr_assert(eq(u8, world->told[4], 0));
    expect_sound(world);
    world_destroy(world);
}

Test(tier_store_erase, of_more_bad_slots_than_are_kept_the_rest_is_let_go_and_erased_by_nobody)
{
    enum { STEP = 16, COUNT = TIER_ERASE_MAX + STEP };
    struct world *world = new_world((struct world_config){.cpu_slots = 128, .ssd_slots = 128});
    for (uint32_t held = 0; held < COUNT; held += STEP) {
        world_save_behind(world, held + 1, STEP, held, held);
        cr_assert(eq(u32, world_load(world, 1, held + STEP), held + STEP));
        world_settle(world);
    }
    reopen(world); /* in CPU memory is nothing now */
    for (uint32_t number = 1; number <= COUNT; number++)
        disk_slot(world, number)->is_spoilt = true;
    world->checks_order = false;

    cr_assert(eq(u32, world_load(world, 1, COUNT), 0)); /* one batch: all go bad in one turn */
    world_settle(world);

    cr_assert(eq(u64, stats_of(world).corrupt_blocks, COUNT));
    cr_assert(eq(u32, atomic_load(&world->ssd->erase_count), TIER_ERASE_MAX));
    cr_assert(eq(u64, stats_of(world).blocks->free_slots[BLOCK_TIER_SSD], 128));
    expect_none(world, 1, COUNT);
    expect_sound(world);
    world_destroy(world);
}

Test(tier_store_erase, a_slot_that_went_bad_is_let_go_when_all_is_cleared_or_closed_meanwhile)
{
    struct world *world = new_world((struct world_config){.cpu_slots = 16, .ssd_slots = 32});
    save_on_ssd(world, 1, 4);
    for (uint32_t number = 1; number <= 4; number++)
        disk_slot(world, number)->is_spoilt = true;
    world->checks_order = false;
    atomic_store(&world->ssd->delay_us, 1000);

    cr_assert(eq(u32, world_load(world, 1, 4), 0));
    tier_store_clear(world->store, NULL);
    world_settle(world);

    cr_assert(eq(u64, stats_of(world).blocks->free_slots[BLOCK_TIER_SSD], 32));
    expect_sound(world);
    save_on_ssd(world, 1, 4);
    disk_slot(world, 4)->is_spoilt = true;
    cr_assert(eq(u32, world_load(world, 1, 4), 3));
    cr_assert(tier_erase_is_busy(world->store));
    world_destroy(world);
}
