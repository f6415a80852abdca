/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/state_pace.h"

#include "tests/support/leak_check.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

enum { BEGUN_MS = 100000 };

/* How long after the last save another one is due, in ms; news: what was learned since. */
static uint64_t due_after(uint64_t news, uint64_t bytes, uint64_t loop_us)
{
    const struct state_pace last = {
        .begun_ms = BEGUN_MS, .joins = 7, .bytes = bytes, .loop_us = loop_us};
    uint64_t ms = 0;

    while (ms < 600000 && !state_pace_is_due(&last, BEGUN_MS + ms, 7 + news))
        ms++;
    return ms;
}

TestSuite(state_pace, .fini = leak_check);

Test(state_pace, what_was_learned_waits_some_seconds_and_less_where_it_is_much)
{
    cr_assert(eq(u64, due_after(1, 0, 0), STATE_PACE_MS));
    cr_assert(eq(u64, due_after(STATE_PACE_NEWS - 1, 0, 0), STATE_PACE_MS));
    cr_assert(eq(u64, due_after(STATE_PACE_NEWS, 0, 0), STATE_PACE_MS_MIN));
}

Test(state_pace, where_nothing_was_learned_nothing_is_saved)
{
    cr_assert(eq(u64, due_after(0, 0, 0), 600000));
}

Test(state_pace, a_large_state_is_written_at_a_bounded_rate_however_much_is_new)
{
    cr_assert(eq(u64, due_after(1 << 20, 24 << 20, 0), (24 << 20) / STATE_PACE_BYTES_PER_MS));
    cr_assert(eq(u64, due_after(1, 24 << 20, 0), (24 << 20) / STATE_PACE_BYTES_PER_MS));
}

Test(state_pace, the_loop_is_kept_for_a_bounded_share_of_its_time)
{
    cr_assert(eq(u64, due_after(1 << 20, 0, 250000), 250 * STATE_PACE_LOOP_SHARE));
    cr_assert(eq(u64, due_after(1, 0, 250000), 250 * STATE_PACE_LOOP_SHARE));
}
