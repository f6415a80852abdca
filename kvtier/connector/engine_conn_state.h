/* SPDX-License-Identifier: Apache-2.0 */

/* engine_conn_state: what a connection of an engine may say, by what it has said. Pure. */
#ifndef KVTIER_CONNECTOR_ENGINE_CONN_STATE_H
#define KVTIER_CONNECTOR_ENGINE_CONN_STATE_H

#include "kvtier/connector/ipc_wire.h"

enum engine_conn_state {
    ENGINE_CONN_NEW,       /* has come, and not said who it is */
    ENGINE_CONN_SCHEDULER, /* of an engine: says requests */
    ENGINE_CONN_WORKER,    /* of an engine: has its memory */
    ENGINE_CONN_ENDING,    /* is not heard any more; closed when nothing of it touches its memory */
    ENGINE_CONN_STATE_COUNT
};

enum engine_conn_verdict {
    ENGINE_CONN_SERVE,
    ENGINE_CONN_REFUSE, /* it does not speak as it should: REFUSED, and ENDING */
    ENGINE_CONN_IGNORE,
};

enum engine_conn_verdict engine_conn_judge(enum engine_conn_state state, enum ipc_kind kind);

#endif
