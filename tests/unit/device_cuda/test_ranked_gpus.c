/* SPDX-License-Identifier: Apache-2.0 */

/* An engine of two ranks on two GPUs: as cuda_device and ranked_memory make one memory of them. */

#include "kvtier/device/cuda_device.h"
#include "kvtier/device/ranked_memory.h"

#include <stdlib.h>
#include <string.h>

#include "tests/support/leak_check.h"
#include "tests/unit/device_cuda/gpu_engine.h"

TestSuite(ranked_gpus, .fini = leak_check);

enum { RANKS = 2, PAGES = 4, BLOCKS = 8 };

/* Of three layers one GPU has two and the other one: as pipeline parallel engines are cut. */
static const struct gpu_layout layouts[RANKS] = {{2, BLOCKS, 5000, 0}, {1, BLOCKS, 5000, 64}};

static struct device *device;
static struct gpu_engine engines[RANKS];
static struct engine_memory *whole;

static void start(void)
{
    struct fake_cuda_config config = fake_cuda_default();
    struct cuda_device_config small = cuda_device_default();
    struct engine_memory *memories[RANKS];
    char why[DEVICE_WHY_BYTES] = "";

    config.gpu_count = RANKS;
    fake_cuda_reset(config);
    small.calibrate_bytes = 0;
    for (int rank = 0; rank < RANKS; rank++)
        engines[rank] = engine_start_on(rank, layouts[rank]);
    cr_assert(eq(int, cuda_device_create_with(small, &device, why), 0), "%s", why);
    for (int rank = 0; rank < RANKS; rank++)
        cr_assert(
            eq(int, device->ops->import(device, &engines[rank].told, &memories[rank], why), 0),
            "%s", why);
    cr_assert(eq(int, ranked_memory_create(memories, RANKS, &whole, why), 0), "%s", why);
    for (int rank = 0; rank < RANKS; rank++)
        engine_memory_unref(&memories[rank]);
}

static void finish(void)
{
    engine_memory_unref(&whole);
    device->ops->destroy(device);
    for (int rank = 0; rank < RANKS; rank++)
        engine_end(&engines[rank]);
    cr_assert(eq(sz, fake_cuda_counts().opened, 0));
    cr_assert(eq(sz, fake_cuda_counts().allocations, 0));
}

static uint8_t value_of(int rank, uint32_t block)
{
    return (uint8_t)(10 * (rank + 1) + (int)block);
}

Test(ranked_gpus, each_part_waits_for_its_own_gpus_stream_and_lands_in_its_own_memory)
{
    start();
    const uint32_t page_bytes = whole->layout->page_bytes;
    const uint32_t part = gpu_layout_page(layouts[0]);
    uint8_t *pages = malloc((size_t)PAGES * page_bytes);
    struct page_copy out[PAGES], in[PAGES];
    for (uint32_t i = 0; i < PAGES; i++) {
        out[i] = (struct page_copy){pages + i * page_bytes, i};
        in[i] = (struct page_copy){pages + i * page_bytes, BLOCKS - 1 - i};
        for (int rank = 0; rank < RANKS; rank++)
            engine_computes(&engines[rank], i, value_of(rank, i));
    }

    cr_assert(
        eq(int, whole->device->ops->copy(whole->device, whole, COPY_FROM_ENGINE, out, PAGES), 0));
    for (uint32_t i = 0; i < PAGES; i++) /* which the load must not overtake */
        for (int rank = 0; rank < RANKS; rank++)
            engine_computes(&engines[rank], BLOCKS - 1 - i, 0xee);
    cr_assert(
        eq(int, whole->device->ops->copy(whole->device, whole, COPY_TO_ENGINE, in, PAGES), 0));

    cr_assert(eq(u32, page_bytes, part + gpu_layout_page(layouts[1])));
    for (uint32_t i = 0; i < PAGES; i++) {
        for (uint32_t at = 0; at < page_bytes; at++)
            cr_assert(eq(u8, pages[i * page_bytes + at], value_of(at < part ? 0 : 1, i)));
        for (int rank = 0; rank < RANKS; rank++)
            for (uint32_t layer = 0; layer < layouts[rank].layers; layer++)
                for (uint32_t at = 0; at < layouts[rank].piece_bytes; at++)
                    cr_assert(eq(u8, engine_bytes(&engines[rank], layer, BLOCKS - 1 - i)[at],
                                 value_of(rank, i)));
    }
    free(pages);
    finish();
}
