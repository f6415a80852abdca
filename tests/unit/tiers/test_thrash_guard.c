/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/thrash_guard.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>

#include "kvtier/tiers/eviction.h"
#include "tests/support/leak_check.h"
#include "tests/unit/tiers/table_world.h"

TestSuite(thrash_guard, .fini = leak_check);

enum { SLOTS = 300, WINDOW_MS = 10000 };

/* A tier by recency, with a guard before it or without one; a request of one block a millisecond.
 */
struct guard_world {
    struct block_table *table;
    struct thrash_guard *guard; /* NULL: none */
    uint64_t now_ms;
};

static struct guard_world world_of(bool has_guard)
{
    struct guard_world world = {.table = table_of(SLOTS, 0, &eviction_lru_leaf)};

    if (has_guard)
        cr_assert(eq(
            int, thrash_guard_create((struct thrash_guard_config){SLOTS, WINDOW_MS}, &world.guard),
            0));
    return world;
}

static void release(struct guard_world *world)
{
    cr_assert(block_table_is_sound(world->table));
    block_table_destroy(world->table);
    thrash_guard_destroy(world->guard);
}

static bool ask(struct guard_world *world, uint64_t number)
{
    const uint64_t name = key_of(number).name.low;
    uint32_t index = block_table_find_key(world->table, key_of(number));

    world->now_ms++;
    if (index != 0) {
        block_table_use(world->table, &index, 1);
        if (world->guard != NULL)
            thrash_guard_hit(world->guard, 1, world->now_ms);
        return true;
    }
    if (world->guard != NULL && !thrash_guard_admits(world->guard, &name, 1, world->now_ms))
        return false;
    if (block_table_stats(world->table)->free_slots[BLOCK_TIER_CPU] == 0) {
        const uint32_t victim = first_victim(world->table, BLOCK_TIER_CPU);

        if (world->guard != NULL)
            thrash_guard_evicted(world->guard, block_table_at(world->table, victim)->key.name.low);
        make_leave(world->table, victim, BLOCK_TIER_CPU);
    }
    add_held(world->table, number, 0, BLOCK_TIER_CPU);
    return false;
}

/* Hits of a hundred rounds over blocks first..first + count). */
static double loop_hit_ratio(struct guard_world *world, uint64_t first, uint64_t count)
{
    enum { ROUNDS = 100 };
    uint64_t hits = 0;

    for (uint64_t i = 0; i < ROUNDS * count; i++)
        hits += ask(world, first + i % count);
    return (double)hits / (double)(ROUNDS * count);
}

Test(thrash_guard, limits_that_are_too_low_are_refused)
{
    struct thrash_guard *guard;

    cr_assert(
        eq(int, thrash_guard_create((struct thrash_guard_config){0, WINDOW_MS}, &guard), -EINVAL));
    cr_assert(
        eq(int, thrash_guard_create((struct thrash_guard_config){SLOTS, 7}, &guard), -EINVAL));
    cr_assert(eq(ptr, guard, NULL));
}

Test(thrash_guard, keeps_a_part_of_a_loop_of_three_times_the_slots)
{
    struct guard_world without = world_of(false), with = world_of(true);

    cr_assert(eq(dbl, loop_hit_ratio(&without, 1, 3 * SLOTS), 0));
    cr_assert(gt(dbl, loop_hit_ratio(&with, 1, 3 * SLOTS), 0.2)); /* a third at best */

    cr_assert(thrash_guard_is_closed(with.guard));
    cr_assert(eq(u64, thrash_guard_stats(with.guard)->closed, 2), "and tried once if it must");
    cr_assert(gt(dbl, thrash_guard_pressure(with.guard, with.now_ms), 0.5));
    release(&without);
    release(&with);
}

Test(thrash_guard, keeps_most_of_a_loop_that_is_a_little_too_large)
{
    struct guard_world without = world_of(false), with = world_of(true);

    cr_assert(eq(dbl, loop_hit_ratio(&without, 1, SLOTS + SLOTS / 4), 0));
    cr_assert(gt(dbl, loop_hit_ratio(&with, 1, SLOTS + SLOTS / 4), 0.5));

    release(&without);
    release(&with);
}

Test(thrash_guard, never_closes_on_what_fits)
{
    struct guard_world world = world_of(true);

    cr_assert(eq(dbl, loop_hit_ratio(&world, 1, SLOTS), 0.99)); /* all but the first round */
    cr_assert(eq(dbl, loop_hit_ratio(&world, 1000, SLOTS), 0.99), "and the set may change");

    cr_assert(eq(u64, thrash_guard_stats(world.guard)->closed, 0));
    cr_assert(eq(u64, thrash_guard_stats(world.guard)->refaults, 0));
    release(&world);
}

Test(thrash_guard, never_closes_on_what_never_comes_again)
{
    struct guard_world world = world_of(true);

    for (uint64_t i = 1; i < 100 * SLOTS; i++)
        ask(&world, i);

    cr_assert(eq(u64, thrash_guard_stats(world.guard)->closed, 0));
    cr_assert(eq(dbl, thrash_guard_pressure(world.guard, world.now_ms), 0));
    release(&world);
}

Test(thrash_guard, opens_for_a_new_set_that_fits)
{
    struct guard_world world = world_of(true);
    loop_hit_ratio(&world, 1, 3 * SLOTS);
    cr_assert(thrash_guard_is_closed(world.guard));
    const uint64_t closed = thrash_guard_stats(world.guard)->closed;

    loop_hit_ratio(&world, 10000, SLOTS / 2); /* 15 seconds: more than a window */
    const double hit_ratio = loop_hit_ratio(&world, 10000, SLOTS / 2);

    cr_assert(not(thrash_guard_is_closed(world.guard)));
    cr_assert(eq(dbl, hit_ratio, 1));
    cr_assert(eq(u64, thrash_guard_stats(world.guard)->closed, closed));
    release(&world);
}

Test(thrash_guard, opens_when_the_load_has_gone)
{
    struct guard_world world = world_of(true);
    const uint64_t name = 77;
    loop_hit_ratio(&world, 1, 3 * SLOTS);
    cr_assert(thrash_guard_is_closed(world.guard));

    world.now_ms += 2 * WINDOW_MS;

    cr_assert(thrash_guard_admits(world.guard, &name, 1, world.now_ms));
    cr_assert(not(thrash_guard_is_closed(world.guard)));
    cr_assert(eq(dbl, thrash_guard_pressure(world.guard, world.now_ms), 0));
    release(&world);
}

Test(thrash_guard, lets_one_request_in_sixteen_in_while_it_is_closed)
{
    struct guard_world world = world_of(true);
    uint64_t names[4] = {1000001, 1000002, 1000003, 1000004};
    unsigned admitted = 0;
    loop_hit_ratio(&world, 1, 3 * SLOTS);
    const uint64_t turned_away = thrash_guard_stats(world.guard)->turned_away;

    for (int i = 0; i < 160; i++)
        admitted += thrash_guard_admits(world.guard, names, 4, world.now_ms);

    cr_assert(eq(uint, admitted, 10));
    cr_assert(eq(u64, thrash_guard_stats(world.guard)->turned_away - turned_away, 150 * 4));
    release(&world);
}

/* Names 1.. are evicted and come again, hits between them; whether that closes the guard. */
static bool closes(uint64_t refaults, uint64_t hits, size_t preemptions)
{
    struct thrash_guard *guard;
    bool is_closed;

    cr_assert(
        eq(int, thrash_guard_create((struct thrash_guard_config){SLOTS, WINDOW_MS}, &guard), 0));
    thrash_guard_hit(guard, hits, 1);
    thrash_guard_preempted(guard, preemptions, 1);
    for (uint64_t name = 1; name <= refaults; name++) {
        thrash_guard_evicted(guard, name);
        (void)thrash_guard_admits(guard, &name, 1, 1);
    }
    is_closed = thrash_guard_is_closed(guard);
    thrash_guard_destroy(guard);
    return is_closed;
}

/* By hand, 300 slots: evidence is 75, a hit counts four. */
Test(thrash_guard, closes_where_refaults_outweigh_hits)
{
    cr_assert(not(closes(75, 0, 0)));
    cr_assert(closes(76, 0, 0));
    cr_assert(not(closes(175, 25, 0)));
    cr_assert(closes(176, 25, 0));
}

Test(thrash_guard, preemptions_can_double_refaults_and_are_none_themselves)
{
    cr_assert(not(closes(0, 0, 1000)));
    cr_assert(not(closes(37, 0, 1000)));
    cr_assert(closes(38, 0, 1000));
    cr_assert(not(closes(59, 0, 1))); /* 59 + 16 */
    cr_assert(closes(60, 0, 1));
}

Test(thrash_guard, what_is_long_past_does_not_count)
{
    struct thrash_guard *guard;
    cr_assert(
        eq(int, thrash_guard_create((struct thrash_guard_config){SLOTS, WINDOW_MS}, &guard), 0));

    for (uint64_t name = 1; name <= 140; name++) { /* never more than 70 in a window */
        thrash_guard_evicted(guard, name);
        cr_assert(thrash_guard_admits(guard, &name, 1, name <= 70 ? 1 : 2 * WINDOW_MS));
    }
    const uint64_t late = 5000;
    thrash_guard_evicted(guard, late);
    thrash_guard_hit(guard, 8 * SLOTS, 2 * WINDOW_MS);
    const uint64_t refaults = thrash_guard_stats(guard)->refaults;
    cr_assert(thrash_guard_admits(guard, &late, 1, 2 * WINDOW_MS));

    cr_assert(eq(u64, thrash_guard_stats(guard)->refaults, refaults), "not shortly before");
    thrash_guard_destroy(guard);
}
