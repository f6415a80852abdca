/* SPDX-License-Identifier: Apache-2.0 */

/*
 * system_random: what nobody can foresee and no two processes share, from the system: ids of lives,
 * seeds, secrets. What must only spread is random.h's. Any thread.
 */
#ifndef BACKENDS_RUNTIME_SYSTEM_RANDOM_H
#define BACKENDS_RUNTIME_SYSTEM_RANDOM_H

#include <stddef.h>
#include <stdint.h>

enum {
    SYSTEM_RANDOM_BYTES_MAX = 256
}; /* up to which the system never gives less, or waits twice */

/* len: at most SYSTEM_RANDOM_BYTES_MAX. */
void system_random_fill(void *bytes, size_t len);

/* Never 0. */
uint64_t system_random_id(void);

#endif
