/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/runtime/list.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <signal.h>

#include "tests/support/leak_check.h"

TestSuite(list, .fini = leak_check);

Test(list, keeps_the_order_of_appending_around_a_removal)
{
    struct list list;
    struct list_node nodes[3];
    list_init(&list);
    for (int i = 0; i < 3; i++) {
        list_node_init(&nodes[i]);
        list_append(&list, &nodes[i]);
    }

    list_remove(&list, &nodes[1]);

    cr_assert(eq(sz, list.count, 2));
    cr_assert(eq(ptr, list.head.next, &nodes[0]));
    cr_assert(eq(ptr, nodes[0].next, &nodes[2]));
    cr_assert(eq(ptr, nodes[2].next, &list.head));
    cr_assert(not(list_node_is_linked(&nodes[1])));
}

Test(list, a_removed_node_may_be_appended_again)
{
    struct list list;
    struct list_node node;
    list_init(&list);
    list_node_init(&node);
    list_append(&list, &node);
    list_remove(&list, &node);

    list_append(&list, &node);

    cr_assert(eq(sz, list.count, 1));
    cr_assert(eq(ptr, list.head.prev, &node));
}

Test(list, a_node_cannot_be_appended_twice, .signal = SIGABRT)
{
    struct list list;
    struct list_node node;
    list_init(&list);
    list_node_init(&node);

    list_append(&list, &node);
    list_append(&list, &node);
}

Test(list, what_is_not_linked_cannot_be_removed, .signal = SIGABRT)
{
    struct list list;
    struct list_node node;
    list_init(&list);
    list_node_init(&node);

    list_remove(&list, &node);
}
