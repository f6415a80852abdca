/* SPDX-License-Identifier: Apache-2.0 */

#include "router/residency/residency_copy.h"

#include <assert.h>
#include <string.h>

#include "backends/redis/residency_wire.h"

/*
 * DESIGN
 *
 * The digest of a whole is the sum of its records' digests. So a record that changes costs one look
 * for what it was, and the whole is checked after every change at no further cost: an event that
 * was lost shows at the next flush, not at some later audit.
 *
 * A record that the index refuses cannot be subtracted when it goes. From then on the sum means
 * nothing, and the copy is used as it is: less than the truth, never more.
 */

enum { PREFETCH_AHEAD = 16 };

void residency_holders_init(struct residency_holders *holders, struct residency_index *index)
{
    memset(holders, 0, sizeof *holders);
    holders->index = index;
}

void residency_copy_init(struct residency_copy *copy)
{
    *copy = (struct residency_copy){.holder = RESIDENCY_HOLDER_NONE};
}

bool residency_copy_begin(struct residency_copy *copy, struct residency_holders *holders)
{
    assert(copy->holder == RESIDENCY_HOLDER_NONE);

    for (uint32_t holder = 0; holder < RESIDENCY_HOLDER_COUNT_MAX; holder++) {
        if (holders->is_taken[holder] || !residency_index_is_free(holders->index, holder))
            continue;
        holders->is_taken[holder] = true;
        if (holders->end <= holder)
            holders->end = holder + 1;
        copy->holder = holder;
        return true;
    }
    return false;
}

void residency_copy_drop(struct residency_copy *copy, struct residency_holders *holders)
{
    if (copy->holder == RESIDENCY_HOLDER_NONE)
        return;
    assert(holders->is_taken[copy->holder]);
    residency_index_retire(holders->index, copy->holder);
    holders->is_taken[copy->holder] = false;
    while (holders->end > 0 && !holders->is_taken[holders->end - 1])
        holders->end--;
    residency_copy_init(copy);
}

/* Adds record to the sums, or takes it out of them. */
static void count(struct residency_copy *copy, struct residency_record record, bool is_added)
{
    uint64_t digest = residency_record_digest(record);

    copy->count += is_added ? 1 : UINT64_MAX; /* -1 */
    copy->digest += is_added ? digest : 0 - digest;
    for (unsigned tier = 0; tier < RESIDENCY_TIER_COUNT; tier++) {
        if ((record.tiers >> tier & 1) != 0)
            copy->tier_counts[tier] += is_added ? 1 : UINT64_MAX;
    }
}

static void apply(struct residency_copy *copy, struct residency_index *index,
                  struct residency_record record)
{
    struct residency_record old = {.hash = record.hash};

    old.tiers = residency_index_get(index, record.hash, copy->holder, &old.tokens);
    if (old.tiers != 0)
        count(copy, old, false);
    if (record.tiers == 0) {
        if (old.tiers != 0)
            residency_index_remove(index, record.hash, copy->holder);
        return;
    }
    if (residency_index_store(index, record.hash, copy->holder, record.tiers, record.tokens) == 0) {
        count(copy, record, true);
        return;
    }
    copy->refused_count++;
    if (old.tiers != 0) /* what it says is no longer so */
        residency_index_remove(index, record.hash, copy->holder);
}

static struct residency_record record_at(const uint8_t *bytes, size_t i)
{
    return residency_record_read(bytes + i * RESIDENCY_RECORD_BYTES);
}

void residency_copy_apply(struct residency_copy *copy, struct residency_holders *holders,
                          struct slice records)
{
    const uint8_t *bytes = (const void *)records.ptr;
    size_t record_count = records.len / RESIDENCY_RECORD_BYTES;

    assert(copy->holder != RESIDENCY_HOLDER_NONE);

    for (size_t i = 0; i < record_count; i++) {
        struct residency_record record = record_at(bytes, i);

        if (i + PREFETCH_AHEAD < record_count)
            residency_index_prefetch(holders->index, record_at(bytes, i + PREFETCH_AHEAD).hash);
        if (record.hash != 0)
            apply(copy, holders->index, record);
    }
}

bool residency_copy_agrees(const struct residency_copy *copy, uint64_t count, uint64_t digest)
{
    return copy->refused_count > 0 || (copy->count == count && copy->digest == digest);
}
