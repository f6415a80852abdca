/* SPDX-License-Identifier: Apache-2.0 */

/*
 * thrash_guard: sees when a tier is asked for more than it can hold, so that blocks go before they
 * are wanted again and every save only drives out another: then it lets in next to nothing new, and
 * what is there stays and is of use. It moves and evicts nothing: its caller asks before a save.
 * Pure; one thread at a time. Times are of any clock in milliseconds that does not go back.
 */
#ifndef KVTIER_TIERS_THRASH_GUARD_H
#define KVTIER_TIERS_THRASH_GUARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/must_check.h"

struct thrash_guard;

struct thrash_guard_config {
    uint32_t slot_count; /* of the last tier: what leaves it is lost */
    uint64_t window_ms;  /* over which events are weighed; at least 8 */
};

/* From the start on. */
struct thrash_guard_stats {
    uint64_t
        refaults; /* blocks to be saved again that were evicted or turned away shortly before */
    uint64_t turned_away; /* blocks */
    uint64_t closed;      /* times that it stopped letting in */
};

/* -ENOMEM; -EINVAL: a limit is too low. */
MUST_CHECK int thrash_guard_create(struct thrash_guard_config config, struct thrash_guard **guard);
void thrash_guard_destroy(struct thrash_guard *guard);

/*
 * A request is about to save these blocks, which no tier has; by name (digest_128.low). Whether
 * they may come in, all or none: a chain with a gap would be of no use. While it is closed one
 * request in 16 may, or it would not see the end of it.
 */
bool thrash_guard_admits(struct thrash_guard *guard, const uint64_t *names, size_t count,
                         uint64_t now_ms);

/* A block was evicted from the last tier that had it. */
void thrash_guard_evicted(struct thrash_guard *guard, uint64_t name);

/* That many blocks were found and loaded. */
void thrash_guard_hit(struct thrash_guard *guard, size_t count, uint64_t now_ms);

/* An engine preempted that many requests: it needs what it has evicted. */
void thrash_guard_preempted(struct thrash_guard *guard, size_t count, uint64_t now_ms);

/* True: it lets in next to nothing. */
bool thrash_guard_is_closed(const struct thrash_guard *guard);

/* 0: what is saved is found again; 1: it is lost before. To be reported. */
double thrash_guard_pressure(struct thrash_guard *guard, uint64_t now_ms);

const struct thrash_guard_stats *thrash_guard_stats(const struct thrash_guard *guard);

#endif
