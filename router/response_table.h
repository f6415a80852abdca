/* SPDX-License-Identifier: Apache-2.0 */

/*
 * response_table: which worker stores which response. An engine remembers its own responses only,
 * so whoever asks for one by its id, or goes on from it, has to be sent there. Bounded: the
 * response that was not asked for the longest is forgotten first. Keeps a digest of each id, never
 * the id. Pure; loop thread only.
 */
#ifndef ROUTER_RESPONSE_TABLE_H
#define ROUTER_RESPONSE_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/slice.h"

struct response_table;

struct response_table_stats {
    size_t count;           /* remembered now */
    uint64_t evicted_total; /* pushed out by newer ones */
};

/* secret has DIGEST_SECRET_BYTES and is borrowed. NULL: no memory. */
struct response_table *response_table_create(const uint8_t *secret, size_t count_max);
void response_table_destroy(struct response_table *table);

/* worker stores the response of that id. Two engines that make the same id: the newest wins.
 * Without memory nothing is learned, which is as if it had been evicted. */
void response_table_learn(struct response_table *table, struct slice id, uint32_t worker);

/* Who stores it; counts as a use. False: nobody, as far as is known. */
bool response_table_find(struct response_table *table, struct slice id, uint32_t *worker);

/* It was deleted. */
void response_table_forget(struct response_table *table, struct slice id);

/* worker restarted or is gone, and its responses with it. Walks the whole table. */
void response_table_forget_worker(struct response_table *table, uint32_t worker);

struct response_table_stats response_table_stats(const struct response_table *table);

#endif
