/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/support/fake_cuda/fake_memory.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/*
 * DESIGN
 *
 * A handle names a descriptor of its maker's process, opened through /proc: nothing is left behind
 * by who dies, and a mapping outlives its maker. Its own maker gets the same address again, so that
 * both roles in one process touch the same bytes for the checks of order.
 *
 * What another process wrote is not known here: its memory counts as written.
 */

static struct fake_memory *memories;

static size_t whole_pages(size_t len)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);

    return (len + page - 1) / page * page;
}

static bool map_hbm(struct fake_memory *memory)
{
    void *mapped;

    memory->mapped_len = whole_pages(memory->len);
    memory->fd = memfd_create("fake_hbm", MFD_CLOEXEC);
    if (memory->fd < 0 || ftruncate(memory->fd, (off_t)memory->mapped_len) < 0)
        return false;
    mapped = mmap(NULL, memory->mapped_len, PROT_READ | PROT_WRITE, MAP_SHARED, memory->fd, 0);
    if (mapped == MAP_FAILED)
        return false;
    memory->bytes = mapped;
    memory->written = calloc(1, memory->len);
    return memory->written != NULL;
}

static bool map_pinned(struct fake_memory *memory)
{
    void *mapped;

    memory->mapped_len = whole_pages(memory->len);
    mapped =
        mmap(NULL, memory->mapped_len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memory->bytes = mapped == MAP_FAILED ? NULL : mapped;
    return memory->bytes != NULL;
}

static void release(struct fake_memory *memory)
{
    if (memory->bytes != NULL && memory->mapped_len > 0)
        munmap(memory->bytes, memory->mapped_len);
    if (memory->fd >= 0)
        close(memory->fd);
    free(memory->written);
    free(memory);
}

struct fake_memory *fake_memory_add(enum fake_kind kind, void *bytes, size_t len)
{
    struct fake_memory *memory = calloc(1, sizeof *memory);
    bool is_made = true;

    if (memory == NULL)
        return NULL;
    *memory = (struct fake_memory){.kind = kind, .bytes = bytes, .len = len, .fd = -1};
    if (kind == FAKE_HBM)
        is_made = map_hbm(memory);
    else if (kind == FAKE_PINNED)
        is_made = map_pinned(memory);
    else if (kind == FAKE_IMPORTED)
        memory->mapped_len = whole_pages(len);
    if (!is_made) {
        release(memory);
        return NULL;
    }
    memory->next = memories;
    memories = memory;
    return memory;
}

struct fake_memory *fake_memory_find(uint64_t address)
{
    for (struct fake_memory *memory = memories; memory != NULL; memory = memory->next) {
        uint64_t begin = (uintptr_t)memory->bytes;

        if (address >= begin && address - begin < memory->len)
            return memory;
    }
    return NULL;
}

void fake_memory_remove(struct fake_memory *memory)
{
    for (struct fake_memory **at = &memories; *at != NULL; at = &(*at)->next) {
        if (*at == memory) {
            *at = memory->next;
            release(memory);
            return;
        }
    }
}

void fake_memory_reset(void)
{
    while (memories != NULL)
        fake_memory_remove(memories);
}

size_t fake_memory_count(enum fake_kind kind)
{
    size_t count = 0;

    for (struct fake_memory *memory = memories; memory != NULL; memory = memory->next)
        count += memory->kind == kind;
    return count;
}

size_t fake_memory_opened(void)
{
    size_t count = 0;

    for (struct fake_memory *memory = memories; memory != NULL; memory = memory->next)
        count += memory->opened;
    return count;
}

bool fake_memory_is_hbm(const struct fake_memory *memory)
{
    return memory->kind == FAKE_HBM || memory->kind == FAKE_IMPORTED;
}

/* ---- handles ---- */

struct fake_handle fake_memory_export(const struct fake_memory *memory)
{
    return (struct fake_handle){
        .magic = FAKE_HANDLE_MAGIC, .pid = getpid(), .fd = memory->fd, .len = memory->len};
}

static struct fake_memory *find_own(int fd)
{
    struct fake_memory *memory = memories;

    while (memory != NULL && memory->fd != fd)
        memory = memory->next;
    return memory;
}

void *fake_map_remote(struct fake_handle handle, size_t len)
{
    char path[64];
    void *mapped;
    int fd;

    snprintf(path, sizeof path, "/proc/%d/fd/%d", handle.pid, handle.fd);
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    mapped = mmap(NULL, whole_pages(len), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return mapped == MAP_FAILED ? NULL : mapped;
}

struct fake_memory *fake_memory_open(struct fake_handle handle)
{
    struct fake_memory *memory;
    void *mapped;

    if (handle.magic != FAKE_HANDLE_MAGIC || handle.is_event)
        return NULL;
    if (handle.pid == getpid()) {
        memory = find_own(handle.fd);
    } else {
        mapped = fake_map_remote(handle, handle.len);
        memory = mapped == NULL ? NULL : fake_memory_add(FAKE_IMPORTED, mapped, handle.len);
    }
    if (memory != NULL)
        memory->opened++;
    return memory;
}

/* ---- what was written ---- */

void fake_memory_mark(struct fake_memory *memory, uint64_t address, size_t len)
{
    if (memory->written != NULL)
        memset(memory->written + (address - (uintptr_t)memory->bytes), 1, len);
}

bool fake_memory_is_written(const struct fake_memory *memory, uint64_t address, size_t len)
{
    return memory->written == NULL ||
           memchr(memory->written + (address - (uintptr_t)memory->bytes), 0, len) == NULL;
}
