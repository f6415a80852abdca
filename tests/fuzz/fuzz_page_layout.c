/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Any layout: of what is accepted, the first and the last byte of each block lie in their region,
 * counted in 128 bits, where nothing wraps; and the page is the sum of its segments.
 */
#include "kvtier/device/page_layout.h"

#include <assert.h>
#include <string.h>

#include "tests/fuzz/fuzz_input.h"

enum { HEAD_BYTES = 16, SEGMENT_BYTES = 28 };

static uint64_t number(const uint8_t *at, size_t len)
{
    uint64_t value = 0;

    memcpy(&value, at, len);
    return value;
}

/* As many segments as there are bytes for; what is counted may be another number. */
static void read_layout(struct page_layout *layout, const uint8_t *data, size_t size)
{
    *layout = (struct page_layout){
        .block_count = (uint32_t)number(data, 4),
        .region_count = (uint32_t)number(data + 4, 2),
        .segment_count = (uint32_t)number(data + 6, 2),
    };
    for (size_t i = 0; i < PAGE_REGION_COUNT_MAX; i++)
        layout->region_bytes[i] = number(data + 8, 8) >> i;
    for (size_t i = 0; i < PAGE_SEGMENT_COUNT_MAX; i++) {
        const uint8_t *at = data + HEAD_BYTES + i * SEGMENT_BYTES;

        if (HEAD_BYTES + (i + 1) * SEGMENT_BYTES > size)
            break;
        layout->segments[i] = (struct page_segment){.region = (uint32_t)number(at, 4),
                                                    .offset = number(at + 4, 8),
                                                    .stride = number(at + 12, 8),
                                                    .bytes = number(at + 20, 8)};
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct page_layout layout;
    char why[PAGE_LAYOUT_WHY_BYTES] = "";
    uint64_t page_bytes = 0;

    if (size < HEAD_BYTES)
        return 0;
    read_layout(&layout, data, size);
    if (page_layout_check(&layout, why) < 0) {
        assert(why[0] != '\0');
        return 0;
    }
    for (uint32_t i = 0; i < layout.segment_count; i++) {
        const struct page_segment *segment = &layout.segments[i];
        unsigned __int128 end = (unsigned __int128)segment->stride * (layout.block_count - 1) +
                                segment->offset + segment->bytes;

        assert(segment->region < layout.region_count);
        assert(end <= layout.region_bytes[segment->region]);
        page_bytes += segment->bytes;
    }
    assert(page_bytes == layout.page_bytes && page_bytes <= PAGE_BYTES_MAX);
    return 0;
}
