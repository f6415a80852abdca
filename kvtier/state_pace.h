/* SPDX-License-Identifier: Apache-2.0 */

/*
 * state_pace: when a worker's state is worth saving again: soon after something was learned, as
 * long as that costs little. An agent that is killed has lost what it learned since. Pure.
 */
#ifndef KVTIER_STATE_PACE_H
#define KVTIER_STATE_PACE_H

#include <stdbool.h>
#include <stdint.h>

enum {
    STATE_PACE_MS = 5000,           /* what was learned waits no longer for company */
    STATE_PACE_MS_MIN = 1000,       /* and no shorter */
    STATE_PACE_NEWS = 1024,         /* joins that are company enough */
    STATE_PACE_BYTES_PER_MS = 1000, /* on average, to the disk: 86 GB a day, of each worker */
    STATE_PACE_LOOP_SHARE = 50,     /* of the loop's time one in so many */
};

/* The last save, or try. */
struct state_pace {
    uint64_t begun_ms;
    uint64_t joins;   /* what had been learned by then, if it was written */
    uint64_t bytes;   /* it was written in */
    uint64_t loop_us; /* the loop was kept by it */
};

/* joins: what has been learned by now. */
bool state_pace_is_due(const struct state_pace *last, uint64_t now_ms, uint64_t joins);

#endif
