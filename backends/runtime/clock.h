/* SPDX-License-Identifier: Apache-2.0 */

/*
 * clock: the only place that asks the system for the time. What decides takes now_us or now_ms
 * as an argument instead, so that tests and the simulator choose it. Any thread.
 */
#ifndef BACKENDS_RUNTIME_CLOCK_H
#define BACKENDS_RUNTIME_CLOCK_H

#include <stdint.h>

/* Monotonic; the origin is arbitrary, so only differences mean anything. */
uint64_t clock_now_us(void);
uint64_t clock_now_ms(void);

/* Milliseconds since 1970 UTC, for logs and HTTP dates; may jump. */
uint64_t clock_wall_ms(void);

#endif
