/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/state_pace.h"

/*
 * DESIGN
 *
 * A state is written whole, 24 bytes a text block: a million of them are 24 MB, which take the loop
 * 60 ms of its time, in 250 slices. So what bounds the pace are costs, each by its own rate, and
 * not a period: a small state is saved within seconds, a large one when it is its turn.
 */
bool state_pace_is_due(const struct state_pace *last, uint64_t now_ms, uint64_t joins)
{
    const uint64_t age_ms = now_ms - last->begun_ms;

    if (joins == last->joins || age_ms < STATE_PACE_MS_MIN)
        return false;
    if (age_ms < last->bytes / STATE_PACE_BYTES_PER_MS ||
        age_ms < last->loop_us * STATE_PACE_LOOP_SHARE / 1000)
        return false;
    return age_ms >= STATE_PACE_MS || joins - last->joins >= STATE_PACE_NEWS;
}
