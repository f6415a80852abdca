/* SPDX-License-Identifier: Apache-2.0 */

/*
 * store_world: a tier_store with real CPU memory, an SSD and an engine that do as they are told:
 * fail, corrupt, are slow. Every page says whose it is, so that a wrong one is seen. The observer
 * keeps what it was told, and checks the order in which it is told.
 */
#ifndef TESTS_SUPPORT_STORE_WORLD_H
#define TESTS_SUPPORT_STORE_WORLD_H

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backends/io_loop.h"
#include "kvtier/device/device.h"
#include "kvtier/tiers/eviction.h"
#include "kvtier/tiers/tier.h"
#include "kvtier/tiers/tier_store_parts.h"

enum { WORLD_PAGE_BYTES = 4096, WORLD_ENGINE_BLOCKS = 512, WORLD_NAME_MAX = 4096 };

/* ---- an SSD of memory ---- */

struct fake_slot {
    bool is_written;
    bool is_spoilt; /* its bytes are not what was written */
    unsigned long era;
    struct tier_slot_found found;
    uint8_t payload[WORLD_PAGE_BYTES];
};

struct fake_ssd {
    struct tier tier;
    struct fake_slot *slots; /* borrowed: outlives the tier, as a disk does */
    atomic_ulong *disk_era;  /* borrowed likewise: slots of it are found by the next life */
    atomic_ulong era;        /* that counts in this one */
    atomic_int clear_status; /* what clears come to: 0, -EIO */
    atomic_uint clear_count;
    atomic_uint erase_count; /* slots */
    atomic_int write_status; /* what writes come to: 0, -EIO, -ENOSPC */
    atomic_int read_status;  /* what reads come to */
    atomic_uint delay_us;    /* of each call */
    atomic_uint write_count; /* slots */
    atomic_uint read_count;
    atomic_ulong sequence;
};

static inline struct fake_ssd *fake_ssd_of(struct tier *tier)
{
    return (struct fake_ssd *)(void *)tier;
}

static inline void fake_ssd_wait(struct fake_ssd *ssd)
{
    const unsigned us = atomic_load(&ssd->delay_us);

    if (us > 0)
        usleep(us);
}

static size_t fake_ssd_write(struct tier *tier, struct tier_transfer *transfers, size_t count)
{
    struct fake_ssd *ssd = fake_ssd_of(tier);
    const int status = atomic_load(&ssd->write_status);
    const unsigned long era = atomic_load(&ssd->era);

    if (status == 0)
        atomic_store(ssd->disk_era, era);
    fake_ssd_wait(ssd);
    for (size_t i = 0; i < count; i++) {
        struct fake_slot *slot = &ssd->slots[transfers[i].slot];

        transfers[i].status = status;
        if (status < 0)
            continue;
        slot->is_written = true;
        slot->is_spoilt = false;
        slot->era = era;
        slot->found = (struct tier_slot_found){
            .slot = transfers[i].slot,
            .key = transfers[i].key,
            .parent = transfers[i].parent,
            .depth = transfers[i].depth,
            .sequence = atomic_fetch_add(&ssd->sequence, 1) + 1,
        };
        memcpy(slot->payload, transfers[i].payload, WORLD_PAGE_BYTES);
        atomic_fetch_add(&ssd->write_count, 1);
    }
    return status < 0 ? 0 : count;
}

static size_t fake_ssd_read(struct tier *tier, struct tier_transfer *transfers, size_t count)
{
    struct fake_ssd *ssd = fake_ssd_of(tier);
    size_t good = 0;

    fake_ssd_wait(ssd);
    for (size_t i = 0; i < count; i++) {
        const struct fake_slot *slot = &ssd->slots[transfers[i].slot];

        transfers[i].status = atomic_load(&ssd->read_status);
        if (!slot->is_written || slot->is_spoilt || slot->era != atomic_load(&ssd->era) ||
            !block_key_equal(slot->found.key, transfers[i].key))
            transfers[i].status = -EBADMSG;
        atomic_fetch_add(&ssd->read_count, 1);
        if (transfers[i].status < 0)
            continue;
        memcpy(transfers[i].payload, slot->payload, WORLD_PAGE_BYTES);
        good++;
    }
    return good;
}

static void fake_ssd_erase(struct tier *tier, const uint32_t *slots, size_t count)
{
    struct fake_ssd *ssd = fake_ssd_of(tier);

    fake_ssd_wait(ssd);
    for (size_t i = 0; i < count; i++)
        ssd->slots[slots[i]].is_written = false;
    atomic_fetch_add(&ssd->erase_count, (unsigned)count);
}

static int fake_ssd_scan(struct tier *tier, uint32_t first, uint32_t count,
                         struct tier_slot_found *found)
{
    struct fake_ssd *ssd = fake_ssd_of(tier);
    int found_count = 0;

    fake_ssd_wait(ssd);
    for (uint32_t slot = first; slot < first + count; slot++) {
        if (ssd->slots[slot].is_written && ssd->slots[slot].era == atomic_load(&ssd->era))
            found[found_count++] = ssd->slots[slot].found;
    }
    return found_count;
}

static int fake_ssd_clear(struct tier *tier)
{
    struct fake_ssd *ssd = fake_ssd_of(tier);
    const int status = atomic_load(&ssd->clear_status);

    fake_ssd_wait(ssd);
    atomic_fetch_add(&ssd->era, 1);
    atomic_fetch_add(&ssd->clear_count, 1);
    if (status == 0)
        atomic_store(ssd->disk_era, atomic_load(&ssd->era));
    return status;
}

static void fake_ssd_destroy(struct tier *tier)
{
    free(fake_ssd_of(tier));
}

static const struct tier_ops fake_ssd_ops = {
    .name = "ssd",
    .write = fake_ssd_write,
    .read = fake_ssd_read,
    .erase = fake_ssd_erase,
    .scan = fake_ssd_scan,
    .clear = fake_ssd_clear,
    .destroy = fake_ssd_destroy,
};

/* ---- an engine of memory ---- */

struct fake_device {
    struct device device;
    atomic_int status;    /* what copies come to */
    atomic_uint delay_us; /* of each copy() */
    atomic_uint page_count;
};

struct fake_engine {
    struct engine_memory memory;
    struct page_layout layout;
    bool is_unmapped;
    uint8_t pages[WORLD_ENGINE_BLOCKS][WORLD_PAGE_BYTES];
};

static int fake_copy(struct device *device, struct engine_memory *memory,
                     enum copy_direction direction, const struct page_copy *pages,
                     size_t page_count)
{
    struct fake_device *fake = container_of(device, struct fake_device, device);
    struct fake_engine *engine = container_of(memory, struct fake_engine, memory);
    const unsigned us = atomic_load(&fake->delay_us);

    assert(!engine->is_unmapped);
    if (us > 0)
        usleep(us);
    for (size_t i = 0; i < page_count; i++) {
        uint8_t *page = engine->pages[pages[i].engine_block];

        if (direction == COPY_TO_ENGINE)
            memcpy(page, pages[i].host, WORLD_PAGE_BYTES);
        else
            memcpy(pages[i].host, page, WORLD_PAGE_BYTES);
    }
    atomic_fetch_add(&fake->page_count, (unsigned)page_count);
    return atomic_load(&fake->status);
}

static void fake_unmap(struct device *device, struct engine_memory *memory)
{
    (void)device;
    container_of(memory, struct fake_engine, memory)->is_unmapped = true;
}

static const struct device_ops fake_device_ops = {
    .name = "fake", .copy = fake_copy, .unmap = fake_unmap};

/* ---- the world ---- */

struct world_config {
    uint32_t cpu_slots;
    uint32_t ssd_slots; /* 0: no SSD */
    uint32_t threads;   /* of loads, and of saves; 0: 1 */
    uint32_t job_count_max;
    uint64_t write_bytes_per_s;
};

struct world {
    struct io_loop *io;
    struct world_config config;
    struct tier_store *store;
    struct fake_ssd *ssd;
    struct fake_slot *disk; /* what outlives the store */
    atomic_ulong disk_era;  /* likewise */
    struct fake_device device;
    struct fake_engine *engine;
    uint8_t told[WORLD_NAME_MAX]; /* tiers of each block by number, as those who watch have it */
    uint32_t parents[WORLD_NAME_MAX]; /* by number; 0: none */
    unsigned told_count;
    bool checks_order; /* a parent is told before, and leaves after, its child */
    bool is_closed;
};

/* Block number n has the name n; what it follows is said by whoever saves it. */
static inline struct block_key world_key(uint32_t number)
{
    return (struct block_key){{number, ~(uint64_t)number}, number * 7u};
}

static inline struct digest_128 world_name(uint32_t number)
{
    return number == 0 ? (struct digest_128){0, 0} : world_key(number).name;
}

static inline void world_fill(uint8_t *page, uint32_t number)
{
    for (size_t i = 0; i < WORLD_PAGE_BYTES / sizeof number; i++)
        memcpy(page + i * sizeof number, &(uint32_t){number * 2654435761u + (uint32_t)i},
               sizeof number);
}

static inline bool world_is_page(const uint8_t *page, uint32_t number)
{
    uint8_t expected[WORLD_PAGE_BYTES];

    world_fill(expected, number);
    return memcmp(page, expected, sizeof expected) == 0;
}

static void world_on_changed(void *ctx, struct block_key key, struct digest_128 parent,
                             uint32_t depth, uint8_t tiers)
{
    struct world *world = ctx;
    const uint32_t number = (uint32_t)key.name.low;

    assert(number > 0 && number < WORLD_NAME_MAX);
    assert((depth == 0) == (parent.low == 0));
    if (world->checks_order && tiers != 0 && parent.low != 0)
        assert(world->told[parent.low] != 0);
    if (world->checks_order && tiers == 0) {
        for (uint32_t child = 1; child < WORLD_NAME_MAX; child++)
            assert(world->parents[child] != number || world->told[child] == 0);
    }
    world->parents[number] = (uint32_t)parent.low;
    world->told[number] = tiers;
    world->told_count++;
}

/* Also as a restart: what is on world->disk is found again. */
static inline void world_open(struct world *world)
{
    const struct world_config config = world->config;
    struct tier *tiers[BLOCK_TIER_COUNT] = {NULL, NULL};
    int status = tier_cpu_create(
        (struct tier_cpu_config){.bytes = (uint64_t)config.cpu_slots * WORLD_PAGE_BYTES,
                                 .page_bytes = WORLD_PAGE_BYTES,
                                 .layout = 1,
                                 .has_checksum = true},
        &tiers[BLOCK_TIER_CPU]);

    assert(status == 0);
    if (config.ssd_slots > 0) {
        world->ssd = calloc(1, sizeof *world->ssd);
        world->ssd->tier = (struct tier){&fake_ssd_ops, WORLD_PAGE_BYTES, config.ssd_slots, 1};
        world->ssd->slots = world->disk;
        world->ssd->disk_era = &world->disk_era;
        atomic_store(&world->ssd->era, atomic_load(&world->disk_era));
        tiers[BLOCK_TIER_SSD] = &world->ssd->tier;
    }
    status = tier_store_assemble(
        (struct tier_store_config){
            .io = world->io,
            .devices = {&world->device.device, NULL},
            .page_bytes = WORLD_PAGE_BYTES,
            .layout = 1,
            .eviction = &eviction_lru_leaf,
            .load_threads = config.threads > 0 ? config.threads : 1,
            .save_threads = config.threads > 0 ? config.threads : 1,
            .job_count_max = config.job_count_max > 0 ? config.job_count_max : 64,
            .write_bytes_per_s = config.write_bytes_per_s,
            .has_checksum = true,
            .on_changed = world_on_changed,
            .ctx = world,
        },
        tiers, &world->store);
    assert(status == 0);
    world->is_closed = false;
}

static inline struct world *world_create(struct io_loop *io, struct world_config config)
{
    struct world *world = calloc(1, sizeof *world);

    world->io = io;
    world->config = config;
    world->checks_order = true;
    world->device.device = (struct device){&fake_device_ops, .is_by_processor = true};
    world->disk = calloc(config.ssd_slots + 1, sizeof *world->disk);
    world->engine = calloc(1, sizeof *world->engine);
    world->engine->layout.block_count = WORLD_ENGINE_BLOCKS;
    world->engine->memory = (struct engine_memory){
        .device = &world->device.device, .layout = &world->engine->layout, .references = 1};
    world_open(world);
    return world;
}

static inline void world_run(struct world *world)
{
    uv_run(&world->io->loop, UV_RUN_ONCE);
}

static void world_on_closed(void *ctx)
{
    struct world *world = ctx;

    world->is_closed = true;
}

static inline void world_close(struct world *world)
{
    tier_store_close(&world->store, world_on_closed, world);
    while (!world->is_closed)
        world_run(world);
}

static inline void world_destroy(struct world *world)
{
    struct engine_memory *memory = &world->engine->memory;

    if (world->store != NULL)
        world_close(world);
    engine_memory_unref(&memory);
    assert(world->engine->is_unmapped); /* no job has kept it */
    free(world->engine);
    free(world->disk);
    free(world);
}

/* Until nothing is under way, background work included. */
static inline void world_settle(struct world *world)
{
    while (world->store->jobs.count > 0 || world->store->scan != NULL ||
           tier_erase_is_busy(world->store))
        world_run(world);
}

/* ---- what engines do ---- */

struct world_save {
    struct world *world;
    bool may_not_commit;
    uint32_t has_used; /* blocks, from the first on, that the same request loaded before */
    bool is_done;
    struct tier_saved saved;
};

static bool world_may_commit(void *ctx)
{
    const struct world_save *save = ctx;

    return !save->may_not_commit;
}

static void world_on_saved(void *ctx, struct tier_saved saved)
{
    struct world_save *save = ctx;

    assert(!save->is_done);
    save->is_done = true;
    save->saved = saved;
}

/* Blocks first..first + count - 1, each behind the one before it; depth of the first. parent: what
 * the first follows. They are in the engine's blocks of the same number. */
static inline int world_begin_save_at(struct world *world, struct world_save *save, uint32_t first,
                                      uint32_t count, uint32_t parent, uint32_t depth)
{
    struct tier_save blocks[WORLD_ENGINE_BLOCKS];

    save->world = world;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t engine_block = (first + i) % WORLD_ENGINE_BLOCKS;

        world_fill(world->engine->pages[engine_block], first + i);
        blocks[i] = (struct tier_save){
            .key = world_key(first + i),
            .parent = world_name(i == 0 ? parent : first + i - 1),
            .depth = depth + i,
            .engine_block = engine_block,
            .is_used = i < save->has_used,
        };
    }
    return tier_store_save(world->store, blocks, count, &world->engine->memory, world_may_commit,
                           world_on_saved, save);
}

static inline struct tier_saved world_save_behind(struct world *world, uint32_t first,
                                                  uint32_t count, uint32_t parent, uint32_t depth)
{
    struct world_save save = {0};
    int status = world_begin_save_at(world, &save, first, count, parent, depth);

    assert(status == 0 && !save.is_done);
    while (!save.is_done)
        world_run(world);
    return save.saved;
}

static inline struct tier_saved world_save(struct world *world, uint32_t first, uint32_t count)
{
    return world_save_behind(world, first, count, 0, 0);
}

struct world_load {
    bool is_done;
    uint32_t loaded;
};

static void world_on_loaded(void *ctx, uint32_t loaded)
{
    struct world_load *load = ctx;

    assert(!load->is_done);
    load->is_done = true;
    load->loaded = loaded;
}

static inline size_t world_keys(struct block_key *keys, uint32_t first, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        keys[i] = world_key(first + i);
    return count;
}

static inline struct tier_hold *world_hold(struct world *world, uint32_t first, uint32_t count,
                                           uint64_t ms)
{
    struct block_key keys[WORLD_ENGINE_BLOCKS];

    struct tier_hold *hold =
        tier_store_hold(world->store, keys, world_keys(keys, first, count), ms);

    if (hold != NULL)
        tier_hold_use(hold, 0, tier_hold_count(hold));
    return hold;
}

static inline int world_begin_load(struct world *world, struct world_load *load,
                                   struct tier_hold *hold, uint32_t first, uint32_t count)
{
    uint32_t engine_blocks[WORLD_ENGINE_BLOCKS];

    for (uint32_t i = 0; i < count; i++)
        engine_blocks[i] = i;
    memset(world->engine->pages, 0, sizeof world->engine->pages);
    return tier_store_load(world->store, hold, first, count, &world->engine->memory, engine_blocks,
                           world_on_loaded, load);
}

/* Holds, loads into the engine's first blocks, checks each page and lets go. How many came. */
static inline uint32_t world_load(struct world *world, uint32_t first, uint32_t count)
{
    struct tier_hold *hold = world_hold(world, first, count, 10000);
    struct world_load load = {0};
    int status;

    if (hold == NULL)
        return 0;
    status = world_begin_load(world, &load, hold, 0, (uint32_t)tier_hold_count(hold));
    assert(status == 0 && !load.is_done);
    while (!load.is_done)
        world_run(world);
    for (uint32_t i = 0; i < load.loaded; i++)
        assert(world_is_page(world->engine->pages[i], first + i));
    tier_hold_release(&hold);
    return load.loaded;
}

static inline size_t world_match(struct world *world, uint32_t first, uint32_t count,
                                 uint8_t *tiers)
{
    struct block_key keys[WORLD_ENGINE_BLOCKS];

    return tier_store_match(world->store, keys, world_keys(keys, first, count), tiers);
}

#endif
