/* SPDX-License-Identifier: Apache-2.0 */

/*
 * gpu_check: the agent's device against a GPU, with an engine in another process: what the driver
 * has, what was measured at the start, whether pages come and go unharmed while the engine
 * computes, how fast, and what that costs the engine. Prints tables; its exit status is about right
 * bytes alone. --small: sizes for the fake driver.
 */

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "backends/runtime/must_check.h"
#include "kvtier/device/cuda_device.h"
#include "kvtier/device/cuda_driver.h"
#include "tests/gpu/gpu_peer.h"

enum { ROUNDS = 3, SECONDS_MAX = 1 };

struct check {
    struct device *device;
    struct engine_memory *memory;
    int socket;
    uint8_t *arena;
    size_t arena_bytes;
    double peak[2]; /* GB/s, by direction, of the first layout that is timed */
    int fault_count;
};

struct shape {
    const char *name;
    struct peer_layout layout;
    double goal; /* of the peak; 0: it is the peak, or not judged */
};

/* clang-format off */
static const struct shape real_shapes[] = {
    {"one contiguous 64 MiB",   {1, 8, 64 << 20},   0},
    {"2 MiB pieces",            {1, 256, 2 << 20},  0.9},
    {"64 KiB pieces",           {32, 256, 64 << 10}, 0.7},
    {"16 KiB pieces",           {64, 256, 16 << 10}, 0},
    {"4 KiB pieces",            {64, 512, 4 << 10}, 0},
    {"656 B pieces",            {61, 512, 656},     0},
    {"odd pieces of 1001 B",    {61, 512, 1001},    0},
};
static const struct shape small_shapes[] = {
    {"one contiguous 64 KiB",   {1, 8, 64 << 10},   0},
    {"4 KiB pieces",            {16, 8, 4 << 10},   0},
    {"odd pieces of 1001 B",    {20, 8, 1001},      0},
};
/* clang-format on */

static double now_s(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void fault(struct check *check, const char *what, double number)
{
    check->fault_count++;
    printf("WRONG: %s (%.0f)\n", what, number);
}

/* The answer's value; a refusal is a fault. */
static double tell(struct check *check, struct peer_message message, struct engine_export *told)
{
    static struct peer_answer answer;

    if (!gpu_peer_tell(check->socket, message, &answer)) {
        fault(check, "the engine's process is gone", message.order);
        return 0;
    }
    if (answer.status != 0)
        fault(check, "the engine was refused something by the driver", answer.status);
    if (told != NULL)
        *told = answer.told;
    return answer.value;
}

/* ---- what there is ---- */

static void print_driver(void)
{
    static const struct {
        const char *name;
        int version;
    } rows[] = {
#define CHECK_ROW(member, name, version, parameters) {#name, version},
        CUDA_DRIVER_SYMBOLS(CHECK_ROW)
#undef CHECK_ROW
    };
    struct cuda_driver driver;
    char why[DEVICE_WHY_BYTES];

    if (cuda_driver_load(&driver, why) < 0)
        return; /* said by whoever makes the device */
    printf("driver of CUDA %d.%d; %zu functions found:", driver.version / 1000,
           driver.version % 1000 / 10, array_count(rows));
    for (size_t i = 0; i < array_count(rows); i++)
        printf(" %s(%d)", rows[i].name, rows[i].version);
    printf("\ncuMemcpyBatchAsync(12080): %s\n", driver.copy_batch != NULL ? "found" : "NOT FOUND");
    cuda_driver_unload(&driver);
}

static void print_table(const struct copy_table *table)
{
    static const char *const directions[] = {"to engine", "from engine"};
    static const char *const ways[] = {"batch", "gather"};

    printf("\n%-12s %8s %6s %11s %11s  way\n", "measured", "piece B", "count", "batch us",
           "gather us");
    for (size_t direction = 0; direction < COPY_DIRECTIONS; direction++) {
        for (size_t size = 0; size < COPY_TABLE_SIZES; size++) {
            for (size_t count = 0; count < COPY_TABLE_COUNTS; count++) {
                const struct copy_cell *cell = &table->cells[direction][size][count];

                printf("%-12s %8u %6u %11.1f %11.1f  %s\n", directions[direction],
                       copy_table_piece_bytes[size], copy_table_piece_counts[count],
                       cell->us[COPY_BATCH], cell->us[COPY_GATHER], ways[cell->way]);
            }
        }
    }
    printf("\n");
}

/* ---- right bytes ---- */

static size_t page_bytes(const struct shape *shape)
{
    return (size_t)shape->layout.layers * shape->layout.piece_bytes;
}

/* The even blocks, each in a place of its own in the arena, backwards. */
static size_t even_pages(const struct check *check, const struct shape *shape,
                         struct page_copy *pages)
{
    size_t count = 0;

    for (uint32_t block = 0; block < shape->layout.blocks; block += 2, count++)
        pages[count] = (struct page_copy){
            .host = check->arena + (shape->layout.blocks / 2 - 1 - count) * page_bytes(shape),
            .engine_block = block};
    return count;
}

static double wrong_bytes(const struct shape *shape, const struct page_copy *pages, size_t count,
                          uint32_t number)
{
    double wrong = 0;

    for (size_t i = 0; i < count; i++) {
        const uint8_t *page = pages[i].host;

        for (size_t at = 0; at < page_bytes(shape); at++)
            wrong += page[at] != peer_pattern(number, pages[i].engine_block, at);
    }
    return wrong;
}

static void copy(struct check *check, enum copy_direction direction, const struct page_copy *pages,
                 size_t count)
{
    if (check->device->ops->copy(check->device, check->memory, direction, pages, count) < 0)
        fault(check, "a copy failed", direction);
}

/* Saves what the engine is still computing, loads other bytes while it still computes; the blocks
 * between are canaries. */
static void check_bytes(struct check *check, const struct shape *shape, struct page_copy *pages)
{
    size_t count = even_pages(check, shape, pages);

    for (uint32_t number = 1; number < 2 * ROUNDS; number += 2) {
        memset(check->arena, 0xdd, count * page_bytes(shape));
        tell(check, (struct peer_message){.order = PEER_COMPUTE, .number = number}, NULL);
        copy(check, COPY_FROM_ENGINE, pages, count);
        double wrong = wrong_bytes(shape, pages, count, number);
        if (wrong > 0)
            fault(check, "saved bytes differ from what was computed", wrong);

        for (size_t i = 0; i < count; i++) {
            for (size_t at = 0; at < page_bytes(shape); at++)
                ((uint8_t *)pages[i].host)[at] =
                    peer_pattern(number + 1, pages[i].engine_block, at);
        }
        tell(check, (struct peer_message){.order = PEER_COMPUTE, .number = number}, NULL);
        copy(check, COPY_TO_ENGINE, pages, count);
        wrong =
            tell(check, (struct peer_message){.order = PEER_VERIFY, .number = number + 1}, NULL);
        if (wrong > 0)
            fault(check, "the engine finds other bytes than were loaded, or canaries gone", wrong);
    }
}

/* ---- speed ---- */

static double rate(struct check *check, const struct shape *shape, enum copy_direction direction,
                   const struct page_copy *pages, size_t count)
{
    double begin = now_s(), best = 0;

    for (int i = 0; i < 10 && now_s() - begin < SECONDS_MAX; i++) {
        double start = now_s(), took;

        copy(check, direction, pages, count);
        took = now_s() - start;
        if (best == 0 || took < best)
            best = took;
    }
    return (double)count * (double)page_bytes(shape) / best / 1e9;
}

static void print_rates(struct check *check, const struct shape *shape,
                        const struct page_copy *pages, size_t count)
{
    struct cuda_device_stats before = cuda_device_stats(check->device), after;
    double rates[2];

    for (int direction = COPY_TO_ENGINE; direction <= COPY_FROM_ENGINE; direction++) {
        rates[direction] = rate(check, shape, (enum copy_direction)direction, pages, count);
        if (check->peak[direction] == 0)
            check->peak[direction] = rates[direction];
    }
    after = cuda_device_stats(check->device);
    printf("%-24s %8.2f GB/s in (%.2f of peak) %8.2f GB/s out (%.2f)  %s", shape->name, rates[0],
           rates[0] / check->peak[0], rates[1], rates[1] / check->peak[1],
           after.pages[COPY_GATHER] > before.pages[COPY_GATHER] ? "gathered" : "piece by piece");
    if (shape->goal > 0)
        printf("  goal %.1f: %s", shape->goal,
               rates[0] >= shape->goal * check->peak[0] && rates[1] >= shape->goal * check->peak[1]
                   ? "reached"
                   : "short");
    printf("\n");
}

static void run_shape(struct check *check, const struct shape *shape)
{
    struct engine_export *told = calloc(1, sizeof *told);
    struct page_copy *pages = calloc(shape->layout.blocks, sizeof *pages);
    char why[DEVICE_WHY_BYTES] = "";

    if (told == NULL || pages == NULL)
        abort();
    tell(check, (struct peer_message){.order = PEER_ALLOCATE, .layout = shape->layout}, told);
    if (check->device->ops->import(check->device, told, &check->memory, why) < 0) {
        fault(check, why, 0);
    } else {
        check_bytes(check, shape, pages);
        print_rates(check, shape, pages, even_pages(check, shape, pages));
        engine_memory_unref(&check->memory);
        tell(check, (struct peer_message){.order = PEER_FREE}, NULL);
    }
    free(pages);
    free(told);
}

/* ---- what it costs the engine ---- */

/* The kernel alone, and beside copies: from the order to the engine until its answer is there. */
static void print_interference(struct check *check, const struct shape *shape, uint32_t turns)
{
    struct engine_export *told = calloc(1, sizeof *told);
    struct page_copy *pages = calloc(shape->layout.blocks, sizeof *pages);
    struct peer_message busy = {.order = PEER_BUSY, .number = turns};
    static struct peer_answer answer;
    char why[DEVICE_WHY_BYTES] = "";
    double alone, copies = 0, begin;

    if (told == NULL || pages == NULL)
        abort();
    tell(check, (struct peer_message){.order = PEER_ALLOCATE, .layout = shape->layout}, told);
    if (check->device->ops->import(check->device, told, &check->memory, why) < 0) {
        fault(check, why, 0);
        goto out;
    }
    tell(check, (struct peer_message){.order = PEER_COMPUTE, .number = 1}, NULL);
    copy(check, COPY_FROM_ENGINE, pages, even_pages(check, shape, pages));
    (void)tell(check, busy, NULL);
    alone = tell(check, busy, NULL);
    begin = now_s();
    if (send(check->socket, &busy, sizeof busy, MSG_NOSIGNAL) != (ssize_t)sizeof busy)
        fault(check, "the engine's process is gone", 0);
    do {
        copy(check, COPY_FROM_ENGINE, pages, even_pages(check, shape, pages));
        copies++;
    } while (recv(check->socket, &answer, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && now_s() - begin < 10);
    if (recv(check->socket, &answer, sizeof answer, MSG_WAITALL) != (ssize_t)sizeof answer)
        fault(check, "the engine's process is gone", 0);
    printf("an engine's kernel, %-24s alone %.1f ms, beside %.0f saves %.1f ms: %+.1f %%\n",
           shape->name, alone / 1e3, copies, answer.value / 1e3,
           100 * (answer.value - alone) / alone);
    engine_memory_unref(&check->memory);
    tell(check, (struct peer_message){.order = PEER_FREE}, NULL);
out:
    free(pages);
    free(told);
}

/* ---- all of it ---- */

static size_t largest(const struct shape *shapes, size_t count)
{
    size_t bytes = 0;

    for (size_t i = 0; i < count; i++) {
        size_t of_shape = page_bytes(&shapes[i]) * (shapes[i].layout.blocks / 2);
        bytes = of_shape > bytes ? of_shape : bytes;
    }
    return bytes;
}

static void await_pinned(struct check *check)
{
    struct cuda_device_stats stats;
    double begin = now_s();

    do {
        usleep(1000);
        stats = cuda_device_stats(check->device);
    } while (stats.pinned_bytes < check->arena_bytes && stats.unpinned_chunks == 0 &&
             now_s() - begin < 30);
    if (stats.pinned_bytes < check->arena_bytes)
        fault(check, "the arena was not pinned; chunks refused", (double)stats.unpinned_chunks);
}

static int run(struct check *check, bool is_small)
{
    const struct shape *shapes = is_small ? small_shapes : real_shapes;
    size_t count = is_small ? array_count(small_shapes) : array_count(real_shapes);
    struct cuda_device_config config = cuda_device_default();
    char why[DEVICE_WHY_BYTES];

    if (is_small) { /* so that both ways are gone, whatever the fake's times */
        config.calibrate_bytes = 0;
        config.slab_bytes = 256 << 10;
    }
    print_driver();
    if (cuda_device_create_with(config, &check->device, why) < 0) {
        printf("%s\n", why);
        return 77;
    }
    print_table(cuda_device_table(check->device, 0));
    check->arena_bytes = (largest(shapes, count) + 4095) / 4096 * 4096;
    check->arena = mmap(NULL, check->arena_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (check->arena == MAP_FAILED)
        abort();
    if (check->device->ops->register_host(check->device, check->arena, check->arena_bytes) < 0)
        fault(check, "the arena was refused", 0);
    await_pinned(check);
    for (size_t i = 0; i < count; i++)
        run_shape(check, &shapes[i]);
    print_interference(check, &shapes[1], is_small ? 1 : 40000000);
    print_interference(check, &shapes[count - 1], is_small ? 1 : 40000000);
    check->device->ops->unregister_host(check->device, check->arena);
    check->device->ops->destroy(check->device);
    munmap(check->arena, check->arena_bytes);
    return check->fault_count > 0;
}

int main(int argc, char **argv)
{
    static struct check check;
    int sockets[2], status, peer_status = 0;
    pid_t peer;

    setvbuf(stdout, NULL, _IOLBF, 0);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) < 0)
        return 1;
    peer = fork(); /* before either has a driver */
    if (peer == 0) {
        close(sockets[0]);
        _exit(gpu_peer_run(sockets[1]));
    }
    close(sockets[1]);
    check.socket = sockets[0];
    status = run(&check, argc > 1 && strcmp(argv[1], "--small") == 0);
    close(sockets[0]);
    waitpid(peer, &peer_status, 0);
    if (status == 0 && peer_status != 0)
        status = 1;
    printf("%s\n", status == 0 ? "all bytes right" : status == 77 ? "skipped" : "FAILED");
    return status;
}
