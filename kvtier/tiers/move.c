/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/move.h"

#include <assert.h>
#include <errno.h>

/*
 * DESIGN
 *
 *   RESERVED -- START --> COPYING -- ARRIVE --> ARRIVED -- COMMIT --> DONE
 *      |                     |                     |
 *    CANCEL                 FAIL                 CANCEL
 *      '---------------------+---------------------'--> ABORTED
 *
 * COPYING cannot be cancelled: a thread writes the slot, so nobody else may have it before the
 * thread says that it is done. Whoever does not want the move any more cancels what arrives.
 */
/* clang-format off */
enum { NONE = MOVE_STATE_COUNT };
static const uint8_t next[MOVE_STATE_COUNT][MOVE_EVENT_COUNT] = {
    /*                 START         ARRIVE        FAIL          COMMIT     CANCEL        */
    [MOVE_RESERVED] = {MOVE_COPYING, NONE,         NONE,         NONE,      MOVE_ABORTED},
    [MOVE_COPYING]  = {NONE,         MOVE_ARRIVED, MOVE_ABORTED, NONE,      NONE        },
    [MOVE_ARRIVED]  = {NONE,         NONE,         NONE,         MOVE_DONE, MOVE_ABORTED},
    [MOVE_DONE]     = {NONE,         NONE,         NONE,         NONE,      NONE        },
    [MOVE_ABORTED]  = {NONE,         NONE,         NONE,         NONE,      NONE        },
};
/* clang-format on */

int move_step(struct move *move, enum move_event event)
{
    assert(move->state < MOVE_STATE_COUNT);
    assert(event < MOVE_EVENT_COUNT);

    if (next[move->state][event] == NONE)
        return -EINVAL;
    move->state = next[move->state][event];
    return 0;
}
