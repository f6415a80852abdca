/* SPDX-License-Identifier: Apache-2.0 */

/*
 * copy_engine: copies pages between an engine's memory in HBM and memory of ours, on a lane, and
 * waits until all is there. It knows addresses, not engines. A mover's thread, with the GPU's
 * context current.
 */
#ifndef KVTIER_DEVICE_COPY_ENGINE_H
#define KVTIER_DEVICE_COPY_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/must_check.h"
#include "kvtier/device/copy_table.h"
#include "kvtier/device/device.h"
#include "kvtier/device/gather.h"
#include "kvtier/device/host_pins.h"

struct copy_lane;
struct cuda_driver;
struct cuda_event;
struct cuda_function;

/* Where an engine's pages are, as the GPU sees them. */
struct copy_place {
    struct gather_segment segments[PAGE_SEGMENT_COUNT_MAX];
    uint32_t segment_count;
    uint32_t page_bytes;
    uint64_t on_gpu; /* the segments once more, for the kernel; 0: there is no copy */
};

/* From a checked layout and the addresses of its regions. Segments that always lie one behind the
 * other become one: larger pieces are faster. */
void copy_place_init(struct copy_place *place, const struct page_layout *layout,
                     const uint64_t *regions);

struct copy_job {
    const struct copy_place *place;
    const struct page_copy *pages;
    size_t page_count;
    enum copy_direction direction;
    enum copy_way way;
    struct cuda_event *after; /* nothing is read or written in HBM before it; NULL: at once */
    struct host_view view;    /* of the memory that pages lie in */
    struct cuda_function *gather;
};

/* Whether this job can be gathered in this lane: there is a slab, and a page fits into it. */
bool copy_engine_can_gather(const struct copy_lane *lane, const struct copy_job *job);

/* 0: every byte is where it should be. -EIO: the driver refused something, and nothing of the job
 * is under way any more. -ENODEV: the GPU does not say when, it is lost. */
MUST_CHECK int copy_engine_run(const struct cuda_driver *driver, struct copy_lane *lane,
                               const struct copy_job *job);

#endif
