/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/device/page_layout.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "tests/support/leak_check.h"

TestSuite(page_layout, .fini = leak_check);

enum { LAYERS = 3, BLOCKS = 5, PIECE = 64 };

static char why[PAGE_LAYOUT_WHY_BYTES];

/* As vLLM on a CPU: layers one behind the other in one region. */
static struct page_layout layers_outermost(void)
{
    struct page_layout layout = {.block_count = BLOCKS, .region_count = 1, .segment_count = LAYERS};

    layout.region_bytes[0] = (uint64_t)LAYERS * BLOCKS * PIECE;
    for (uint32_t i = 0; i < LAYERS; i++)
        layout.segments[i] = (struct page_segment){
            .offset = (uint64_t)i * BLOCKS * PIECE, .stride = PIECE, .bytes = PIECE};
    return layout;
}

/* A block's layers side by side. */
static struct page_layout blocks_outermost(void)
{
    struct page_layout layout = layers_outermost();

    for (uint32_t i = 0; i < LAYERS; i++)
        layout.segments[i] = (struct page_segment){
            .offset = (uint64_t)i * PIECE, .stride = (uint64_t)LAYERS * PIECE, .bytes = PIECE};
    return layout;
}

Test(page_layout, a_page_is_the_sum_of_its_segments)
{
    struct page_layout by_layer = layers_outermost(), by_block = blocks_outermost();

    cr_assert(eq(int, page_layout_check(&by_layer, why), 0));
    cr_assert(eq(int, page_layout_check(&by_block, why), 0));

    cr_assert(eq(u32, by_layer.page_bytes, LAYERS * PIECE));
    cr_assert(eq(u32, by_block.page_bytes, LAYERS * PIECE));
}

Test(page_layout, one_byte_beyond_its_region_is_refused)
{
    struct page_layout layout = layers_outermost();
    layout.region_bytes[0]--;

    cr_assert(eq(int, page_layout_check(&layout, why), -EINVAL));

    cr_assert(eq(str, why, "segment 2 reaches out of region 0 (959 bytes)"));
}

Test(page_layout, sums_that_would_wrap_are_refused)
{
    static const struct page_segment hostile[] = {
        {.offset = UINT64_MAX, .stride = 1, .bytes = 1},
        {.offset = 1, .stride = UINT64_MAX, .bytes = 1},
        {.offset = 0, .stride = UINT64_MAX / (BLOCKS - 1) + 1, .bytes = 1},
        {.offset = 0, .stride = UINT64_MAX, .bytes = UINT64_MAX},
        {.offset = UINT64_MAX - 1, .stride = UINT64_MAX - 1, .bytes = UINT64_MAX - 1},
        {.offset = 0, .stride = UINT64_C(1) << 63, .bytes = UINT64_C(1) << 63},
        {.offset = 0, .stride = 1, .bytes = 0},
        {.offset = 0, .stride = 0, .bytes = 0},
        {.offset = 0, .stride = 63, .bytes = 64},
        {.region = 1, .offset = 0, .stride = 64, .bytes = 64},
        {.region = UINT32_MAX, .offset = 0, .stride = 64, .bytes = 64},
    };

    for (size_t i = 0; i < sizeof hostile / sizeof hostile[0]; i++) {
        struct page_layout layout = layers_outermost();
        layout.segments[1] = hostile[i];

        cr_assert(eq(int, page_layout_check(&layout, why), -EINVAL), "row %zu", i);
        cr_assert(eq(u32, layout.page_bytes, 0), "row %zu", i);
    }
}

Test(page_layout, a_region_as_large_as_numbers_go_makes_nothing_wrap)
{
    struct page_layout layout = {.block_count = UINT32_MAX, .region_count = 1, .segment_count = 2};
    layout.region_bytes[0] = UINT64_MAX;
    layout.segments[0] = (struct page_segment){
        .offset = 0, .stride = UINT64_MAX / UINT32_MAX, .bytes = PAGE_BYTES_MAX / 2};
    layout.segments[1] = layout.segments[0];
    layout.segments[1].offset = PAGE_BYTES_MAX / 2;

    cr_assert(eq(int, page_layout_check(&layout, why), 0), "%s", why);

    layout.segments[1].offset--;
    cr_assert(eq(int, page_layout_check(&layout, why), -EINVAL));
}

Test(page_layout, counts_beyond_its_arrays_are_refused)
{
    static const struct {
        uint32_t blocks, regions, segments;
    } hostile[] = {
        {0, 1, 3},
        {5, 0, 3},
        {5, PAGE_REGION_COUNT_MAX + 1, 3},
        {5, 1, 0},
        {5, 1, PAGE_SEGMENT_COUNT_MAX + 1},
        {5, UINT32_MAX, UINT32_MAX},
    };

    for (size_t i = 0; i < sizeof hostile / sizeof hostile[0]; i++) {
        struct page_layout layout = layers_outermost();
        layout.block_count = hostile[i].blocks;
        layout.region_count = hostile[i].regions;
        layout.segment_count = hostile[i].segments;

        cr_assert(eq(int, page_layout_check(&layout, why), -EINVAL), "row %zu", i);
    }
}

Test(page_layout, a_page_that_is_too_large_is_refused)
{
    struct page_layout layout = {.block_count = 1, .region_count = 1, .segment_count = 2};
    layout.region_bytes[0] = UINT64_C(1) << 40;
    layout.segments[0] = (struct page_segment){.stride = PAGE_BYTES_MAX, .bytes = PAGE_BYTES_MAX};
    layout.segments[1] = (struct page_segment){.offset = PAGE_BYTES_MAX, .stride = 1, .bytes = 1};

    cr_assert(eq(int, page_layout_check(&layout, why), -EINVAL));
}

/* ---- against a map of every byte ---- */

enum { SMALL_BYTES = 24 };

/* Whether the first two segments claim a byte twice, or one beyond the region. */
static bool is_wrong_by_bytes(const struct page_layout *layout)
{
    uint8_t taken[SMALL_BYTES] = {0};

    for (uint32_t i = 0; i < 2; i++) {
        const struct page_segment *segment = &layout->segments[i];
        for (uint32_t block = 0; block < layout->block_count; block++) {
            for (uint64_t byte = 0; byte < segment->bytes; byte++) {
                uint64_t at = segment->offset + segment->stride * block + byte;
                if (at >= SMALL_BYTES || taken[at]++ > 0)
                    return true;
            }
        }
    }
    return false;
}

/* Every layout of two segments of one stride in 24 bytes is judged as a look at each byte does. */
Test(page_layout, what_is_accepted_never_shares_a_byte)
{
    size_t accepted = 0;
    struct page_layout layout = {.region_count = 1, .segment_count = 2};
    layout.region_bytes[0] = SMALL_BYTES;

    for (unsigned number = 0; number < 4 * 8 * 5 * 5 * 24 * 24; number++) {
        unsigned rest = number;
        struct page_segment *a = &layout.segments[0], *b = &layout.segments[1];
        layout.block_count = 1 + rest % 4, rest /= 4;
        a->stride = b->stride = 1 + rest % 8, rest /= 8;
        a->bytes = 1 + rest % 5, rest /= 5;
        b->bytes = 1 + rest % 5, rest /= 5;
        a->offset = rest % 24, rest /= 24;
        b->offset = rest;
        bool is_wrong = a->bytes > a->stride || b->bytes > b->stride || is_wrong_by_bytes(&layout);

        int status = page_layout_check(&layout, why);

        cr_assert(eq(int, status, is_wrong ? -EINVAL : 0), "number %u: %s", number, why);
        accepted += status == 0;
    }

    cr_assert(gt(sz, accepted, 1000));
}

Test(page_layout, segments_of_two_strides_may_lie_side_by_side_but_not_within_each_other)
{
    struct page_layout layout = {.block_count = 4, .region_count = 1, .segment_count = 2};
    layout.region_bytes[0] = 100;
    layout.segments[0] = (struct page_segment){.offset = 60, .stride = 10, .bytes = 4};
    layout.segments[1] = (struct page_segment){.offset = 4, .stride = 15, .bytes = 11};

    cr_assert(eq(int, page_layout_check(&layout, why), 0), "%s", why);

    layout.segments[1].offset = 5;
    cr_assert(eq(int, page_layout_check(&layout, why), -EINVAL));
    cr_assert(eq(str, why, "segments 0 and 1 share bytes"));
}
