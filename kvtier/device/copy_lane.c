/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/device/copy_lane.h"

#include <stdlib.h>

#include "kvtier/device/cuda_driver.h"

/*
 * DESIGN
 *
 * The stream does not wait for the null stream (there is none of ours), and has the lowest
 * priority: only our gathering kernels feel that, the copy engines know no priorities. The event
 * lets the thread sleep rather than spin: processors are the engine's too.
 */

static void add_slab(const struct cuda_driver *driver, struct copy_lane *lane, size_t slab_bytes)
{
    void *blocks = NULL;

    if (driver->mem_alloc(&lane->slab, slab_bytes) != 0) {
        lane->slab = 0;
        return;
    }
    if (driver->host_alloc(&blocks, COPY_LANE_BLOCKS_MAX * sizeof *lane->blocks,
                           CUDA_HOST_PORTABLE) != 0) {
        (void)driver->mem_free(lane->slab);
        lane->slab = 0;
        return;
    }
    lane->blocks = blocks;
    lane->slab_bytes = slab_bytes;
}

struct copy_lane *copy_lane_create(const struct cuda_driver *driver, size_t slab_bytes)
{
    struct copy_lane *lane = calloc(1, sizeof *lane);
    int least = 0, greatest = 0;

    if (lane == NULL)
        return NULL;
    if (driver->priority_range(&least, &greatest) != 0 ||
        driver->stream_create(&lane->stream, CUDA_STREAM_NON_BLOCKING, least) != 0 ||
        driver->event_create(&lane->done, CUDA_EVENT_BLOCKING_SYNC | CUDA_EVENT_DISABLE_TIMING) !=
            0) {
        copy_lane_destroy(driver, lane);
        return NULL;
    }
    if (slab_bytes > 0)
        add_slab(driver, lane, slab_bytes);
    return lane;
}

/* Results are of no use here: a context that is lost has taken all of it along. */
void copy_lane_destroy(const struct cuda_driver *driver, struct copy_lane *lane)
{
    if (lane == NULL)
        return;
    if (lane->blocks != NULL)
        (void)driver->host_free(lane->blocks);
    if (lane->slab != 0)
        (void)driver->mem_free(lane->slab);
    if (lane->done != NULL)
        (void)driver->event_destroy(lane->done);
    if (lane->stream != NULL)
        (void)driver->stream_destroy(lane->stream);
    free(lane);
}
