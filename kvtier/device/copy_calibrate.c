/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/device/copy_calibrate.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kvtier/device/copy_engine.h"
#include "kvtier/device/copy_lane.h"
#include "kvtier/device/cuda_driver.h"

/*
 * DESIGN
 *
 * Each cell copies pages whose pieces lie as an engine's do, layer outermost with gaps between
 * blocks; the least of a few times counts, because others use the GPU too. A cell of more bytes
 * than there are is left out: pieces that large and that many are the copy engines'. A cell that
 * was not measured copies as the smaller number of pieces does.
 *
 * Into HBM first: nothing is read there that was not written.
 */
enum { PAGES = 8, TRIES = 3 };

struct bench {
    const struct cuda_driver *driver;
    struct copy_lane *lane;
    struct cuda_function *gather;
    size_t bytes;
    uint64_t engine;   /* 2 * bytes: half of it gaps */
    uint64_t segments; /* of the place, for the kernel */
    void *host;
    struct copy_place *place;
};

/* With parts of a us, which clock_now_us() has not: a cell may take but ten. */
static double now_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static int place_pieces(struct bench *bench, uint32_t piece_bytes, uint32_t piece_count)
{
    struct copy_place *place = bench->place;

    place->segment_count = piece_count / PAGES;
    place->page_bytes = piece_bytes * place->segment_count;
    place->on_gpu = bench->segments;
    for (uint32_t i = 0; i < place->segment_count; i++)
        place->segments[i] = (struct gather_segment){
            .address = bench->engine + (uint64_t)i * PAGES * 2 * piece_bytes,
            .stride = 2 * (uint64_t)piece_bytes,
            .bytes = piece_bytes,
            .page_offset = i * piece_bytes};
    if (bench->driver->copy_now(bench->segments, place->segments,
                                place->segment_count * sizeof place->segments[0]) != 0 ||
        bench->driver->stream_synchronize(NULL) != 0)
        return -EIO;
    return 0;
}

static int measure(struct bench *bench, enum copy_direction direction, enum copy_way way,
                   double *us)
{
    struct page_copy pages[PAGES];
    struct copy_job job = {.place = bench->place,
                           .pages = pages,
                           .page_count = PAGES,
                           .direction = direction,
                           .way = way,
                           .gather = bench->gather,
                           .view = {.is_pinned_elsewhere = true}};
    int status = 0;

    for (uint32_t i = 0; i < PAGES; i++)
        pages[i] = (struct page_copy){(uint8_t *)bench->host + i * bench->place->page_bytes, i};
    *us = 0;
    for (int i = 0; status == 0 && i < TRIES; i++) {
        double begin = now_us(), took;

        status = copy_engine_run(bench->driver, bench->lane, &job);
        took = now_us() - begin;
        if (*us == 0 || took < *us)
            *us = took;
    }
    return status;
}

static int fill_cell(struct bench *bench, size_t size, size_t count, struct copy_table *table)
{
    int status = place_pieces(bench, copy_table_piece_bytes[size], copy_table_piece_counts[count]);

    for (int direction = COPY_TO_ENGINE; status == 0 && direction <= COPY_FROM_ENGINE;
         direction++) {
        struct copy_cell *cell = &table->cells[direction][size][count];

        for (int way = 0; status == 0 && way < COPY_WAY_COUNT; way++)
            status =
                measure(bench, (enum copy_direction)direction, (enum copy_way)way, &cell->us[way]);
        if (status == 0)
            cell->way = copy_table_decide(cell->us);
    }
    return status;
}

static int fill(struct bench *bench, struct copy_table *table)
{
    int status = 0;

    for (size_t size = 0; size < COPY_TABLE_SIZES; size++) {
        for (size_t count = 0; status == 0 && count < COPY_TABLE_COUNTS; count++) {
            uint64_t bytes =
                (uint64_t)copy_table_piece_bytes[size] * copy_table_piece_counts[count];

            if (bytes <= bench->bytes && bytes <= bench->lane->slab_bytes) {
                status = fill_cell(bench, size, count, table);
                continue;
            }
            for (size_t direction = 0; direction < COPY_DIRECTIONS; direction++)
                table->cells[direction][size][count].way =
                    count > 0 ? table->cells[direction][size][count - 1].way : COPY_BATCH;
        }
    }
    return status;
}

int copy_calibrate(const struct cuda_driver *driver, struct copy_lane *lane,
                   struct cuda_function *gather, size_t bytes, struct copy_table *table)
{
    struct bench bench = {.driver = driver, .lane = lane, .gather = gather, .bytes = bytes};
    struct copy_table measured = {0};
    int status = -EIO;

    bench.place = calloc(1, sizeof *bench.place);
    if (bench.place == NULL || lane->slab == 0)
        goto out;
    if (driver->mem_alloc(&bench.engine, 2 * bytes) != 0 ||
        driver->mem_alloc(&bench.segments, sizeof bench.place->segments) != 0 ||
        driver->host_alloc(&bench.host, bytes, CUDA_HOST_PORTABLE) != 0)
        goto out;
    memset(bench.host, 0, bytes);
    status = fill(&bench, &measured);
    if (status == 0)
        *table = measured;
out:
    if (bench.engine != 0)
        (void)driver->mem_free(bench.engine);
    if (bench.segments != 0)
        (void)driver->mem_free(bench.segments);
    if (bench.host != NULL)
        (void)driver->host_free(bench.host);
    free(bench.place);
    return status;
}
