/* SPDX-License-Identifier: Apache-2.0 */

/*
 * cuda_device: what device_cuda_create() leaves at its defaults, and what it counts: for tests,
 * measurements and metrics. Loop thread.
 */
#ifndef KVTIER_DEVICE_CUDA_DEVICE_H
#define KVTIER_DEVICE_CUDA_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/must_check.h"
#include "kvtier/device/copy_table.h"
#include "kvtier/device/device.h"

struct cuda_device_config {
    size_t pin_chunk_bytes; /* one registration with the driver */
    size_t slab_bytes;      /* in HBM, for each thread that copies; 0: nothing is gathered */
    size_t calibrate_bytes; /* measured with at the start; 0: the table of other GPUs is used */
    uint32_t engine_wait_ms_max; /* for what an engine's stream still does; then a copy fails */
};

struct cuda_device_config cuda_device_default(void);

/* As device_cuda_create(). */
MUST_CHECK int cuda_device_create_with(struct cuda_device_config config, struct device **device,
                                       char why[DEVICE_WHY_BYTES]);

struct cuda_device_stats {
    uint32_t gpu_count;
    uint32_t open_gpus;   /* with a context of ours */
    uint32_t lost_gpus;   /* that failed for good: the agent must be restarted to use them */
    uint32_t allocations; /* of engines, imported now */
    uint64_t pinned_bytes;
    uint64_t unpinned_chunks;        /* that the driver would not pin */
    uint64_t copies[COPY_WAY_COUNT]; /* that were right, the pages in them, and their bytes */
    uint64_t pages[COPY_WAY_COUNT];
    uint64_t bytes[COPY_WAY_COUNT];
    uint64_t ungathered_copies; /* that would be gathered, had there been memory in HBM for it */
    uint64_t failed_copies;
    uint64_t engine_waits_expired; /* of these: an engine's stream took too long */
};

struct cuda_device_stats cuda_device_stats(const struct device *device);

/* What was measured on GPU number, or is assumed; NULL: it has no context. */
const struct copy_table *cuda_device_table(const struct device *device, uint32_t number);

#endif
