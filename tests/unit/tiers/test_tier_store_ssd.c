/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/tier_store.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>

#include "tests/support/loop_fixture.h"
#include "tests/support/store_world.h"
#include "tests/unit/tiers/store_ssd_world.h"

TestSuite(tier_store_ssd, .init = loop_fixture_init, .fini = loop_fixture_fini);

/* ---- down ---- */

Test(tier_store_ssd, a_block_is_copied_down_when_it_is_wanted_a_second_time)
{
    struct world *world = new_world((struct world_config){.cpu_slots = 32, .ssd_slots = 32});
    world_save(world, 1, 4);
    world_settle(world);
    const unsigned written_before = atomic_load(&world->ssd->write_count);

    cr_assert(eq(u32, world_load(world, 1, 4), 4));
    world_settle(world);

    cr_assert(eq(u32, written_before, 0));
    cr_assert(eq(u32, atomic_load(&world->ssd->write_count), 4));
    for (uint32_t number = 1; number <= 4; number++)
        cr_assert(eq(u8, world->told[number], CPU | SSD));
    cr_assert(eq(u64, stats_of(world).demoted_blocks, 4));
    expect_sound(world);
    world_destroy(world);
}

Test(tier_store_ssd, what_is_saved_a_second_time_goes_down_in_one_job)
{
    struct world *world = new_world((struct world_config){.cpu_slots = 32, .ssd_slots = 32});
    struct world_save again = {0};
    world_save(world, 1, 8);

    cr_assert(eq(int, world_begin_save_at(world, &again, 1, 8, 0, 0), 0));
    cr_assert(eq(sz, world->store->jobs.count, 2)); /* with the save itself */
    world_settle(world);

    cr_assert(eq(u32, again.saved.known, 8));
    cr_assert(eq(u64, stats_of(world).demoted_blocks, 8));
    for (uint32_t number = 1; number <= 8; number++)
        cr_assert(eq(u8, world->told[number], CPU | SSD));
    expect_sound(world);
    world_destroy(world);
}

Test(tier_store_ssd, a_block_that_comes_back_after_it_had_to_go_is_copied_down)
{
    struct world *world = new_world((struct world_config){.cpu_slots = 8, .ssd_slots = 32});
    world_save(world, 1, 4);
    world_save(world, 101, 8);
    cr_assert(eq(sz, world_match(world, 1, 4, NULL), 0));

    world_save(world, 1, 2);
    world_settle(world);

    cr_assert(eq(u8, world->told[1], CPU | SSD));
    cr_assert(eq(u8, world->told[2], CPU | SSD));
    expect_sound(world);
    world_destroy(world);
}

Test(tier_store_ssd, what_was_pushed_out_of_memory_is_loaded_from_below)
{
    struct world *world = new_world((struct world_config){.cpu_slots = 16, .ssd_slots = 32});
    save_on_ssd(world, 1, 4);

    uint32_t loaded = world_load(world, 1, 4);

    cr_assert(eq(u32, loaded, 4));
    cr_assert(eq(u64, stats_of(world).loaded_ssd_blocks, 4));
    expect_sound(world);
    world_destroy(world);
}

Test(tier_store_ssd, a_load_from_below_stays_in_memory_where_that_is_free)
{
    struct world *world = new_world((struct world_config){.cpu_slots = 16, .ssd_slots = 32});
    save_on_both(world, 1, 4);
    world_close(world);
    world_open(world);
    world_settle(world);
    cr_assert(eq(u8, world->told[4], SSD));

    cr_assert(eq(u32, world_load(world, 1, 4), 4));

    cr_assert(eq(u8, world->told[4], CPU | SSD));
    cr_assert(eq(u64, stats_of(world).promoted_blocks, 4));
    cr_assert(eq(u32, world_load(world, 1, 4), 4));
    cr_assert(eq(u64, stats_of(world).loaded_cpu_blocks, 4));
    world_settle(world);
    expect_sound(world);
    world_destroy(world);
}

Test(tier_store_ssd, the_end_of_a_chain_evicted_after_a_use_takes_its_beginning_along)
{
    struct world *world = new_world((struct world_config){.cpu_slots = 16, .ssd_slots = 32});
    world->store->is_ssd_off = true; /* nothing could be written when it was used */
    world->store->ssd_retry_ms = UINT64_MAX;
    world_save(world, 1, 4);
    cr_assert(eq(u32, world_load(world, 1, 4), 4));
    world->store->is_ssd_off = false;
    world_save(world, 101, 4);

    world_save(world, 201, 9);
    world_settle(world);

    cr_assert(eq(u64, stats_of(world).demoted_blocks, 4));
    for (uint32_t number = 1; number <= 4; number++)
        cr_assert(ne(u8, world->told[number] & SSD, 0));
    expect_sound(world);
    world_destroy(world);
}

/* Of the chains of four that were used: blocks that are nowhere any more. */
static uint64_t lost_count(const struct world *world)
{
    uint64_t count = 0;

    for (uint32_t first = 1; first < 1000; first += 100)
        for (uint32_t i = 0; i < 4; i++)
            count += world->told[first + i] == 0;
    return count;
}

Test(tier_store_ssd, a_slow_disk_is_given_no_more_jobs_than_blocks_however_many_are_evicted)
{
    struct world *world = new_world((struct world_config){.cpu_slots = 16, .ssd_slots = 64});
    world_save(world, 1, 4);
    atomic_store(&world->ssd->delay_us, 20000);
    cr_assert(eq(u32, world_load(world, 1, 4), 4)); /* as many as may be on their way at once */
    cr_assert(eq(u32, world->store->demoting, 4));

    for (uint32_t others = 101; others < 1000; others += 100) { /* all of them due */
        world_save(world, others, 4);
        world_load(world, others, 4);

        cr_assert(le(sz, world->store->jobs.count, world->store->demoting));
    }

    atomic_store(&world->ssd->delay_us, 0);
    world_settle(world);
    cr_assert(eq(u64, stats_of(world).demote_skipped_blocks, lost_count(world)));
    cr_assert(gt(u64, lost_count(world), 0));
    expect_sound(world);
    world_destroy(world);
}

Test(tier_store_ssd, a_full_ssd_loses_what_was_used_longest_ago)
{
    struct world *world = new_world((struct world_config){.cpu_slots = 64, .ssd_slots = 8});
    save_on_both(world, 1, 4);
    save_on_both(world, 11, 4);

    save_on_both(world, 21, 4);

    cr_assert(eq(u64, stats_of(world).evicted_ssd_blocks, 4));
    for (uint32_t number = 1; number <= 4; number++)
        cr_assert(eq(u8, world->told[number], CPU));
    expect_sound(world);
    world_destroy(world);
}

Test(tier_store_ssd, the_beginning_of_a_chain_stays_below_while_its_end_is_in_memory)
{
    struct world *world = new_world((struct world_config){.cpu_slots = 16, .ssd_slots = 4});
    save_on_ssd(world, 1, 2);
    world_save_behind(world, 3, 1, 2, 2); /* its parent is on the SSD alone */
    save_on_both(world, 51, 2);

    save_on_both(world, 61, 2); /* 2 and 1 were used longest ago, and could go but for 3 */

    cr_assert(eq(u8, world->told[3], CPU));
    cr_assert(eq(u8, world->told[2], SSD));
    cr_assert(eq(u8, world->told[1], SSD));
    cr_assert(eq(u8, world->told[51], CPU));
    cr_assert(eq(u8, world->told[61], CPU | SSD));
    expect_sound(world);
    world_destroy(world);
}

/* ---- failing ---- */

static void expect_writes_stop(int status)
{
    struct world *world = new_world((struct world_config){.cpu_slots = 32, .ssd_slots = 32});
    atomic_store(&world->ssd->write_status, status);

    save_on_both(world, 1, 4);
    save_on_both(world, 11, 4);

    cr_assert(not(stats_of(world).is_ssd_writable));
    cr_assert(eq(u64, stats_of(world).ssd_write_errors, 1));
    cr_assert(eq(u64, stats_of(world).demoted_blocks, 0));
    cr_assert(eq(u64, stats_of(world).blocks->free_slots[BLOCK_TIER_SSD], 32));
    cr_assert(eq(u32, world_load(world, 1, 4), 4));
    expect_sound(world);
    world_destroy(world);
}

Test(tier_store_ssd, a_full_disk_stops_writes_and_nothing_else)
{
    expect_writes_stop(-ENOSPC);
}

Test(tier_store_ssd, a_failing_disk_stops_writes_and_nothing_else)
{
    expect_writes_stop(-EIO);
}

Test(tier_store_ssd, writes_go_on_when_there_is_room_again)
{
    struct world *world = new_world((struct world_config){.cpu_slots = 32, .ssd_slots = 32});
    atomic_store(&world->ssd->write_status, -ENOSPC);
    save_on_both(world, 1, 4);
    atomic_store(&world->ssd->write_status, 0);
    world->store->ssd_retry_ms = 0; /* the wait is over */

    save_on_both(world, 11, 4);

    cr_assert(stats_of(world).is_ssd_writable);
    cr_assert(eq(u64, stats_of(world).demoted_blocks, 4));
    expect_sound(world);
    world_destroy(world);
}

Test(tier_store_ssd, what_cannot_be_read_back_is_a_miss_and_is_withdrawn)
{
    struct world *world = new_world((struct world_config){.cpu_slots = 16, .ssd_slots = 32});
    save_on_ssd(world, 1, 4);
    world
        ->disk[tier_index_at(world->store, block_table_find_key(world->store->table, world_key(3)))
                   ->slot[BLOCK_TIER_SSD]]
        .found.key.check++;
    world->checks_order = false;

    uint32_t loaded = world_load(world, 1, 4);

    cr_assert(eq(u32, loaded, 2));
    cr_assert(eq(u8, world->told[3], 0));
    cr_assert(eq(u64, stats_of(world).corrupt_blocks, 1));
    world_settle(world);
    expect_sound(world);
    world_destroy(world);
}

Test(tier_store_ssd, a_page_that_went_bad_in_memory_is_not_written_down)
{
    struct world *world = new_world((struct world_config){.cpu_slots = 32, .ssd_slots = 32});
    world_save(world, 1, 2);
    struct tier *cpu = world->store->tiers[BLOCK_TIER_CPU];
    const uint32_t block = block_table_find_key(world->store->table, world_key(2));
    uint8_t *page =
        cpu->ops->payload(cpu, tier_index_at(world->store, block)->slot[BLOCK_TIER_CPU]);
    page[5]++;
    struct world_save again = {0};

    cr_assert(eq(int, world_begin_save_at(world, &again, 1, 2, 0, 0), 0));
    world_settle(world);

    cr_assert(eq(u8, world->told[1], CPU | SSD));
    cr_assert(eq(u8, world->told[2], 0));
    cr_assert(eq(u32, atomic_load(&world->ssd->write_count), 1));
    cr_assert(eq(u64, stats_of(world).corrupt_blocks, 1));
    expect_sound(world);
    world_destroy(world);
}

/* ---- up ---- */

static size_t prefetch(struct world *world, uint32_t first, uint32_t count, uint64_t deadline_ms)
{
    struct digest_128 names[64];

    for (uint32_t i = 0; i < count; i++)
        names[i] = world_name(first + i);
    return tier_store_prefetch(world->store, names, count, deadline_ms);
}

Test(tier_store_ssd, a_prefetch_brings_up_what_is_below_once_however_often_it_is_asked_for)
{
    struct world *world = new_world((struct world_config){.cpu_slots = 16, .ssd_slots = 32});
    save_on_ssd(world, 1, 4);
    const unsigned read_before = atomic_load(&world->ssd->read_count);

    size_t begun = prefetch(world, 1, 4, UINT64_MAX);
    size_t again = prefetch(world, 1, 4, UINT64_MAX);
    world_settle(world);

    cr_assert(eq(sz, begun, 4));
    cr_assert(eq(sz, again, 0));
    cr_assert(eq(u32, atomic_load(&world->ssd->read_count) - read_before, 4));
    for (uint32_t number = 1; number <= 4; number++)
        cr_assert(eq(u8, world->told[number], CPU | SSD));
    cr_assert(eq(u32, world_load(world, 1, 4), 4));
    cr_assert(eq(u64, stats_of(world).loaded_ssd_blocks, 0));
    world_settle(world);
    expect_sound(world);
    world_destroy(world);
}

Test(tier_store_ssd, a_prefetch_that_comes_too_late_is_given_up)
{
    struct world *world = new_world((struct world_config){.cpu_slots = 16, .ssd_slots = 32});
    save_on_ssd(world, 1, 4);
    const uint64_t past_ms = io_loop_now_ms(world->io) - 1;

    size_t begun = prefetch(world, 1, 4, past_ms);
    world_settle(world);

    cr_assert(eq(sz, begun, 4));
    cr_assert(eq(u64, stats_of(world).prefetch_late, 4));
    cr_assert(eq(u8, world->told[1], SSD));
    expect_sound(world);
    world_destroy(world);
}

/* ---- found again ---- */

Test(tier_store_ssd, a_restart_finds_what_was_written_parents_first)
{
    struct world *world = new_world((struct world_config){.cpu_slots = 64, .ssd_slots = 64});
    save_on_both(world, 1, 8);
    save_on_both(world, 101, 8);
    world_close(world);
    memset(world->told, 0, sizeof world->told);
    for (uint32_t slot = 0; slot < 32; slot++) { /* children lie before their parents now */
        struct fake_slot other = world->disk[slot];

        world->disk[slot] = world->disk[63 - slot];
        world->disk[63 - slot] = other;
        world->disk[slot].found.slot = slot;
        world->disk[63 - slot].found.slot = 63 - slot;
    }

    world_open(world);
    cr_assert(stats_of(world).is_scanning);
    world_settle(world);

    cr_assert(eq(u64, stats_of(world).scanned_blocks, 16));
    cr_assert(eq(u32, world_load(world, 1, 8), 8));
    cr_assert(eq(u32, world_load(world, 101, 8), 8));
    world_settle(world);
    expect_sound(world);
    world_destroy(world);
}

Test(tier_store_ssd, what_follows_something_that_is_gone_is_not_found_and_its_slot_is_free)
{
    struct world *world = new_world((struct world_config){.cpu_slots = 64, .ssd_slots = 64});
    save_on_both(world, 1, 8);
    world_close(world);
    memset(world->told, 0, sizeof world->told);
    for (uint32_t slot = 0; slot < 64; slot++) {
        if (world->disk[slot].is_written && world->disk[slot].found.key.name.low == 4)
            world->disk[slot].is_written = false;
    }

    world_open(world);
    world_settle(world);

    cr_assert(eq(u64, stats_of(world).scanned_blocks, 3));
    cr_assert(eq(sz, world_match(world, 1, 8, NULL), 3));
    cr_assert(eq(u8, world->told[5], 0));
    cr_assert(eq(u64, stats_of(world).blocks->free_slots[BLOCK_TIER_SSD], 61));
    expect_sound(world);
    world_destroy(world);
}

Test(tier_store_ssd, of_two_slots_with_one_key_one_counts_and_the_other_is_free)
{
    struct world *world = new_world((struct world_config){.cpu_slots = 64, .ssd_slots = 64});
    save_on_both(world, 1, 4);
    world_close(world);
    memset(world->told, 0, sizeof world->told);
    world->disk[60] = world->disk[0];
    world->disk[60].found.slot = 60;
    world->disk[60].found.sequence += 100;

    world_open(world);
    world_settle(world);

    cr_assert(eq(u64, stats_of(world).scanned_blocks, 4));
    cr_assert(eq(u64, stats_of(world).blocks->free_slots[BLOCK_TIER_SSD], 60));
    cr_assert(eq(u32, world_load(world, 1, 4), 4));
    world_settle(world);
    expect_sound(world);
    world_destroy(world);
}

Test(tier_store_ssd, saves_and_loads_go_on_while_a_scan_is_under_way)
{
    struct world *world = new_world((struct world_config){.cpu_slots = 64, .ssd_slots = 64});
    save_on_both(world, 1, 8);
    world_close(world);
    memset(world->told, 0, sizeof world->told);
    world_open(world);
    cr_assert(stats_of(world).is_scanning);

    struct tier_saved saved = world_save(world, 1, 8);
    uint32_t loaded = world_load(world, 1, 8);
    world_settle(world);

    cr_assert(eq(u32, saved.saved + saved.known, 8));
    cr_assert(eq(u32, loaded, 8));
    cr_assert(eq(u8, world->told[8], CPU | SSD));
    expect_sound(world);
    world_destroy(world);
}

Test(tier_store_ssd, closing_in_the_middle_of_a_scan_and_of_demotions_leaks_nothing)
{
    struct world *world = new_world((struct world_config){.cpu_slots = 64, .ssd_slots = 64});
    world_save(world, 1, 8);
    atomic_store(&world->ssd->delay_us, 2000);
    cr_assert(eq(u32, world_load(world, 1, 8), 8));
    cr_assert(gt(u32, world->store->demoting, 0));

    world_close(world);
    world_open(world);
    cr_assert(stats_of(world).is_scanning);
    world_close(world);

    world_destroy(world);
}

/* ---- what a load takes ---- */

Test(tier_store_ssd, each_tiers_time_is_learned_from_loads_of_it_alone)
{
    struct world *world = new_world((struct world_config){.cpu_slots = 16, .ssd_slots = 32});
    save_on_ssd(world, 1, 4);
    const uint64_t cpu_count = stats_of(world).load[BLOCK_TIER_CPU].timed_count;
    cr_assert(not(stats_of(world).load[BLOCK_TIER_SSD].is_measured));
    cr_assert(eq(u32, world_save_behind(world, 5, 2, 4, 4).saved, 2)); /* in CPU memory */

    cr_assert(eq(u32, world_load(world, 1, 6), 6));
    const bool is_by_both = stats_of(world).load[BLOCK_TIER_SSD].is_measured;
    while (world->told[1] != SSD)
        world_save(world, 2000, 4), world_save(world, 3000, 4), world_save(world, 4000, 4);
    cr_assert(eq(u32, world_load(world, 1, 4), 4));

    cr_assert(not(is_by_both));
    cr_assert(eq(u64, stats_of(world).load[BLOCK_TIER_SSD].timed_count, 1));
    cr_assert(eq(u64, stats_of(world).load[BLOCK_TIER_CPU].timed_count, cpu_count));
    expect_sound(world);
    world_destroy(world);
}
