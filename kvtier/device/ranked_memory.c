/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/device/ranked_memory.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/*
 * DESIGN
 *
 *   a page of ours   | rank 0's part | rank 1's | rank 2's part   |
 *                      |               |          |
 *   copied by        rank 0's device  rank 1's   rank 2's          each knows its own bytes only
 *
 * A rank's part begins where the earlier ones end, so tiers, headers and checksums see one page of
 * opaque bytes, and no page can be whole for one rank and stale for another: it is one copy, done
 * when all parts are.
 *
 * A device is what copies, so such a memory brings one of its own, which nobody else may use. It
 * imports nothing and pins nothing: its ranks' devices have done both. A thread copies rank after
 * rank; several GPUs are busy at once when several threads copy.
 */

/* Pages handed to a rank's device in one call: as many as a mover copies at once. Their list is
 * made on the stack for each rank, as each has another place in the page. */
enum { PAGES_A_CALL = 256 };

struct rank_part {
    struct engine_memory *memory;
    uint32_t offset; /* in a page of ours */
};

struct ranked_memory {
    struct device device;
    struct engine_memory memory;
    struct page_layout layout;
    size_t rank_count;
    struct rank_part ranks[];
};

static struct ranked_memory *ranked_of(struct engine_memory *memory)
{
    return container_of(memory, struct ranked_memory, memory);
}

static void ranked_unmap(struct device *device, struct engine_memory *memory)
{
    struct ranked_memory *ranked = ranked_of(memory);

    assert(memory->device == device);
    assert(memory->references == 0);

    for (size_t i = 0; i < ranked->rank_count; i++)
        engine_memory_unref(&ranked->ranks[i].memory);
    free(ranked);
}

/* count pages' parts of one rank; at most PAGES_A_CALL. */
static int copy_part(const struct rank_part *part, enum copy_direction direction,
                     const struct page_copy *pages, size_t count)
{
    struct device *device = part->memory->device;
    struct page_copy parts[PAGES_A_CALL];

    for (size_t i = 0; i < count; i++) {
        uint8_t *page = pages[i].host;

        parts[i] = (struct page_copy){page + part->offset, pages[i].engine_block};
    }
    return device->ops->copy(device, part->memory, direction, parts, count);
}

static int ranked_copy(struct device *device, struct engine_memory *memory,
                       enum copy_direction direction, const struct page_copy *pages,
                       size_t page_count)
{
    struct ranked_memory *ranked = ranked_of(memory);
    int status = 0;

    assert(memory->device == device);

    for (size_t rank = 0; rank < ranked->rank_count && status == 0; rank++) {
        for (size_t from = 0; from < page_count && status == 0; from += PAGES_A_CALL) {
            const size_t left = page_count - from;

            status = copy_part(&ranked->ranks[rank], direction, pages + from,
                               left < PAGES_A_CALL ? left : PAGES_A_CALL);
        }
    }
    return status;
}

static const struct device_ops ranked_ops = {
    .name = "ranked",
    .unmap = ranked_unmap,
    .copy = ranked_copy,
};

/* -EINVAL with the sentence, or the page's bytes in layout. */
static int join_layouts(struct engine_memory *const *ranks, size_t rank_count,
                        struct page_layout *layout, char why[DEVICE_WHY_BYTES])
{
    layout->block_count = ranks[0]->layout->block_count;
    for (size_t i = 0; i < rank_count; i++) {
        const struct page_layout *part = ranks[i]->layout;

        if (part->block_count != layout->block_count) {
            snprintf(why, DEVICE_WHY_BYTES, "rank %zu has %" PRIu32 " blocks, rank 0 has %" PRIu32,
                     i, part->block_count, layout->block_count);
            return -EINVAL;
        }
        if (ranks[i]->device->is_by_processor != ranks[0]->device->is_by_processor) {
            snprintf(why, DEVICE_WHY_BYTES, "rank %zu is on a device of another kind than rank 0",
                     i);
            return -EINVAL;
        }
        if (part->page_bytes > PAGE_BYTES_MAX - layout->page_bytes) {
            snprintf(why, DEVICE_WHY_BYTES, "a page of all ranks has more than %d bytes",
                     PAGE_BYTES_MAX);
            return -EINVAL;
        }
        layout->page_bytes += part->page_bytes;
    }
    return 0;
}

int ranked_memory_create(struct engine_memory *const *ranks, size_t rank_count,
                         struct engine_memory **memory, char why[DEVICE_WHY_BYTES])
{
    struct ranked_memory *ranked = calloc(1, sizeof *ranked + rank_count * sizeof ranked->ranks[0]);
    uint32_t offset = 0;
    int status;

    assert(rank_count > 0 && rank_count <= RANK_COUNT_MAX);

    *memory = NULL;
    if (ranked == NULL) {
        snprintf(why, DEVICE_WHY_BYTES, "no memory");
        return -ENOMEM;
    }
    status = join_layouts(ranks, rank_count, &ranked->layout, why);
    if (status < 0) {
        free(ranked);
        return status;
    }
    ranked->device = (struct device){&ranked_ops, ranks[0]->device->is_by_processor};
    ranked->memory = (struct engine_memory){&ranked->device, &ranked->layout, 1};
    ranked->rank_count = rank_count;
    for (size_t i = 0; i < rank_count; i++) {
        ranked->ranks[i] = (struct rank_part){engine_memory_ref(ranks[i]), offset};
        offset += ranks[i]->layout->page_bytes;
    }
    *memory = &ranked->memory;
    return 0;
}
