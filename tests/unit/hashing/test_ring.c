/* SPDX-License-Identifier: Apache-2.0 */

#include "hashing/ring.h"

#include "tests/support/leak_check.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <math.h>

enum { KEY_COUNT = 20000, NODE_COUNT = 8 };

static const uint64_t ids[NODE_COUNT] = {101, 202, 303, 404, 505, 606, 707, 808};

TestSuite(ring, .fini = leak_check);

Test(ring, every_node_gets_about_its_share)
{
    size_t shares[NODE_COUNT] = {0};
    struct ring ring;
    cr_assert(eq(int, ring_init(&ring, ids, NODE_COUNT), 0));

    for (uint64_t key = 0; key < KEY_COUNT; key++)
        shares[ring_pick(&ring, key, NULL, HUGE_VAL)]++;

    for (size_t i = 0; i < NODE_COUNT; i++) {
        cr_assert(gt(sz, shares[i], KEY_COUNT / NODE_COUNT * 6 / 10));
        cr_assert(lt(sz, shares[i], KEY_COUNT / NODE_COUNT * 14 / 10));
    }
    ring_release(&ring);
}

Test(ring, a_node_that_leaves_moves_only_its_own_keys)
{
    struct ring whole, rest;
    cr_assert(eq(int, ring_init(&whole, ids, NODE_COUNT), 0));
    cr_assert(eq(int, ring_init(&rest, ids, NODE_COUNT - 1), 0));

    for (uint64_t key = 0; key < KEY_COUNT; key++) {
        uint32_t before = ring_pick(&whole, key, NULL, HUGE_VAL);

        if (before != NODE_COUNT - 1)
            cr_assert(eq(u32, ring_pick(&rest, key, NULL, HUGE_VAL), before));
    }
    ring_release(&whole);
    ring_release(&rest);
}

Test(ring, no_load_passes_its_bound_even_when_all_keys_are_one)
{
    uint32_t loads[NODE_COUNT] = {0};
    struct ring ring;
    cr_assert(eq(int, ring_init(&ring, ids, NODE_COUNT), 0));

    for (uint32_t placed = 0; placed < 1000; placed++) {
        loads[ring_pick(&ring, 42, loads, 1.25)]++;

        double load_max = ceil(1.25 * (placed + 1) / NODE_COUNT);
        for (size_t i = 0; i < NODE_COUNT; i++)
            cr_assert(le(dbl, loads[i], load_max));
    }
    ring_release(&ring);
}

Test(ring, a_key_stays_with_its_node_while_that_is_not_overloaded)
{
    uint32_t loads[NODE_COUNT];
    struct ring ring;
    cr_assert(eq(int, ring_init(&ring, ids, NODE_COUNT), 0));
    for (size_t i = 0; i < NODE_COUNT; i++)
        loads[i] = 10;

    for (uint64_t key = 0; key < 1000; key++)
        cr_assert(
            eq(u32, ring_pick(&ring, key, loads, 1.25), ring_pick(&ring, key, NULL, HUGE_VAL)));
    ring_release(&ring);
}

Test(ring, releasing_twice_is_fine)
{
    struct ring ring;
    cr_assert(eq(int, ring_init(&ring, ids, 1), 0));

    ring_release(&ring);
    ring_release(&ring);

    cr_assert(eq(ptr, ring.points, NULL));
}
