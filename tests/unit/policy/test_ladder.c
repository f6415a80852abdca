/* SPDX-License-Identifier: Apache-2.0 */

#include "router/policy/ladder.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include "tests/support/leak_check.h"

static const struct ladder_prompt prompt = {.bytes = 4000, .tokens = 1000};

TestSuite(ladder, .fini = leak_check);

Test(ladder, a_claimed_run_is_exact_and_goes_on_with_what_was_sent)
{
    struct ladder_step step = ladder_step_of(&prompt, &(struct ladder_facts){
                                                          .is_believed = true,
                                                          .claimed_bytes = 2000,
                                                          .claimed_tokens = 496,
                                                          .guessed_bytes = 1000,
                                                          .pending_bytes = 400,
                                                      });

    cr_assert(eq(int, step.rung, ROUTE_RUNG_EXACT));
    cr_assert(eq(dbl, step.claimed_tokens, 496));
    cr_assert(eq(dbl, step.matched_tokens, 496 + 250));
    cr_assert(eq(dbl, step.pending_tokens, 100));
}

Test(ladder, what_has_to_be_moved_is_part_of_the_claims)
{
    struct ladder_facts facts = {.is_believed = true,
                                 .claimed_bytes = 2000,
                                 .claimed_tokens = 500,
                                 .claimed_cpu_tokens = 100,
                                 .claimed_ssd_tokens = 300};

    struct ladder_step step = ladder_step_of(&prompt, &facts);

    cr_assert(eq(dbl, step.matched_tokens, 500));
    cr_assert(eq(dbl, step.claimed_tokens, 500));
    cr_assert(eq(dbl, step.near_tokens, 100));
    cr_assert(eq(dbl, step.cpu_tokens, 100));
    cr_assert(eq(dbl, step.ssd_tokens, 300));
}

/* Tools in front of another system prompt: the text is shared, and the template puts it elsewhere.
 */
Test(ladder, a_claimed_run_without_tokens_promises_none)
{
    struct ladder_step step =
        ladder_step_of(&prompt, &(struct ladder_facts){.is_believed = true, .claimed_bytes = 2000});

    cr_assert(eq(int, step.rung, ROUTE_RUNG_EXACT));
    cr_assert(eq(dbl, step.matched_tokens, 0));
    cr_assert(eq(dbl, step.claimed_tokens, 0));
}

Test(ladder, claims_of_an_agent_that_is_not_believed_are_a_guess_that_nobody_is_blamed_for)
{
    struct ladder_step step = ladder_step_of(
        &prompt, &(struct ladder_facts){.claimed_bytes = 2000, .claimed_tokens = 496});

    cr_assert(eq(int, step.rung, ROUTE_RUNG_GUESS));
    cr_assert(eq(dbl, step.matched_tokens, 496));
    cr_assert(eq(dbl, step.claimed_tokens, 0));
}

Test(ladder, what_was_only_sent_is_a_guess_also_where_the_agent_is_believed)
{
    struct ladder_step step =
        ladder_step_of(&prompt, &(struct ladder_facts){.is_believed = true, .guessed_bytes = 4000});

    cr_assert(eq(int, step.rung, ROUTE_RUNG_GUESS));
    cr_assert(eq(dbl, step.matched_tokens, 1000));
}

Test(ladder, that_nothing_is_there_is_exact_only_where_it_would_be_known)
{
    struct ladder_facts facts = {.is_believed = true, .is_whole = true, .can_anchor = true};

    cr_assert(eq(int, ladder_step_of(&prompt, &facts).rung, ROUTE_RUNG_EXACT));
    facts.can_anchor = false;
    cr_assert(eq(int, ladder_step_of(&prompt, &facts).rung, ROUTE_RUNG_LOAD));
    facts = (struct ladder_facts){.is_believed = true, .can_anchor = true};
    cr_assert(eq(int, ladder_step_of(&prompt, &facts).rung, ROUTE_RUNG_LOAD));
    facts = (struct ladder_facts){.is_whole = true, .can_anchor = true};
    cr_assert(eq(int, ladder_step_of(&prompt, &facts).rung, ROUTE_RUNG_LOAD));
}

Test(ladder, an_agents_count_of_the_start_replaces_the_estimate_of_it)
{
    cr_assert(eq(dbl, ladder_prompt_tokens(&prompt, 2000, 640), 640 + 500));
    cr_assert(eq(dbl, ladder_prompt_tokens(&prompt, 2000, 0), 1000));
    cr_assert(eq(dbl, ladder_prompt_tokens(&prompt, 5000, 640), 1000));
}
