/* SPDX-License-Identifier: Apache-2.0 */

/*
 * residency_map: a router's part in the shared map. Ties what reads Redis (residency_feed) to the
 * replica (residency_sync), brings workers that agents name into the fleet and takes them out
 * again, and tells the log who is believed. Decides nothing about requests. Loop thread only.
 */
#ifndef ROUTER_RESIDENCY_MAP_H
#define ROUTER_RESIDENCY_MAP_H

#include <stdbool.h>
#include <stdint.h>

#include "backends/redis/residency_feed.h"
#include "backends/runtime/must_check.h"

struct relay;
struct residency_map;

struct residency_map_config {
    struct residency_feed_config feed;
    uint64_t leave_ms; /* a found worker leaves after so long without agent and probe */
};

/* Borrows relay, whose fleet, sync and workers must be there, until close. -EINVAL: url; -ENOMEM.
 */
MUST_CHECK int residency_map_open(struct relay *relay, struct residency_map_config config,
                                  struct residency_map **map);

void residency_map_set_leave_ms(struct residency_map *map, uint64_t leave_ms);

struct residency_feed_stats residency_map_stats(const struct residency_map *map);

/* NULLs *map; the fleet knows it no more. Its memory goes when the loop has closed its handles. */
void residency_map_close(struct residency_map **map);

#endif
