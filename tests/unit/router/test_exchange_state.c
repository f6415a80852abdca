/* SPDX-License-Identifier: Apache-2.0 */

#include "router/exchange.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include "backends/runtime/must_check.h"
#include "tests/support/leak_check.h"

/* All moves there are; every other pair cannot happen. */
static const struct {
    enum exchange_state from;
    enum exchange_event event;
    enum exchange_state to;
} legal[] = {
    {EXCHANGE_READ, EXCHANGE_EVENT_READ, EXCHANGE_PARSE},
    {EXCHANGE_READ, EXCHANGE_EVENT_END, EXCHANGE_DONE},
    {EXCHANGE_PARSE, EXCHANGE_EVENT_PARSED, EXCHANGE_ROUTE},
    {EXCHANGE_PARSE, EXCHANGE_EVENT_END, EXCHANGE_DONE},
    {EXCHANGE_ROUTE, EXCHANGE_EVENT_CHOSEN, EXCHANGE_CONNECT},
    {EXCHANGE_ROUTE, EXCHANGE_EVENT_END, EXCHANGE_DONE},
    {EXCHANGE_CONNECT, EXCHANGE_EVENT_SENT, EXCHANGE_SEND},
    {EXCHANGE_CONNECT, EXCHANGE_EVENT_RETRY, EXCHANGE_ROUTE},
    {EXCHANGE_CONNECT, EXCHANGE_EVENT_END, EXCHANGE_DONE},
    {EXCHANGE_SEND, EXCHANGE_EVENT_ANSWERED, EXCHANGE_RELAY},
    {EXCHANGE_SEND, EXCHANGE_EVENT_RETRY, EXCHANGE_ROUTE},
    {EXCHANGE_SEND, EXCHANGE_EVENT_END, EXCHANGE_DONE},
    {EXCHANGE_RELAY, EXCHANGE_EVENT_END, EXCHANGE_DONE},
};

static int legal_state_after(int from, int event)
{
    for (size_t i = 0; i < array_count(legal); i++) {
        if ((int)legal[i].from == from && (int)legal[i].event == event)
            return (int)legal[i].to;
    }
    return -1;
}

TestSuite(exchange_state, .fini = leak_check);

Test(exchange_state, every_pair_is_a_listed_move_or_cannot_happen)
{
    for (int state = 0; state < EXCHANGE_STATE_COUNT; state++) {
        for (int event = 0; event < EXCHANGE_EVENT_COUNT; event++)
            cr_assert(
                eq(int,
                   exchange_state_after((enum exchange_state)state, (enum exchange_event)event),
                   legal_state_after(state, event)),
                "state %d, event %d", state, event);
    }
}

Test(exchange_state, nothing_leaves_done)
{
    for (int event = 0; event < EXCHANGE_EVENT_COUNT; event++)
        cr_assert(eq(int, exchange_state_after(EXCHANGE_DONE, (enum exchange_event)event), -1));
}

Test(exchange_state, an_end_may_come_in_every_other_state)
{
    for (int state = 0; state < EXCHANGE_DONE; state++)
        cr_assert(eq(int, exchange_state_after((enum exchange_state)state, EXCHANGE_EVENT_END),
                     EXCHANGE_DONE));
}

Test(exchange_state, no_way_leads_back_from_an_answer_that_was_passed_on)
{
    for (int event = 0; event < EXCHANGE_EVENT_COUNT; event++) {
        int state = exchange_state_after(EXCHANGE_RELAY, (enum exchange_event)event);

        cr_assert(state == -1 || state == EXCHANGE_DONE, "event %d", event);
    }
}
