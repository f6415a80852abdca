/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/device/cuda_gpu.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvtier/device/copy_calibrate.h"
#include "kvtier/device/copy_lane.h"
#include "kvtier/device/gather.h"

/*
 * DESIGN
 *
 * The context is the device's primary one, retained: a process may open an engine's handles in one
 * context only, and this one is there anyway.
 *
 * Imports are counted here although the driver counts too: what it makes of closing a handle that
 * was opened twice differs between its documentation and its past. Equal allocations have equal
 * handles.
 *
 * A context in which a kernel or a copy failed is dead, and with it all that we have on that GPU.
 * Its copies fail from then on and its engines go on without tiers. It is not made anew: engines
 * would have to export again.
 */

int cuda_gpu_init(struct cuda_gpu *gpu, const struct cuda_driver *driver, int ordinal)
{
    *gpu = (struct cuda_gpu){.driver = driver};
    list_init(&gpu->imports);
    pthread_mutex_init(&gpu->lock, NULL);
    if (driver->device_get(&gpu->device, ordinal) != 0 ||
        driver->device_uuid(&gpu->uuid, gpu->device) != 0 ||
        driver->device_name(gpu->name, sizeof gpu->name, gpu->device) != 0) {
        pthread_mutex_destroy(&gpu->lock);
        return -ENODEV;
    }
    return 0;
}

/* ---- opening ---- */

static int refuse(const struct cuda_gpu *gpu, int result, const char *what,
                  char why[DEVICE_WHY_BYTES])
{
    snprintf(why, DEVICE_WHY_BYTES, "%s: %s: %s", gpu->name, what,
             cuda_driver_error(gpu->driver, result));
    return -ENODEV;
}

static int make_context(struct cuda_gpu *gpu, char why[DEVICE_WHY_BYTES])
{
    const struct cuda_driver *driver = gpu->driver;
    int result;

    /* Threads sleep while they wait. Refused where somebody has the context already: theirs counts,
     * and our events sleep all the same. */
    (void)driver->context_flags(gpu->device, CUDA_CONTEXT_BLOCKING_SYNC);
    result = driver->context_retain(&gpu->context, gpu->device);
    if (result != 0) {
        gpu->context = NULL;
        return refuse(gpu, result, "no context", why);
    }
    result = driver->context_set(gpu->context);
    return result == 0 ? 0 : refuse(gpu, result, "the context cannot be used", why);
}

/* Without it all goes piece by piece. */
static void load_kernel(struct cuda_gpu *gpu)
{
    if (gpu->driver->module_load(&gpu->module, gather_ptx) != 0) {
        gpu->module = NULL;
        return;
    }
    if (gpu->driver->module_function(&gpu->gather, gpu->module, GATHER_NAME) != 0)
        gpu->gather = NULL;
}

static void measure(struct cuda_gpu *gpu, size_t bytes)
{
    struct copy_lane *lane = cuda_gpu_acquire_lane(gpu);

    if (lane == NULL)
        return;
    gpu->is_measured = copy_calibrate(gpu->driver, lane, gpu->gather, bytes, &gpu->table) == 0;
    cuda_gpu_return_lane(gpu, &lane);
}

int cuda_gpu_open(struct cuda_gpu *gpu, struct cuda_gpu_config config, char why[DEVICE_WHY_BYTES])
{
    int status;

    if (gpu->context != NULL) {
        if (cuda_gpu_enter(gpu))
            return 0;
        snprintf(why, DEVICE_WHY_BYTES, "%s failed; restart the agent to use it again", gpu->name);
        return -ENODEV;
    }
    status = make_context(gpu, why);
    if (status < 0) {
        if (gpu->context != NULL)
            (void)gpu->driver->context_release(gpu->device);
        gpu->context = NULL;
        return status;
    }
    gpu->slab_bytes = config.slab_bytes;
    gpu->table = copy_table_default();
    load_kernel(gpu);
    if (gpu->gather != NULL && gpu->slab_bytes > 0 && config.calibrate_bytes > 0)
        measure(gpu, config.calibrate_bytes);
    return 0;
}

void cuda_gpu_release(struct cuda_gpu *gpu)
{
    struct copy_lane *lane;

    assert(gpu->imports.count == 0);

    if (gpu->context != NULL) {
        (void)gpu->driver->context_set(gpu->context);
        while ((lane = gpu->free_lanes) != NULL) {
            gpu->free_lanes = lane->next;
            copy_lane_destroy(gpu->driver, lane);
        }
        if (gpu->module != NULL)
            (void)gpu->driver->module_unload(gpu->module);
        (void)gpu->driver->context_set(NULL);
        (void)gpu->driver->context_release(gpu->device);
        gpu->context = NULL;
    }
    pthread_mutex_destroy(&gpu->lock);
}

/* ---- lanes ---- */

bool cuda_gpu_enter(struct cuda_gpu *gpu)
{
    assert(gpu->context != NULL);

    return !__atomic_load_n(&gpu->is_lost, __ATOMIC_RELAXED) &&
           gpu->driver->context_set(gpu->context) == 0;
}

/* There are as many as threads ever copied at once. */
struct copy_lane *cuda_gpu_acquire_lane(struct cuda_gpu *gpu)
{
    struct copy_lane *lane;

    pthread_mutex_lock(&gpu->lock);
    lane = gpu->free_lanes;
    if (lane != NULL)
        gpu->free_lanes = lane->next;
    pthread_mutex_unlock(&gpu->lock);
    if (lane == NULL)
        lane = copy_lane_create(gpu->driver, gpu->gather != NULL ? gpu->slab_bytes : 0);
    return lane;
}

void cuda_gpu_return_lane(struct cuda_gpu *gpu, struct copy_lane **lane)
{
    pthread_mutex_lock(&gpu->lock);
    (*lane)->next = gpu->free_lanes;
    gpu->free_lanes = *lane;
    pthread_mutex_unlock(&gpu->lock);
    *lane = NULL;
}

/* ---- imports ---- */

static struct cuda_import *find_import(struct cuda_gpu *gpu, const struct cuda_ipc_handle *handle)
{
    struct list_node *node = gpu->imports.head.next;

    for (; node != &gpu->imports.head; node = node->next) {
        struct cuda_import *import = container_of(node, struct cuda_import, in_gpu);

        if (memcmp(&import->handle, handle, sizeof *handle) == 0)
            return import;
    }
    return NULL;
}

static int map_import(struct cuda_gpu *gpu, struct cuda_import *import, char why[DEVICE_WHY_BYTES])
{
    uint64_t base;
    int result =
        gpu->driver->ipc_open_memory(&import->address, import->handle, CUDA_IPC_LAZY_PEER_ACCESS);

    if (result != 0) {
        (void)refuse(gpu, result, "an IPC handle cannot be opened", why);
        return result == CUDA_OUT_OF_MEMORY ? -ENOMEM : -EINVAL;
    }
    /* How long it is says the driver, not the engine: what lies behind may be another engine's. */
    result = gpu->driver->mem_range(&base, &import->bytes, import->address);
    if (result == 0) {
        import->bytes -= import->address - base;
        return 0;
    }
    (void)gpu->driver->ipc_close_memory(import->address);
    (void)refuse(gpu, result, "the size of an engine's allocation is not known", why);
    return -EINVAL;
}

int cuda_gpu_import(struct cuda_gpu *gpu, struct cuda_ipc_handle handle,
                    struct cuda_import **import, char why[DEVICE_WHY_BYTES])
{
    struct cuda_import *known = find_import(gpu, &handle);
    int status;

    *import = known;
    if (known != NULL) {
        known->references++;
        return 0;
    }
    known = calloc(1, sizeof *known);
    if (known == NULL) {
        snprintf(why, DEVICE_WHY_BYTES, "no memory");
        return -ENOMEM;
    }
    known->handle = handle;
    status = map_import(gpu, known, why);
    if (status < 0) {
        free(known);
        return status;
    }
    list_node_init(&known->in_gpu);
    list_append(&gpu->imports, &known->in_gpu);
    known->references = 1;
    *import = known;
    return 0;
}

void cuda_gpu_forget(struct cuda_gpu *gpu, struct cuda_import **import)
{
    struct cuda_import *known = *import;

    *import = NULL;
    if (known == NULL || --known->references > 0)
        return;
    (void)gpu->driver->ipc_close_memory(known->address);
    list_remove(&gpu->imports, &known->in_gpu);
    free(known);
}
