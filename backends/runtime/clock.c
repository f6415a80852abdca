/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/runtime/clock.h"

#include <time.h>

static uint64_t read_us(clockid_t id)
{
    struct timespec now;

    clock_gettime(id, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

uint64_t clock_now_us(void)
{
    return read_us(CLOCK_MONOTONIC);
}

uint64_t clock_now_ms(void)
{
    return clock_now_us() / 1000;
}

uint64_t clock_wall_ms(void)
{
    return read_us(CLOCK_REALTIME) / 1000;
}
