/* SPDX-License-Identifier: Apache-2.0 */

#include "hashing/rendezvous.h"

#include "tests/support/leak_check.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

enum { KEY_COUNT = 20000, NODE_COUNT = 4 };

static const struct rendezvous_node nodes[NODE_COUNT] = {{11, 1}, {22, 1}, {33, 1}, {44, 2}};

TestSuite(rendezvous, .fini = leak_check);

Test(rendezvous, shares_follow_the_weights)
{
    size_t shares[NODE_COUNT] = {0};

    for (uint64_t key = 0; key < KEY_COUNT; key++)
        shares[rendezvous_pick(key, nodes, NODE_COUNT)]++;

    for (size_t i = 0; i < NODE_COUNT; i++) {
        double expected = KEY_COUNT * nodes[i].weight / 5;
        cr_assert(gt(dbl, (double)shares[i], 0.95 * expected));
        cr_assert(lt(dbl, (double)shares[i], 1.05 * expected));
    }
}

Test(rendezvous, a_node_that_leaves_moves_only_its_own_keys)
{
    for (uint64_t key = 0; key < KEY_COUNT; key++) {
        size_t before = rendezvous_pick(key, nodes, NODE_COUNT);
        size_t without_last = rendezvous_pick(key, nodes, NODE_COUNT - 1);

        if (before != NODE_COUNT - 1)
            cr_assert(eq(sz, without_last, before));
    }
}

Test(rendezvous, the_order_of_nodes_does_not_matter)
{
    struct rendezvous_node turned[NODE_COUNT];
    for (size_t i = 0; i < NODE_COUNT; i++)
        turned[i] = nodes[NODE_COUNT - 1 - i];

    for (uint64_t key = 0; key < KEY_COUNT; key++)
        cr_assert(eq(u64, turned[rendezvous_pick(key, turned, NODE_COUNT)].id,
                     nodes[rendezvous_pick(key, nodes, NODE_COUNT)].id));
}

Test(rendezvous, a_weight_of_nothing_gets_nothing)
{
    const struct rendezvous_node pair[] = {{1, 0}, {2, 0.001}};

    for (uint64_t key = 0; key < KEY_COUNT; key++)
        cr_assert(eq(sz, rendezvous_pick(key, pair, 2), 1));
}
