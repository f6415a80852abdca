/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/device/page_layout.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

/*
 * DESIGN
 *
 * A segment is a comb: block_count teeth of `bytes`, `stride` apart. Layouts in use are of two
 * kinds: layer outermost, where the combs lie one behind the other, and block outermost, where
 * combs of one stride lie within each other. Both are accepted, and nothing else in which two teeth
 * might meet: a load of one block would then write into another, and the pieces of one batch have
 * no order among them.
 *
 * The numbers come from another process. All sums are made so that they cannot wrap: what is bigger
 * than what is left is refused before it is added.
 */

static int refuse(char why[PAGE_LAYOUT_WHY_BYTES], const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static int refuse(char why[PAGE_LAYOUT_WHY_BYTES], const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(why, PAGE_LAYOUT_WHY_BYTES, format, args);
    va_end(args);
    return -EINVAL;
}

/* Whether block_count teeth lie in region_bytes. */
static bool fits(const struct page_segment *segment, uint64_t region_bytes, uint32_t block_count)
{
    uint64_t gaps = block_count - 1;

    if (segment->bytes > region_bytes || segment->offset > region_bytes - segment->bytes)
        return false;
    return gaps == 0 || segment->stride <= (region_bytes - segment->bytes - segment->offset) / gaps;
}

/* From the first tooth's begin to the last one's end; only of a segment that fits. */
static uint64_t end_of(const struct page_segment *segment, uint32_t block_count)
{
    return segment->offset + segment->stride * (block_count - 1) + segment->bytes;
}

/* Both fit in one region; low begins first. */
static bool teeth_meet(const struct page_segment *low, const struct page_segment *high,
                       uint32_t block_count)
{
    uint64_t distance;

    if (high->offset >= end_of(low, block_count))
        return false;
    if (high->stride != low->stride)
        return true; /* they may; none that is in use does it */
    /* Where high's first tooth begins, seen from the last tooth of low at or before it. */
    distance = (high->offset - low->offset) % low->stride;
    return distance < low->bytes || distance + high->bytes > low->stride;
}

static bool segments_meet(const struct page_layout *layout, uint32_t a, uint32_t b)
{
    const struct page_segment *low = &layout->segments[a];
    const struct page_segment *high = &layout->segments[b];

    if (low->region != high->region)
        return false;
    return low->offset <= high->offset ? teeth_meet(low, high, layout->block_count)
                                       : teeth_meet(high, low, layout->block_count);
}

static int check_counts(const struct page_layout *layout, char why[PAGE_LAYOUT_WHY_BYTES])
{
    if (layout->block_count == 0)
        return refuse(why, "there are no blocks");
    if (layout->region_count == 0 || layout->region_count > PAGE_REGION_COUNT_MAX)
        return refuse(why, "%" PRIu32 " regions: 1 to %d are possible", layout->region_count,
                      PAGE_REGION_COUNT_MAX);
    if (layout->segment_count == 0 || layout->segment_count > PAGE_SEGMENT_COUNT_MAX)
        return refuse(why, "%" PRIu32 " segments: 1 to %d are possible", layout->segment_count,
                      PAGE_SEGMENT_COUNT_MAX);
    return 0;
}

static int check_segment(const struct page_layout *layout, uint32_t number,
                         char why[PAGE_LAYOUT_WHY_BYTES])
{
    const struct page_segment *segment = &layout->segments[number];

    if (segment->region >= layout->region_count)
        return refuse(why, "segment %" PRIu32 " is in region %" PRIu32 " of %" PRIu32, number,
                      segment->region, layout->region_count);
    if (segment->bytes == 0 || segment->stride < segment->bytes)
        return refuse(why, "segment %" PRIu32 ": %" PRIu64 " bytes every %" PRIu64, number,
                      segment->bytes, segment->stride);
    if (!fits(segment, layout->region_bytes[segment->region], layout->block_count))
        return refuse(why,
                      "segment %" PRIu32 " reaches out of region %" PRIu32 " (%" PRIu64 " bytes)",
                      number, segment->region, layout->region_bytes[segment->region]);
    return 0;
}

int page_layout_check(struct page_layout *layout, char why[PAGE_LAYOUT_WHY_BYTES])
{
    uint64_t page_bytes = 0;
    int status = check_counts(layout, why);

    for (uint32_t i = 0; status == 0 && i < layout->segment_count; i++) {
        status = check_segment(layout, i, why);
        if (status < 0)
            break;
        if (layout->segments[i].bytes > PAGE_BYTES_MAX - page_bytes)
            return refuse(why, "a page has more than %d bytes", PAGE_BYTES_MAX);
        page_bytes += layout->segments[i].bytes;
        for (uint32_t j = 0; j < i; j++) {
            if (segments_meet(layout, i, j))
                return refuse(why, "segments %" PRIu32 " and %" PRIu32 " share bytes", j, i);
        }
    }
    if (status == 0)
        layout->page_bytes = (uint32_t)page_bytes;
    return status;
}
