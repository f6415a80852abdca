/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/device/device.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

/*
 * DESIGN
 *
 * An engine on a CPU keeps its pages in memfds and hands us the descriptors; we map them beside it
 * and copy with memcpy(): libc knows when a copy is so large that it goes past the caches.
 *
 * A file that shrinks kills with SIGBUS whoever touches what is gone, and its owner is another
 * process. So only descriptors are taken that promise not to shrink (F_SEAL_SHRINK): then what was
 * there when we looked stays, and no handler for that signal is needed. A file in /dev/shm or on a
 * disk cannot promise it.
 */

struct host_device {
    struct device device;
};

struct host_memory {
    struct engine_memory memory;
    struct page_layout layout;
    uint8_t *regions[PAGE_REGION_COUNT_MAX]; /* NULL: not mapped */
};

static struct host_memory *host_of(struct engine_memory *memory)
{
    return container_of(memory, struct host_memory, memory);
}

/* ---- import ---- */

static int check_file(int fd, uint64_t bytes, uint32_t region, char why[DEVICE_WHY_BYTES])
{
    struct stat file;
    int seals = fcntl(fd, F_GET_SEALS);

    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
        snprintf(why, DEVICE_WHY_BYTES,
                 "region %" PRIu32 " could shrink under us: a memfd with F_SEAL_SHRINK is needed",
                 region);
        return -EINVAL;
    }
    /* Sealed before it is measured: what fstat() says cannot become less. */
    if (fstat(fd, &file) < 0 || file.st_size < 0 || (uint64_t)file.st_size < bytes) {
        snprintf(why, DEVICE_WHY_BYTES,
                 "region %" PRIu32 " is said to have %" PRIu64 " bytes, its file has fewer", region,
                 bytes);
        return -EINVAL;
    }
    return 0;
}

static int map_region(struct host_memory *host, uint32_t region, int fd, char why[DEVICE_WHY_BYTES])
{
    size_t bytes = host->layout.region_bytes[region];
    int status = check_file(fd, bytes, region, why);
    void *mapped;

    if (status < 0)
        return status;
    mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED) {
        status = errno == ENOMEM ? -ENOMEM : -EINVAL;
        snprintf(why, DEVICE_WHY_BYTES, "region %" PRIu32 " cannot be mapped: %s", region,
                 strerror(errno));
        return status;
    }
    host->regions[region] = mapped;
    /* Pages are made of prompts: none of them in a core dump. Nor in a child: it execs. */
    (void)madvise(mapped, bytes, MADV_DONTDUMP);
    (void)madvise(mapped, bytes, MADV_DONTFORK);
    return 0;
}

static void host_unmap(struct device *device, struct engine_memory *memory)
{
    struct host_memory *host = host_of(memory);

    assert(memory->device == device);
    assert(memory->references == 0);

    for (uint32_t i = 0; i < host->layout.region_count; i++) {
        if (host->regions[i] != NULL)
            munmap(host->regions[i], host->layout.region_bytes[i]);
    }
    free(host);
}

static int host_import(struct device *device, const struct engine_export *from,
                       struct engine_memory **memory, char why[DEVICE_WHY_BYTES])
{
    struct host_memory *host;
    char wrong[PAGE_LAYOUT_WHY_BYTES];
    int status;

    assert(from->kind == DEVICE_HOST);

    *memory = NULL;
    host = calloc(1, sizeof *host);
    if (host == NULL) {
        snprintf(why, DEVICE_WHY_BYTES, "no memory");
        return -ENOMEM;
    }
    host->layout = from->layout;
    host->memory = (struct engine_memory){.device = device, .layout = &host->layout};
    status = page_layout_check(&host->layout, wrong);
    if (status < 0) {
        snprintf(why, DEVICE_WHY_BYTES, "layout: %s", wrong);
        free(host); /* before host_unmap() could believe its counts */
        return status;
    }
    for (uint32_t i = 0; status == 0 && i < host->layout.region_count; i++)
        status = map_region(host, i, from->fds[i], why);
    if (status < 0) {
        host_unmap(device, &host->memory);
        return status;
    }
    host->memory.references = 1;
    *memory = &host->memory;
    return 0;
}

/* ---- copy ---- */

static void copy_page(struct host_memory *host, enum copy_direction direction,
                      struct page_copy page)
{
    const struct page_layout *layout = &host->layout;
    uint8_t *ours = page.host;

    assert(page.engine_block < layout->block_count);

    for (uint32_t i = 0; i < layout->segment_count; i++) {
        const struct page_segment *segment = &layout->segments[i];
        uint8_t *theirs =
            host->regions[segment->region] + segment->offset + segment->stride * page.engine_block;

        if (direction == COPY_TO_ENGINE)
            memcpy(theirs, ours, segment->bytes);
        else
            memcpy(ours, theirs, segment->bytes);
        ours += segment->bytes;
    }
}

static int host_copy(struct device *device, struct engine_memory *memory,
                     enum copy_direction direction, const struct page_copy *pages,
                     size_t page_count)
{
    assert(memory->device == device);

    for (size_t i = 0; i < page_count; i++)
        copy_page(host_of(memory), direction, pages[i]);
    return 0;
}

/* ---- life ---- */

/* The processor copies pinned and other memory alike. */
static int host_register(struct device *device, void *bytes, size_t len)
{
    (void)device;
    (void)bytes;
    (void)len;
    return 0;
}

static void host_unregister(struct device *device, void *bytes)
{
    (void)device;
    (void)bytes;
}

static void host_destroy(struct device *device)
{
    free(container_of(device, struct host_device, device));
}

static const struct device_ops host_ops = {
    .name = "host",
    .import = host_import,
    .unmap = host_unmap,
    .register_host = host_register,
    .unregister_host = host_unregister,
    .copy = host_copy,
    .destroy = host_destroy,
};

int device_host_create(struct device **device)
{
    struct host_device *host = calloc(1, sizeof *host);

    if (host == NULL)
        return -ENOMEM;
    host->device = (struct device){&host_ops, .is_by_processor = true};
    *device = &host->device;
    return 0;
}
