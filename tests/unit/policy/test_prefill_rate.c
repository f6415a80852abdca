/* SPDX-License-Identifier: Apache-2.0 */

#include "router/policy/prefill_rate.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include "router/policy/policy_defaults.h"
#include "tests/support/leak_check.h"

TestSuite(prefill_rate, .fini = leak_check);

Test(prefill_rate, where_nobody_says_it_is_the_default)
{
    struct worker_view views[2] = {{.worker = 0}, {.worker = 1}};

    prefill_rate_fill(views, 2);

    cr_assert(eq(dbl, views[0].prefill_tokens_per_ms, POLICY_PREFILL_TOKENS_PER_MS_DEFAULT));
    cr_assert(eq(dbl, views[1].prefill_tokens_per_ms, POLICY_PREFILL_TOKENS_PER_MS_DEFAULT));
}

Test(prefill_rate, who_says_nothing_is_as_the_others)
{
    struct worker_view views[4] = {{.prefill_tokens_per_ms = 20},
                                   {.prefill_tokens_per_ms = 0},
                                   {.prefill_tokens_per_ms = 40},
                                   {.prefill_tokens_per_ms = 0}};

    prefill_rate_fill(views, 4);

    cr_assert(eq(dbl, views[0].prefill_tokens_per_ms, 20));
    cr_assert(eq(dbl, views[1].prefill_tokens_per_ms, 30));
    cr_assert(eq(dbl, views[2].prefill_tokens_per_ms, 40));
    cr_assert(eq(dbl, views[3].prefill_tokens_per_ms, 30));
}
