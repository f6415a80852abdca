/* SPDX-License-Identifier: Apache-2.0 */

/*
 * tier_move: what moving pages costs beside moving bytes. Memory: pages of an engine on this host
 * (a memfd, 32 layers) into the CPU tier and back, against memcpy() of as many bytes; both
 * ways count. SSD: loads through the tier, verified,
 * against plain O_DIRECT reads, as many at once, from the same disk; saves, a batch a call. Then a
 * restart scan, counted up to a million slots. Both sides of a comparison take turns; medians
 * count.
 */
#include "kvtier/device/device.h"
#include "kvtier/tiers/slot_list.h"
#include "kvtier/tiers/tier.h"

#include "backends/runtime/random.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

enum {
    ROUNDS_MAX = 15,
    LAYERS = 32,
    BATCH_BYTES = 2 << 20, /* that are copied before they are sealed: what a cache holds */
    LOADERS = 2,           /* threads that load at once, as an agent has them */
    PLAIN_READERS_MAX = 64,
    LAYOUT = 0xbe,
    SCAN_PAGE_BYTES = 4096,
    SCAN_PORTION = 4096, /* slots a call */
};

static const double COPY_GOAL = 0.9, CHECKED_COPY_GOAL = 0.65;
static const double LOAD_GOAL = 0.9, SMALL_LOAD_GOAL = 0.7;
static const double SCAN_S_GOAL = 5;

static struct {
    uint64_t memory_bytes;
    uint64_t disk_bytes;
    uint32_t scan_slots;
    unsigned rounds;
} scale = {512 << 20, UINT64_C(1) << 30, 1000000, ROUNDS_MAX};

static bool is_reached = true;

static void judge(const char *what, double value, double goal, bool reached)
{
    printf("%-62s %6.2f  goal %5.2f  %s\n", what, value, goal, reached ? "REACHED" : "SHORT");
    is_reached &= reached;
}

static double clock_s(clockid_t clock)
{
    struct timespec now;

    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static double now_s(void)
{
    return clock_s(CLOCK_MONOTONIC);
}

/* Of the processor: of copies by one thread nothing else is asked. */
static double busy_s(void)
{
    return clock_s(CLOCK_THREAD_CPUTIME_ID);
}

static int compare(const void *left, const void *right)
{
    const double *a = left, *b = right;

    return (*a > *b) - (*a < *b);
}

static double median(const double *values)
{
    double sorted[ROUNDS_MAX];

    memcpy(sorted, values, scale.rounds * sizeof *values);
    qsort(sorted, scale.rounds, sizeof *sorted, compare);
    return sorted[scale.rounds / 2];
}

static uint8_t *pages_of(size_t bytes)
{
    uint8_t *pages = aligned_alloc(TIER_ALIGN_BYTES, bytes);

    if (pages == NULL)
        abort();
    memset(pages, 1, bytes);
    return pages;
}

static struct tier_transfer transfer_of(uint32_t slot, void *payload)
{
    return (struct tier_transfer){
        .slot = slot,
        .key = {.name = {.low = slot + UINT64_C(1), .high = 2}, .check = 3},
        .payload = payload,
    };
}

/* ---- memory ---- */

struct engine {
    struct device *device;
    struct engine_memory *memory;
    int fd;
};

static struct engine make_engine(uint32_t page_bytes)
{
    uint32_t blocks = (uint32_t)(scale.memory_bytes / page_bytes);
    struct engine engine = {.fd = memfd_create("engine", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
    struct engine_export from = {.kind = DEVICE_HOST,
                                 .layout = {.block_count = blocks,
                                            .region_count = 1,
                                            .segment_count = LAYERS,
                                            .region_bytes = {scale.memory_bytes}}};
    char why[DEVICE_WHY_BYTES];

    for (uint32_t i = 0; i < LAYERS; i++)
        from.layout.segments[i] = (struct page_segment){.offset = scale.memory_bytes / LAYERS * i,
                                                        .stride = page_bytes / LAYERS,
                                                        .bytes = page_bytes / LAYERS};
    from.fds[0] = engine.fd;
    if (engine.fd < 0 || ftruncate(engine.fd, (off_t)scale.memory_bytes) < 0 ||
        fcntl(engine.fd, F_ADD_SEALS, F_SEAL_SHRINK) < 0 || device_host_create(&engine.device) < 0)
        abort();
    if (engine.device->ops->import(engine.device, &from, &engine.memory, why) < 0) {
        fprintf(stderr, "%s\n", why);
        abort();
    }
    return engine;
}

static void drop_engine(struct engine *engine)
{
    engine_memory_unref(&engine->memory);
    engine->device->ops->destroy(engine->device);
    close(engine->fd);
}

static void copy(const struct engine *engine, struct tier *tier, uint32_t first, uint32_t count,
                 enum copy_direction direction)
{
    struct page_copy copies[BATCH_BYTES / 65536];

    for (uint32_t i = 0; i < count; i++)
        copies[i] = (struct page_copy){.host = tier->ops->payload(tier, first + i),
                                       .engine_block = first + i};
    if (engine->device->ops->copy(engine->device, engine->memory, direction, copies, count) < 0)
        abort();
}

static void save_batch(const struct engine *engine, struct tier *tier, uint32_t first,
                       uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        tier->ops->invalidate(tier, first + i);
    copy(engine, tier, first, count, COPY_FROM_ENGINE);
    for (uint32_t i = 0; i < count; i++) {
        struct tier_transfer transfer = transfer_of(first + i, NULL);

        tier->ops->seal(tier, &transfer);
    }
}

static void load_batch(const struct engine *engine, struct tier *tier, uint32_t first,
                       uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        struct tier_transfer transfer = transfer_of(first + i, NULL);

        if (tier->ops->verify(tier, &transfer) < 0)
            abort();
    }
    copy(engine, tier, first, count, COPY_TO_ENGINE);
}

/* All pages there and back. GB/s. */
static double round_trip(const struct engine *engine, struct tier *tier)
{
    uint32_t batch = tier->page_bytes < BATCH_BYTES ? BATCH_BYTES / tier->page_bytes : 1;
    double begin_s = busy_s();

    for (uint32_t at = 0; at < tier->slot_count; at += batch)
        save_batch(engine, tier, at, batch);
    for (uint32_t at = 0; at < tier->slot_count; at += batch)
        load_batch(engine, tier, at, batch);
    return 2e-9 * (double)scale.memory_bytes / (busy_s() - begin_s);
}

/* The same between two plain memories, a page a call. */
static double plain_round_trip(uint8_t *a, uint8_t *b, uint32_t page_bytes)
{
    double begin_s = busy_s();

    for (uint64_t at = 0; at < scale.memory_bytes; at += page_bytes)
        memcpy(b + at, a + at, page_bytes);
    for (uint64_t at = 0; at < scale.memory_bytes; at += page_bytes)
        memcpy(a + at, b + at, page_bytes);
    return 2e-9 * (double)scale.memory_bytes / (busy_s() - begin_s);
}

static struct tier *make_cpu_tier(uint32_t page_bytes, bool has_checksum)
{
    struct tier *tier;

    if (tier_cpu_create((struct tier_cpu_config){.bytes = scale.memory_bytes,
                                                 .page_bytes = page_bytes,
                                                 .layout = LAYOUT,
                                                 .has_checksum = has_checksum},
                        &tier) < 0)
        abort();
    return tier;
}

static void bench_memory(uint32_t page_bytes, uint8_t *a, uint8_t *b)
{
    struct engine engine = make_engine(page_bytes);
    struct tier *bare = make_cpu_tier(page_bytes, false),
                *checked = make_cpu_tier(page_bytes, true);
    double plain_gb[ROUNDS_MAX], bare_gb[ROUNDS_MAX], checked_gb[ROUNDS_MAX];
    double copied, verified;

    (void)round_trip(&engine, bare); /* the first touch of each page is the kernel's work */
    (void)round_trip(&engine, checked);
    for (unsigned i = 0; i < scale.rounds; i++) {
        plain_gb[i] = plain_round_trip(a, b, page_bytes);
        bare_gb[i] = round_trip(&engine, bare);
        checked_gb[i] = round_trip(&engine, checked);
    }
    copied = median(bare_gb) / median(plain_gb);
    verified = median(checked_gb) / median(plain_gb);
    printf("memory, pages of %u KiB: memcpy %.2f GB/s, tier %.2f, with checksums %.2f\n",
           page_bytes >> 10, median(plain_gb), median(bare_gb), median(checked_gb));
    if (page_bytes == 2 << 20) {
        judge("  of memcpy, without checksums", copied, COPY_GOAL, copied >= COPY_GOAL);
        judge("  of memcpy, with", verified, CHECKED_COPY_GOAL, verified >= CHECKED_COPY_GOAL);
    } else {
        printf("  of memcpy, without checksums %.2f, with %.2f\n", copied, verified);
    }
    bare->ops->destroy(bare);
    checked->ops->destroy(checked);
    drop_engine(&engine);
}

/* ---- SSD ---- */

static int remove_one(const char *path, const struct stat *stat, int kind, struct FTW *at)
{
    (void)stat, (void)kind, (void)at;
    return remove(path);
}

static struct tier *make_ssd_tier(const char *dir, uint32_t page_bytes, uint64_t slots)
{
    char why[TIER_WHY_BYTES];
    struct tier *tier;
    uint64_t bytes = slots * (tier_stride_bytes(page_bytes) + TIER_ALIGN_BYTES) +
                     (slots / SLOT_LIST_SLOTS + 1) * SLOT_LIST_BYTES;

    if (tier_ssd_create((struct tier_ssd_config){.dir = dir,
                                                 .bytes = bytes + bytes / 1000 + 65536,
                                                 .page_bytes = page_bytes,
                                                 .layout = LAYOUT,
                                                 .may_use_uring = true,
                                                 .may_use_direct = true,
                                                 .file_bytes = UINT64_C(1) << 40},
                        &tier, why) < 0) {
        fprintf(stderr, "%s\n", why);
        exit(77);
    }
    return tier;
}

/* What several threads read: places in an order of no meaning. */
struct reading {
    struct tier *tier; /* NULL: plainly, from fd */
    int fd;
    uint32_t page_bytes;
    uint32_t page_count;
    uint32_t first, step; /* this thread's: first, first + step, ... */
    uint32_t batch;       /* through the tier: so many a call */
    const uint32_t *order;
    uint8_t *pages;
};

static void *read_plainly(void *ctx)
{
    struct reading *reading = ctx;

    for (uint32_t i = reading->first; i < reading->page_count; i += reading->step)
        if (pread(reading->fd, reading->pages, reading->page_bytes,
                  (off_t)((uint64_t)reading->order[i] * reading->page_bytes)) !=
            (ssize_t)reading->page_bytes)
            abort();
    return NULL;
}

static void *read_by_tier(void *ctx)
{
    struct reading *reading = ctx;
    struct tier_transfer transfers[PLAIN_READERS_MAX];

    for (uint32_t i = reading->first; i < reading->page_count;) {
        uint32_t count = 0;

        for (; count < reading->batch && i < reading->page_count; i += reading->step, count++)
            transfers[count] = transfer_of(reading->order[i],
                                           reading->pages + (size_t)count * reading->page_bytes);
        if (reading->tier->ops->read(reading->tier, transfers, count) != count)
            abort();
    }
    return NULL;
}

/* GB/s of so many threads. */
static double read_all(struct reading reading, unsigned threads, void *(*run)(void *))
{
    struct reading readings[PLAIN_READERS_MAX];
    pthread_t ids[PLAIN_READERS_MAX];
    double begin_s = now_s();

    for (unsigned i = 0; i < threads; i++) {
        readings[i] = reading;
        readings[i].first = i;
        readings[i].step = threads;
        readings[i].pages += (size_t)i * reading.batch * reading.page_bytes;
        if (pthread_create(&ids[i], NULL, run, &readings[i]) != 0)
            abort();
    }
    for (unsigned i = 0; i < threads; i++)
        (void)pthread_join(ids[i], NULL);
    return 1e-9 * (double)reading.page_count * reading.page_bytes / (now_s() - begin_s);
}

static void fill(struct tier *tier, int plain_fd, uint32_t count)
{
    uint8_t *page = pages_of(tier->page_bytes);
    uint64_t state = 1;

    for (uint32_t slot = 0; slot < count; slot++) {
        struct tier_transfer transfer = transfer_of(slot, page);

        for (size_t i = 0; i < tier->page_bytes; i += sizeof state) {
            uint64_t value = random_next(&state);

            memcpy(page + i, &value, sizeof value);
        }
        if (tier->ops->write(tier, &transfer, 1) != 1 ||
            pwrite(plain_fd, page, tier->page_bytes, (off_t)((uint64_t)slot * tier->page_bytes)) !=
                (ssize_t)tier->page_bytes) {
            fprintf(stderr, "the disk does not take it: status %d\n", transfer.status);
            exit(77);
        }
    }
    free(page);
}

static void shuffle(uint32_t *order, uint32_t count)
{
    uint64_t state = 7;

    for (uint32_t i = 0; i < count; i++)
        order[i] = i;
    for (uint32_t i = count; i > 1; i--) {
        uint32_t j = (uint32_t)(random_next(&state) % i), kept = order[i - 1];

        order[i - 1] = order[j];
        order[j] = kept;
    }
}

static void measure_reads(struct reading reading, uint32_t depth, const char *way)
{
    struct reading through = reading;
    double plain_gb[ROUNDS_MAX], tier_gb[ROUNDS_MAX], share;
    double goal = reading.page_bytes == 2 << 20 ? LOAD_GOAL : SMALL_LOAD_GOAL;

    reading.batch = 1;
    through.batch = depth / LOADERS;
    for (unsigned i = 0; i < scale.rounds; i++) {
        plain_gb[i] = read_all(reading, depth, read_plainly);
        tier_gb[i] = read_all(through, LOADERS, read_by_tier);
    }
    share = median(tier_gb) / median(plain_gb);
    printf("SSD (%s), pages of %u KiB, %u at once: pread %.2f GB/s, tier %.2f\n", way,
           reading.page_bytes >> 10, depth, median(plain_gb), median(tier_gb));
    if (reading.page_bytes == 2 << 20 || reading.page_bytes == 64 << 10)
        judge("  of pread, with checksums", share, goal, share >= goal);
    else
        printf("  of pread, with checksums %.2f\n", share);
}

/* All pages, a batch a call, into slots that hold others. GB/s. */
static double write_by_tier(const struct reading *reading, uint32_t batch)
{
    struct tier_transfer transfers[PLAIN_READERS_MAX];
    double begin_s = now_s();

    for (uint32_t at = 0; at < reading->page_count; at += batch) {
        uint32_t count = reading->page_count - at < batch ? reading->page_count - at : batch;

        for (uint32_t i = 0; i < count; i++)
            transfers[i] = transfer_of(reading->order[at + i],
                                       reading->pages + (size_t)i * reading->page_bytes);
        if (reading->tier->ops->write(reading->tier, transfers, count) != count)
            abort();
    }
    return 1e-9 * (double)reading->page_count * reading->page_bytes / (now_s() - begin_s);
}

/* In an order of no meaning, where each slot of a batch is on a list of its own, and in theirs. */
static void measure_writes(struct reading reading, uint32_t depth)
{
    enum { WRITE_ROUNDS = 3 };
    uint32_t *in_order = calloc(reading.page_count, sizeof *in_order);
    const uint32_t *shuffled = reading.order;
    double best_gb[2] = {0, 0};

    if (in_order == NULL)
        abort();
    for (uint32_t i = 0; i < reading.page_count; i++)
        in_order[i] = i;
    for (int i = 0; i < 2 * WRITE_ROUNDS; i++) {
        double gb;

        reading.order = i % 2 == 0 ? shuffled : in_order;
        gb = write_by_tier(&reading, depth);
        if (gb > best_gb[i % 2])
            best_gb[i % 2] = gb;
    }
    printf("  saved, %u at once: %.2f GB/s to neighbours, %.2f to slots anywhere\n", depth,
           best_gb[1], best_gb[0]);
    free(in_order);
}

static void bench_ssd(const char *dir, uint32_t page_bytes, uint32_t depth)
{
    uint32_t count = (uint32_t)(scale.disk_bytes / page_bytes);
    struct tier *tier = make_ssd_tier(dir, page_bytes, count);
    uint32_t *order = calloc(count, sizeof *order);
    char path[256];
    int fd;

    snprintf(path, sizeof path, "%s/../plain", dir);
    fd = open(path, O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600);
    if (fd < 0 || strstr(tier_ssd_way(tier), "O_DIRECT") == NULL) {
        printf("SSD: not measured, %s has no O_DIRECT (name another with --dir)\n", dir);
        exit(77);
    }
    if (order == NULL || fallocate(fd, 0, 0, (off_t)count * page_bytes) < 0)
        abort();
    fill(tier, fd, count);
    shuffle(order, count);
    struct reading reading = {.tier = tier,
                              .fd = fd,
                              .page_bytes = page_bytes,
                              .page_count = count,
                              .order = order,
                              .pages = pages_of((size_t)depth * page_bytes)};
    measure_reads(reading, depth, tier_ssd_way(tier));
    measure_writes(reading, depth);
    free(reading.pages);
    free(order);
    close(fd);
    unlink(path);
    tier->ops->destroy(tier);
}

/* ---- restart ---- */

static double scan(struct tier *tier, uint32_t slots, uint32_t expected)
{
    struct tier_slot_found *found = calloc(SCAN_PORTION, sizeof *found);
    double begin_s = now_s();
    uint32_t count = 0;

    if (found == NULL)
        abort();
    for (uint32_t at = 0; at < slots; at += SCAN_PORTION) {
        uint32_t left = slots - at;
        int status = tier->ops->scan(tier, at, left < SCAN_PORTION ? left : SCAN_PORTION, found);

        if (status < 0)
            abort();
        count += (uint32_t)status;
    }
    free(found);
    if (count != expected)
        abort();
    return now_s() - begin_s;
}

static void write_slots(struct tier *tier, uint32_t slots)
{
    enum { AT_ONCE = 128 };
    struct tier_transfer transfers[AT_ONCE];
    uint8_t *page = pages_of(SCAN_PAGE_BYTES);

    for (uint32_t at = 0; at < slots; at += AT_ONCE) {
        uint32_t count = slots - at < AT_ONCE ? slots - at : AT_ONCE;

        for (uint32_t i = 0; i < count; i++)
            transfers[i] = transfer_of(at + i, page);
        if (tier->ops->write(tier, transfers, count) != count)
            abort();
    }
    free(page);
}

/* A part of the slots, written for real by a life before, and counted up. */
static void bench_scan(const char *dir)
{
    uint32_t written = scale.scan_slots / 5;
    struct tier *tier = make_ssd_tier(dir, SCAN_PAGE_BYTES, written);
    double took_s;

    write_slots(tier, written);
    tier->ops->destroy(tier);
    tier = make_ssd_tier(dir, SCAN_PAGE_BYTES, written);
    took_s = scan(tier, written, written);
    printf("restart: %u slots found in %.3f s, %.0f a second\n", written, took_s, written / took_s);
    took_s *= 1e6 / written;
    judge("  s a million", took_s, SCAN_S_GOAL, took_s <= SCAN_S_GOAL);
    tier->ops->destroy(tier);
}

/* ---- all ---- */

static void bench_memories(void)
{
    uint8_t *a = pages_of(scale.memory_bytes), *b = pages_of(scale.memory_bytes);

    bench_memory(64 << 10, a, b);
    bench_memory(512 << 10, a, b);
    bench_memory(2 << 20, a, b);
    free(a);
    free(b);
}

static char bench_dir[200];

static void remove_bench_dir(void)
{
    (void)nftw(bench_dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static void bench_disk(const char *where)
{
    char tier_dir[210];

    snprintf(bench_dir, sizeof bench_dir, "%s/tier_move-XXXXXX", where);
    if (mkdtemp(bench_dir) == NULL || atexit(remove_bench_dir) != 0) {
        printf("%s: %s\n", where, strerror(errno));
        exit(77);
    }
    snprintf(tier_dir, sizeof tier_dir, "%s/ssd", bench_dir);
    bench_ssd(tier_dir, 64 << 10, 32);
    (void)nftw(tier_dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    bench_ssd(tier_dir, 2 << 20, 8);
    (void)nftw(tier_dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    bench_scan(tier_dir);
}

int main(int argc, char **argv)
{
    const char *where = "/var/tmp";
    bool is_disk_only = false;

    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--quick") == 0) {
            scale.memory_bytes = 64 << 20;
            scale.disk_bytes = 64 << 20;
            scale.scan_slots = 100000;
            scale.rounds = 3;
        } else if (strcmp(argv[i], "--disk-only") == 0) {
            is_disk_only = true;
        } else if (strcmp(argv[i], "--dir") == 0 && i + 1 < argc) {
            where = argv[++i];
        } else {
            fprintf(stderr, "usage: tier_move [--quick] [--disk-only] [--dir DIR-ON-THE-DISK]\n");
            return 2;
        }
    }
    if (!is_disk_only)
        bench_memories();
    bench_disk(where);
    printf("%s\n", is_reached ? "verdict: REACHED" : "verdict: SHORT of the goal");
    return is_reached ? 0 : 1;
}
