/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/move.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>

#include "tests/support/leak_check.h"

TestSuite(move, .fini = leak_check);

/* What each event does in each state: the state it leads to, or -1. Written down a second time. */
static const int expected[MOVE_STATE_COUNT][MOVE_EVENT_COUNT] = {
    [MOVE_RESERVED] = {[MOVE_START] = MOVE_COPYING,
                       [MOVE_ARRIVE] = -1,
                       [MOVE_FAIL] = -1,
                       [MOVE_COMMIT] = -1,
                       [MOVE_CANCEL] = MOVE_ABORTED},
    [MOVE_COPYING] = {[MOVE_START] = -1,
                      [MOVE_ARRIVE] = MOVE_ARRIVED,
                      [MOVE_FAIL] = MOVE_ABORTED,
                      [MOVE_COMMIT] = -1,
                      [MOVE_CANCEL] = -1},
    [MOVE_ARRIVED] = {[MOVE_START] = -1,
                      [MOVE_ARRIVE] = -1,
                      [MOVE_FAIL] = -1,
                      [MOVE_COMMIT] = MOVE_DONE,
                      [MOVE_CANCEL] = MOVE_ABORTED},
    [MOVE_DONE] = {-1, -1, -1, -1, -1},
    [MOVE_ABORTED] = {-1, -1, -1, -1, -1},
};

Test(move, every_event_in_every_state_is_a_step_or_changes_nothing)
{
    for (int state = 0; state < MOVE_STATE_COUNT; state++) {
        for (int event = 0; event < MOVE_EVENT_COUNT; event++) {
            struct move move = {.state = (uint8_t)state};

            int status = move_step(&move, (enum move_event)event);

            const bool is_step = expected[state][event] >= 0;
            cr_assert(eq(int, status, is_step ? 0 : -EINVAL));
            cr_assert(eq(int, move.state, is_step ? expected[state][event] : state));
        }
    }
}

Test(move, an_end_state_is_reached_by_every_way_in_at_most_three_steps)
{
    struct move good = {0}, bad = {0}, unwanted = {0};

    cr_assert(eq(int, move_step(&good, MOVE_START), 0));
    cr_assert(eq(int, move_step(&good, MOVE_ARRIVE), 0));
    cr_assert(eq(int, move_step(&good, MOVE_COMMIT), 0));
    cr_assert(eq(int, move_step(&bad, MOVE_START), 0));
    cr_assert(eq(int, move_step(&bad, MOVE_FAIL), 0));
    cr_assert(eq(int, move_step(&unwanted, MOVE_CANCEL), 0));

    cr_assert(move_has_ended(&good) && move_has_ended(&bad) && move_has_ended(&unwanted));
    cr_assert(eq(int, good.state, MOVE_DONE));
}

Test(move, what_it_writes_is_its_target_or_the_copy_it_leaves_behind)
{
    const struct move save = {.source = MOVE_ENGINE, .target = MOVE_CPU};
    const struct move load = {.source = MOVE_SSD, .target = MOVE_ENGINE};
    const struct move through = {.source = MOVE_SSD, .target = MOVE_ENGINE, .keeps_copy = true};

    cr_assert(eq(int, move_written_tier(&save), BLOCK_TIER_CPU));
    cr_assert(eq(int, move_written_tier(&load), BLOCK_TIER_COUNT));
    cr_assert(eq(int, move_written_tier(&through), BLOCK_TIER_CPU));
}
