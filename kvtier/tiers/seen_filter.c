/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/seen_filter.h"

#include <errno.h>
#include <stdlib.h>

/*
 * DESIGN
 * Names are digests already, so their low bits are as good as a hash. One place a name: what is
 * overwritten is forgotten, which costs one more sight of that block before the SSD takes it in.
 * 64 bits of a name are enough: a wrong yes costs one write.
 */
enum { NAME_COUNT_MAX = 1 << 22 }; /* 32 MiB */

int seen_filter_init(struct seen_filter *filter, size_t name_count)
{
    size_t count = 1;

    while (count < name_count && count < NAME_COUNT_MAX)
        count *= 2;
    *filter = (struct seen_filter){.names = calloc(count, sizeof(uint64_t)), .count = count};
    return filter->names != NULL ? 0 : -ENOMEM;
}

void seen_filter_release(struct seen_filter *filter)
{
    free(filter->names);
    *filter = (struct seen_filter){0};
}
