/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/tier_copy.h"

#include "backends/runtime/clock.h"
#include "backends/runtime/fault_point.h"

#include <assert.h>
#include <errno.h>

/*
 * DESIGN
 *
 *   way              take                                put
 *   engine -> CPU    slot made invalid, copied into it   sealed
 *   CPU -> engine    verified where it lies              copied
 *   SSD -> engine    read into staging or a CPU slot     copied; a CPU slot is sealed
 *   CPU -> SSD       verified where it lies              written
 *   SSD -> CPU       slot made invalid, read into it     sealed
 *
 * Take and put go by groups. Where the processor copies, a group is what its caches hold, so that a
 * page is verified and copied, or copied and summed, while it is near; a GPU or an SSD wants all at
 * once. A load of several pages has two groups at least, so that "midway" is a place.
 */
enum { GROUP_BYTES = 2 << 20 };

static struct tier *cpu_of(const struct tier_copy *copy)
{
    return copy->tiers[BLOCK_TIER_CPU];
}

static struct tier *ssd_of(const struct tier_copy *copy)
{
    return copy->tiers[BLOCK_TIER_SSD];
}

static size_t at_least_one(size_t count)
{
    return count > 0 ? count : 1;
}

static size_t group_count(const struct tier_copy *copy)
{
    const uint32_t page_bytes = cpu_of(copy)->page_bytes;

    if (copy->source == MOVE_SSD && copy->target == MOVE_ENGINE)
        return at_least_one(copy->staging_bytes / tier_stride_bytes(page_bytes));
    return copy->is_by_processor ? at_least_one(GROUP_BYTES / page_bytes)
                                 : at_least_one(copy->count);
}

/* The pages of [from, from + count) that are good so far, to or from the engine, in one call. */
static void copy_pages(struct tier_copy *copy, enum copy_direction direction, size_t from,
                       size_t count)
{
    size_t page_count = 0;
    int status;

    for (size_t i = from; i < from + count; i++) {
        if (copy->transfers[i].status == 0)
            copy->pages[page_count++] = (struct page_copy){
                .host = copy->transfers[i].payload, .engine_block = copy->blocks[i].engine_block};
    }
    if (page_count == 0)
        return;
    status = copy->memory->device->ops->copy(copy->memory->device, copy->memory, direction,
                                             copy->pages, page_count);
    for (size_t i = from; status < 0 && i < from + count; i++) {
        if (copy->transfers[i].status == 0)
            copy->transfers[i].status = -EFAULT;
    }
}

/* ---- taking ---- */

/* Names the CPU slot of each as where its bytes are; empties it where they are yet to come. */
static void aim_at_cpu(struct tier_copy *copy, size_t from, size_t count)
{
    struct tier *cpu = cpu_of(copy);

    for (size_t i = from; i < from + count; i++) {
        const uint32_t slot = copy->blocks[i].slots[BLOCK_TIER_CPU];

        if (slot == BLOCK_SLOT_NONE)
            continue;
        copy->transfers[i].slot = slot;
        copy->transfers[i].payload = cpu->ops->payload(cpu, slot);
        if (copy->source != MOVE_CPU)
            cpu->ops->invalidate(cpu, slot);
    }
}

static void take_from_ssd(struct tier_copy *copy, size_t from, size_t count, uint8_t *staging)
{
    struct tier *ssd = ssd_of(copy);
    const size_t stride = tier_stride_bytes(ssd->page_bytes);

    for (size_t i = from; i < from + count; i++) {
        if (copy->blocks[i].slots[BLOCK_TIER_CPU] == BLOCK_SLOT_NONE)
            copy->transfers[i].payload = staging + (i - from) * stride;
        copy->transfers[i].slot = copy->blocks[i].slots[BLOCK_TIER_SSD];
    }
    (void)ssd->ops->read(ssd, copy->transfers + from, count);
}

static void take(struct tier_copy *copy, size_t from, size_t count, void *staging)
{
    struct tier *cpu = cpu_of(copy);

    aim_at_cpu(copy, from, count);
    switch (copy->source) {
    case MOVE_CPU:
        for (size_t i = from; i < from + count; i++)
            copy->transfers[i].status = cpu->ops->verify(cpu, &copy->transfers[i]);
        break;
    case MOVE_SSD:
        take_from_ssd(copy, from, count, staging);
        break;
    case MOVE_ENGINE:
        for (size_t i = from; i < from + count; i++)
            copy->transfers[i].status = 0;
        copy_pages(copy, COPY_FROM_ENGINE, from, count);
        fault_point_pass(FAULT_SAVE_COPIED);
        break;
    }
}

/* ---- putting ---- */

static void seal(struct tier_copy *copy, size_t from, size_t count)
{
    struct tier *cpu = cpu_of(copy);

    for (size_t i = from; i < from + count; i++) {
        const uint32_t slot = copy->blocks[i].slots[BLOCK_TIER_CPU];

        if (slot == BLOCK_SLOT_NONE || copy->transfers[i].status < 0)
            continue;
        copy->transfers[i].slot = slot;
        cpu->ops->seal(cpu, &copy->transfers[i]);
    }
}

/* Those that proved good, run by run: mostly one. */
static void put_on_ssd(struct tier_copy *copy, size_t from, size_t count)
{
    struct tier *ssd = ssd_of(copy);
    size_t end = from + count;

    for (size_t at = from; at < end;) {
        size_t run = 0;

        while (at + run < end && copy->transfers[at + run].status == 0) {
            copy->transfers[at + run].slot = copy->blocks[at + run].slots[BLOCK_TIER_SSD];
            run++;
        }
        if (run > 0)
            (void)ssd->ops->write(ssd, copy->transfers + at, run);
        at += run + 1;
    }
}

static void put(struct tier_copy *copy, size_t from, size_t count)
{
    switch (copy->target) {
    case MOVE_CPU:
        seal(copy, from, count);
        if (copy->source == MOVE_ENGINE)
            fault_point_pass(FAULT_SAVE_SEALED);
        break;
    case MOVE_SSD:
        put_on_ssd(copy, from, count);
        break;
    case MOVE_ENGINE:
        copy_pages(copy, COPY_TO_ENGINE, from, count);
        if (copy->source == MOVE_SSD)
            seal(copy, from, count);
        if (from + count < copy->count)
            fault_point_pass(FAULT_LOAD_MIDWAY);
        break;
    }
}

void tier_copy_run(struct tier_copy *copy, void *staging)
{
    const uint64_t begun_us = clock_now_us();
    size_t group = group_count(copy);

    if (copy->target == MOVE_ENGINE && group > (copy->count + 1) / 2)
        group = at_least_one((copy->count + 1) / 2);
    for (size_t from = 0; from < copy->count; from += group) {
        const size_t left = copy->count - from;
        const size_t count = left < group ? left : group;

        take(copy, from, count, staging);
        put(copy, from, count);
    }
    copy->run_us = clock_now_us() - begun_us;
}
