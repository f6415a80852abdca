/* SPDX-License-Identifier: Apache-2.0 */

/*
 * device: what holds an engine's KV pages, as a const vtable: host memory (an engine on a CPU), or
 * a GPU through the CUDA driver. It imports an engine's memory and copies pages between it and
 * memory of ours. It knows neither blocks nor tiers.
 *
 * import, release and register run on the loop thread; copy blocks and runs on a mover's threads,
 * several at once. Both directions of a GPU wait for what the engine's compute stream had been
 * given when the engine said so (engine_memory's event).
 */
#ifndef KVTIER_DEVICE_DEVICE_H
#define KVTIER_DEVICE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/must_check.h"
#include "kvtier/device/page_layout.h"

struct device;

enum { DEVICE_HANDLE_BYTES = 64, DEVICE_WHY_BYTES = 256 };

enum device_kind { DEVICE_HOST, DEVICE_CUDA };

enum copy_direction { COPY_TO_ENGINE, COPY_FROM_ENGINE };

/* How an engine gives its memory away: file descriptors (host), IPC handles (CUDA). */
struct engine_export {
    enum device_kind kind;
    struct page_layout layout;
    int fds[PAGE_REGION_COUNT_MAX]; /* host: borrowed, the device makes its own mapping */
    uint8_t handles[PAGE_REGION_COUNT_MAX][DEVICE_HANDLE_BYTES]; /* CUDA: of each allocation, */
    uint64_t handle_offsets[PAGE_REGION_COUNT_MAX];              /* and where in it the region is */
    uint8_t event_handle[DEVICE_HANDLE_BYTES]; /* CUDA: recorded on its stream; all 0: none */
    uint8_t uuid[16];                          /* CUDA: of the GPU */
};

/* One engine rank's memory, mapped here; or all ranks' as one: ranked_memory. Reference counted: a
 * copy in flight keeps it. Allocations that two engines share are imported once. */
struct engine_memory {
    struct device *device;
    const struct page_layout *layout;
    uint32_t references; /* atomic; only device.c touches it */
};

struct page_copy {
    void *host;            /* page_bytes of ours, its segments one behind the other */
    uint32_t engine_block; /* < layout->block_count */
};

struct device_ops {
    const char *name; /* "host", "cuda", "ranked" */
    /* -EINVAL, -ENODEV, -ENOMEM with a sentence in why. */
    int (*import)(struct device *device, const struct engine_export *from,
                  struct engine_memory **memory, char why[DEVICE_WHY_BYTES]);
    void (*unmap)(struct device *device, struct engine_memory *memory);
    /* Memory of ours that copies will use (an arena): pinned in pieces in the background. What is
     * not pinned yet is copied more slowly, never refused. unregister waits for it. */
    int (*register_host)(struct device *device, void *bytes, size_t len);
    void (*unregister_host)(struct device *device, void *bytes);
    /* All pages, in any order. Returns 0 when every byte is where it should be; -EIO: any of them
     * may be anything, or part of it. */
    int (*copy)(struct device *device, struct engine_memory *memory, enum copy_direction direction,
                const struct page_copy *pages, size_t page_count);
    void (*destroy)(struct device *device);
};

/* Embedded first in each device. */
struct device {
    const struct device_ops *ops;
    bool is_by_processor; /* what it copies goes through the processor's caches */
};

/* Copies by the processor. Never fails but by memory. */
MUST_CHECK int device_host_create(struct device **device);

/* -ENODEV: no driver, none that is new enough, or no GPU; the sentence in why. */
MUST_CHECK int device_cuda_create(struct device **device, char why[DEVICE_WHY_BYTES]);

/* The engine's memory once more; and once less, with the last unmapping it. Any thread counts, but
 * the last one must go on the loop's: whoever ends a job there. *memory is NULLed. */
struct engine_memory *engine_memory_ref(struct engine_memory *memory);
void engine_memory_unref(struct engine_memory **memory);

#endif
