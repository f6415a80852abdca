/* SPDX-License-Identifier: Apache-2.0 */

/*
 * race_cuda_device: three movers save and load pages of one engine's GPU memory, each its own
 * blocks, while the loop's thread imports the memory again and again, pins and unpins an arena, and
 * counts. The GPU is fake_cuda: it draws another order of things each time (10,000 jobs), and
 * aborts where nothing orders two of them. Pages must come back as they were computed.
 */

#include "kvtier/device/cuda_device.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backends/runtime/must_check.h"
#include "backends/runtime/random.h"
#include "kvtier/device/cuda_driver.h"
#include "tests/gpu/ipc_handle.h"
#include "tests/support/fake_cuda/fake_cuda.h"

enum { MOVER_COUNT = 3, ROUND_COUNT = 1150, LAYERS = 16, PIECE = 96, PAGE = LAYERS * PIECE };
enum {
    LOOP_PAUSE_US = 500,
    MOVER_BLOCKS = 5,
    BLOCKS = MOVER_COUNT * MOVER_BLOCKS,
    ARENA_BYTES = 16384
};

struct race {
    struct cuda_driver driver;
    struct cuda_context *context;
    uint64_t pages;
    struct engine_export told;
    struct device *device;
    struct engine_memory *memory;
    uint32_t ended_count; /* atomic: movers */
};

struct mover {
    struct race *race;
    struct engine_memory *memory; /* with an event of its own stream */
    struct cuda_stream *stream;   /* the engine's, that computes this mover's blocks */
    struct cuda_event *event;
    uint32_t first_block;
    uint64_t random;
    uint8_t *arena;
};

/* A macro for its line. */
#define must(call) assert((call) == 0)

static struct cuda_ipc_handle export_handle(struct race *race, const char *name, const void *of)
{
    struct cuda_ipc_handle handle;

    must(ipc_handle_get(&race->driver, name, of, &handle));
    return handle;
}

/* ---- an engine ---- */

static uint64_t piece(const struct race *race, uint32_t layer, uint32_t block)
{
    return race->pages + ((uint64_t)layer * BLOCKS + block) * PIECE;
}

static void start_engine(struct race *race)
{
    struct page_layout *layout = &race->told.layout;
    char why[DEVICE_WHY_BYTES];
    struct cuda_ipc_handle handle;

    must(cuda_driver_load(&race->driver, why));
    must(race->driver.context_retain(&race->context, 0));
    must(race->driver.context_set(race->context));
    must(race->driver.mem_alloc(&race->pages, (size_t)BLOCKS * PAGE));
    *layout = (struct page_layout){.block_count = BLOCKS,
                                   .region_count = 1,
                                   .segment_count = LAYERS,
                                   .region_bytes = {(uint64_t)BLOCKS * PAGE}};
    for (uint32_t i = 0; i < LAYERS; i++)
        layout->segments[i] = (struct page_segment){
            .offset = (uint64_t)i * BLOCKS * PIECE, .stride = PIECE, .bytes = PIECE};
    handle = export_handle(race, "cuIpcGetMemHandle", (const void *)(uintptr_t)race->pages);
    race->told.kind = DEVICE_CUDA;
    memcpy(race->told.handles[0], &handle, sizeof handle);
    memset(race->told.uuid, 0xa0, sizeof race->told.uuid);
}

static void compute(struct mover *mover, uint32_t block, uint8_t value)
{
    const struct cuda_driver *driver = &mover->race->driver;
    uint8_t bytes[PIECE];

    memset(bytes, value, sizeof bytes);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        must(
            driver->copy(piece(mover->race, layer, block), (uintptr_t)bytes, PIECE, mover->stream));
    must(driver->event_record(mover->event, mover->stream));
}

/* ---- movers ---- */

static void assert_all(const uint8_t *bytes, uint8_t value)
{
    for (size_t i = 0; i < PAGE; i++)
        assert(bytes[i] == value);
}

static void run_round(struct mover *mover)
{
    const struct device_ops *ops = mover->race->device->ops;
    struct page_copy pages[MOVER_BLOCKS];
    uint8_t values[MOVER_BLOCKS];
    uint32_t count = 1 + (uint32_t)(random_next(&mover->random) % MOVER_BLOCKS);

    for (uint32_t i = 0; i < count; i++) {
        values[i] = (uint8_t)random_next(&mover->random);
        pages[i] = (struct page_copy){mover->arena + i * PAGE, mover->first_block + i};
        compute(mover, pages[i].engine_block, values[i]);
    }
    must(ops->copy(mover->race->device, mover->memory, COPY_FROM_ENGINE, pages, count));
    for (uint32_t i = 0; i < count; i++) {
        assert_all(pages[i].host, values[i]);
        pages[i].engine_block = mover->first_block + (i + 1) % MOVER_BLOCKS;
        compute(mover, pages[i].engine_block, 0);
    }
    must(ops->copy(mover->race->device, mover->memory, COPY_TO_ENGINE, pages, count));
    memset(mover->arena, 0, count * PAGE);
    must(ops->copy(mover->race->device, mover->memory, COPY_FROM_ENGINE, pages, count));
    for (uint32_t i = 0; i < count; i++)
        assert_all(pages[i].host, values[i]);
}

static void *run_mover(void *arg)
{
    struct mover *mover = arg;

    must(mover->race->driver.context_set(mover->race->context));
    for (int i = 0; i < ROUND_COUNT; i++)
        run_round(mover);
    __atomic_fetch_add(&mover->race->ended_count, 1, __ATOMIC_RELAXED);
    return NULL;
}

static void start_mover(struct race *race, struct mover *mover, uint32_t number)
{
    const struct cuda_driver *driver = &race->driver;
    struct engine_export told = race->told;
    char why[DEVICE_WHY_BYTES];
    struct cuda_ipc_handle handle;

    *mover =
        (struct mover){.race = race, .first_block = number * MOVER_BLOCKS, .random = number + 1};
    must(driver->stream_create(&mover->stream, CUDA_STREAM_NON_BLOCKING, 0));
    must(driver->event_create(&mover->event, CUDA_EVENT_INTERPROCESS | CUDA_EVENT_DISABLE_TIMING));
    handle = export_handle(race, "cuIpcGetEventHandle", mover->event);
    memcpy(told.event_handle, &handle, sizeof handle);
    must(race->device->ops->import(race->device, &told, &mover->memory, why));
    mover->arena = aligned_alloc(4096, ARENA_BYTES);
    assert(mover->arena != NULL);
    if (number > 0) /* the first one's stays pageable */
        must(race->device->ops->register_host(race->device, mover->arena, ARENA_BYTES));
}

static void end_mover(struct race *race, struct mover *mover, bool is_registered)
{
    if (is_registered)
        race->device->ops->unregister_host(race->device, mover->arena);
    free(mover->arena);
    engine_memory_unref(&mover->memory);
    must(race->driver.event_destroy(mover->event));
    must(race->driver.stream_destroy(mover->stream));
}

/* ---- the loop ---- */

static void be_loop(struct race *race)
{
    uint8_t *arena = aligned_alloc(4096, ARENA_BYTES);
    char why[DEVICE_WHY_BYTES];

    assert(arena != NULL);
    while (__atomic_load_n(&race->ended_count, __ATOMIC_RELAXED) < MOVER_COUNT) {
        struct engine_memory *memory, *again;

        must(race->device->ops->import(race->device, &race->told, &memory, why));
        must(race->device->ops->register_host(race->device, arena, ARENA_BYTES));
        again = engine_memory_ref(memory);
        engine_memory_unref(&memory);
        assert(cuda_device_stats(race->device).allocations == 1);
        race->device->ops->unregister_host(race->device, arena);
        engine_memory_unref(&again);
        usleep(LOOP_PAUSE_US); /* the processors are the movers' */
    }
    free(arena);
}

int main(void)
{
    static struct race race;
    struct mover movers[MOVER_COUNT];
    pthread_t threads[MOVER_COUNT];
    struct cuda_device_config config = cuda_device_default();
    struct cuda_device_stats stats;
    char why[DEVICE_WHY_BYTES];

    config.calibrate_bytes = 0;
    config.slab_bytes = 2 * PAGE;
    config.pin_chunk_bytes = 4096;
    fake_cuda_reset(fake_cuda_default());
    start_engine(&race);
    must(cuda_device_create_with(config, &race.device, why));
    for (uint32_t i = 0; i < MOVER_COUNT; i++)
        start_mover(&race, &movers[i], i);
    for (uint32_t i = 0; i < MOVER_COUNT; i++)
        must(pthread_create(&threads[i], NULL, run_mover, &movers[i]));
    be_loop(&race);
    for (uint32_t i = 0; i < MOVER_COUNT; i++)
        pthread_join(threads[i], NULL);

    stats = cuda_device_stats(race.device);
    assert(stats.failed_copies == 0 && stats.pages[COPY_BATCH] > 0 && stats.pages[COPY_GATHER] > 0);
    printf("%llu pages piece by piece, %llu gathered\n",
           (unsigned long long)stats.pages[COPY_BATCH],
           (unsigned long long)stats.pages[COPY_GATHER]);
    for (uint32_t i = 0; i < MOVER_COUNT; i++)
        end_mover(&race, &movers[i], i > 0);
    race.device->ops->destroy(race.device);
    must(race.driver.context_set(race.context));
    must(race.driver.mem_free(race.pages));
    cuda_driver_unload(&race.driver);
    return 0;
}
