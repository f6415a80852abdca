/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/eviction_ghosts.h"

#include <errno.h>
#include <stdlib.h>

#include "backends/runtime/huge_array.h"

/*
 * DESIGN
 *
 * One place for each name, no list and no search: who needs it last keeps it. With room for as many
 * as leave in the time that a count is worth something, few are lost to others, at 8 bytes each.
 */

static uint64_t mixed(uint64_t name)
{
    return name * 0x9e3779b97f4a7c15u;
}

static struct eviction_ghost *place_of(const struct eviction_ghosts *ghosts, uint64_t name)
{
    return &ghosts->ghosts[mixed(name) >> 32 & ghosts->mask];
}

/* The low half: the place is made of the other. */
static uint32_t tag_of(uint64_t name)
{
    return (uint32_t)(mixed(name) ^ name >> 32);
}

int eviction_ghosts_init(struct eviction_ghosts *ghosts, size_t count_min)
{
    size_t count = 1;

    while (count < count_min && count < UINT32_MAX)
        count *= 2;
    *ghosts = (struct eviction_ghosts){
        .ghosts = huge_array_alloc(count, sizeof *ghosts->ghosts),
        .mask = count - 1,
    };
    return ghosts->ghosts != NULL ? 0 : -ENOMEM;
}

void eviction_ghosts_release(struct eviction_ghosts *ghosts)
{
    free(ghosts->ghosts);
    *ghosts = (struct eviction_ghosts){.ghosts = NULL};
}

void eviction_ghosts_put(struct eviction_ghosts *ghosts, uint64_t name, uint32_t count)
{
    *place_of(ghosts, name) = (struct eviction_ghost){tag_of(name), count};
}

uint32_t eviction_ghosts_take(struct eviction_ghosts *ghosts, uint64_t name)
{
    struct eviction_ghost *ghost = place_of(ghosts, name);
    const uint32_t count = ghost->tag == tag_of(name) ? ghost->count : 0;

    if (count > 0)
        ghost->count = 0;
    return count;
}
