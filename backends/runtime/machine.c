/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/runtime/machine.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

/* Of the group at the root of what we see, which is a container's own. "max" where it has no limit;
 * no file on the host itself, whatever limit a service has there, and where groups are of version 1
 * or there are none. */
static uint64_t group_memory_bytes(void)
{
    FILE *file = fopen("/sys/fs/cgroup/memory.max", "re");
    uint64_t bytes = UINT64_MAX;

    if (file == NULL)
        return bytes;
    if (fscanf(file, "%" SCNu64, &bytes) != 1)
        bytes = UINT64_MAX;
    fclose(file);
    return bytes;
}

static uint64_t machine_memory_bytes(void)
{
    long page_count = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);

    return page_count > 0 && page_bytes > 0 ? (uint64_t)page_count * (uint64_t)page_bytes
                                            : UINT64_MAX;
}

struct machine machine_read(void)
{
    uint64_t whole = machine_memory_bytes(), group = group_memory_bytes();
    struct rlimit limit;
    bool is_limited = getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_max != RLIM_INFINITY;

    return (struct machine){
        .memory_bytes = whole < group ? whole : group,
        .descriptor_count_max = is_limited ? (uint64_t)limit.rlim_max : UINT64_MAX,
    };
}
