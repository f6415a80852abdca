/* SPDX-License-Identifier: Apache-2.0 */

#include "router/residency/block_table.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>

/*
 * DESIGN
 *
 *     buckets  [ tag:3 tag:1 . . | tag:4 . . . | tag:2 . . . ]       8 bytes a slot, at random
 *                    |     |           a slot names an entry
 *     entries  [ - | hash value | hash value | hash value | ... ]    16 bytes, in order
 *
 * A prompt of 1,640 blocks in an ordinary hash table is as many cache lines at random places: tens
 * of microseconds on a quiet machine and far more where others use the memory too. Here the blocks
 * of a prompt, which come in order, lie side by side; whoever looks for the next one compares the
 * hash of the entry beside his last (in the direction he came from: a guess is learned from its
 * last block to its first) and needs the buckets only where a prompt leaves another's path, and for
 * what is new. Freed entries are taken again last in, first out: engines evict a prompt from its
 * end, so what comes next finds the gap in order too. Entries never move, whatever grows: they have
 * address space for all that are allowed, and memory as far as they were ever used.
 *
 * Buckets keep the order of tags whatever their number (block_buckets.c), which is bucket_count_max
 * halved again and again. So a growth reads the old buckets and writes the new ones from front to
 * back:
 *
 *     old      [......xxxxxxxxx]      each claim and remove moves up to DRAIN_SLOTS of old from
 *     buckets  [xxxx...........]      bucket drain_at.
 *
 * Old is empty after a tenth of the claims that would fill buckets. Memory that is touched for the
 * first time costs the kernel's zeroing it, up to 2 MiB at once; new buckets would be touched all
 * over the place in no time, so the last claims before a growth do that, page by page.
 */

enum {
    BUCKET_COUNT_MIN = 8,
    DRAIN_SLOTS = 16,
    BATCH_MIN = 4,
    REMOVE_AHEAD = 16,
    HUGE_PAGE_BYTES = 2 << 20,
    HUGE_BYTES_MIN = 8 << 20,
    PAGE_BYTES = 4096,
    /* While buckets are filled half as many old ones may still be there, but then there are fewer
     * entries. */
    BYTES_PER_BUCKET_MAX = (int)(sizeof(struct block_bucket) +
                                 sizeof(struct block_entry) * BLOCK_BUCKET_FILLED_HALVES / 2),
};

/* How many slots may be in use: some are free then, which ends every search. */
static size_t filled_count(size_t bucket_count)
{
    return bucket_count * BLOCK_BUCKET_FILLED_HALVES / 2;
}

/* The entry of hash, or 0. */
static uint32_t find_in(const struct block_table *table, const struct block_buckets *in,
                        uint64_t hash)
{
    const uint32_t tag = block_tag(hash);

    if (in->count == 0)
        return 0;
    for (size_t at = block_buckets_home(in, tag);; at = block_buckets_after(in, at)) {
        const struct block_bucket *bucket = &in->at[at];

        for (unsigned mask = block_bucket_with_tag(bucket, tag); mask != 0; mask &= mask - 1) {
            const uint32_t entry = bucket->entries[__builtin_ctz(mask)];

            if (entry != 0 && table->entries[entry].hash == hash)
                return entry;
        }
        if (!block_bucket_is_full(bucket))
            return 0;
    }
}

static uint32_t find_entry(const struct block_table *table, uint64_t hash)
{
    uint32_t entry = find_in(table, &table->buckets, hash);

    return entry != 0 ? entry : find_in(table, &table->old, hash);
}

/* Inlined by all means: gcc takes a call that only prefetches for one without effect. */
#define ALWAYS_INLINE inline __attribute__((always_inline))

static ALWAYS_INLINE void prefetch_bucket(const struct block_table *table, uint64_t hash)
{
    const uint32_t tag = block_tag(hash);

    if (table->buckets.at != NULL)
        block_buckets_prefetch(&table->buckets, tag);
    if (table->old.at != NULL)
        block_buckets_prefetch(&table->old, tag);
}

/* ---- growth ---- */

/*
 * What is looked up at random misses the TLB nearly always with 4 KiB pages, so huge ones are asked
 * for, before the first touch. A refusal costs only speed.
 */
static void ask_for_huge_pages(void *memory, size_t size)
{
    uintptr_t begin = ((uintptr_t)memory + HUGE_PAGE_BYTES - 1) & ~(uintptr_t)(HUGE_PAGE_BYTES - 1);

    (void)madvise((void *)begin, size - (begin - (uintptr_t)memory), MADV_HUGEPAGE);
}

/* Zeroed memory that is not there before it is touched. NULL: no address space. */
static void *map_memory(size_t size)
{
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (memory == MAP_FAILED)
        return NULL;
    if (size >= HUGE_BYTES_MIN)
        ask_for_huge_pages(memory, size);
    return memory;
}

static void drop(struct block_buckets *buckets)
{
    if (buckets->at != NULL)
        munmap(buckets->at, buckets->bucket_count * sizeof *buckets->at);
    *buckets = (struct block_buckets){NULL, 0, 0};
}

static void drain(struct block_table *table)
{
    struct block_buckets *old = &table->old;

    for (unsigned i = 0; i < DRAIN_SLOTS && old->count > 0; i++) {
        struct block_bucket *bucket = &old->at[table->drain_at];

        if (bucket->entries[0] == 0) {
            table->drain_at = block_buckets_after(old, table->drain_at);
            continue;
        }
        block_buckets_add(&table->buckets, bucket->tags[0], bucket->entries[0]);
        block_buckets_remove_slot(old, table->drain_at, 0);
    }
    if (old->at != NULL && old->count == 0)
        drop(old);
}

/* The smallest of the halvings of bucket_count_max that is more than bucket_count. */
static size_t next_bucket_count(const struct block_table *table, size_t bucket_count)
{
    size_t next = table->bucket_count_max;

    while (next / 2 > bucket_count && next / 2 >= BUCKET_COUNT_MIN)
        next /= 2;
    return next;
}

/* Maps the next buckets. False: these are as many as allowed, or there is no address space. */
static bool map_next(struct block_table *table)
{
    const size_t bucket_count = next_bucket_count(table, table->buckets.bucket_count);

    if (table->next.at == NULL && bucket_count > table->buckets.bucket_count) {
        table->next.at = map_memory(bucket_count * sizeof *table->next.at);
        table->next.bucket_count = table->next.at != NULL ? bucket_count : 0;
        table->next_ready_bytes = 0;
    }
    return table->next.at != NULL;
}

/* Makes a page of the next buckets ready, once there are hardly more claims left than pages. */
static void prepare(struct block_table *table)
{
    const size_t left = filled_count(table->buckets.bucket_count) - table->buckets.count;
    const size_t page_count =
        table->buckets.bucket_count * 2 * sizeof(struct block_bucket) / PAGE_BYTES;

    if (left > page_count || page_count == 0 || !map_next(table) ||
        table->next_ready_bytes >= table->next.bucket_count * sizeof *table->next.at)
        return;
    *(volatile uint8_t *)((uint8_t *)table->next.at + table->next_ready_bytes) = 0;
    table->next_ready_bytes += PAGE_BYTES;
}

/* False: already as large as allowed, or no memory. */
static bool grow(struct block_table *table)
{
    if (!map_next(table))
        return false;
    assert(table->old.at == NULL); /* emptied long before buckets could fill up */

    table->old = table->buckets;
    table->buckets = table->next;
    table->next = (struct block_buckets){NULL, 0, 0};
    table->next_ready_bytes = 0;
    table->drain_at = 0;
    drain(table);
    return true;
}

/* ---- entries ---- */

static size_t entries_size(const struct block_table *table)
{
    return (size_t)table->entry_count_max * sizeof(struct block_entry);
}

/* The address space for all entries. False: there is none. */
static bool reserve_entries(struct block_table *table)
{
    if (table->entries != NULL)
        return true;
    table->entries = map_memory(entries_size(table));
    table->entry_end = 1;
    return table->entries != NULL;
}

/* A free entry, or 0. */
static uint32_t take_entry(struct block_table *table)
{
    uint32_t entry = table->free;

    if (entry != 0) {
        table->free = (uint32_t)table->entries[entry].value;
        return entry;
    }
    return table->entry_end < table->entry_count_max ? table->entry_end++ : 0;
}

static void give_entry(struct block_table *table, uint32_t entry)
{
    table->entries[entry] = (struct block_entry){0, table->free};
    table->free = entry;
}

/* ---- trails ---- */

/* The entry beside the last one of trail, if that is of hash; else 0. */
static uint32_t beside(const struct block_table *table, uint64_t hash,
                       const struct block_trail *trail)
{
    const uint32_t entry = trail->entry + (uint32_t)trail->step;

    if (trail->entry == 0 || entry >= table->entry_end || table->entries[entry].hash != hash)
        return 0;
    return entry;
}

static void follow_to(struct block_trail *trail, uint32_t entry)
{
    trail->step = entry + 1 == trail->entry ? -1 : 1;
    trail->entry = entry;
}

/* ---- publics ---- */

void block_table_init(struct block_table *table, size_t bytes_max)
{
    size_t bucket_count_max = 0;

    if (bytes_max > sizeof(struct block_entry)) /* the one that is never used */
        bucket_count_max = (bytes_max - sizeof(struct block_entry)) / BYTES_PER_BUCKET_MAX;

    if (bucket_count_max > UINT32_MAX / BLOCK_BUCKET_SLOTS)
        bucket_count_max = UINT32_MAX / BLOCK_BUCKET_SLOTS; /* numbers of entries end there */

    *table = (struct block_table){
        .bucket_count_max = bucket_count_max,
        .entry_count_max = (uint32_t)(filled_count(bucket_count_max) + 1),
    };
}

uint64_t *block_table_find(const struct block_table *table, uint64_t hash,
                           struct block_trail *trail)
{
    uint32_t entry = beside(table, hash, trail);

    assert(hash != 0);

    if (entry == 0)
        entry = find_entry(table, hash);
    if (entry == 0)
        return NULL;
    follow_to(trail, entry);
    return &table->entries[entry].value;
}

uint64_t *block_table_claim(struct block_table *table, uint64_t hash, struct block_trail *trail)
{
    uint64_t *value;
    uint32_t entry;

    drain(table);
    value = block_table_find(table, hash, trail);
    if (value != NULL)
        return value;
    if (!reserve_entries(table))
        return NULL;
    if (table->buckets.count == filled_count(table->buckets.bucket_count) && !grow(table))
        return NULL;
    prepare(table);
    entry = take_entry(table);
    if (entry == 0)
        return NULL;
    block_buckets_add(&table->buckets, block_tag(hash), entry);
    table->entries[entry] = (struct block_entry){hash, 0};
    follow_to(trail, entry);
    return &table->entries[entry].value;
}

void block_table_prefetch(const struct block_table *table, uint64_t hash)
{
    prefetch_bucket(table, hash);
}

/* A prompt is removed block by block, and each needs its bucket: that of one ahead is fetched. */
static ALWAYS_INLINE void prefetch_ahead(const struct block_table *table,
                                         const struct block_trail *trail)
{
    const uint32_t entry = trail->entry + (uint32_t)(trail->step * REMOVE_AHEAD);

    if (entry > 0 && entry < table->entry_end)
        prefetch_bucket(table, table->entries[entry].hash);
}

void block_table_remove(struct block_table *table, uint64_t *value, const struct block_trail *trail)
{
    const uint32_t entry = (uint32_t)((struct block_entry *)(void *)(value - 1) - table->entries);
    uint32_t tag;

    static_assert(offsetof(struct block_entry, value) == sizeof *value, "hash, then value");
    assert(entry > 0 && entry < table->entry_end);

    tag = block_tag(table->entries[entry].hash);
    if (!block_buckets_remove(&table->buckets, tag, entry) &&
        !block_buckets_remove(&table->old, tag, entry))
        abort(); /* an entry that no bucket knows */
    give_entry(table, entry);
    prefetch_ahead(table, trail);
    drain(table);
}

/* Where the entry of hash most likely is: in its home, the first with its tag. */
static const struct block_entry *likely_entry(const struct block_table *table, uint64_t hash)
{
    const uint32_t tag = block_tag(hash);
    const struct block_bucket *bucket =
        &table->buckets.at[block_buckets_home(&table->buckets, tag)];
    const unsigned mask = block_bucket_with_tag(bucket, tag);

    return &table->entries[mask != 0 ? bucket->entries[__builtin_ctz(mask)] : 0];
}

/*
 * Finds that do not wait for each other: all buckets are on their way before the first is looked
 * at, and all entries before the first is compared.
 */
static void find_batch(const struct block_table *table, const struct block *blocks, size_t count,
                       uint32_t *entries)
{
    for (size_t i = 0; i < count; i++)
        prefetch_bucket(table, blocks[i].hash);
    for (size_t i = 0; i < count && table->buckets.count > 0; i++)
        __builtin_prefetch(likely_entry(table, blocks[i].hash));
    for (size_t i = 0; i < count; i++)
        entries[i] = find_entry(table, blocks[i].hash);
}

/* Blocks side by side with the last one and each other. */
static size_t follow_beside(const struct block_table *table, const struct block *blocks,
                            size_t count, struct block_trail *trail, uint64_t *values)
{
    size_t got = 0;

    while (got < count) {
        const uint32_t entry = beside(table, blocks[got].hash, trail);

        if (entry == 0)
            break;
        values[got++] = table->entries[entry].value;
        trail->entry = entry;
    }
    return got;
}

size_t block_table_follow(const struct block_table *table, const struct block *blocks, size_t count,
                          struct block_trail *trail, uint64_t values[BLOCK_TABLE_BATCH_MAX])
{
    uint32_t entries[BLOCK_TABLE_BATCH_MAX];
    size_t got;

    assert(count > 0);

    if (count > BLOCK_TABLE_BATCH_MAX)
        count = BLOCK_TABLE_BATCH_MAX;
    got = follow_beside(table, blocks, count, trail, values);
    if (got > 0) {
        trail->batch = 0;
        return got;
    }
    /* A path that was left once is left again soon, or not at all: twice as far each time. */
    trail->batch = trail->batch > 0 ? 2 * trail->batch : BATCH_MIN;
    if (trail->batch > BLOCK_TABLE_BATCH_MAX)
        trail->batch = BLOCK_TABLE_BATCH_MAX;
    if (count > trail->batch)
        count = trail->batch;
    find_batch(table, blocks, count, entries);
    for (size_t i = 0; i < count; i++) {
        values[i] = entries[i] != 0 ? table->entries[entries[i]].value : 0;
        if (entries[i] != 0)
            follow_to(trail, entries[i]);
    }
    return count;
}

struct block_entry *block_table_next(struct block_table *table, size_t *cursor, size_t *entry_count)
{
    for (; *cursor<table->entry_end && * entry_count> 0; (*entry_count)--) {
        struct block_entry *entry = &table->entries[(*cursor)++];

        if (entry->hash == 0)
            continue;
        (*entry_count)--;
        return entry;
    }
    return NULL;
}

size_t block_table_count(const struct block_table *table)
{
    return table->buckets.count + table->old.count;
}

size_t block_table_bytes(const struct block_table *table)
{
    return (table->buckets.bucket_count + table->old.bucket_count) * sizeof(struct block_bucket) +
           table->next_ready_bytes + table->entry_end * sizeof(struct block_entry);
}

void block_table_release(struct block_table *table)
{
    drop(&table->old);
    drop(&table->buckets);
    drop(&table->next);
    if (table->entries != NULL)
        munmap(table->entries, entries_size(table));
    *table = (struct block_table){0};
}
