/* SPDX-License-Identifier: Apache-2.0 */

/*
 * race_ranked_memory: movers that copy pages to and from an engine of three ranks, each on its own
 * blocks, while ranks are joined anew beside them and the last reference goes behind the last
 * copy. What a mover has written to all ranks it gets back from them.
 */

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "kvtier/device/ranked_memory.h"

enum {
    RANKS = 3,
    MOVERS = 3,
    BLOCKS_A_MOVER = 20,
    BLOCKS = MOVERS * BLOCKS_A_MOVER,
    PART_BYTES_MAX = 96,
    PAGE_BYTES_MAX_HERE = RANKS * PART_BYTES_MAX,
    ROUNDS = 1500,
};

struct rank {
    struct device device;
    struct engine_memory memory;
    struct page_layout layout;
    atomic_bool is_unmapped;
    uint8_t blocks[BLOCKS][PART_BYTES_MAX];
};

struct mover {
    pthread_t thread;
    struct engine_memory *memory;
    uint32_t first_block;
};

static int rank_copy(struct device *device, struct engine_memory *memory,
                     enum copy_direction direction, const struct page_copy *pages,
                     size_t page_count)
{
    struct rank *rank = container_of(device, struct rank, device);

    assert(memory == &rank->memory && !atomic_load(&rank->is_unmapped));
    for (size_t i = 0; i < page_count; i++) {
        uint8_t *block = rank->blocks[pages[i].engine_block];

        if (direction == COPY_TO_ENGINE)
            memcpy(block, pages[i].host, rank->layout.page_bytes);
        else
            memcpy(pages[i].host, block, rank->layout.page_bytes);
    }
    return 0;
}

static void rank_unmap(struct device *device, struct engine_memory *memory)
{
    (void)memory;
    atomic_store(&container_of(device, struct rank, device)->is_unmapped, true);
}

static const struct device_ops rank_ops = {.name = "fake", .copy = rank_copy, .unmap = rank_unmap};

static void *move(void *ctx)
{
    const struct mover *mover = ctx;
    struct device *device = mover->memory->device;
    uint8_t out[BLOCKS_A_MOVER][PAGE_BYTES_MAX_HERE], in[BLOCKS_A_MOVER][PAGE_BYTES_MAX_HERE];
    struct page_copy pages[BLOCKS_A_MOVER];
    int status;

    for (uint32_t round = 0; round < ROUNDS; round++) {
        for (uint32_t i = 0; i < BLOCKS_A_MOVER; i++) {
            memset(out[i], (int)((round + i + mover->first_block) % 251), sizeof out[i]);
            pages[i] = (struct page_copy){out[i], mover->first_block + i};
        }
        status = device->ops->copy(device, mover->memory, COPY_TO_ENGINE, pages, BLOCKS_A_MOVER);
        assert(status == 0);
        for (uint32_t i = 0; i < BLOCKS_A_MOVER; i++)
            pages[i].host = in[i];
        status = device->ops->copy(device, mover->memory, COPY_FROM_ENGINE, pages, BLOCKS_A_MOVER);
        assert(status == 0);
        for (uint32_t i = 0; i < BLOCKS_A_MOVER; i++)
            assert(memcmp(in[i], out[i], mover->memory->layout->page_bytes) == 0);
    }
    return NULL;
}

static void init_rank(struct rank *rank, uint32_t part_bytes)
{
    rank->device = (struct device){&rank_ops, .is_by_processor = true};
    rank->layout.block_count = BLOCKS;
    rank->layout.page_bytes = part_bytes;
    rank->memory = (struct engine_memory){&rank->device, &rank->layout, 1};
}

int main(void)
{
    static struct rank ranks[RANKS];
    struct engine_memory *memories[RANKS], *whole, *again;
    struct mover movers[MOVERS];
    char why[DEVICE_WHY_BYTES];
    int status;

    for (uint32_t i = 0; i < RANKS; i++) {
        init_rank(&ranks[i], PART_BYTES_MAX - 40 * i);
        memories[i] = &ranks[i].memory;
    }
    status = ranked_memory_create(memories, RANKS, &whole, why);
    assert(status == 0);
    for (uint32_t i = 0; i < MOVERS; i++) {
        movers[i] =
            (struct mover){.memory = engine_memory_ref(whole), .first_block = i * BLOCKS_A_MOVER};
        status = pthread_create(&movers[i].thread, NULL, move, &movers[i]);
        assert(status == 0);
    }
    for (uint32_t i = 0; i < RANKS; i++)
        engine_memory_unref(&memories[i]); /* the whole keeps them */
    engine_memory_unref(&whole);           /* and the movers the whole */
    for (uint32_t round = 0; round < ROUNDS; round++) {
        for (uint32_t i = 0; i < RANKS; i++)
            memories[i] = &ranks[i].memory;
        status = ranked_memory_create(memories, RANKS, &again, why);
        assert(status == 0);
        engine_memory_unref(&again);
    }
    for (uint32_t i = 0; i < MOVERS; i++) {
        status = pthread_join(movers[i].thread, NULL);
        assert(status == 0);
        engine_memory_unref(&movers[i].memory);
    }
    for (uint32_t i = 0; i < RANKS; i++)
        assert(atomic_load(&ranks[i].is_unmapped));
    printf("%d pages there and back\n", MOVERS * BLOCKS_A_MOVER * ROUNDS);
    return 0;
}
