/* SPDX-License-Identifier: Apache-2.0 */

#include "router/residency/residency_sync.h"

#include "tests/support/leak_check.h"
#include "tests/unit/residency/map_world.h"
#include "tests/unit/residency/world.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

TestSuite(residency_sync, .fini = leak_check);

/* ---- the table ---- */

Test(residency_sync, each_state_answers_each_event_as_the_table_says)
{
    enum {
        NIL = RESIDENCY_SYNC_NOTHING,
        BEG = RESIDENCY_SYNC_BEGIN,
        PAG = RESIDENCY_SYNC_PAGES,
        END = RESIDENCY_SYNC_END,
        CAT = RESIDENCY_SYNC_CATCH_UP,
        FOL = RESIDENCY_SYNC_FOLLOW,
        OFF = RESIDENCY_SYNC_BACK_OFF
    };
    static const int expected[RESIDENCY_SYNC_STATE_COUNT][RESIDENCY_SYNC_EVENT_COUNT] = {
        /* LIFE, DUE, BEGUN, PAGED, ENDED, AGREED, BROKEN, FORGET */
        [NIL] = {BEG, -1, -1, -1, -1, -1, -1, NIL},   [BEG] = {BEG, -1, PAG, -1, -1, -1, OFF, NIL},
        [PAG] = {BEG, -1, -1, END, -1, -1, OFF, NIL}, [END] = {BEG, -1, -1, -1, CAT, FOL, OFF, NIL},
        [CAT] = {BEG, -1, -1, -1, -1, FOL, OFF, NIL}, [FOL] = {BEG, -1, -1, -1, -1, -1, OFF, NIL},
        [OFF] = {BEG, BEG, -1, -1, -1, -1, -1, NIL},
    };

    for (int state = 0; state < RESIDENCY_SYNC_STATE_COUNT; state++) {
        for (int event = 0; event < RESIDENCY_SYNC_EVENT_COUNT; event++)
            cr_assert(eq(int,
                         residency_sync_state_after((enum residency_sync_state)state,
                                                    (enum residency_sync_event)event),
                         expected[state][event]),
                      "state %d, event %d", state, event);
    }
}

/* ---- reading ---- */

Test(residency_sync, an_agent_that_holds_nothing_yet_is_exact_about_it)
{
    struct map_world world = map_world();

    cr_assert(map_read(&world));

    cr_assert(map_agent(&world).is_believed);
    cr_assert(map_is_same(&world));
    map_world_release(&world);
}

Test(residency_sync, pages_and_what_changes_while_they_are_read_make_one_exact_whole)
{
    struct map_world world = map_world();
    for (uint64_t hash = 1; hash <= 40; hash++)
        map_hold(&world, hash, (uint32_t)hash * 16, RESIDENCY_HBM);
    map_lease(&world);
    cr_assert(map_step(&world)); /* the last change */
    cr_assert(map_step(&world)); /* the first page */

    map_hold(&world, 1, 0, 0);                                /* on a page that was read */
    map_hold(&world, 30, 480, RESIDENCY_HBM | RESIDENCY_SSD); /* on one that was not */
    map_hold(&world, 99, 16, RESIDENCY_CPU);                  /* takes the place of 1 */

    cr_assert(map_read(&world));
    cr_assert(map_is_same(&world));
    cr_assert(eq(u8, map_tiers(&world, 30), RESIDENCY_HBM | RESIDENCY_SSD));
    cr_assert(eq(u8, map_tiers(&world, 1), 0));
    cr_assert(eq(u64, map_view(&world).break_count, 0));
    map_world_release(&world);
}

Test(residency_sync, a_page_that_comes_into_being_after_the_lease_was_written_is_read_too)
{
    struct map_world world = map_world();
    map_hold(&world, 1, 16, RESIDENCY_HBM);
    map_lease(&world);
    for (uint64_t hash = 2; hash <= 3 * MAP_PAGE_SLOTS; hash++)
        map_hold(&world, hash, 16, RESIDENCY_HBM);

    for (int i = 0; i < 20 && map_view(&world).state != RESIDENCY_SYNC_FOLLOW; i++)
        (void)map_step(&world);

    cr_assert(map_is_same(&world));
    cr_assert(eq(u64, map_view(&world).break_count, 0));
    map_world_release(&world);
}

/* However a busy agent and a reader interleave, what becomes exact is the agent's. */
Test(residency_sync, any_interleaving_ends_in_the_same_whole)
{
    for (uint64_t seed = 1; seed <= 300; seed++) {
        struct map_world world = map_world();
        uint64_t random = seed;

        for (int i = 0; i < 200; i++) {
            uint64_t draw = world_random(&random);
            struct residency_record records[2] = {
                {1 + draw % 50, (uint32_t)(draw >> 32 & 1023), (uint8_t)(draw >> 16 & 7)},
                {1 + (draw >> 8) % 50, (uint32_t)(draw >> 40 & 1023), (uint8_t)(draw >> 19 & 7)},
            };

            if (draw >> 60 < 8)
                map_say(&world, records, records[0].hash == records[1].hash ? 1 : 2);
            else if (draw >> 60 < 10)
                map_lease(&world);
            else if (!map_step(&world))
                map_tick(&world, 40);
            if (map_agent(&world).is_believed && map_view(&world).sequence == world.sequence)
                cr_assert(map_is_same(&world), "seed %llu", (unsigned long long)seed);
        }
        cr_assert(map_read(&world), "seed %llu", (unsigned long long)seed);
        cr_assert(map_is_same(&world), "seed %llu", (unsigned long long)seed);
        cr_assert(eq(u64, map_view(&world).break_count, 0));
        map_world_release(&world);
    }
}

/* ---- what does not fit ---- */

static struct map_world exact_world(void)
{
    struct map_world world = map_world();

    for (uint64_t hash = 1; hash <= 20; hash++)
        map_hold(&world, hash, 16, RESIDENCY_HBM);
    cr_assert(map_read(&world));
    return world;
}

Test(residency_sync, a_change_that_is_not_the_next_one_is_a_gap_and_all_is_read_anew)
{
    struct map_world world = exact_world();
    map_hold(&world, 50, 16, RESIDENCY_HBM);
    map_hold(&world, 51, 16, RESIDENCY_HBM);
    world.trimmed = world.sequence - 1;

    (void)map_step(&world);

    cr_assert(eq(int, map_view(&world).state, RESIDENCY_SYNC_BACK_OFF));
    cr_assert(eq(int, map_view(&world).last_break, RESIDENCY_BREAK_GAP));
    cr_assert(eq(int, map_agent(&world).doubt, RESIDENCY_DOUBT_NOT_READ));
    cr_assert(eq(u8, map_tiers(&world, 20), RESIDENCY_HBM)); /* still a guess */
    cr_assert(map_read(&world));
    cr_assert(map_is_same(&world));
    map_world_release(&world);
}

Test(residency_sync, a_change_that_comes_twice_does_no_harm)
{
    struct map_world world = exact_world();

    map_tell_changes(&world, world.sequence - 2, 3);

    cr_assert(map_agent(&world).is_believed);
    cr_assert(map_is_same(&world));
    map_world_release(&world);
}

Test(residency_sync, a_record_that_was_lost_shows_at_the_next_change)
{
    struct map_world world = exact_world();
    map_put(&world, (struct residency_record){60, 16, RESIDENCY_HBM}); /* and says nothing */

    map_hold(&world, 61, 16, RESIDENCY_HBM);
    (void)map_step(&world);

    cr_assert(eq(int, map_view(&world).last_break, RESIDENCY_BREAK_DIGEST));
    cr_assert(map_read(&world));
    cr_assert(eq(u8, map_tiers(&world, 60), RESIDENCY_HBM));
    map_world_release(&world);
}

Test(residency_sync, back_offs_grow_and_begin_anew_once_it_has_been_exact_for_some_time)
{
    struct map_world world = exact_world();
    uint64_t waits[4];

    for (int i = 0; i < 4; i++) {
        if (i == 3)
            world.now_ms += RESIDENCY_SYNC_SETTLED_MS;
        residency_sync_broken(world.sync, MAP_WORKER, RESIDENCY_BREAK_UNREADABLE, world.now_ms);
        for (waits[i] = 0; map_view(&world).state == RESIDENCY_SYNC_BACK_OFF; waits[i] += 10) {
            map_lease(&world);
            map_tick(&world, 10);
        }
        cr_assert(map_read(&world));
    }

    cr_assert(le(u64, waits[0], 100));
    cr_assert(ge(u64, waits[0], 75));
    cr_assert(le(u64, waits[1], 200));
    cr_assert(ge(u64, waits[1], 150));
    cr_assert(le(u64, waits[2], 400));
    cr_assert(ge(u64, waits[2], 300));
    cr_assert(le(u64, waits[3], 100));
    cr_assert(ge(u64, waits[3], 75));
    map_world_release(&world);
}

Test(residency_sync, a_lease_that_stays_ahead_of_the_changes_ends_the_waiting_for_them)
{
    struct map_world world = exact_world();
    map_hold(&world, 50, 16, RESIDENCY_HBM);

    map_lease(&world);
    world.now_ms += RESIDENCY_SYNC_STALLED_MS;
    map_lease(&world);
    cr_assert(eq(int, map_view(&world).state, RESIDENCY_SYNC_FOLLOW));
    world.now_ms += 1;
    map_lease(&world);

    cr_assert(eq(int, map_view(&world).last_break, RESIDENCY_BREAK_STALLED));
    map_world_release(&world);
}

Test(residency_sync, a_stream_that_is_gone_is_no_empty_one)
{
    struct map_world world = map_world();
    map_hold(&world, 1, 16, RESIDENCY_HBM);
    map_lease(&world);

    residency_sync_last(world.sync, MAP_WORKER, 0, NULL, world.now_ms);

    cr_assert(eq(int, map_view(&world).last_break, RESIDENCY_BREAK_EXPIRED));
    map_world_release(&world);
}

Test(residency_sync, a_page_that_is_no_records_is_not_used)
{
    struct map_world world = map_world();
    map_hold(&world, 1, 16, RESIDENCY_HBM);
    map_lease(&world);
    (void)map_step(&world);

    residency_sync_page(world.sync, MAP_WORKER, 0, SLICE("thirteen bytes"), world.now_ms);

    cr_assert(eq(int, map_view(&world).last_break, RESIDENCY_BREAK_UNREADABLE));
    cr_assert(not(map_agent(&world).has_claims));
    map_world_release(&world);
}

/* ---- lives ---- */

Test(residency_sync, another_life_takes_everything_of_the_last_one_with_it_at_once)
{
    struct map_world world = exact_world();
    uint32_t holder = map_agent(&world).holder;

    map_begin_life(&world, (struct residency_life){7, 2});
    map_lease(&world);

    cr_assert(not(map_agent(&world).has_claims));
    cr_assert(map_read(&world));
    cr_assert(map_is_same(&world));
    cr_assert(ne(u32, map_agent(&world).holder, holder));
    for (int i = 0; i < 10; i++)
        map_tick(&world, 1);
    cr_assert(residency_index_is_free(world.index, holder));
    cr_assert(eq(u64, residency_index_stats(world.index).holder_count, 0));
    map_world_release(&world);
}

Test(residency_sync, holders_stay_few_however_many_lives_go_by)
{
    struct map_world world = exact_world();

    for (uint32_t generation = 2; generation < 50; generation++) {
        map_begin_life(&world, (struct residency_life){7, generation});
        map_hold(&world, generation, 16, RESIDENCY_HBM);
        map_lease(&world);
        cr_assert(map_read(&world));

        cr_assert(map_agent(&world).has_claims);
        cr_assert(lt(u32, map_agent(&world).holder, residency_sync_holder_end(world.sync)));
        cr_assert(le(u32, residency_sync_holder_end(world.sync), 2));
        map_tick(&world, 1);
    }
    residency_sync_forget(world.sync, MAP_WORKER);

    cr_assert(eq(u32, residency_sync_holder_end(world.sync), 0));
    map_world_release(&world);
}

Test(residency_sync, two_epochs_that_take_turns_are_never_believed)
{
    struct map_world world = exact_world();

    for (int i = 0; i < 20; i++) {
        map_begin_life(&world, (struct residency_life){i % 2 == 0 ? 8 : 7, 1});
        map_lease(&world);
        for (int step = 0; step < 10 && map_step(&world); step++)
            ;
        cr_assert(not(map_agent(&world).is_believed && i > 0));
        map_tick(&world, 500);
    }

    cr_assert(ge(u64, residency_sync_stats(world.sync).breaks_total[RESIDENCY_BREAK_RIVALS], 10));
    map_world_release(&world);
}

Test(residency_sync, a_life_that_is_after_the_last_one_is_read_at_once_however_soon)
{
    struct map_world world = exact_world();

    for (uint64_t epoch = 8; epoch < 28; epoch++) {
        world.after_epoch = world.life.epoch;
        map_begin_life(&world, (struct residency_life){epoch, 1});
        map_lease(&world);
        cr_assert(not(map_agent(&world).has_claims), "nothing of the one before");
        for (int step = 0; step < 10 && map_step(&world); step++)
            ;
        cr_assert(map_agent(&world).is_believed);
        map_tick(&world, 500);
    }

    cr_assert(eq(u64, residency_sync_stats(world.sync).breaks_total[RESIDENCY_BREAK_RIVALS], 0));
    map_world_release(&world);
}

/* ---- who is believed ---- */

Test(residency_sync, without_its_lease_it_is_a_guess_and_exact_at_once_when_it_is_back)
{
    struct map_world world = exact_world();

    map_no_lease(&world);
    cr_assert(eq(int, map_agent(&world).doubt, RESIDENCY_DOUBT_NO_LEASE));
    cr_assert(map_agent(&world).has_claims);
    cr_assert(not(map_agent(&world).is_there));
    world.now_ms += RESIDENCY_SYNC_KEPT_MS;
    map_tick(&world, 0);
    map_lease(&world);

    cr_assert(map_agent(&world).is_believed);
    cr_assert(map_is_same(&world));
    map_world_release(&world);
}

Test(residency_sync, a_replica_is_forgotten_when_its_agent_has_been_silent_for_too_long)
{
    struct map_world world = exact_world();
    map_no_lease(&world);

    map_tick(&world, RESIDENCY_SYNC_KEPT_MS + 1);

    cr_assert(eq(int, map_view(&world).state, RESIDENCY_SYNC_NOTHING));
    cr_assert(not(map_agent(&world).has_claims));
    cr_assert(map_read(&world)); /* and it may come back */
    map_world_release(&world);
}

Test(residency_sync, while_redis_is_away_the_last_word_is_believed_for_three_seconds)
{
    struct map_world world = exact_world();

    world.now_ms += RESIDENCY_SYNC_BELIEVED_MS;
    cr_assert(map_agent(&world).is_believed);
    world.now_ms += 1;

    cr_assert(eq(int, map_agent(&world).doubt, RESIDENCY_DOUBT_NO_MAP));
    cr_assert(map_agent(&world).has_claims);
    map_lease(&world);
    cr_assert(map_agent(&world).is_believed);
    map_world_release(&world);
}

Test(residency_sync, what_names_prompts_otherwise_is_not_read)
{
    struct map_world world = exact_world();
    struct residency_lease lease = {.fingerprint = 99, .life = world.life, .is_whole = true};

    residency_sync_lease(world.sync, MAP_WORKER, &lease, world.now_ms);

    cr_assert(eq(int, map_agent(&world).doubt, RESIDENCY_DOUBT_FINGERPRINT));
    cr_assert(not(map_agent(&world).has_claims));
    cr_assert(not(map_agent(&world).is_there));
    cr_assert(eq(int, residency_sync_wish(world.sync, MAP_WORKER).kind, RESIDENCY_WISH_NOTHING));
    cr_assert(eq(u32, residency_sync_stats(world.sync).stranger_count, 1));
    map_world_release(&world);
}

Test(residency_sync, who_claims_more_than_its_cache_can_hold_is_not_looked_at)
{
    struct map_world world = exact_world();
    struct residency_meta meta = {.cache_tokens = 20};

    residency_sync_meta(world.sync, MAP_WORKER, &meta, world.now_ms);
    cr_assert(map_agent(&world).is_believed);
    map_hold(&world, 50, 16, RESIDENCY_SSD); /* no part of that cache */
    (void)map_step(&world);
    cr_assert(map_agent(&world).is_believed);
    map_hold(&world, 51, 16, RESIDENCY_HBM);
    (void)map_step(&world);

    cr_assert(eq(int, map_agent(&world).doubt, RESIDENCY_DOUBT_CAPACITY));
    cr_assert(not(map_agent(&world).has_claims));
    cr_assert(eq(u64, map_view(&world).record_count, 0));
    map_world_release(&world);
}

Test(residency_sync, a_lease_of_more_pages_than_can_be_is_not_read)
{
    struct map_world world = map_world();
    struct residency_lease lease = {
        .fingerprint = MAP_FINGERPRINT, .life = world.life, .page_count = UINT32_MAX};

    residency_sync_polled(world.sync, world.now_ms);
    residency_sync_lease(world.sync, MAP_WORKER, &lease, world.now_ms);
    (void)map_step(&world);

    cr_assert(eq(int, map_agent(&world).doubt, RESIDENCY_DOUBT_CAPACITY));
    map_world_release(&world);
}

Test(residency_sync, who_keeps_promising_what_is_missing_is_quarantined_and_comes_back_on_probation)
{
    struct map_world world = exact_world();
    int count = 0;

    while (!residency_sync_answered(world.sync, MAP_WORKER, 1000, 0, world.now_ms))
        count++;

    cr_assert(le(int, count, 5));
    cr_assert(eq(int, map_agent(&world).doubt, RESIDENCY_DOUBT_TRUST));
    cr_assert(not(map_agent(&world).has_claims));
    world.now_ms += 10000;
    map_lease(&world);
    cr_assert(map_agent(&world).is_believed);
    cr_assert(residency_sync_answered(world.sync, MAP_WORKER, 1000, 0, world.now_ms));
    map_world_release(&world);
}

Test(residency_sync, nobody_is_judged_by_what_he_cannot_take_back_while_redis_is_away)
{
    struct map_world world = exact_world();

    world.now_ms += RESIDENCY_SYNC_JUDGED_MS + 1;
    for (int i = 0; i < 100; i++)
        cr_assert(not(residency_sync_answered(world.sync, MAP_WORKER, 1000, 0, world.now_ms)));

    cr_assert(map_agent(&world).is_believed);
    cr_assert(eq(u64, residency_sync_stats(world.sync).claimed_tokens_total, 0));
    map_world_release(&world);
}

Test(residency_sync, what_the_index_has_no_room_for_is_counted_and_the_rest_is_used)
{
    struct map_world world = map_world();
    residency_sync_destroy(world.sync);
    residency_index_destroy(world.index);
    world.index = residency_index_create(256);
    world.sync = residency_sync_create(world.index,
                                       (struct residency_sync_config){MAP_FINGERPRINT, 1 << 20, 1});
    for (uint64_t hash = 1; hash <= 60; hash++)
        map_hold(&world, hash, 16, RESIDENCY_HBM);

    cr_assert(map_read(&world));

    cr_assert(map_agent(&world).is_believed);
    cr_assert(gt(u64, map_view(&world).refused_count, 0));
    cr_assert(eq(u32, residency_sync_stats(world.sync).partial_count, 1));
    map_hold(&world, 61, 16, RESIDENCY_HBM);
    (void)map_step(&world);
    cr_assert(map_agent(&world).is_believed);
    map_world_release(&world);
}

Test(residency_sync, a_worker_that_is_forgotten_leaves_nothing)
{
    struct map_world world = exact_world();

    residency_sync_forget(world.sync, MAP_WORKER);

    cr_assert(eq(int, map_agent(&world).doubt, RESIDENCY_DOUBT_NO_AGENT));
    map_tick(&world, 1);
    cr_assert(eq(u64, residency_index_stats(world.index).holder_count, 0));
    residency_sync_page(world.sync, MAP_WORKER, 0, SLICE(""), world.now_ms); /* late answers */
    residency_sync_broken(world.sync, MAP_WORKER, RESIDENCY_BREAK_FAILED, world.now_ms);
    map_world_release(&world);
}
