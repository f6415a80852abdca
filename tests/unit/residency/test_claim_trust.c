/* SPDX-License-Identifier: Apache-2.0 */

#include "router/residency/claim_trust.h"

#include "tests/support/leak_check.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

TestSuite(claim_trust, .fini = leak_check);

/* Answers that miss everything until it is quarantined; how many it took. */
static int lie(struct claim_trust *trust, uint64_t now_ms)
{
    int count = 1;

    while (!claim_trust_note(trust, 1000, 0, now_ms))
        count++;
    return count;
}

Test(claim_trust, four_answers_that_miss_everything_are_enough)
{
    struct claim_trust trust = {0};

    cr_assert(eq(int, lie(&trust, 5), 4));

    cr_assert(claim_trust_is_quarantined(&trust, 5 + CLAIM_TRUST_QUARANTINE_MS_MIN - 1));
    cr_assert(not(claim_trust_is_quarantined(&trust, 5 + CLAIM_TRUST_QUARANTINE_MS_MIN)));
}

Test(claim_trust, what_eviction_takes_between_choice_and_prefill_is_no_lie)
{
    struct claim_trust trust = {0};

    for (int i = 0; i < 1000; i++)
        cr_assert(not(claim_trust_note(&trust, 1000, i % 10 == 0 ? 0 : 950, 0)));
}

Test(claim_trust, more_than_was_claimed_is_no_fault_and_small_claims_say_nothing)
{
    struct claim_trust trust = {0};

    for (int i = 0; i < 100; i++) {
        cr_assert(not(claim_trust_note(&trust, 1000, 2000, 0)));
        cr_assert(not(claim_trust_note(&trust, CLAIM_TRUST_TOKENS_MIN - 1, 0, 0)));
    }
    cr_assert(eq(dbl, trust.missing, 0));
}

Test(claim_trust, quarantines_double_up_to_a_limit)
{
    struct claim_trust trust = {0};
    uint64_t now_ms = 0, span_ms = CLAIM_TRUST_QUARANTINE_MS_MIN;

    for (int i = 0; i < 12; i++) {
        (void)lie(&trust, now_ms);
        cr_assert(eq(u64, trust.until_ms - now_ms, span_ms));
        now_ms = trust.until_ms;
        span_ms = span_ms * 2 < CLAIM_TRUST_QUARANTINE_MS_MAX ? span_ms * 2
                                                              : CLAIM_TRUST_QUARANTINE_MS_MAX;
    }
    cr_assert(eq(u64, trust.quarantine_total, 12));
}

Test(claim_trust, probation_ends_with_one_lie_or_is_forgiven_by_good_answers)
{
    struct claim_trust trust = {0};
    (void)lie(&trust, 0);
    struct claim_trust relapsed = trust;

    cr_assert(eq(int, lie(&relapsed, trust.until_ms), 1));
    for (int i = 0; i < 20; i++)
        (void)claim_trust_note(&trust, 1000, 1000, trust.until_ms);

    cr_assert(eq(u32, trust.level, 0));
    cr_assert(eq(int, lie(&trust, trust.until_ms), 4));
}
