/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/connector/engine_conn_state.h"

#include <assert.h>
#include <stdint.h>

/*
 * DESIGN
 *
 *   NEW --HELLO--> SCHEDULER or WORKER --its end, or REFUSED--> ENDING --no job left--> closed
 *
 * A bit for each kind that is served; an agent's own kinds are in no row.
 */
#define SERVES(kind) ((uint32_t)1 << (kind))

static const uint32_t served[ENGINE_CONN_STATE_COUNT] = {
    [ENGINE_CONN_NEW] = SERVES(IPC_HELLO),
    [ENGINE_CONN_SCHEDULER] = SERVES(IPC_OPEN) | SERVES(IPC_TOKENS) | SERVES(IPC_LOOKUP) |
                              SERVES(IPC_TAKE) | SERVES(IPC_CLOSE) | SERVES(IPC_RESET) |
                              SERVES(IPC_PING),
    [ENGINE_CONN_WORKER] = SERVES(IPC_LOAD) | SERVES(IPC_SAVE) | SERVES(IPC_PING),
};

enum engine_conn_verdict engine_conn_judge(enum engine_conn_state state, enum ipc_kind kind)
{
    assert(state < ENGINE_CONN_STATE_COUNT);

    if (state == ENGINE_CONN_ENDING)
        return ENGINE_CONN_IGNORE;
    return kind < 32 && (served[state] & SERVES(kind)) != 0 ? ENGINE_CONN_SERVE
                                                            : ENGINE_CONN_REFUSE;
}
