/* SPDX-License-Identifier: Apache-2.0 */

/*
 * page_layout: where the bytes of an engine's KV block lie in the engine's memory. Block b is, in
 * this order, segment.bytes bytes at region + segment.offset + b * segment.stride for each segment
 * (a layer, or K and V of one): together its page. What the bytes mean is never looked at.
 * Pure; any thread.
 */
#ifndef KVTIER_DEVICE_PAGE_LAYOUT_H
#define KVTIER_DEVICE_PAGE_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/must_check.h"

enum {
    PAGE_REGION_COUNT_MAX = 64,
    PAGE_SEGMENT_COUNT_MAX = 1024,
    PAGE_BYTES_MAX = 256 << 20,
    PAGE_LAYOUT_WHY_BYTES = 160,
};

struct page_segment {
    uint32_t region; /* which allocation of the engine */
    uint64_t offset;
    uint64_t stride; /* from one block to the next; at least bytes */
    uint64_t bytes;
};

struct page_layout {
    uint32_t block_count; /* engine blocks: ids are 0 to block_count - 1 */
    uint32_t region_count;
    uint32_t segment_count;
    uint32_t page_bytes; /* the sum of all segments' */
    uint64_t region_bytes[PAGE_REGION_COUNT_MAX];
    struct page_segment segments[PAGE_SEGMENT_COUNT_MAX];
};

/* Whether every block lies within its regions and sums fit; sets page_bytes. -EINVAL with a
 * sentence in why: nothing of it may be used. */
MUST_CHECK int page_layout_check(struct page_layout *layout, char why[PAGE_LAYOUT_WHY_BYTES]);

#endif
