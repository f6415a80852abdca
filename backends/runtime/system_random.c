/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/runtime/system_random.h"

#include <assert.h>
#include <sys/random.h>

void system_random_fill(void *bytes, size_t len)
{
    ssize_t filled;

    assert(len <= SYSTEM_RANDOM_BYTES_MAX);
    filled = getrandom(bytes, len, 0);
    assert(filled == (ssize_t)len);
}

uint64_t system_random_id(void)
{
    uint64_t id = 0;

    while (id == 0)
        system_random_fill(&id, sizeof id);
    return id;
}
