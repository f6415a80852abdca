/* SPDX-License-Identifier: Apache-2.0 */

/*
 * copy_lane: what one thread needs to copy pages to and from a GPU: a stream of our own, an event
 * at whose end it sleeps, the batch that it gathers, and a slab in HBM with its list of blocks. A
 * thread has one while it copies; contents are copy_engine's.
 */
#ifndef KVTIER_DEVICE_COPY_LANE_H
#define KVTIER_DEVICE_COPY_LANE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/must_check.h"

struct cuda_driver;
struct cuda_event;
struct cuda_stream;

enum { COPY_LANE_BATCH_MAX = 1024, COPY_LANE_BLOCKS_MAX = 4096 };

struct copy_lane {
    struct copy_lane *next; /* free ones of a GPU */
    struct cuda_stream *stream;
    struct cuda_event *done;

    /* A batch, until it is handed over. */
    uint64_t targets[COPY_LANE_BATCH_MAX];
    uint64_t sources[COPY_LANE_BATCH_MAX];
    size_t sizes[COPY_LANE_BATCH_MAX];
    size_t batch_count;
    size_t host_left; /* how far the last piece may still grow on the host's side */
    bool batch_is_pinned;

    uint64_t slab; /* 0: none */
    size_t slab_bytes;
    uint32_t *blocks; /* COPY_LANE_BLOCKS_MAX, pinned: kernels read it; NULL: none */
};

/* The context must be current. slab_bytes 0: none is wanted; a slab that cannot be had is done
 * without. NULL: the driver refuses. */
struct copy_lane *copy_lane_create(const struct cuda_driver *driver, size_t slab_bytes);
/* Nothing may be under way. NULL is fine. */
void copy_lane_destroy(const struct cuda_driver *driver, struct copy_lane *lane);

#endif
