/* SPDX-License-Identifier: Apache-2.0 */

/*
 * load_table: what other routers have in flight, by worker, as each of them said last. A router
 * that has not been heard for a while counts nothing. Workers go by the hash of their name, which
 * is the same on every router. Pure; the caller tells the time.
 */
#ifndef ROUTER_LOAD_TABLE_H
#define ROUTER_LOAD_TABLE_H

#include <stddef.h>
#include <stdint.h>

#include "backends/redis/residency_wire.h"
#include "backends/runtime/must_check.h"
#include "backends/runtime/slice.h"
#include "hashing/block_map.h"

enum {
    LOAD_TABLE_ROUTER_COUNT_MAX = 64,
    LOAD_TABLE_SILENT_MS_MAX = 3000, /* then a router counts nothing */
};

/* Of all other routers together. Wide enough for whatever they say. */
struct load_sum {
    uint64_t in_flight;
    uint64_t decoding;
    uint64_t queued_tokens;
};

struct load_router;

struct load_table {
    uint64_t own;                /* this router's id: what it said itself counts nothing */
    struct load_router *routers; /* [LOAD_TABLE_ROUTER_COUNT_MAX] */
    size_t router_count;
    struct block_map places; /* name_hash -> 1 + index in sums */
    struct load_sum *sums;   /* [sum_count_max]; those of nobody are free */
    size_t sum_count_max;
    size_t sum_count;
    uint32_t *free_sums; /* a stack of indices below sum_count */
    size_t free_count;
    uint64_t refused_total; /* messages that were not understood, or of one router too many */
};

/* Empty. -ENOMEM. */
MUST_CHECK int load_table_init(struct load_table *table, uint64_t own);

/* A router has said this: the field "b" of an entry. */
void load_table_take(struct load_table *table, struct slice message, uint64_t now_ms);

/* Forgets the routers that have been silent for too long. */
void load_table_expire(struct load_table *table, uint64_t now_ms);

/* All zero where nobody else has anything. */
struct load_sum load_table_find(const struct load_table *table, uint64_t name_hash);

/* Other routers that are heard, and all that they have in flight. */
size_t load_table_router_count(const struct load_table *table);
uint64_t load_table_in_flight(const struct load_table *table);

/* Frees everything; may be called twice, and after a failed init. */
void load_table_release(struct load_table *table);

#endif
