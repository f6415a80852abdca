/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/runtime/deadline_list.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include "tests/support/leak_check.h"

TestSuite(deadline_list, .fini = leak_check);

Test(deadline_list, expires_at_its_time_and_not_before)
{
    struct deadline_list list;
    struct deadline deadline;
    deadline_list_init(&list, 100);
    deadline_init(&deadline);

    deadline_arm(&deadline, &list, 1000);

    cr_assert(eq(ptr, deadline_list_expired(&list, 1099), NULL));
    cr_assert(eq(ptr, deadline_list_expired(&list, 1100), &deadline));
}

Test(deadline_list, arming_again_moves_it_behind_the_others)
{
    struct deadline_list list;
    struct deadline first, second;
    deadline_list_init(&list, 100);
    deadline_init(&first);
    deadline_init(&second);
    deadline_arm(&first, &list, 0);
    deadline_arm(&second, &list, 10);

    deadline_arm(&first, &list, 20);

    cr_assert(eq(ptr, deadline_list_expired(&list, 115), &second));
    deadline_disarm(&second);
    cr_assert(eq(ptr, deadline_list_expired(&list, 115), NULL));
    cr_assert(eq(ptr, deadline_list_expired(&list, 120), &first));
}

Test(deadline_list, a_deadline_waits_in_one_list_at_a_time)
{
    struct deadline_list head, body;
    struct deadline deadline;
    deadline_list_init(&head, 10);
    deadline_list_init(&body, 30);
    deadline_init(&deadline);
    deadline_arm(&deadline, &head, 0);

    deadline_arm(&deadline, &body, 0);

    cr_assert(eq(sz, head.list.count, 0));
    cr_assert(eq(ptr, deadline_list_expired(&head, 1000), NULL));
    cr_assert(eq(ptr, deadline_list_expired(&body, 30), &deadline));
}

Test(deadline_list, a_duration_of_zero_never_expires)
{
    struct deadline_list list;
    struct deadline deadline;
    deadline_list_init(&list, 0);
    deadline_init(&deadline);

    deadline_arm(&deadline, &list, 0);

    cr_assert(eq(ptr, deadline_list_expired(&list, UINT64_MAX), NULL));
    deadline_disarm(&deadline); /* harmless, and may be done twice */
    deadline_disarm(&deadline);
    cr_assert(eq(sz, list.list.count, 0));
}

/* Longer, shorter, and by more than has passed: the order of expiry stays that of the list. */
Test(deadline_list, another_duration_holds_for_waits_that_run_and_keeps_their_order)
{
    static const uint64_t durations[] = {500, 20, 1};

    for (size_t i = 0; i < sizeof durations / sizeof *durations; i++) {
        struct deadline_list list;
        struct deadline first, second, third;
        deadline_list_init(&list, 100);
        deadline_init(&first);
        deadline_init(&second);
        deadline_init(&third);
        deadline_arm(&first, &list, 1000);
        deadline_arm(&second, &list, 1010);

        deadline_list_set_duration(&list, durations[i]);
        deadline_arm(&third, &list, 1020);

        struct deadline *const order[] = {&first, &second, &third};
        for (size_t k = 0; k < 3; k++) {
            uint64_t due_ms = 1000 + 10 * k + durations[i];

            cr_assert(eq(ptr, deadline_list_expired(&list, due_ms - 1), NULL));
            cr_assert(eq(ptr, deadline_list_expired(&list, due_ms), order[k]));
            deadline_disarm(order[k]);
        }
    }
}

Test(deadline_list, a_duration_that_becomes_zero_ends_the_waits_that_run)
{
    struct deadline_list list;
    struct deadline deadlines[2];
    deadline_list_init(&list, 100);
    for (size_t i = 0; i < 2; i++) {
        deadline_init(&deadlines[i]);
        deadline_arm(&deadlines[i], &list, 0);
    }

    deadline_list_set_duration(&list, 0);

    cr_assert(eq(sz, list.list.count, 0));
    cr_assert(eq(ptr, deadlines[1].list, NULL));
    deadline_list_set_duration(&list, 50);
    deadline_arm(&deadlines[0], &list, 0);
    cr_assert(eq(ptr, deadline_list_expired(&list, 50), &deadlines[0]));
}
