/* SPDX-License-Identifier: Apache-2.0 */

#include "router/join/anchor_trust.h"
#include "tests/support/leak_check.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

enum { INDEX = 3, ID = 17 };

static struct anchor_trust trust; /* large; each test is a process of its own */

static void agree(uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        anchor_trust_note(&trust, INDEX, ID, true);
}

TestSuite(anchor_trust, .fini = leak_check);

Test(anchor_trust, nobody_is_trusted_at_first)
{
    cr_assert(not(anchor_trust_has(&trust, INDEX, ID)));
    agree(ANCHOR_TRUST_AGREED_MIN - 1);
    cr_assert(not(anchor_trust_has(&trust, INDEX, ID)));
    agree(1);
    cr_assert(anchor_trust_has(&trust, INDEX, ID));
}

Test(anchor_trust, one_difference_ends_it_until_it_is_earned_again)
{
    agree(100);
    anchor_trust_note(&trust, INDEX, ID, false);

    cr_assert(not(anchor_trust_has(&trust, INDEX, ID)));
    agree(ANCHOR_TRUST_AGREED_MIN);
    cr_assert(anchor_trust_has(&trust, INDEX, ID));
}

Test(anchor_trust, who_gets_the_place_of_another_begins_anew)
{
    agree(ANCHOR_TRUST_AGREED_MIN);

    cr_assert(not(anchor_trust_has(&trust, INDEX, ID + 1)));
    anchor_trust_note(&trust, INDEX, ID + 1, true);
    cr_assert(not(anchor_trust_has(&trust, INDEX, ID + 1)));
}
