/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/device/copy_engine.h"

#include <assert.h>
#include <errno.h>

#include "kvtier/device/copy_lane.h"
#include "kvtier/device/cuda_driver.h"

/*
 * DESIGN
 *
 *   piece by piece:  wait for the engine | batch of copies | batch | ... | done
 *   gathered, out:   wait for the engine | pages to slab | slab to host | ... | done
 *   gathered, in:    wait for the engine | host to slab | slab to pages | ... | done
 *
 * All of it on one stream, so that each step finds what the one before has left, the slab included:
 * it is filled again when its last reader is through. Gathering costs a thirtieth of what the link
 * takes; two slabs in turn would win no more than that.
 *
 * The wait comes first in both directions. Out: what the engine's stream has been told to compute
 * is read. In: what that stream still does with the blocks' former contents, or zeroes there, would
 * spoil what comes.
 *
 * Copies of one batch have no order among them, and need none: a layout's pieces never meet.
 * Pages in HBM are read in the stream's order, after the wait. Only a page of ours may be read at
 * any time (CUDA_SOURCE_ANY): it is complete before the job, and nobody writes it meanwhile.
 *
 * A batch takes pinned memory only. For what is not pinned, one plain copy each: the driver stages
 * it, and documents how.
 */

enum { GATHER_GRID_MAX = 32 }; /* thread blocks: more than any link can drink */

struct copy_run {
    const struct cuda_driver *driver;
    struct copy_lane *lane;
    const struct copy_job *job;
    bool may_join; /* pieces that follow each other on both sides are of one allocation */
};

static int status_of(int result)
{
    return result == 0 ? 0 : -EIO;
}

/* ---- places ---- */

static bool is_behind(const struct page_segment *low, const struct page_segment *high)
{
    return low->region == high->region && low->stride == high->stride &&
           low->offset + low->bytes == high->offset;
}

void copy_place_init(struct copy_place *place, const struct page_layout *layout,
                     const uint64_t *regions)
{
    uint32_t page_offset = 0, count = 0;

    for (uint32_t i = 0; i < layout->segment_count; i++) {
        const struct page_segment *segment = &layout->segments[i];

        if (i > 0 && is_behind(segment - 1, segment))
            place->segments[count - 1].bytes += (uint32_t)segment->bytes;
        else
            place->segments[count++] =
                (struct gather_segment){.address = regions[segment->region] + segment->offset,
                                        .stride = segment->stride,
                                        .bytes = (uint32_t)segment->bytes,
                                        .page_offset = page_offset};
        page_offset += (uint32_t)segment->bytes;
    }
    assert(page_offset == layout->page_bytes);
    place->segment_count = count;
    place->page_bytes = page_offset;
    place->on_gpu = 0;
}

/* ---- copies ---- */

static int hand_over_batch(const struct copy_run *run)
{
    struct copy_lane *lane = run->lane;
    struct cuda_copy_attributes attributes = {.source_order = run->job->direction == COPY_TO_ENGINE
                                                                  ? CUDA_SOURCE_ANY
                                                                  : CUDA_SOURCE_STREAM,
                                              .flags = CUDA_COPY_PREFER_OVERLAP};
    size_t first = 0, failed = 0;

    return status_of(run->driver->copy_batch(lane->targets, lane->sources, lane->sizes,
                                             lane->batch_count, &attributes, &first, 1, &failed,
                                             lane->stream));
}

static int hand_over_each(const struct copy_run *run)
{
    struct copy_lane *lane = run->lane;
    int result = 0;

    for (size_t i = 0; result == 0 && i < lane->batch_count; i++)
        result =
            run->driver->copy(lane->targets[i], lane->sources[i], lane->sizes[i], lane->stream);
    return status_of(result);
}

static int hand_over(const struct copy_run *run)
{
    struct copy_lane *lane = run->lane;
    bool is_batch = lane->batch_is_pinned && lane->batch_count > 1 && run->driver->copy_batch;
    int status = is_batch ? hand_over_batch(run) : hand_over_each(run);

    lane->batch_count = 0;
    return status;
}

static bool join(const struct copy_run *run, uint64_t target, uint64_t source, size_t bytes)
{
    struct copy_lane *lane = run->lane;
    size_t last = lane->batch_count - 1;

    if (!run->may_join || lane->batch_count == 0 || bytes > lane->host_left ||
        lane->targets[last] + lane->sizes[last] != target ||
        lane->sources[last] + lane->sizes[last] != source)
        return false;
    lane->sizes[last] += bytes;
    lane->host_left -= bytes;
    return true;
}

/* bytes lie in span. */
static int add_part(const struct copy_run *run, uint64_t in_hbm, uint64_t on_host, size_t bytes,
                    struct host_span span)
{
    struct copy_lane *lane = run->lane;
    bool is_in = run->job->direction == COPY_TO_ENGINE;
    uint64_t target = is_in ? in_hbm : on_host, source = is_in ? on_host : in_hbm;
    int status = 0;

    if (span.is_pinned == lane->batch_is_pinned && join(run, target, source, bytes))
        return 0;
    if (lane->batch_count == COPY_LANE_BATCH_MAX ||
        (lane->batch_count > 0 && span.is_pinned != lane->batch_is_pinned))
        status = hand_over(run);
    lane->batch_is_pinned = span.is_pinned;
    lane->host_left = span.bytes - bytes;
    lane->targets[lane->batch_count] = target;
    lane->sources[lane->batch_count] = source;
    lane->sizes[lane->batch_count++] = bytes;
    return status;
}

/* One piece, cut where the host's memory is pinned apart. */
static int add_piece(const struct copy_run *run, uint64_t in_hbm, uint8_t *on_host, size_t bytes)
{
    int status = 0;

    while (status == 0 && bytes > 0) {
        struct host_span span = host_view_span(&run->job->view, on_host);
        size_t part = bytes < span.bytes ? bytes : span.bytes;

        status = add_part(run, in_hbm, (uintptr_t)on_host, part, span);
        in_hbm += part;
        on_host += part;
        bytes -= part;
    }
    return status;
}

/* ---- piece by piece ---- */

static int copy_pieces(const struct copy_run *run)
{
    const struct copy_place *place = run->job->place;
    int status = 0;

    for (size_t i = 0; status == 0 && i < run->job->page_count; i++) {
        const struct page_copy *page = &run->job->pages[i];
        uint8_t *host = page->host;

        for (uint32_t j = 0; status == 0 && j < place->segment_count; j++) {
            const struct gather_segment *segment = &place->segments[j];

            status = add_piece(run, segment->address + segment->stride * page->engine_block,
                               host + segment->page_offset, segment->bytes);
        }
    }
    return status == 0 ? hand_over(run) : status;
}

/* ---- gathered ---- */

static int await(const struct copy_run *run)
{
    if (run->driver->event_record(run->lane->done, run->lane->stream) != 0 ||
        run->driver->event_synchronize(run->lane->done) != 0)
        return -ENODEV;
    return 0;
}

static int launch(const struct copy_run *run, const uint32_t *blocks, uint32_t page_count)
{
    const struct copy_place *place = run->job->place;
    struct gather_job kernel = {.segments = place->on_gpu,
                                .blocks = (uintptr_t)blocks,
                                .slab = run->lane->slab,
                                .segment_count = place->segment_count,
                                .page_count = page_count,
                                .page_bytes = place->page_bytes,
                                .is_scatter = run->job->direction == COPY_TO_ENGINE};
    void *parameters[] = {&kernel};
    uint32_t warps = GATHER_THREADS / 32;
    uint32_t grid = (page_count * place->segment_count + warps - 1) / warps;

    if (grid > GATHER_GRID_MAX)
        grid = GATHER_GRID_MAX;
    return status_of(run->driver->launch(run->job->gather, grid, 1, 1, GATHER_THREADS, 1, 1, 0,
                                         run->lane->stream, parameters, NULL));
}

static int copy_slab(const struct copy_run *run, const struct page_copy *pages, uint32_t page_count)
{
    uint32_t page_bytes = run->job->place->page_bytes;
    int status = 0;

    for (uint32_t i = 0; status == 0 && i < page_count; i++)
        status =
            add_piece(run, run->lane->slab + (uint64_t)i * page_bytes, pages[i].host, page_bytes);
    return status == 0 ? hand_over(run) : status;
}

/* As many pages as the slab takes. blocks: theirs, untouched until the kernel has run. */
static int move_slab(const struct copy_run *run, const struct page_copy *pages, uint32_t page_count,
                     uint32_t *blocks)
{
    int status = 0;

    for (uint32_t i = 0; i < page_count; i++)
        blocks[i] = pages[i].engine_block;
    if (run->job->direction == COPY_TO_ENGINE) {
        status = copy_slab(run, pages, page_count);
        return status == 0 ? launch(run, blocks, page_count) : status;
    }
    status = launch(run, blocks, page_count);
    return status == 0 ? copy_slab(run, pages, page_count) : status;
}

static int copy_gathered(const struct copy_run *run)
{
    const struct copy_job *job = run->job;
    size_t slab_pages = run->lane->slab_bytes / job->place->page_bytes, used = 0;
    int status = 0;

    if (slab_pages > COPY_LANE_BLOCKS_MAX)
        slab_pages = COPY_LANE_BLOCKS_MAX;
    for (size_t i = 0; status == 0 && i < job->page_count;) {
        size_t count = job->page_count - i < slab_pages ? job->page_count - i : slab_pages;

        if (used + count > COPY_LANE_BLOCKS_MAX) {
            status = await(run); /* kernels still read the list's beginning */
            used = 0;
        }
        if (status == 0)
            status = move_slab(run, &job->pages[i], (uint32_t)count, run->lane->blocks + used);
        used += count;
        i += count;
    }
    return status;
}

/* ---- a job ---- */

bool copy_engine_can_gather(const struct copy_lane *lane, const struct copy_job *job)
{
    return lane->slab != 0 && job->gather != NULL && job->place->on_gpu != 0 &&
           job->place->page_bytes <= lane->slab_bytes;
}

int copy_engine_run(const struct cuda_driver *driver, struct copy_lane *lane,
                    const struct copy_job *job)
{
    struct copy_run run = {.driver = driver,
                           .lane = lane,
                           .job = job,
                           .may_join = job->way == COPY_GATHER || job->place->segment_count == 1};
    int status = 0, drained;

    assert(job->way == COPY_BATCH || copy_engine_can_gather(lane, job));

    lane->batch_count = 0;
    if (job->after != NULL)
        status = status_of(driver->stream_wait_event(lane->stream, job->after, 0));
    if (status == 0)
        status = job->way == COPY_GATHER ? copy_gathered(&run) : copy_pieces(&run);
    /* Also after a refusal: what was handed over before it still runs. */
    drained = await(&run);
    return drained < 0 ? drained : status;
}
