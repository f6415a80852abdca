/* SPDX-License-Identifier: Apache-2.0 */

/*
 * cuda_gpu: one GPU: our context on it, the lanes to copy on, and what is imported there. Opened,
 * closed and imported to on the loop thread; lanes are for any thread.
 */
#ifndef KVTIER_DEVICE_CUDA_GPU_H
#define KVTIER_DEVICE_CUDA_GPU_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/list.h"
#include "backends/runtime/must_check.h"
#include "kvtier/device/copy_table.h"
#include "kvtier/device/cuda_driver.h"

struct copy_lane;

enum { CUDA_GPU_NAME_BYTES = 64 };

struct cuda_gpu_config {
    size_t slab_bytes;      /* of each lane; 0: nothing is gathered */
    size_t calibrate_bytes; /* measured with; 0: copy_table_default() */
};

struct cuda_gpu {
    const struct cuda_driver *driver;
    int device;
    struct cuda_uuid uuid;
    char name[CUDA_GPU_NAME_BYTES];

    struct cuda_context *context; /* NULL: not open */
    struct cuda_module *module;   /* NULL: this driver does not take our kernel; nothing is */
    struct cuda_function *gather; /* gathered */
    size_t slab_bytes;
    struct copy_table table;
    bool is_measured; /* the table is */
    bool is_lost;     /* atomic */

    struct list imports;          /* loop thread */
    pthread_mutex_t lock;         /* of what is below */
    struct copy_lane *free_lanes; /* last used first: its slab is there */
};

/* An allocation of an engine, mapped once however many ask for it. */
struct cuda_import {
    struct list_node in_gpu;
    struct cuda_ipc_handle handle;
    uint64_t address;
    size_t bytes;
    uint32_t references;
};

/* Finds out who it is; opens nothing. -ENODEV. */
MUST_CHECK int cuda_gpu_init(struct cuda_gpu *gpu, const struct cuda_driver *driver, int ordinal);
/* Makes a context and measures, which takes about a second; nothing where it is open already.
 * -ENODEV with a sentence in why: no memory there, or lost. */
MUST_CHECK int cuda_gpu_open(struct cuda_gpu *gpu, struct cuda_gpu_config config,
                             char why[DEVICE_WHY_BYTES]);
/* Nothing may be imported or under way. Not open is fine. */
void cuda_gpu_release(struct cuda_gpu *gpu);

/* Our context becomes this thread's. False: it is lost. */
MUST_CHECK bool cuda_gpu_enter(struct cuda_gpu *gpu);

/* NULL: the driver gives no stream. Returned by whoever acquired it. */
struct copy_lane *cuda_gpu_acquire_lane(struct cuda_gpu *gpu);
void cuda_gpu_return_lane(struct cuda_gpu *gpu, struct copy_lane **lane);

/* The allocation of handle. -EINVAL, -ENOMEM with a sentence in why. */
MUST_CHECK int cuda_gpu_import(struct cuda_gpu *gpu, struct cuda_ipc_handle handle,
                               struct cuda_import **import, char why[DEVICE_WHY_BYTES]);
/* One user less; the last one unmaps it, so that the HBM of an engine that died is free. */
void cuda_gpu_forget(struct cuda_gpu *gpu, struct cuda_import **import);

#endif
