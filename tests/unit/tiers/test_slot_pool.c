/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/slot_pool.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <signal.h>

#include "backends/runtime/random.h"
#include "tests/support/leak_check.h"

TestSuite(slot_pool, .fini = leak_check);

Test(slot_pool, the_lowest_go_first_and_then_none)
{
    struct slot_pool pool;
    cr_assert(eq(int, slot_pool_init(&pool, 3), 0));

    cr_assert(eq(u32, slot_pool_take(&pool), 0));
    cr_assert(eq(u32, slot_pool_take(&pool), 1));
    cr_assert(eq(u32, slot_pool_take(&pool), 2));
    cr_assert(eq(u32, slot_pool_take(&pool), SLOT_POOL_NONE));
    slot_pool_give(&pool, 1);
    cr_assert(eq(u32, slot_pool_take(&pool), 1));

    slot_pool_release(&pool);
}

Test(slot_pool, one_of_no_slots_has_none)
{
    struct slot_pool pool;
    cr_assert(eq(int, slot_pool_init(&pool, 0), 0));

    cr_assert(eq(u32, slot_pool_take(&pool), SLOT_POOL_NONE));
    cr_assert(not(slot_pool_claim(&pool, 0)));
    cr_assert(slot_pool_is_sound(&pool));

    slot_pool_release(&pool);
}

Test(slot_pool, a_slot_is_claimed_once_and_only_if_it_exists)
{
    struct slot_pool pool;
    cr_assert(eq(int, slot_pool_init(&pool, 4), 0));

    cr_assert(slot_pool_claim(&pool, 2));
    cr_assert(not(slot_pool_claim(&pool, 2)));
    cr_assert(not(slot_pool_claim(&pool, 4)));

    cr_assert(slot_pool_is_sound(&pool));
    cr_assert(eq(u32, pool.free_count, 3));
    slot_pool_release(&pool);
}

Test(slot_pool, a_slot_given_twice_aborts, .signal = SIGABRT)
{
    struct slot_pool pool;
    cr_assert(eq(int, slot_pool_init(&pool, 4), 0));

    slot_pool_give(&pool, 1);
}

Test(slot_pool, any_interleaving_keeps_free_and_taken_apart)
{
    enum { SLOT_COUNT = 37 };
    struct slot_pool pool;
    bool is_taken[SLOT_COUNT] = {false};
    uint64_t random = 7;
    cr_assert(eq(int, slot_pool_init(&pool, SLOT_COUNT), 0));

    for (int step = 0; step < 20000; step++) {
        const uint32_t slot = (uint32_t)(random_next(&random) % SLOT_COUNT);
        const uint64_t what = random_next(&random) % 3;

        if (what == 0) {
            const uint32_t taken = slot_pool_take(&pool);
            if (taken != SLOT_POOL_NONE) {
                cr_assert(not(is_taken[taken]));
                is_taken[taken] = true;
            }
        } else if (what == 1) {
            cr_assert(eq(int, slot_pool_claim(&pool, slot), !is_taken[slot]));
            is_taken[slot] = true;
        } else if (is_taken[slot]) {
            slot_pool_give(&pool, slot);
            is_taken[slot] = false;
        }
        cr_assert(slot_pool_is_sound(&pool));
        for (uint32_t i = 0; i < SLOT_COUNT; i++)
            cr_assert(eq(int, slot_pool_is_free(&pool, i), !is_taken[i]));
    }
    slot_pool_release(&pool);
}
