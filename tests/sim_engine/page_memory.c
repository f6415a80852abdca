/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/page_memory.h"

#include <xxhash.h>

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/*
 * DESIGN
 *
 * Each line of 64 bytes is made of its own place (name, layer, line) alone: so two pages of
 * different names, two layers of one page and two lines of one layer never agree, and a copy that
 * stopped or went astray anywhere is seen where it did. The first of a line's eight words is a
 * hash; the others follow from it, at memory speed.
 *
 * The memfd is sealed against another size: whoever maps it can never be killed by its shrinking.
 */

struct page_memory {
    int fd;
    uint32_t block_count;
    uint64_t layer_bytes; /* of one block */
    uint64_t bytes;
    char *start;
};

enum { LINE_WORDS = PAGE_LINE_BYTES / sizeof(uint64_t) };

struct line {
    uint64_t words[LINE_WORDS];
};

int page_memory_create(uint32_t block_count, uint32_t page_bytes, struct page_memory **memory)
{
    assert(block_count > 0 && page_bytes > 0 && page_bytes % PAGE_GRAIN_BYTES == 0);

    struct page_memory *made = calloc(1, sizeof *made);
    int status = 0;

    assert(made != NULL);
    *made = (struct page_memory){
        .block_count = block_count,
        .layer_bytes = page_bytes / PAGE_LAYER_COUNT,
        .bytes = (uint64_t)block_count * page_bytes,
        .start = MAP_FAILED,
    };
    made->fd = memfd_create("samovar-sim pages", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (made->fd < 0 || ftruncate(made->fd, (off_t)made->bytes) < 0 ||
        fcntl(made->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0) {
        status = -errno;
        goto out;
    }
    made->start = mmap(NULL, made->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, made->fd, 0);
    if (made->start == MAP_FAILED) {
        status = -errno;
        goto out;
    }
    *memory = made;
    made = NULL;

out:
    page_memory_destroy(made);
    return status;
}

void page_memory_destroy(struct page_memory *memory)
{
    if (memory == NULL)
        return;
    if (memory->start != MAP_FAILED)
        munmap(memory->start, memory->bytes);
    if (memory->fd >= 0)
        close(memory->fd);
    free(memory);
}

int page_memory_fd(const struct page_memory *memory)
{
    return memory->fd;
}

uint64_t page_memory_bytes(const struct page_memory *memory)
{
    return memory->bytes;
}

uint32_t page_memory_block_count(const struct page_memory *memory)
{
    return memory->block_count;
}

uint64_t page_memory_layer_bytes(const struct page_memory *memory)
{
    return memory->layer_bytes;
}

uint64_t page_memory_layer_stride(const struct page_memory *memory)
{
    return memory->layer_bytes * memory->block_count;
}

static struct line line_of(uint64_t name, uint64_t layer, uint64_t index)
{
    uint64_t place[3] = {name, layer, index};
    uint64_t word = XXH3_64bits(place, sizeof place);
    struct line line;

    for (size_t i = 0; i < LINE_WORDS; i++) {
        line.words[i] = word;
        word = (word ^ word >> 29) * UINT64_C(0x9E3779B97F4A7C15);
    }
    return line;
}

static char *part_of(const struct page_memory *memory, uint32_t block, uint64_t layer)
{
    assert(block < memory->block_count);
    return memory->start + layer * page_memory_layer_stride(memory) + block * memory->layer_bytes;
}

void page_memory_write(struct page_memory *memory, uint32_t block, uint64_t name)
{
    for (uint64_t layer = 0; layer < PAGE_LAYER_COUNT; layer++) {
        char *part = part_of(memory, block, layer);

        for (uint64_t i = 0; i < memory->layer_bytes / PAGE_LINE_BYTES; i++) {
            struct line line = line_of(name, layer, i);

            memcpy(part + i * PAGE_LINE_BYTES, &line, sizeof line);
        }
    }
}

bool page_memory_holds(const struct page_memory *memory, uint32_t block, uint64_t name)
{
    for (uint64_t layer = 0; layer < PAGE_LAYER_COUNT; layer++) {
        const char *part = part_of(memory, block, layer);

        for (uint64_t i = 0; i < memory->layer_bytes / PAGE_LINE_BYTES; i++) {
            struct line line = line_of(name, layer, i);

            if (memcmp(part + i * PAGE_LINE_BYTES, &line, sizeof line) != 0)
                return false;
        }
    }
    return true;
}
