/* SPDX-License-Identifier: Apache-2.0 */

/*
 * seen_filter: which blocks were here lately and had to go before anybody asked for them again. Of
 * bounded size and forgetful: a name takes the place of an older one. Pure; one thread at a time.
 */
#ifndef KVTIER_TIERS_SEEN_FILTER_H
#define KVTIER_TIERS_SEEN_FILTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/must_check.h"
#include "hashing/digest.h"

struct seen_filter {
    uint64_t *names; /* .low of each; 0: none */
    size_t count;    /* a power of two */
};

/* Remembers about name_count names. -ENOMEM. */
MUST_CHECK int seen_filter_init(struct seen_filter *filter, size_t name_count);
void seen_filter_release(struct seen_filter *filter);

static inline void seen_filter_note(struct seen_filter *filter, struct digest_128 name)
{
    filter->names[name.low & (filter->count - 1)] = name.low;
}

static inline bool seen_filter_has(const struct seen_filter *filter, struct digest_128 name)
{
    return filter->names[name.low & (filter->count - 1)] == name.low;
}

#endif
