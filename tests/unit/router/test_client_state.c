/* SPDX-License-Identifier: Apache-2.0 */

#include "router/client_conn.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include "backends/runtime/must_check.h"
#include "tests/support/leak_check.h"

/* All moves there are; every other pair cannot happen. */
static const struct {
    enum client_state from;
    enum client_event event;
    enum client_state to;
} legal[] = {
    {CLIENT_IDLE, CLIENT_EVENT_FIRST_BYTE, CLIENT_READING},
    {CLIENT_IDLE, CLIENT_EVENT_CLOSE, CLIENT_CLOSING},
    {CLIENT_READING, CLIENT_EVENT_REQUEST_END, CLIENT_ANSWERING},
    {CLIENT_READING, CLIENT_EVENT_CLOSE, CLIENT_CLOSING},
    {CLIENT_ANSWERING, CLIENT_EVENT_ANSWER_END, CLIENT_IDLE},
    {CLIENT_ANSWERING, CLIENT_EVENT_LAST_ANSWER, CLIENT_FLUSHING},
    {CLIENT_ANSWERING, CLIENT_EVENT_CLOSE, CLIENT_CLOSING},
    {CLIENT_FLUSHING, CLIENT_EVENT_FLUSHED, CLIENT_LINGERING},
    {CLIENT_FLUSHING, CLIENT_EVENT_CLOSE, CLIENT_CLOSING},
    {CLIENT_LINGERING, CLIENT_EVENT_CLOSE, CLIENT_CLOSING},
};

static int legal_state_after(int from, int event)
{
    for (size_t i = 0; i < array_count(legal); i++) {
        if ((int)legal[i].from == from && (int)legal[i].event == event)
            return (int)legal[i].to;
    }
    return -1;
}

TestSuite(client_state, .fini = leak_check);

Test(client_state, every_pair_is_a_listed_move_or_cannot_happen)
{
    for (int state = 0; state < CLIENT_STATE_COUNT; state++) {
        for (int event = 0; event < CLIENT_EVENT_COUNT; event++)
            cr_assert(eq(int,
                         client_state_after((enum client_state)state, (enum client_event)event),
                         legal_state_after(state, event)),
                      "state %d, event %d", state, event);
    }
}

Test(client_state, nothing_leaves_closing)
{
    for (int event = 0; event < CLIENT_EVENT_COUNT; event++)
        cr_assert(eq(int, client_state_after(CLIENT_CLOSING, (enum client_event)event), -1));
}

Test(client_state, a_close_may_come_in_every_other_state)
{
    for (int state = 0; state < CLIENT_CLOSING; state++)
        cr_assert(eq(int, client_state_after((enum client_state)state, CLIENT_EVENT_CLOSE),
                     CLIENT_CLOSING));
}
