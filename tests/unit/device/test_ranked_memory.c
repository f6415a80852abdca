/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/device/ranked_memory.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/leak_check.h"

TestSuite(ranked_memory, .fini = leak_check);

enum { BLOCKS = 600, PART_BYTES_MAX = 7 };

/* One rank: a device of its own, whose memory is a part of each block. */
struct rank {
    struct device device;
    struct engine_memory memory;
    struct page_layout layout;
    int status; /* what its copies come to */
    size_t call_count;
    bool is_unmapped;
    uint8_t blocks[BLOCKS][PART_BYTES_MAX];
};

static int rank_copy(struct device *device, struct engine_memory *memory,
                     enum copy_direction direction, const struct page_copy *pages,
                     size_t page_count)
{
    struct rank *rank = container_of(device, struct rank, device);
    const size_t bytes = rank->layout.page_bytes;

    cr_assert(eq(ptr, memory, &rank->memory));
    rank->call_count++;
    for (size_t i = 0; i < page_count; i++) {
        uint8_t *block = rank->blocks[pages[i].engine_block];

        memcpy(direction == COPY_TO_ENGINE ? block : pages[i].host,
               direction == COPY_TO_ENGINE ? pages[i].host : block, bytes);
    }
    return rank->status;
}

static void rank_unmap(struct device *device, struct engine_memory *memory)
{
    (void)memory;
    container_of(device, struct rank, device)->is_unmapped = true;
}

static const struct device_ops rank_ops = {.name = "fake", .copy = rank_copy, .unmap = rank_unmap};

struct world {
    struct rank *ranks;
    size_t rank_count;
    struct engine_memory *memories[RANK_COUNT_MAX];
    struct engine_memory *memory; /* of all of them */
    char why[DEVICE_WHY_BYTES];
};

/* A rank for each number: the bytes of its part. */
static struct world world_of(const uint32_t *part_bytes, size_t rank_count)
{
    struct world world = {.ranks = calloc(rank_count, sizeof *world.ranks),
                          .rank_count = rank_count};

    for (size_t i = 0; i < rank_count; i++) {
        struct rank *rank = &world.ranks[i];

        rank->device = (struct device){&rank_ops, .is_by_processor = true};
        rank->layout.block_count = BLOCKS;
        rank->layout.page_bytes = part_bytes[i];
        rank->memory = (struct engine_memory){&rank->device, &rank->layout, 1};
        world.memories[i] = &rank->memory;
    }
    return world;
}

static int join(struct world *world)
{
    return ranked_memory_create(world->memories, world->rank_count, &world->memory, world->why);
}

static int copy(const struct world *world, enum copy_direction direction,
                const struct page_copy *pages, size_t count)
{
    struct device *device = world->memory->device;

    return device->ops->copy(device, world->memory, direction, pages, count);
}

static void release(struct world *world)
{
    engine_memory_unref(&world->memory);
    for (size_t i = 0; i < world->rank_count; i++)
        engine_memory_unref(&world->memories[i]);
    for (size_t i = 0; i < world->rank_count; i++)
        cr_assert(world->ranks[i].is_unmapped);
    free(world->ranks);
}

Test(ranked_memory, a_page_is_the_parts_of_all_ranks_in_their_order)
{
    struct world world = world_of((const uint32_t[]){3, 1, 2}, 3);
    uint8_t page[8] = "......!";
    struct page_copy pages[] = {{.host = page, .engine_block = 7}};
    memcpy(world.ranks[0].blocks[7], "abc", 3);
    memcpy(world.ranks[1].blocks[7], "d", 1);
    memcpy(world.ranks[2].blocks[7], "ef", 2);
    cr_assert(eq(int, join(&world), 0));

    cr_assert(eq(int, copy(&world, COPY_FROM_ENGINE, pages, 1), 0));

    cr_assert(eq(u32, world.memory->layout->page_bytes, 6));
    cr_assert(eq(u32, world.memory->layout->block_count, BLOCKS));
    cr_assert(eq(str, (char *)page, "abcdef!"));
    release(&world);
}

Test(ranked_memory, each_rank_gets_its_part_of_each_page_and_nothing_else)
{
    enum { PAGES = 555, PAGE = 12 };
    struct world world = world_of((const uint32_t[]){5, 7}, 2);
    static uint8_t bytes[PAGES][PAGE];
    static struct page_copy pages[PAGES]; /* more than go in one call, and not in order */
    cr_assert(eq(int, join(&world), 0));
    for (uint32_t i = 0; i < PAGES; i++) {
        for (uint32_t at = 0; at < PAGE; at++)
            bytes[i][at] = (uint8_t)(1 + (i * 31 + at) % 251);
        pages[i] = (struct page_copy){bytes[i], BLOCKS - 1 - i};
    }

    cr_assert(eq(int, copy(&world, COPY_TO_ENGINE, pages, PAGES), 0));

    for (uint32_t i = 0; i < PAGES; i++) {
        cr_assert(eq(int, memcmp(world.ranks[0].blocks[BLOCKS - 1 - i], bytes[i], 5), 0));
        cr_assert(eq(int, memcmp(world.ranks[1].blocks[BLOCKS - 1 - i], bytes[i] + 5, 7), 0));
    }
    for (uint32_t block = 0; block < BLOCKS - PAGES; block++)
        for (uint32_t at = 0; at < PART_BYTES_MAX; at++)
            cr_assert(world.ranks[0].blocks[block][at] == 0 &&
                      world.ranks[1].blocks[block][at] == 0);
    release(&world);
}

Test(ranked_memory, a_rank_that_fails_fails_the_page_and_ends_the_copy)
{
    struct world world = world_of((const uint32_t[]){1, 1, 1}, 3);
    uint8_t page[3];
    struct page_copy pages[] = {{.host = page, .engine_block = 0}};
    cr_assert(eq(int, join(&world), 0));
    world.ranks[1].status = -EIO;

    cr_assert(eq(int, copy(&world, COPY_FROM_ENGINE, pages, 1), -EIO));

    cr_assert(eq(sz, world.ranks[2].call_count, 0));
    release(&world);
}

Test(ranked_memory, it_keeps_its_ranks_until_its_own_last_reference_goes)
{
    struct world world = world_of((const uint32_t[]){1, 1}, 2);
    struct engine_memory *copying;
    cr_assert(eq(int, join(&world), 0));
    copying = engine_memory_ref(world.memory);

    for (size_t i = 0; i < 2; i++)
        engine_memory_unref(&world.memories[i]);
    engine_memory_unref(&world.memory);
    cr_assert(not(world.ranks[0].is_unmapped || world.ranks[1].is_unmapped));
    engine_memory_unref(&copying);

    cr_assert(world.ranks[0].is_unmapped && world.ranks[1].is_unmapped);
    release(&world);
}

Test(ranked_memory, ranks_that_do_not_agree_are_refused_with_a_sentence)
{
    struct world world = world_of((const uint32_t[]){1, 1}, 2);

    world.ranks[1].layout.block_count = 5;
    cr_expect(eq(int, join(&world), -EINVAL));
    cr_expect(eq(str, world.why, "rank 1 has 5 blocks, rank 0 has 600"));
    world.ranks[1].layout.block_count = BLOCKS;
    world.ranks[1].device.is_by_processor = false;
    cr_expect(eq(int, join(&world), -EINVAL));
    cr_expect(eq(str, world.why, "rank 1 is on a device of another kind than rank 0"));
    world.ranks[1].device.is_by_processor = true;
    world.ranks[1].layout.page_bytes = PAGE_BYTES_MAX;
    cr_expect(eq(int, join(&world), -EINVAL));
    cr_expect(eq(str, world.why, "a page of all ranks has more than 268435456 bytes"));

    cr_assert(eq(ptr, world.memory, NULL));
    release(&world);
}
