/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/eviction.h"

#include <string.h>

/* A new policy is one file and one line here. */
const struct eviction_ops *const eviction_registry[] = {
    &eviction_lru_leaf,
    &eviction_lfu_aged,
    &eviction_adaptive,
    NULL,
};

const struct eviction_ops *eviction_find(const char *name)
{
    for (size_t i = 0; eviction_registry[i] != NULL; i++)
        if (strcmp(eviction_registry[i]->name, name) == 0)
            return eviction_registry[i];
    return NULL;
}
