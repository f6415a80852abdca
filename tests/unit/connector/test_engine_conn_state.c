/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/connector/engine_conn_state.h"

#include "tests/support/leak_check.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <stdbool.h>
#include <string.h>

/* A letter for each kind that is served, in the order of enum ipc_kind from HELLO to PING. */
static const char kinds[] = "HOTLKCRDSP";

static const struct {
    enum engine_conn_state state;
    const char *served;
} rows[] = {
    {ENGINE_CONN_NEW, "H"},
    {ENGINE_CONN_SCHEDULER, "OTLKCRP"},
    {ENGINE_CONN_WORKER, "DSP"},
};

static bool is_served(size_t row, unsigned kind)
{
    return kind >= IPC_HELLO && kind <= IPC_PING &&
           strchr(rows[row].served, kinds[kind - IPC_HELLO]) != NULL;
}

TestSuite(engine_conn_state, .fini = leak_check);

Test(engine_conn_state, each_state_serves_its_kinds_and_refuses_all_others)
{
    for (size_t row = 0; row < sizeof rows / sizeof rows[0]; row++)
        for (unsigned kind = 0; kind < 256; kind++)
            cr_expect(eq(int, engine_conn_judge(rows[row].state, (enum ipc_kind)kind),
                         is_served(row, kind) ? ENGINE_CONN_SERVE : ENGINE_CONN_REFUSE),
                      "state %d, kind %u", (int)rows[row].state, kind);
}

Test(engine_conn_state, what_is_ending_is_not_heard)
{
    for (unsigned kind = 0; kind < 256; kind++)
        cr_expect(eq(int, engine_conn_judge(ENGINE_CONN_ENDING, (enum ipc_kind)kind),
                     ENGINE_CONN_IGNORE));
}
