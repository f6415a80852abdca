/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/device/cuda_device.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backends/runtime/clock.h"
#include "backends/runtime/log.h"
#include "kvtier/device/copy_engine.h"
#include "kvtier/device/copy_lane.h"
#include "kvtier/device/cuda_gpu.h"
#include "kvtier/device/host_pins.h"

/*
 * DESIGN
 *
 *   engine's process                              agent
 *     cuMemAlloc, cuIpcGetMemHandle --handle-->     cuda_import: mapped once for all regions in it
 *     cuEventRecord, then SAVE or LOAD ------->     copy(): wait for that event, copy, answer
 *
 * An engine's event is waited for twice. On the stream, because that is what orders our copies
 * behind the engine's work. And before that here, with a limit: nobody signals an event whose
 * process has died, and a stream that waits for it never ends. Nothing is enqueued until it is
 * known that the engine's work is done, so a dead engine costs a thread some seconds and no stream.
 *
 * All GPUs are opened at the start, while nobody waits; one on which there was no memory then is
 * tried again when an engine comes that lives there.
 */

enum { GPU_COUNT_MAX = 64 };
enum { ENGINE_POLL_NS_MIN = 20000, ENGINE_POLL_NS_MAX = 500000 };

struct cuda_device {
    struct device device;
    struct cuda_device_config config;
    struct cuda_driver driver;
    struct host_pins *pins;
    struct cuda_device_stats stats; /* atomic, what copies count */
    uint32_t gpu_count;
    struct cuda_gpu gpus[GPU_COUNT_MAX];
};

struct cuda_memory {
    struct engine_memory memory;
    struct page_layout layout;
    struct cuda_gpu *gpu;
    struct cuda_import *imports[PAGE_REGION_COUNT_MAX];
    struct cuda_event *event; /* NULL: the engine waits itself before it asks */
    struct copy_place place;
};

static struct cuda_device *cuda_of(struct device *device)
{
    return container_of(device, struct cuda_device, device);
}

static const struct cuda_device *const_cuda_of(const struct device *device)
{
    return container_of(device, const struct cuda_device, device);
}

static struct cuda_memory *memory_of(struct engine_memory *memory)
{
    return container_of(memory, struct cuda_memory, memory);
}

/* ---- import ---- */

static void cuda_unmap(struct device *device, struct engine_memory *memory)
{
    struct cuda_memory *cuda = memory_of(memory);
    const struct cuda_driver *driver = &cuda_of(device)->driver;

    assert(memory->device == device);
    assert(memory->references == 0);

    (void)driver->context_set(cuda->gpu->context);
    if (cuda->place.on_gpu != 0)
        (void)driver->mem_free(cuda->place.on_gpu);
    if (cuda->event != NULL)
        (void)driver->event_destroy(cuda->event);
    for (uint32_t i = 0; i < cuda->layout.region_count; i++)
        cuda_gpu_forget(cuda->gpu, &cuda->imports[i]);
    free(cuda);
}

static struct cuda_gpu *find_gpu(struct cuda_device *cuda, const struct engine_export *from)
{
    for (uint32_t i = 0; i < cuda->gpu_count; i++) {
        if (memcmp(cuda->gpus[i].uuid.bytes, from->uuid, sizeof from->uuid) == 0)
            return &cuda->gpus[i];
    }
    return NULL;
}

static int import_region(struct cuda_memory *cuda, const struct engine_export *from,
                         uint32_t region, uint64_t *address, char why[DEVICE_WHY_BYTES])
{
    uint64_t bytes = cuda->layout.region_bytes[region], offset = from->handle_offsets[region];
    struct cuda_import *import;
    struct cuda_ipc_handle handle;
    int status;

    memcpy(handle.bytes, from->handles[region], sizeof handle.bytes);
    status = cuda_gpu_import(cuda->gpu, handle, &cuda->imports[region], why);
    if (status < 0)
        return status;
    import = cuda->imports[region];
    if (bytes > import->bytes || offset > import->bytes - bytes) {
        snprintf(why, DEVICE_WHY_BYTES,
                 "region %" PRIu32 " (%" PRIu64 " bytes at %" PRIu64
                 ") reaches out of its allocation of %zu",
                 region, bytes, offset, import->bytes);
        return -EINVAL;
    }
    *address = import->address + offset;
    return 0;
}

static int import_event(struct cuda_memory *cuda, const struct engine_export *from,
                        char why[DEVICE_WHY_BYTES])
{
    static const struct cuda_ipc_handle none;
    const struct cuda_driver *driver = cuda->gpu->driver;
    struct cuda_ipc_handle handle;
    int result;

    memcpy(handle.bytes, from->event_handle, sizeof handle.bytes);
    if (memcmp(&handle, &none, sizeof handle) == 0)
        return 0;
    result = driver->ipc_open_event(&cuda->event, handle);
    if (result == 0)
        return 0;
    cuda->event = NULL;
    snprintf(why, DEVICE_WHY_BYTES,
             "the engine's event cannot be opened: %s (do both see one /dev/shm?)",
             cuda_driver_error(driver, result));
    return -EINVAL;
}

/* The kernel's own copy. No memory for it: this engine's pages go piece by piece. */
static void place_on_gpu(struct cuda_memory *cuda)
{
    const struct cuda_driver *driver = cuda->gpu->driver;
    struct copy_place *place = &cuda->place;
    size_t bytes = place->segment_count * sizeof place->segments[0];

    if (driver->mem_alloc(&place->on_gpu, bytes) != 0) {
        place->on_gpu = 0;
        return;
    }
    /* "Now" ends when the bytes have been staged; the null stream says when they have arrived. */
    if (driver->copy_now(place->on_gpu, place->segments, bytes) != 0 ||
        driver->stream_synchronize(NULL) != 0) {
        (void)driver->mem_free(place->on_gpu);
        place->on_gpu = 0;
    }
}

static int import_all(struct cuda_memory *cuda, const struct engine_export *from,
                      char why[DEVICE_WHY_BYTES])
{
    uint64_t regions[PAGE_REGION_COUNT_MAX];
    int status = 0;

    for (uint32_t i = 0; status == 0 && i < cuda->layout.region_count; i++)
        status = import_region(cuda, from, i, &regions[i], why);
    if (status == 0)
        status = import_event(cuda, from, why);
    if (status < 0)
        return status;
    copy_place_init(&cuda->place, &cuda->layout, regions);
    place_on_gpu(cuda);
    return 0;
}

/* Checks what needs no GPU. NULL with status and why set. */
static struct cuda_memory *memory_create(struct cuda_device *cuda, const struct engine_export *from,
                                         int *status, char why[DEVICE_WHY_BYTES])
{
    struct cuda_memory *memory = calloc(1, sizeof *memory);
    char wrong[PAGE_LAYOUT_WHY_BYTES];

    if (memory == NULL) {
        snprintf(why, DEVICE_WHY_BYTES, "no memory");
        *status = -ENOMEM;
        return NULL;
    }
    memory->memory = (struct engine_memory){.device = &cuda->device, .layout = &memory->layout};
    memory->layout = from->layout;
    memory->gpu = find_gpu(cuda, from);
    *status = page_layout_check(&memory->layout, wrong);
    if (*status < 0) {
        snprintf(why, DEVICE_WHY_BYTES, "layout: %s", wrong);
    } else if (memory->gpu == NULL) {
        snprintf(why, DEVICE_WHY_BYTES, "the engine's GPU is not among ours (by UUID)");
        *status = -ENODEV;
    }
    if (*status == 0)
        return memory;
    free(memory);
    return NULL;
}

static int open_gpu(const struct cuda_device *cuda, struct cuda_gpu *gpu,
                    char why[DEVICE_WHY_BYTES])
{
    struct cuda_gpu_config config = {.slab_bytes = cuda->config.slab_bytes,
                                     .calibrate_bytes = cuda->config.calibrate_bytes};

    return cuda_gpu_open(gpu, config, why);
}

static int cuda_import_memory(struct device *device, const struct engine_export *from,
                              struct engine_memory **memory, char why[DEVICE_WHY_BYTES])
{
    struct cuda_device *cuda = cuda_of(device);
    struct cuda_memory *made;
    int status;

    assert(from->kind == DEVICE_CUDA);

    *memory = NULL;
    made = memory_create(cuda, from, &status, why);
    if (made == NULL)
        return status;
    status = open_gpu(cuda, made->gpu, why);
    if (status < 0) {
        free(made); /* without a context there is nothing to unmap */
        return status;
    }
    status = import_all(made, from, why);
    if (status < 0) {
        cuda_unmap(device, &made->memory);
        return status;
    }
    made->memory.references = 1;
    *memory = &made->memory;
    return 0;
}

/* ---- copy ---- */

/* Until what the engine's stream was given before its event is done. -ETIMEDOUT; -EIO. */
static int await_engine(const struct cuda_driver *driver, struct cuda_event *event, uint32_t ms_max)
{
    uint64_t end_us = clock_now_us() + (uint64_t)ms_max * 1000;
    struct timespec pause = {.tv_nsec = ENGINE_POLL_NS_MIN};
    int result;

    while ((result = driver->event_query(event)) == CUDA_NOT_READY) {
        if (clock_now_us() > end_us)
            return -ETIMEDOUT;
        nanosleep(&pause, NULL);
        if (pause.tv_nsec < ENGINE_POLL_NS_MAX)
            pause.tv_nsec *= 2;
    }
    return result == 0 ? 0 : -EIO;
}

static void count(uint64_t *counter, uint64_t number)
{
    __atomic_fetch_add(counter, number, __ATOMIC_RELAXED);
}

static enum copy_way choose_way(struct cuda_device *cuda, const struct cuda_gpu *gpu,
                                const struct copy_lane *lane, const struct copy_job *job)
{
    uint64_t pieces = (uint64_t)job->page_count * job->place->segment_count;
    enum copy_way way = copy_table_way(&gpu->table, job->direction,
                                       job->place->page_bytes / job->place->segment_count, pieces);

    if (way == COPY_BATCH || copy_engine_can_gather(lane, job))
        return way;
    count(&cuda->stats.ungathered_copies, 1);
    return COPY_BATCH;
}

static int run_job(struct cuda_device *cuda, struct cuda_gpu *gpu, struct copy_job *job)
{
    struct copy_lane *lane = cuda_gpu_acquire_lane(gpu);
    int status;

    if (lane == NULL)
        return -EIO;
    job->way = choose_way(cuda, gpu, lane, job);
    status = copy_engine_run(gpu->driver, lane, job);
    if (status == -ENODEV)
        __atomic_store_n(&gpu->is_lost, true, __ATOMIC_RELAXED);
    if (status == 0) {
        count(&cuda->stats.copies[job->way], 1);
        count(&cuda->stats.pages[job->way], job->page_count);
        count(&cuda->stats.bytes[job->way], (uint64_t)job->page_count * job->place->page_bytes);
    }
    cuda_gpu_return_lane(gpu, &lane);
    return status;
}

static int try_copy(struct cuda_device *cuda, struct cuda_memory *memory, struct copy_job *job)
{
    int status = 0;

    if (!cuda_gpu_enter(memory->gpu))
        return -EIO;
    if (memory->event != NULL)
        status = await_engine(&cuda->driver, memory->event, cuda->config.engine_wait_ms_max);
    if (status == -ETIMEDOUT)
        count(&cuda->stats.engine_waits_expired, 1);
    return status == 0 ? run_job(cuda, memory->gpu, job) : status;
}

static int cuda_copy(struct device *device, struct engine_memory *memory,
                     enum copy_direction direction, const struct page_copy *pages,
                     size_t page_count)
{
    struct cuda_device *cuda = cuda_of(device);
    struct cuda_memory *from = memory_of(memory);
    struct copy_job job = {.place = &from->place,
                           .pages = pages,
                           .page_count = page_count,
                           .direction = direction,
                           .after = from->event,
                           .gather = from->gpu->gather};
    int status;

    assert(memory->device == device);
    for (size_t i = 0; i < page_count; i++)
        assert(pages[i].engine_block < from->layout.block_count);

    if (page_count == 0)
        return 0;
    job.view = host_view_acquire(cuda->pins);
    status = try_copy(cuda, from, &job);
    host_view_return(&job.view);
    if (status == 0)
        return 0;
    count(&cuda->stats.failed_copies, 1);
    return -EIO;
}

/* ---- memory of ours ---- */

static int cuda_register_host(struct device *device, void *bytes, size_t len)
{
    return host_pins_add(cuda_of(device)->pins, bytes, len);
}

static void cuda_unregister_host(struct device *device, void *bytes)
{
    host_pins_remove(cuda_of(device)->pins, bytes);
}

/* ---- what is known ---- */

static uint64_t counted(const uint64_t *counter)
{
    return __atomic_load_n(counter, __ATOMIC_RELAXED);
}

struct cuda_device_stats cuda_device_stats(const struct device *device)
{
    const struct cuda_device *cuda = const_cuda_of(device);
    struct cuda_device_stats stats = {.gpu_count = cuda->gpu_count};
    struct host_pins_stats pins = host_pins_stats(cuda->pins);

    for (uint32_t i = 0; i < cuda->gpu_count; i++) {
        stats.open_gpus += cuda->gpus[i].context != NULL;
        stats.lost_gpus += __atomic_load_n(&cuda->gpus[i].is_lost, __ATOMIC_RELAXED);
        stats.allocations += (uint32_t)cuda->gpus[i].imports.count;
    }
    stats.pinned_bytes = pins.pinned_bytes;
    stats.unpinned_chunks = pins.failed_chunks;
    for (int way = 0; way < COPY_WAY_COUNT; way++) {
        stats.copies[way] = counted(&cuda->stats.copies[way]);
        stats.pages[way] = counted(&cuda->stats.pages[way]);
        stats.bytes[way] = counted(&cuda->stats.bytes[way]);
    }
    stats.ungathered_copies = counted(&cuda->stats.ungathered_copies);
    stats.failed_copies = counted(&cuda->stats.failed_copies);
    stats.engine_waits_expired = counted(&cuda->stats.engine_waits_expired);
    return stats;
}

const struct copy_table *cuda_device_table(const struct device *device, uint32_t number)
{
    const struct cuda_device *cuda = const_cuda_of(device);

    return number < cuda->gpu_count && cuda->gpus[number].context != NULL
               ? &cuda->gpus[number].table
               : NULL;
}

/* ---- life ---- */

static void cuda_destroy(struct device *device)
{
    struct cuda_device *cuda = cuda_of(device);

    host_pins_destroy(cuda->pins);
    for (uint32_t i = 0; i < cuda->gpu_count; i++)
        cuda_gpu_release(&cuda->gpus[i]);
    cuda_driver_unload(&cuda->driver);
    free(cuda);
}

static const struct device_ops cuda_ops = {
    .name = "cuda",
    .import = cuda_import_memory,
    .unmap = cuda_unmap,
    .register_host = cuda_register_host,
    .unregister_host = cuda_unregister_host,
    .copy = cuda_copy,
    .destroy = cuda_destroy,
};

/* The largest pieces that are gathered, for the log. */
static uint64_t gathered_bytes(const struct copy_table *table, enum copy_direction direction)
{
    uint64_t bytes = 0;

    for (size_t size = 0; size < COPY_TABLE_SIZES; size++) {
        if (table->cells[direction][size][COPY_TABLE_COUNTS - 1].way == COPY_GATHER)
            bytes = copy_table_piece_bytes[size];
    }
    return bytes;
}

static void log_gpu(const struct cuda_gpu *gpu, const char *why)
{
    if (gpu->context == NULL) {
        LOG(LOG_WARN, "gpu_not_opened", log_text("gpu", gpu->name), log_text("why", why));
        return;
    }
    LOG(LOG_INFO, "gpu_opened", log_text("gpu", gpu->name),
        log_u64("cuda_version", (uint64_t)gpu->driver->version),
        log_bool("has_batches", gpu->driver->copy_batch != NULL),
        log_bool("is_measured", gpu->is_measured),
        log_u64("gathered_in_bytes_max", gathered_bytes(&gpu->table, COPY_TO_ENGINE)),
        log_u64("gathered_out_bytes_max", gathered_bytes(&gpu->table, COPY_FROM_ENGINE)));
}

/* The first one that is open; NULL: none. why: of the last one that is not. */
static struct cuda_gpu *open_gpus(struct cuda_device *cuda, char why[DEVICE_WHY_BYTES])
{
    struct cuda_gpu *first = NULL;
    int count = 0;

    snprintf(why, DEVICE_WHY_BYTES, "the CUDA driver gives no GPU");
    (void)cuda->driver.device_count(&count);
    for (int i = 0; i < count && cuda->gpu_count < GPU_COUNT_MAX; i++) {
        struct cuda_gpu *gpu = &cuda->gpus[cuda->gpu_count];

        if (cuda_gpu_init(gpu, &cuda->driver, i) < 0)
            continue;
        cuda->gpu_count++;
        if (open_gpu(cuda, gpu, why) == 0 && first == NULL)
            first = gpu;
        log_gpu(gpu, why);
    }
    return first;
}

struct cuda_device_config cuda_device_default(void)
{
    return (struct cuda_device_config){.pin_chunk_bytes = (size_t)64 << 30,
                                       .slab_bytes = 16 << 20,
                                       .calibrate_bytes = 16 << 20,
                                       .engine_wait_ms_max = 10000};
}

int cuda_device_create_with(struct cuda_device_config config, struct device **device,
                            char why[DEVICE_WHY_BYTES])
{
    struct cuda_device *cuda = calloc(1, sizeof *cuda);
    struct cuda_gpu *first;
    int status;

    *device = NULL;
    if (cuda == NULL) {
        snprintf(why, DEVICE_WHY_BYTES, "no memory");
        return -ENODEV;
    }
    cuda->device.ops = &cuda_ops;
    cuda->config = config;
    status = cuda_driver_load(&cuda->driver, why);
    if (status < 0) {
        free(cuda);
        return status;
    }
    first = open_gpus(cuda, why);
    if (first != NULL)
        cuda->pins =
            host_pins_create((struct host_pins_config){.driver = &cuda->driver,
                                                       .context = first->context,
                                                       .chunk_bytes = config.pin_chunk_bytes});
    if (cuda->pins == NULL) {
        cuda_destroy(&cuda->device);
        return -ENODEV;
    }
    *device = &cuda->device;
    return 0;
}

int device_cuda_create(struct device **device, char why[DEVICE_WHY_BYTES])
{
    return cuda_device_create_with(cuda_device_default(), device, why);
}
