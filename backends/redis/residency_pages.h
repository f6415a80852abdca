/* SPDX-License-Identifier: Apache-2.0 */

/*
 * residency_pages: what one worker holds, laid out as it lies in Redis, with what of it was said
 * there and what was not yet: residency_report's memory. It knows no Redis. Pure; one thread at a
 * time.
 */
#ifndef BACKENDS_REDIS_RESIDENCY_PAGES_H
#define BACKENDS_REDIS_RESIDENCY_PAGES_H

#include <stddef.h>
#include <stdint.h>

#include "backends/redis/residency_wire.h"
#include "backends/runtime/must_check.h"

enum { RESIDENCY_PAGE_BYTES = RESIDENCY_PAGE_RECORD_COUNT * RESIDENCY_RECORD_BYTES };

struct residency_pages;

/* A record and where it lies: page slot / RESIDENCY_PAGE_RECORD_COUNT. */
struct residency_place {
    uint32_t slot;
    struct residency_record record; /* tiers 0: no longer held, and its place is free */
};

/* NULL: no memory. */
struct residency_pages *residency_pages_create(uint32_t record_count_max);
void residency_pages_destroy(struct residency_pages *pages);

/*
 * record.hash (not 0) is held like this now; tiers 0: no longer. -ENOBUFS: record_count_max are
 * held, or as many places wait for their removal to be said; -ENOMEM: then nothing has changed.
 */
MUST_CHECK int residency_pages_set(struct residency_pages *pages, struct residency_record record);

/* Nothing is held, and nothing was said. */
void residency_pages_clear(struct residency_pages *pages);

/* Nothing was said: all that is held is to be said anew, page by page. */
void residency_pages_restart(struct residency_pages *pages);

/*
 * The next page that was never said as a whole; NULL: all were. RESIDENCY_PAGE_BYTES bytes, good
 * until the next call. It counts as said from now on.
 */
const uint8_t *residency_pages_take_page(struct residency_pages *pages, uint32_t *page);

/*
 * Takes up to count_max places of pages said as a whole that differ from what was said, oldest
 * first; they count as said from now on. A place in a page that was never taken or said before
 * begins it: of zeros but for this. Pages begin in order.
 */
size_t residency_pages_take_places(struct residency_pages *pages, struct residency_place *places,
                                   size_t count_max);

struct residency_pages_stats {
    uint64_t held_count;
    uint64_t unsaid_count; /* places that may differ from what was said */
    uint64_t said_count;   /* records that whoever reads all that was said would find */
    uint64_t said_digest;  /* of them */
};

struct residency_pages_stats residency_pages_stats(const struct residency_pages *pages);

#endif
