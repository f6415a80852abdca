/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/redis/residency_report_parts.h"

#include <stdlib.h>

/*
 * DESIGN
 *
 * What a flush says is taken out of the pages once, and kept until Redis has taken it: said again,
 * it is the same word by word, under the same sequence.
 *
 * Places are sorted, so that those which follow each other are one SETRANGE. Its reply is the
 * length of the page, and so tells whether that was there: SETRANGE makes what is not.
 *
 *   EXEC's list:  OK for each page made | a length for each SETRANGE | the entry's id | the lease
 */

/* "out" keeps so many records at most: who is further behind reads the pages sooner. */
enum { KEPT_RECORD_COUNT_MAX = 128 << 10 };

/* The oldest entry that is worth keeping beside the one that comes now. */
static uint64_t keep_entry(struct residency_report *report, uint64_t sequence, size_t record_count)
{
    struct report_kept *kept = &report->kept;
    const uint32_t size = report->config.change_count_max;

    while (kept->first < sequence && (sequence - kept->first >= size ||
                                      kept->record_count + record_count > KEPT_RECORD_COUNT_MAX)) {
        kept->record_count -= kept->counts[kept->first % size];
        kept->first++;
    }
    kept->counts[sequence % size] = (uint16_t)record_count;
    kept->record_count += record_count;
    return kept->first;
}

static int compare_slots(const void *a, const void *b)
{
    const struct residency_place *left = a, *right = b;

    return (left->slot > right->slot) - (left->slot < right->slot);
}

bool flight_fill(struct residency_report *report, size_t count_max)
{
    struct report_flight *flight = &report->flight;
    struct residency_pages_stats stats;

    if (count_max > REPORT_FLIGHT_COUNT_MAX)
        count_max = REPORT_FLIGHT_COUNT_MAX;
    flight->count = residency_pages_take_places(report->pages, flight->places, count_max);
    if (flight->count == 0 && report->sequence > 0)
        return false;
    qsort(flight->places, flight->count, sizeof flight->places[0], compare_slots);
    stats = residency_pages_stats(report->pages);
    flight->sequence = report->sequence + 1;
    flight->said_count = stats.said_count;
    flight->said_digest = stats.said_digest;
    flight->first_kept = keep_entry(report, flight->sequence, flight->count);
    return true;
}

void flight_land(struct residency_report *report)
{
    struct report_flight *flight = &report->flight;

    report->sequence = flight->sequence;
    report->page_count = flight->page_end;
    report->stats.flush_total++;
    report->stats.record_total += flight->count;
    flight->sequence = 0;
}

/* How many places from first on follow each other within a page. */
static size_t run_length(const struct report_flight *flight, size_t first)
{
    const uint32_t slot = flight->places[first].slot;
    const uint32_t room = RESIDENCY_PAGE_RECORD_COUNT - slot % RESIDENCY_PAGE_RECORD_COUNT;
    size_t len = 1;

    while (len < room && first + len < flight->count &&
           flight->places[first + len].slot == slot + len)
        len++;
    return len;
}

void flight_add_places(struct residency_report *report, struct residency_transaction *transaction)
{
    struct report_flight *flight = &report->flight;

    flight->page_end = report->page_count;
    if (flight->count > 0) {
        const uint32_t last = flight->places[flight->count - 1].slot / RESIDENCY_PAGE_RECORD_COUNT;

        while (flight->page_end <= last)
            residency_transaction_make_page(transaction, flight->page_end++);
    }
    flight->run_count = 0;
    for (size_t first = 0, len; first < flight->count; first += len) {
        len = run_length(flight, first);
        residency_transaction_set_places(transaction, &flight->places[first], len);
        flight->run_count++;
    }
}

void flight_add_change(const struct residency_report *report,
                       struct residency_transaction *transaction)
{
    const struct report_flight *flight = &report->flight;
    uint8_t records[REPORT_FLIGHT_COUNT_MAX * RESIDENCY_RECORD_BYTES];
    struct residency_change change = {
        .count = flight->said_count,
        .digest = flight->said_digest,
        .records = slice_of(records, flight->count * RESIDENCY_RECORD_BYTES),
    };

    for (size_t i = 0; i < flight->count; i++)
        residency_record_write(records + i * RESIDENCY_RECORD_BYTES, flight->places[i].record);
    residency_transaction_add_change(transaction, flight->sequence, flight->first_kept, &change);
}

/* Where the replies to its SETRANGEs begin; those to the entry and the lease are behind them. */
static uint32_t runs_at(const struct residency_report *report)
{
    return report->flight.page_end - report->page_count;
}

bool flight_is_true(const struct residency_report *report, const struct redis_reply *reply)
{
    const uint32_t runs = runs_at(report), count = report->flight.run_count;
    const struct redis_reply *entry = exec_element(reply, runs + count);

    for (uint32_t i = 0; i < count; i++) {
        if (!exec_integer_is(reply, runs + i, RESIDENCY_PAGE_BYTES))
            return false;
    }
    return entry != NULL && redis_reply_kind(entry) == REDIS_REPLY_TEXT;
}

const struct redis_reply *flight_lease(const struct residency_report *report,
                                       const struct redis_reply *reply)
{
    return exec_element(reply, runs_at(report) + report->flight.run_count + 1);
}
