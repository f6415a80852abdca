/* SPDX-License-Identifier: Apache-2.0 */

/* gpu_engine: an engine on a fake GPU: its pages in HBM, its stream, and what it tells the agent.
 * In the test's own process, by the driver's calls. */
#ifndef TESTS_UNIT_DEVICE_CUDA_GPU_ENGINE_H
#define TESTS_UNIT_DEVICE_CUDA_GPU_ENGINE_H

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <stdlib.h>
#include <string.h>

#include "kvtier/device/cuda_driver.h"
#include "kvtier/device/device.h"
#include "tests/gpu/ipc_handle.h"
#include "tests/support/fake_cuda/fake_cuda.h"

struct gpu_engine {
    int gpu; /* of the fake's */
    struct cuda_driver driver;
    struct cuda_context *context;
    struct cuda_stream *stream;
    struct cuda_event *event;
    uint64_t pages; /* one allocation */
    struct engine_export told;
};

struct gpu_layout {
    uint32_t layers;
    uint32_t blocks;
    uint32_t piece_bytes;
    uint32_t gap_bytes; /* between blocks of a layer */
};

static inline uint32_t gpu_layout_page(struct gpu_layout layout)
{
    return layout.layers * layout.piece_bytes;
}

static inline struct cuda_ipc_handle engine_handle(struct gpu_engine *engine, const char *name,
                                                   const void *of)
{
    struct cuda_ipc_handle handle;

    cr_assert(eq(int, ipc_handle_get(&engine->driver, name, of, &handle), 0));
    return handle;
}

static inline void engine_tells(struct gpu_engine *engine, struct gpu_layout layout)
{
    struct page_layout *told = &engine->told.layout;
    uint32_t stride = layout.piece_bytes + layout.gap_bytes;
    struct cuda_ipc_handle memory, event;

    engine->told.kind = DEVICE_CUDA;
    told->block_count = layout.blocks;
    told->region_count = 1;
    told->segment_count = layout.layers;
    told->region_bytes[0] = (uint64_t)layout.layers * layout.blocks * stride;
    for (uint32_t i = 0; i < layout.layers; i++)
        told->segments[i] = (struct page_segment){.offset = (uint64_t)i * layout.blocks * stride,
                                                  .stride = stride,
                                                  .bytes = layout.piece_bytes};
    memory = engine_handle(engine, "cuIpcGetMemHandle", (const void *)(uintptr_t)engine->pages);
    event = engine_handle(engine, "cuIpcGetEventHandle", engine->event);
    memcpy(engine->told.handles[0], &memory, sizeof memory);
    memcpy(engine->told.event_handle, &event, sizeof event);
    memset(engine->told.uuid, 0xa0 + engine->gpu, sizeof engine->told.uuid);
}

static inline struct gpu_engine engine_start_on(int gpu, struct gpu_layout layout)
{
    struct gpu_engine engine = {.gpu = gpu};
    struct cuda_driver *driver = &engine.driver;
    size_t bytes = (size_t)layout.layers * layout.blocks * (layout.piece_bytes + layout.gap_bytes);
    char why[DEVICE_WHY_BYTES] = "";

    cr_assert(eq(int, cuda_driver_load(driver, why), 0), "%s", why);
    cr_assert(eq(int, driver->context_retain(&engine.context, gpu), 0));
    cr_assert(eq(int, driver->context_set(engine.context), 0));
    cr_assert(eq(int, driver->stream_create(&engine.stream, CUDA_STREAM_NON_BLOCKING, 0), 0));
    cr_assert(
        eq(int,
           driver->event_create(&engine.event, CUDA_EVENT_INTERPROCESS | CUDA_EVENT_DISABLE_TIMING),
           0));
    cr_assert(eq(int, driver->mem_alloc(&engine.pages, bytes), 0));
    engine_tells(&engine, layout);
    return engine;
}

static inline struct gpu_engine engine_start(struct gpu_layout layout)
{
    return engine_start_on(0, layout);
}

static inline uint64_t engine_piece(const struct gpu_engine *engine, uint32_t layer, uint32_t block)
{
    const struct page_segment *segment = &engine->told.layout.segments[layer];

    return engine->pages + segment->offset + segment->stride * block;
}

/* The engine's stream writes value into a block, in its own time; then tells its event. */
static inline void engine_computes(struct gpu_engine *engine, uint32_t block, uint8_t value)
{
    const struct page_layout *layout = &engine->told.layout;
    uint8_t *bytes = malloc(layout->segments[0].bytes);

    memset(bytes, value, layout->segments[0].bytes);
    for (uint32_t layer = 0; layer < layout->segment_count; layer++)
        cr_assert(eq(int,
                     engine->driver.copy(engine_piece(engine, layer, block), (uintptr_t)bytes,
                                         layout->segments[layer].bytes, engine->stream),
                     0));
    free(bytes);
    cr_assert(eq(int, engine->driver.event_record(engine->event, engine->stream), 0));
}

/* The bytes that lie there, after all that was ordered. */
static inline const uint8_t *engine_bytes(const struct gpu_engine *engine, uint32_t layer,
                                          uint32_t block)
{
    const uint8_t *bytes = (const uint8_t *)(uintptr_t)engine_piece(engine, layer, block);

    fake_cuda_touch(bytes, engine->told.layout.segments[layer].bytes, false);
    return bytes;
}

static inline void engine_end(struct gpu_engine *engine)
{
    struct cuda_driver *driver = &engine->driver;

    cr_assert(eq(int, driver->context_set(engine->context), 0));
    cr_assert(eq(int, driver->stream_synchronize(engine->stream), 0));
    cr_assert(eq(int, driver->event_destroy(engine->event), 0));
    cr_assert(eq(int, driver->stream_destroy(engine->stream), 0));
    cr_assert(eq(int, driver->mem_free(engine->pages), 0));
    cr_assert(eq(int, driver->context_release(engine->gpu), 0));
    cuda_driver_unload(driver);
}

#endif
