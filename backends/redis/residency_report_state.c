/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/redis/residency_report_state.h"

#include "backends/runtime/must_check.h"

#include <assert.h>

/*
 * DESIGN
 *
 *          LINKED            GONE            PAGED             OPENED
 *    AWAY --------> LOOKING -------> PAGING -------> OPENING ---------> LIVE
 *     ^              |  ^ \                                             | |
 *     |       OTHERS |  | |'------------------- OURS ------------------>' |
 *    LOST            v  | DUE               ^                             |
 *     |         RIVALLED              GONE  '-----------------------------'
 *
 * LOST, LINKED and CLOSE can come at any time. While LOOKING nothing is known, so GONE (a clear)
 * waits for what is found; elsewhere it begins a new generation at once.
 */

/* clang-format off */
static const signed char moves[RESIDENCY_REPORT_STATE_COUNT][RESIDENCY_REPORT_EVENT_COUNT] = {
#define AWAY RESIDENCY_REPORT_AWAY
#define LOOK RESIDENCY_REPORT_LOOKING
#define RIVAL RESIDENCY_REPORT_RIVALLED
#define PAGE RESIDENCY_REPORT_PAGING
#define OPEN RESIDENCY_REPORT_OPENING
#define LIVE RESIDENCY_REPORT_LIVE
#define END RESIDENCY_REPORT_CLOSED
    /* state \ event               LINKED LOST  DUE   DOUBT OURS  OTHERS GONE  PAGED OPENED CLOSE */
    [RESIDENCY_REPORT_AWAY]     = { LOOK,  AWAY, -1,   -1,   -1,   -1,    -1,   -1,   -1,    END },
    [RESIDENCY_REPORT_LOOKING]  = { LOOK,  AWAY, -1,   -1,   LIVE, RIVAL, PAGE, -1,   -1,    END },
    [RESIDENCY_REPORT_RIVALLED] = { LOOK,  AWAY, LOOK, -1,   -1,   -1,    -1,   -1,   -1,    END },
    [RESIDENCY_REPORT_PAGING]   = { LOOK,  AWAY, -1,   -1,   -1,   -1,    PAGE, OPEN, -1,    END },
    [RESIDENCY_REPORT_OPENING]  = { LOOK,  AWAY, -1,   -1,   -1,   RIVAL, PAGE, -1,   LIVE,  END },
    [RESIDENCY_REPORT_LIVE]     = { LOOK,  AWAY, -1,   LOOK, -1,   RIVAL, PAGE, -1,   -1,    END },
    [RESIDENCY_REPORT_CLOSED]   = { -1,    -1,   -1,   -1,   -1,   -1,    -1,   -1,   -1,    -1 },
#undef AWAY
#undef LOOK
#undef RIVAL
#undef PAGE
#undef OPEN
#undef LIVE
#undef END
};
/* clang-format on */

int residency_report_state_after(enum residency_report_state state,
                                 enum residency_report_event event)
{
    assert(state < RESIDENCY_REPORT_STATE_COUNT);
    assert(event < RESIDENCY_REPORT_EVENT_COUNT);

    return moves[state][event];
}
