/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/block_table.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backends/runtime/random.h"
#include "tests/support/leak_check.h"
#include "tests/unit/tiers/table_world.h"

TestSuite(block_table, .fini = leak_check);

static const struct eviction_ops *const lru = &eviction_lru_leaf;

Test(block_table, limits_that_contradict_each_other_are_refused)
{
    static const struct block_table_config configs[] = {
        {.block_count_max = 0, .slot_count = {0, 0}},
        {.block_count_max = 5, .slot_count = {0, 0}},
        {.block_count_max = 5, .slot_count = {4, 2}},
        {.block_count_max = UINT32_MAX, .slot_count = {4, 2}},
        {.block_count_max = 8, .slot_count = {UINT32_MAX, 9}},
    };

    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
        struct block_table_config config = configs[i];
        struct block_table *table;
        config.eviction = lru;

        cr_assert(eq(int, block_table_create(config, &table), -EINVAL));
        cr_assert(eq(ptr, table, NULL));
    }
}

Test(block_table, a_block_is_found_by_all_of_its_key)
{
    struct block_table *table = table_of(4, 0, lru);
    const uint32_t index = add_held(table, 1, 0, BLOCK_TIER_CPU);
    struct block_key other_high = key_of(1), other_check = key_of(1);
    other_high.name.high++;
    other_check.check++;

    cr_assert(eq(u32, block_table_find_key(table, key_of(1)), index));
    cr_assert(eq(u32, block_table_find_key(table, other_high), 0));
    cr_assert(eq(u32, block_table_find_key(table, other_check), 0));
    cr_assert(eq(u32, block_table_add(table, other_check, 0, 0), 0));
    cr_assert(eq(u64, block_table_stats(table)->refused, 1));
    cr_assert(ne(u32, block_table_add(table, other_high, 0, 0), 0));
    block_table_destroy(table);
}

Test(block_table, a_block_that_got_no_place_is_forgotten_by_the_next_add)
{
    struct block_table *table = table_of(4, 0, lru);

    cr_assert(ne(u32, block_table_add(table, key_of(1), 0, 0), 0));
    cr_assert(block_table_is_sound(table));
    cr_assert(ne(u32, block_table_add(table, key_of(2), 0, 0), 0));

    cr_assert(eq(u32, block_table_find_key(table, key_of(1)), 0));
    cr_assert(ne(u32, block_table_find_key(table, key_of(2)), 0));
    block_table_destroy(table);
}

Test(block_table, a_chain_may_be_added_before_any_of_it_gets_a_place)
{
    struct block_table *table = table_of(4, 0, lru);
    uint32_t indices[3], parent = 0;

    for (uint32_t i = 0; i < 3; i++)
        parent = indices[i] = block_table_add(table, key_of(i + 1), parent, i);
    for (uint32_t i = 0; i < 3; i++)
        place_held(table, indices[i], BLOCK_TIER_CPU);

    cr_assert(eq(u64, block_table_stats(table)->held[BLOCK_TIER_CPU], 3));
    cr_assert(block_table_is_sound(table));
    block_table_destroy(table);
}

Test(block_table, a_chain_that_got_no_place_is_forgotten_whole)
{
    struct block_table *table = table_of(4, 0, lru);
    uint32_t parent = 0;

    for (uint32_t i = 0; i < 3; i++)
        parent = block_table_add(table, key_of(i + 1), parent, i);
    cr_assert(ne(u32, block_table_add(table, key_of(9), 0, 0), 0));

    for (uint32_t i = 0; i < 3; i++)
        cr_assert(eq(u32, block_table_find_key(table, key_of(i + 1)), 0));
    cr_assert(block_table_is_sound(table));
    block_table_destroy(table);
}

Test(block_table, an_add_keeps_the_parent_it_was_given_whatever_else_is_forgotten)
{
    struct block_table *table = table_of(4, 0, lru);
    const uint32_t parent = block_table_add(table, key_of(1), 0, 0);
    cr_assert(ne(u32, block_table_add(table, key_of(2), parent, 1), 0));

    const uint32_t child = block_table_add(table, key_of(3), parent, 1);

    cr_assert(eq(u32, block_table_find_key(table, key_of(2)), 0));
    cr_assert(eq(u32, block_table_at(table, child)->parent, parent));
    cr_assert(eq(u32, block_table_at(table, parent)->child_count, 1));
    cr_assert(block_table_is_sound(table));
    block_table_destroy(table);
}

Test(block_table, a_full_table_refuses_and_says_so)
{
    struct block_table *table = table_of(2, 0, lru);
    add_held(table, 1, 0, BLOCK_TIER_CPU);
    const uint32_t last = add_held(table, 2, 0, BLOCK_TIER_CPU);

    cr_assert(eq(u32, block_table_add(table, key_of(3), 0, 0), 0));
    cr_assert(eq(u32, block_table_take_slot(table, BLOCK_TIER_CPU), BLOCK_SLOT_NONE));
    cr_assert(eq(u64, block_table_stats(table)->refused, 1));

    make_leave(table, last, BLOCK_TIER_CPU);
    cr_assert(ne(u32, block_table_add(table, key_of(3), 0, 0), 0));
    block_table_destroy(table);
}

Test(block_table, a_child_that_is_found_first_meets_its_parent_later)
{
    struct block_table *table = table_of(4, 0, lru);
    const uint32_t parent = block_table_claim_parent(table, key_of(1).name, 1);
    const uint32_t child = block_table_add(table, key_of(2), parent, 1);
    place_held(table, child, BLOCK_TIER_CPU);
    cr_assert(eq(u32, block_table_find_key(table, key_of(1)), 0), "only its name is known");

    const uint32_t found = block_table_add(table, key_of(1), 0, 0);
    place_held(table, found, BLOCK_TIER_CPU);

    cr_assert(eq(u32, found, parent));
    cr_assert(eq(u32, block_table_find_key(table, key_of(1)), parent));
    cr_assert(eq(u32, first_victim(table, BLOCK_TIER_CPU), child));
    cr_assert(block_table_is_sound(table));
    block_table_destroy(table);
}

Test(block_table, a_parent_in_name_only_goes_with_its_last_child)
{
    struct block_table *table = table_of(2, 0, lru);
    const uint32_t parent = block_table_claim_parent(table, key_of(1).name, 5);
    const uint32_t child = block_table_add(table, key_of(2), parent, 5);
    place_held(table, child, BLOCK_TIER_CPU);
    cr_assert(eq(u32, block_table_add(table, key_of(3), 0, 0), 0), "both nodes are taken");

    make_leave(table, child, BLOCK_TIER_CPU);

    add_held(table, 3, 0, BLOCK_TIER_CPU);
    add_held(table, 4, 0, BLOCK_TIER_CPU);
    cr_assert(block_table_is_sound(table));
    block_table_destroy(table);
}

Test(block_table, who_is_known_without_a_parent_learns_it)
{
    struct block_table *table = table_of(4, 0, lru);
    const uint32_t child = block_table_add(table, key_of(2), 0, 1);
    place_held(table, child, BLOCK_TIER_CPU);
    const uint32_t parent = add_held(table, 1, 0, BLOCK_TIER_CPU);

    cr_assert(eq(u32, block_table_add(table, key_of(2), parent, 1), child));

    cr_assert(eq(u32, block_table_at(table, child)->parent, parent));
    cr_assert(eq(u32, block_table_at(table, parent)->held_children[BLOCK_TIER_CPU], 1));
    cr_assert(eq(u32, first_victim(table, BLOCK_TIER_CPU), child));
    cr_assert(block_table_is_sound(table));
    block_table_destroy(table);
}

Test(block_table, headers_that_lie_about_their_depth_make_no_circle)
{
    struct block_table *table = table_of(8, 0, lru);
    const uint32_t a_parent = block_table_claim_parent(table, key_of(2).name, 7);
    const uint32_t a = block_table_add(table, key_of(1), a_parent, 7);
    place_held(table, a, BLOCK_TIER_CPU);

    cr_assert(eq(u32, block_table_claim_parent(table, key_of(1).name, 7), 0));
    cr_assert(eq(u32, block_table_add(table, key_of(2), 0, 7), 0), "its child said that it is 6");
    cr_assert(eq(u32, block_table_claim_parent(table, (struct digest_128){0, 1}, 7), 0));

    cr_assert(eq(u32, first_victim(table, BLOCK_TIER_CPU), a));
    cr_assert(block_table_is_sound(table));
    block_table_destroy(table);
}

Test(block_table, a_match_ends_at_the_first_block_that_cannot_be_loaded)
{
    struct block_table *table = table_of(4, 4, lru);
    struct block_key keys[] = {key_of(1), key_of(2), key_of(3), key_of(4)};
    uint8_t tiers[4] = {0};
    const uint32_t first = add_held(table, 1, 0, BLOCK_TIER_CPU);
    place_held(table, first, BLOCK_TIER_SSD);
    const uint32_t second = add_held(table, 2, first, BLOCK_TIER_SSD);
    const uint32_t third = block_table_add(table, key_of(3), second, 2);
    block_table_set_place(table, third, BLOCK_TIER_CPU, BLOCK_WRITING,
                          block_table_take_slot(table, BLOCK_TIER_CPU));

    cr_assert(eq(sz, block_table_match(table, keys, 4, tiers), 2));

    cr_assert(eq(u8, tiers[0], 1 << BLOCK_TIER_CPU | 1 << BLOCK_TIER_SSD));
    cr_assert(eq(u8, tiers[1], 1 << BLOCK_TIER_SSD));
    block_table_set_place(table, third, BLOCK_TIER_CPU, BLOCK_HELD, BLOCK_SLOT_NONE);
    cr_assert(eq(sz, block_table_match(table, keys, 4, NULL), 3));
    block_table_set_place(table, first, BLOCK_TIER_CPU, BLOCK_LEAVING, BLOCK_SLOT_NONE);
    block_table_set_place(table, first, BLOCK_TIER_SSD, BLOCK_LEAVING, BLOCK_SLOT_NONE);
    cr_assert(eq(sz, block_table_match(table, keys, 4, NULL), 0));
    block_table_destroy(table);
}

Test(block_table, holding_a_chain_holds_what_matches_and_nothing_behind_it)
{
    enum { COUNT = 40 };
    struct block_table *table = table_of(2 * COUNT, 0, lru);
    struct block_key keys[COUNT];
    uint32_t indices[COUNT], parent = 0, other = 0;

    for (uint32_t i = 0; i < COUNT; i++) { /* the first half lies beside another chain's */
        keys[i] = key_of(i + 1);
        parent = add_held(table, i + 1, parent, BLOCK_TIER_CPU);
        if (i < COUNT / 2)
            other = add_held(table, 1000 + i, other, BLOCK_TIER_CPU);
    }
    for (size_t count = 0; count <= COUNT; count++) {
        cr_assert(eq(sz, block_table_hold_chain(table, keys, count, indices), count));
        cr_assert(eq(u64, block_table_stats(table)->holds, count));
        for (size_t i = 0; i < count; i++) {
            cr_assert(eq(u32, indices[i], block_table_find_key(table, keys[i])));
            block_table_unhold(table, indices[i]);
        }
    }
    keys[30].check++;
    cr_assert(eq(sz, block_table_hold_chain(table, keys, COUNT, indices), 30));
    cr_assert(eq(u64, block_table_stats(table)->holds, 30));
    cr_assert(block_table_is_sound(table));
    block_table_destroy(table);
}

Test(block_table, a_long_match_tells_of_every_block)
{
    enum { COUNT = 100 };
    struct block_table *table = table_of(COUNT, 0, lru);
    struct block_key keys[COUNT];
    uint8_t tiers[COUNT] = {0};
    uint32_t parent = 0;
    for (uint32_t i = 0; i < COUNT; i++) {
        keys[i] = key_of(i + 1);
        parent = add_held(table, i + 1, parent, BLOCK_TIER_CPU);
    }

    for (size_t count = 0; count <= COUNT; count++)
        cr_assert(eq(sz, block_table_match(table, keys, count, tiers), count));

    for (size_t i = 0; i < COUNT; i++)
        cr_assert(eq(u8, tiers[i], 1 << BLOCK_TIER_CPU));
    block_table_destroy(table);
}

Test(block_table, a_node_lives_as_long_as_a_place_a_child_or_a_hold)
{
    struct block_table *table = table_of(4, 4, lru);
    const uint32_t parent = add_held(table, 1, 0, BLOCK_TIER_CPU);
    const uint32_t child = add_held(table, 2, parent, BLOCK_TIER_SSD);

    make_leave(table, parent, BLOCK_TIER_CPU);
    cr_assert(eq(u32, block_table_find_key(table, key_of(1)), parent), "its child is there");
    block_table_hold(table, child);
    make_leave(table, child, BLOCK_TIER_SSD);
    cr_assert(eq(u32, block_table_find_key(table, key_of(2)), child), "it is held");
    block_table_unhold(table, child);

    cr_assert(eq(u32, block_table_find_key(table, key_of(2)), 0));
    cr_assert(eq(u32, block_table_find_key(table, key_of(1)), 0));
    cr_assert(block_table_is_sound(table));
    block_table_destroy(table);
}

Test(block_table, what_is_held_read_or_followed_is_no_victim)
{
    struct block_table *table = table_of(4, 4, lru);
    const uint32_t parent = add_held(table, 1, 0, BLOCK_TIER_CPU);
    const uint32_t child = add_held(table, 2, parent, BLOCK_TIER_CPU);

    cr_assert(eq(u32, first_victim(table, BLOCK_TIER_CPU), child));
    block_table_hold(table, child);
    cr_assert(eq(u32, first_victim(table, BLOCK_TIER_CPU), 0));
    block_table_unhold(table, child);
    block_table_begin_read(table, child, BLOCK_TIER_CPU);
    cr_assert(eq(u32, first_victim(table, BLOCK_TIER_CPU), 0));
    block_table_end_read(table, child, BLOCK_TIER_CPU);
    const uint32_t grandchild = block_table_add(table, key_of(3), child, 2);
    block_table_set_place(table, grandchild, BLOCK_TIER_CPU, BLOCK_WRITING,
                          block_table_take_slot(table, BLOCK_TIER_CPU));
    cr_assert(eq(u32, first_victim(table, BLOCK_TIER_CPU), 0));
    block_table_set_place(table, grandchild, BLOCK_TIER_CPU, BLOCK_ABSENT, BLOCK_SLOT_NONE);
    cr_assert(eq(u32, first_victim(table, BLOCK_TIER_CPU), child));
    cr_assert(eq(u32, first_victim(table, BLOCK_TIER_SSD), 0));

    block_table_destroy(table);
}

Test(block_table, a_child_in_one_tier_keeps_its_parent_there_alone)
{
    struct block_table *table = table_of(4, 4, lru);
    const uint32_t parent = add_held(table, 1, 0, BLOCK_TIER_CPU);
    place_held(table, parent, BLOCK_TIER_SSD);
    const uint32_t child = add_held(table, 2, parent, BLOCK_TIER_SSD);

    cr_assert(eq(u32, first_victim(table, BLOCK_TIER_CPU), parent));
    cr_assert(eq(u32, first_victim(table, BLOCK_TIER_SSD), child));

    block_table_destroy(table);
}

Test(block_table, a_chain_is_picked_in_one_call_leaf_first)
{
    struct block_table *table = table_of(8, 0, lru);
    uint32_t chain[4], victims[8], parent = 0;
    for (uint32_t i = 0; i < 4; i++)
        parent = chain[i] = add_held(table, i + 1, parent, BLOCK_TIER_CPU);
    block_table_use(table, chain, 4);
    const uint32_t newer = add_held(table, 9, 0, BLOCK_TIER_CPU);

    const size_t count = block_table_pick(table, BLOCK_TIER_CPU, victims, 8);

    cr_assert(eq(sz, count, 5));
    for (uint32_t i = 0; i < 4; i++)
        cr_assert(eq(u32, victims[i], chain[3 - i]));
    cr_assert(eq(u32, victims[4], newer));
    block_table_destroy(table);
}

Test(block_table, a_parent_with_two_children_is_picked_after_both_by_its_own_rank)
{
    struct block_table *table = table_of(8, 0, lru);
    uint32_t victims[8];
    const uint32_t root = add_held(table, 1, 0, BLOCK_TIER_CPU);
    const uint32_t left = add_held(table, 2, root, BLOCK_TIER_CPU);
    const uint32_t other = add_held(table, 4, 0, BLOCK_TIER_CPU);
    const uint32_t right = add_held(table, 3, root, BLOCK_TIER_CPU);
    block_table_use(table, (uint32_t[]){root, right}, 2);

    cr_assert(eq(sz, block_table_pick(table, BLOCK_TIER_CPU, victims, 3), 3));
    cr_assert(eq(u32, victims[0], left));
    cr_assert(eq(u32, victims[1], other));
    cr_assert(eq(u32, victims[2], right));
    cr_assert(eq(sz, block_table_pick(table, BLOCK_TIER_CPU, victims, 8), 4));
    cr_assert(eq(u32, victims[3], root));

    cr_assert(block_table_is_sound(table));
    block_table_destroy(table);
}

Test(block_table, only_what_was_picked_counts_as_evicted)
{
    struct block_table *table = table_of(4, 0, lru);
    const uint32_t broken = add_held(table, 1, 0, BLOCK_TIER_CPU);
    const uint32_t old = add_held(table, 2, 0, BLOCK_TIER_CPU);
    const uint32_t spared = add_held(table, 3, 0, BLOCK_TIER_CPU);

    make_leave(table, broken, BLOCK_TIER_CPU);
    cr_assert(eq(u32, first_victim(table, BLOCK_TIER_CPU), old));
    make_leave(table, old, BLOCK_TIER_CPU);
    cr_assert(eq(u32, first_victim(table, BLOCK_TIER_CPU), spared));
    block_table_hold(table, spared); /* the pick is void */
    block_table_unhold(table, spared);
    make_leave(table, spared, BLOCK_TIER_CPU);

    cr_assert(eq(u64, block_table_stats(table)->evicted[BLOCK_TIER_CPU], 1));
    block_table_destroy(table);
}

Test(block_table, an_eviction_given_up_leaves_a_block_as_it_was)
{
    struct block_table *table = table_of(4, 0, lru);
    const uint32_t parent = add_held(table, 1, 0, BLOCK_TIER_CPU);
    const uint32_t child = add_held(table, 2, parent, BLOCK_TIER_CPU);

    block_table_set_place(table, child, BLOCK_TIER_CPU, BLOCK_LEAVING, BLOCK_SLOT_NONE);
    cr_assert(eq(u32, first_victim(table, BLOCK_TIER_CPU), parent));
    block_table_set_place(table, child, BLOCK_TIER_CPU, BLOCK_HELD, BLOCK_SLOT_NONE);

    cr_assert(eq(u32, first_victim(table, BLOCK_TIER_CPU), child));
    cr_assert(block_table_is_sound(table));
    block_table_destroy(table);
}

Test(block_table, who_reads_what_leaves_reads_on)
{
    struct block_table *table = table_of(4, 0, lru);
    const uint32_t index = add_held(table, 1, 0, BLOCK_TIER_CPU);
    block_table_begin_read(table, index, BLOCK_TIER_CPU);

    block_table_set_place(table, index, BLOCK_TIER_CPU, BLOCK_LEAVING, BLOCK_SLOT_NONE);
    block_table_end_read(table, index, BLOCK_TIER_CPU);
    block_table_set_place(table, index, BLOCK_TIER_CPU, BLOCK_ABSENT, BLOCK_SLOT_NONE);

    cr_assert(eq(u64, block_table_stats(table)->free_slots[BLOCK_TIER_CPU], 4));
    block_table_destroy(table);
}

Test(block_table, a_slot_that_is_read_is_not_freed, .signal = SIGABRT)
{
    struct block_table *table = table_of(4, 0, lru);
    const uint32_t index = add_held(table, 1, 0, BLOCK_TIER_CPU);
    block_table_begin_read(table, index, BLOCK_TIER_CPU);

    make_leave(table, index, BLOCK_TIER_CPU);
}

Test(block_table, nobody_begins_to_read_what_leaves, .signal = SIGABRT)
{
    struct block_table *table = table_of(4, 0, lru);
    const uint32_t index = add_held(table, 1, 0, BLOCK_TIER_CPU);
    block_table_set_place(table, index, BLOCK_TIER_CPU, BLOCK_LEAVING, BLOCK_SLOT_NONE);

    block_table_begin_read(table, index, BLOCK_TIER_CPU);
}

Test(block_table, a_place_in_a_slot_that_is_free_aborts, .signal = SIGABRT)
{
    struct block_table *table = table_of(4, 0, lru);
    const uint32_t index = block_table_add(table, key_of(1), 0, 0);

    block_table_set_place(table, index, BLOCK_TIER_CPU, BLOCK_WRITING, 3);
}

/* A block that has been brought to place by legal steps; one that is ABSENT is held. */
static uint32_t block_at_place(struct block_table *table, enum block_place place)
{
    const uint32_t index = block_table_add(table, key_of(1), 0, 0);

    block_table_hold(table, index);
    if (place != BLOCK_ABSENT)
        block_table_set_place(table, index, BLOCK_TIER_CPU, BLOCK_WRITING,
                              block_table_take_slot(table, BLOCK_TIER_CPU));
    if (place == BLOCK_HELD || place == BLOCK_LEAVING)
        block_table_set_place(table, index, BLOCK_TIER_CPU, BLOCK_HELD, BLOCK_SLOT_NONE);
    if (place == BLOCK_LEAVING)
        block_table_set_place(table, index, BLOCK_TIER_CPU, BLOCK_LEAVING, BLOCK_SLOT_NONE);
    return index;
}

/* Whether a step aborts, tried by a child of ours. */
static bool step_aborts(struct block_table *table, uint32_t index, enum block_place place)
{
    const uint32_t slot =
        place == BLOCK_WRITING ? block_table_take_slot(table, BLOCK_TIER_CPU) : BLOCK_SLOT_NONE;
    int status = 0;
    const pid_t pid = fork();

    cr_assert(ge(int, pid, 0));
    if (pid == 0) {
        signal(SIGABRT, SIG_DFL);
        fclose(stderr);
        block_table_set_place(table, index, BLOCK_TIER_CPU, place, slot);
        _exit(block_table_at(table, index)->place[BLOCK_TIER_CPU] == place ? 0 : 1);
    }
    cr_assert(eq(int, waitpid(pid, &status, 0), pid));
    if (slot != BLOCK_SLOT_NONE)
        block_table_give_slot(table, BLOCK_TIER_CPU, slot);
    cr_expect(eq(int, WIFEXITED(status) ? WEXITSTATUS(status) : 0, 0));
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

Test(block_table, every_step_from_place_to_place_is_made_or_aborts)
{
    static const bool is_legal[BLOCK_PLACE_COUNT][BLOCK_PLACE_COUNT] = {
        [BLOCK_ABSENT] = {[BLOCK_WRITING] = true},
        [BLOCK_WRITING] = {[BLOCK_HELD] = true, [BLOCK_ABSENT] = true},
        [BLOCK_HELD] = {[BLOCK_LEAVING] = true},
        [BLOCK_LEAVING] = {[BLOCK_ABSENT] = true, [BLOCK_HELD] = true},
    };

    for (int from = 0; from < BLOCK_PLACE_COUNT; from++)
        for (int to = 0; to < BLOCK_PLACE_COUNT; to++) {
            struct block_table *table = table_of(2, 0, lru);
            const uint32_t index = block_at_place(table, (enum block_place)from);

            cr_assert(eq(int, step_aborts(table, index, (enum block_place)to), !is_legal[from][to]),
                      "from %d to %d", from, to);

            cr_assert(block_table_is_sound(table));
            block_table_destroy(table);
        }
}

Test(block_table, the_list_names_parents_before_children)
{
    struct block_table *table = table_of(8, 0, lru);
    uint32_t indices[8];
    for (uint32_t i = 3; i > 0; i--) {
        const uint32_t parent = block_table_claim_parent(table, key_of(i - 1).name, i - 1);
        const uint32_t index = block_table_add(table, key_of(i), parent, i - 1);
        place_held(table, index, BLOCK_TIER_CPU);
    }

    cr_assert(eq(sz, block_table_list(table, indices), 3));

    for (uint32_t i = 0; i < 3; i++)
        cr_assert(eq(u32, indices[i], block_table_find_key(table, key_of(i + 1))));
    block_table_destroy(table);
}

Test(block_table, a_list_has_parents_before_children_however_deep)
{
    static const uint32_t depths[] = {UINT32_MAX, 0, 2048, 1 << 22, 5, (1 << 22) - 1, 2047};
    enum { COUNT = sizeof depths / sizeof *depths };
    struct block_table *table = table_of(COUNT, 0, lru);
    uint32_t indices[COUNT], last = 0;

    for (uint32_t i = 0; i < COUNT; i++) { /* without their parents, as a scan finds them */
        const uint32_t index = block_table_add(table, key_of(i + 1), 0, depths[i]);
        cr_assert(ne(u32, index, 0));
        place_held(table, index, BLOCK_TIER_CPU);
    }

    cr_assert(eq(sz, block_table_list(table, indices), COUNT));
    for (size_t i = 0; i < COUNT; i++) {
        const uint32_t depth = block_table_at(table, indices[i])->depth;

        cr_assert(ge(u32, depth, last));
        last = depth;
    }
    block_table_destroy(table);
}
