/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/redis/residency_pages.h"

#include "hashing/block_map.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/*
 * DESIGN
 *
 *   slot_of: hash -> slot         pages: the records by slot, in wire layout, as they are now
 *
 *   unsaid (FIFO):  slot, and what was said of it when it first differed
 *
 * A hash keeps its slot until its removal has been said, even when nothing is held there any more:
 * else another hash could take the place, and readers of the page would lose the first one without
 * a change that says so. So slot and hash stand for each other, a slot is in the FIFO at most once,
 * and whatever happened in between, only its newest state is said.
 *
 * While pages are being said whole, those not yet said (page >= said_page_count) need no FIFO: they
 * will say it. Once all were (is_open), a page that begins is empty for readers too, and what comes
 * into it is a difference like any other.
 *
 * Free slots are taken lowest first, so that pages stay dense under churn. Two levels of bits find
 * the lowest: 4,096 slots a bit of the summary's word, which is the same as a scan of a few words
 * for any number of slots we have.
 */

enum { WORD_BITS = 64, UNSAID_COUNT_MIN = 256 };

struct unsaid {
    uint32_t slot;
    uint32_t tokens; /* as said */
    uint8_t tiers;
};

struct residency_pages {
    uint32_t record_count_max;
    uint32_t slot_count_max; /* also those whose removal is not said yet */
    uint32_t held_count;
    uint64_t said_count;
    uint64_t said_digest;
    uint32_t said_page_count;
    bool is_open; /* all pages are said whole */
    struct block_map slot_of;
    uint8_t **bytes; /* of each page; NULL from page_count on */
    uint32_t *used;  /* slots of each page that are not free */
    uint32_t page_count;
    uint64_t *free_bits;    /* a bit for each slot */
    uint64_t *free_summary; /* a bit for each word of free_bits that is not 0 */
    uint64_t *unsaid_bits;  /* a bit for each slot in unsaid */
    size_t word_count;
    struct unsaid *unsaid; /* from unsaid_first to unsaid_end */
    size_t unsaid_first;
    size_t unsaid_end;
    size_t unsaid_size;
};

/* ---- bits ---- */

static void set_bit(uint64_t *bits, size_t at)
{
    bits[at / WORD_BITS] |= UINT64_C(1) << at % WORD_BITS;
}

static void clear_bit(uint64_t *bits, size_t at)
{
    bits[at / WORD_BITS] &= ~(UINT64_C(1) << at % WORD_BITS);
}

static bool has_bit(const uint64_t *bits, size_t at)
{
    return (bits[at / WORD_BITS] >> at % WORD_BITS & 1) != 0;
}

static size_t lowest_bit(uint64_t word)
{
    return (size_t)__builtin_ctzll(word);
}

static size_t summary_count(const struct residency_pages *pages)
{
    return (pages->word_count + WORD_BITS - 1) / WORD_BITS;
}

/* All slots, and none beyond. */
static void free_all(struct residency_pages *pages)
{
    memset(pages->free_bits, 0xff, pages->word_count * sizeof *pages->free_bits);
    for (size_t slot = pages->slot_count_max; slot < pages->word_count * WORD_BITS; slot++)
        clear_bit(pages->free_bits, slot);
    memset(pages->free_summary, 0xff, summary_count(pages) * sizeof *pages->free_summary);
    for (size_t word = pages->word_count; word < summary_count(pages) * WORD_BITS; word++)
        clear_bit(pages->free_summary, word);
}

/* -ENOBUFS: none. */
static int lowest_free(const struct residency_pages *pages, uint32_t *slot)
{
    for (size_t i = 0; i < summary_count(pages); i++) {
        if (pages->free_summary[i] != 0) {
            const size_t word = i * WORD_BITS + lowest_bit(pages->free_summary[i]);

            *slot = (uint32_t)(word * WORD_BITS + lowest_bit(pages->free_bits[word]));
            return 0;
        }
    }
    return -ENOBUFS;
}

/* ---- slots ---- */

static uint32_t page_of(uint32_t slot)
{
    return slot / RESIDENCY_PAGE_RECORD_COUNT;
}

static uint8_t *bytes_of(const struct residency_pages *pages, uint32_t slot)
{
    return pages->bytes[page_of(slot)] +
           slot % RESIDENCY_PAGE_RECORD_COUNT * (size_t)RESIDENCY_RECORD_BYTES;
}

static struct residency_record record_at(const struct residency_pages *pages, uint32_t slot)
{
    return residency_record_read(bytes_of(pages, slot));
}

static bool is_said_whole(const struct residency_pages *pages, uint32_t slot)
{
    return page_of(slot) < pages->said_page_count;
}

static void take_slot(struct residency_pages *pages, uint32_t slot)
{
    clear_bit(pages->free_bits, slot);
    if (pages->free_bits[slot / WORD_BITS] == 0)
        clear_bit(pages->free_summary, slot / WORD_BITS);
    pages->used[page_of(slot)]++;
}

static void free_slot(struct residency_pages *pages, uint32_t slot)
{
    const bool was_there = block_map_remove(&pages->slot_of, record_at(pages, slot).hash);

    assert(was_there);
    assert(pages->used[page_of(slot)] > 0);

    memset(bytes_of(pages, slot), 0, RESIDENCY_RECORD_BYTES);
    set_bit(pages->free_bits, slot);
    set_bit(pages->free_summary, slot / WORD_BITS);
    pages->used[page_of(slot)]--;
}

static int make_page(struct residency_pages *pages, uint32_t page)
{
    assert(page <= pages->page_count);

    if (page < pages->page_count)
        return 0;
    pages->bytes[page] = calloc(1, RESIDENCY_PAGE_BYTES);
    if (pages->bytes[page] == NULL)
        return -ENOMEM;
    pages->used[page] = 0;
    pages->page_count++;
    if (pages->is_open)
        pages->said_page_count++;
    return 0;
}

/* ---- what was not said ---- */

static int make_room(struct residency_pages *pages)
{
    const size_t count = pages->unsaid_end - pages->unsaid_first;
    size_t size = pages->unsaid_size;
    struct unsaid *grown;

    if (pages->unsaid_end < pages->unsaid_size)
        return 0;
    if (count > size / 2)
        size *= 2;
    if (size == 0)
        size = UNSAID_COUNT_MIN;
    if (count > 0)
        memmove(pages->unsaid, pages->unsaid + pages->unsaid_first, count * sizeof *pages->unsaid);
    pages->unsaid_first = 0;
    pages->unsaid_end = count;
    if (size == pages->unsaid_size)
        return 0;
    grown = realloc(pages->unsaid, size * sizeof *pages->unsaid);
    if (grown == NULL)
        return -ENOMEM;
    pages->unsaid = grown;
    pages->unsaid_size = size;
    return 0;
}

/* said: as it was until now. There must be room. */
static void note_unsaid(struct residency_pages *pages, uint32_t slot, struct residency_record said)
{
    if (!is_said_whole(pages, slot) || has_bit(pages->unsaid_bits, slot))
        return;
    assert(pages->unsaid_end < pages->unsaid_size);
    pages->unsaid[pages->unsaid_end++] = (struct unsaid){slot, said.tokens, said.tiers};
    set_bit(pages->unsaid_bits, slot);
}

/* ---- life ---- */

struct residency_pages *residency_pages_create(uint32_t record_count_max)
{
    const size_t slot_count = (size_t)record_count_max * 2;
    const size_t page_count = slot_count / RESIDENCY_PAGE_RECORD_COUNT + 1;
    struct residency_pages *pages = calloc(1, sizeof *pages);

    assert(record_count_max > 0 && slot_count < UINT32_MAX);

    if (pages == NULL)
        return NULL;
    pages->record_count_max = record_count_max;
    pages->slot_count_max = (uint32_t)slot_count;
    pages->word_count = (slot_count + WORD_BITS - 1) / WORD_BITS;
    /* 24 bytes a slot of the map with both of its tables, filled to three quarters. */
    block_map_init(&pages->slot_of, 24 * (slot_count * 4 / 3 + 64));
    pages->bytes = calloc(page_count, sizeof *pages->bytes);
    pages->used = calloc(page_count, sizeof *pages->used);
    pages->free_bits = calloc(pages->word_count, sizeof *pages->free_bits);
    pages->free_summary = calloc(summary_count(pages), sizeof *pages->free_summary);
    pages->unsaid_bits = calloc(pages->word_count, sizeof *pages->unsaid_bits);
    if (pages->bytes == NULL || pages->used == NULL || pages->free_bits == NULL ||
        pages->free_summary == NULL || pages->unsaid_bits == NULL) {
        residency_pages_destroy(pages);
        return NULL;
    }
    free_all(pages);
    return pages;
}

static void drop_pages(struct residency_pages *pages, uint32_t page_count)
{
    while (pages->page_count > page_count) {
        pages->page_count--;
        free(pages->bytes[pages->page_count]);
        pages->bytes[pages->page_count] = NULL;
    }
}

void residency_pages_destroy(struct residency_pages *pages)
{
    if (pages == NULL)
        return;
    drop_pages(pages, 0);
    block_map_release(&pages->slot_of);
    free(pages->bytes);
    free(pages->used);
    free(pages->free_bits);
    free(pages->free_summary);
    free(pages->unsaid_bits);
    free(pages->unsaid);
    free(pages);
}

/* ---- what is held ---- */

static int add_record(struct residency_pages *pages, struct residency_record record)
{
    uint64_t *value;
    uint32_t slot;
    int status;

    if (pages->held_count == pages->record_count_max)
        return -ENOBUFS;
    status = lowest_free(pages, &slot);
    if (status == 0)
        status = make_page(pages, page_of(slot));
    if (status == 0)
        status = make_room(pages);
    if (status < 0)
        return status;
    value = block_map_claim(&pages->slot_of, record.hash);
    if (value == NULL)
        return -ENOMEM;
    *value = slot;
    take_slot(pages, slot);
    note_unsaid(pages, slot, (struct residency_record){record.hash, 0, 0});
    residency_record_write(bytes_of(pages, slot), record);
    pages->held_count++;
    return 0;
}

static int change_record(struct residency_pages *pages, uint32_t slot,
                         struct residency_record record)
{
    const struct residency_record before = record_at(pages, slot);
    int status;

    if (before.tiers == 0 && record.tiers == 0)
        return 0;
    if (before.tiers == 0 && pages->held_count == pages->record_count_max)
        return -ENOBUFS;
    status = make_room(pages);
    if (status < 0)
        return status;
    note_unsaid(pages, slot, before);
    residency_record_write(bytes_of(pages, slot), record);
    if (before.tiers == 0)
        pages->held_count++;
    if (record.tiers == 0)
        pages->held_count--;
    if (record.tiers == 0 && !is_said_whole(pages, slot))
        free_slot(pages, slot); /* nobody was told of it */
    return 0;
}

int residency_pages_set(struct residency_pages *pages, struct residency_record record)
{
    const uint64_t *value = block_map_find(&pages->slot_of, record.hash);

    assert(record.hash != 0);

    if (value != NULL)
        return change_record(pages, (uint32_t)*value, record);
    return record.tiers != 0 ? add_record(pages, record) : 0;
}

static void forget_said(struct residency_pages *pages)
{
    for (size_t i = pages->unsaid_first; i < pages->unsaid_end; i++)
        clear_bit(pages->unsaid_bits, pages->unsaid[i].slot);
    pages->unsaid_first = pages->unsaid_end = 0;
    pages->said_count = pages->said_digest = 0;
    pages->said_page_count = 0;
    pages->is_open = false;
}

void residency_pages_clear(struct residency_pages *pages)
{
    forget_said(pages);
    drop_pages(pages, 0);
    block_map_release(&pages->slot_of);
    free_all(pages);
    pages->held_count = 0;
}

void residency_pages_restart(struct residency_pages *pages)
{
    uint32_t page_count = pages->page_count;

    for (size_t i = pages->unsaid_first; i < pages->unsaid_end; i++) {
        if (record_at(pages, pages->unsaid[i].slot).tiers == 0)
            free_slot(pages, pages->unsaid[i].slot);
    }
    forget_said(pages);
    while (page_count > 0 && pages->used[page_count - 1] == 0)
        page_count--;
    drop_pages(pages, page_count);
}

/* ---- what is said ---- */

static void count_said(struct residency_pages *pages, struct residency_record record)
{
    pages->said_count += record.tiers != 0;
    pages->said_digest += residency_record_digest(record);
}

const uint8_t *residency_pages_take_page(struct residency_pages *pages, uint32_t *page)
{
    const uint8_t *bytes;

    if (pages->said_page_count == pages->page_count) {
        pages->is_open = true;
        return NULL;
    }
    *page = pages->said_page_count++;
    bytes = pages->bytes[*page];
    for (uint32_t i = 0; i < RESIDENCY_PAGE_RECORD_COUNT; i++)
        count_said(pages, residency_record_read(bytes + (size_t)i * RESIDENCY_RECORD_BYTES));
    return bytes;
}

/* False: it came back to what was said. */
static bool take_place(struct residency_pages *pages, const struct unsaid *unsaid,
                       struct residency_place *place)
{
    const struct residency_record now = record_at(pages, unsaid->slot);
    const struct residency_record said = {now.hash, unsaid->tokens, unsaid->tiers};
    const bool differs = now.tiers != said.tiers || (now.tiers != 0 && now.tokens != said.tokens);

    clear_bit(pages->unsaid_bits, unsaid->slot);
    if (now.tiers == 0)
        free_slot(pages, unsaid->slot);
    if (!differs)
        return false;
    pages->said_count -= said.tiers != 0;
    pages->said_digest -= residency_record_digest(said);
    count_said(pages, now);
    *place = (struct residency_place){unsaid->slot, now};
    return true;
}

size_t residency_pages_take_places(struct residency_pages *pages, struct residency_place *places,
                                   size_t count_max)
{
    size_t count = 0;

    while (count < count_max && pages->unsaid_first < pages->unsaid_end) {
        const struct unsaid *oldest = &pages->unsaid[pages->unsaid_first++];

        if (take_place(pages, oldest, &places[count]))
            count++;
    }
    return count;
}

struct residency_pages_stats residency_pages_stats(const struct residency_pages *pages)
{
    return (struct residency_pages_stats){
        .held_count = pages->held_count,
        .unsaid_count = pages->unsaid_end - pages->unsaid_first,
        .said_count = pages->said_count,
        .said_digest = pages->said_digest,
    };
}
