/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/device/device.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/leak_check.h"

TestSuite(device_host, .fini = leak_check);

enum { LAYERS = 3, BLOCKS = 5, PIECE = 1000, PAGE = LAYERS * PIECE, REGION = PAGE * BLOCKS };

/* An engine's memory as the engine sees it, and what it tells of it. */
struct engine {
    uint8_t *bytes;
    struct engine_export told;
};

static struct device *device;
static char why[DEVICE_WHY_BYTES];

static struct engine engine_with(size_t file_bytes, int seals)
{
    struct engine engine = {.told = {.kind = DEVICE_HOST,
                                     .layout = {.block_count = BLOCKS,
                                                .region_count = 1,
                                                .segment_count = LAYERS,
                                                .region_bytes = {REGION}}}};
    int fd = memfd_create("pages", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    cr_assert(eq(int, ftruncate(fd, (off_t)file_bytes), 0));
    cr_assert(eq(int, fcntl(fd, F_ADD_SEALS, seals), 0));
    for (uint32_t i = 0; i < LAYERS; i++)
        engine.told.layout.segments[i] = (struct page_segment){
            .offset = (uint64_t)i * BLOCKS * PIECE, .stride = PIECE, .bytes = PIECE};
    engine.told.fds[0] = fd;
    engine.bytes = mmap(NULL, file_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    cr_assert(engine.bytes != MAP_FAILED);
    return engine;
}

static struct engine sealed_engine(void)
{
    return engine_with(REGION, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
}

static struct engine_memory *import(const struct engine *engine)
{
    struct engine_memory *memory;

    cr_assert(eq(int, device_host_create(&device), 0));
    cr_assert(eq(int, device->ops->import(device, &engine->told, &memory, why), 0), "%s", why);
    return memory;
}

static void finish(struct engine_memory *memory)
{
    engine_memory_unref(&memory);
    device->ops->destroy(device);
}

static uint8_t *piece(const struct engine *engine, uint32_t layer, uint32_t block)
{
    return engine->bytes + (layer * BLOCKS + block) * PIECE;
}

Test(device_host, a_page_gathers_the_blocks_segments_in_order)
{
    struct engine engine = sealed_engine();
    struct engine_memory *memory = import(&engine);
    uint8_t page[PAGE];
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        memset(piece(&engine, layer, 3), (int)('a' + layer), PIECE);
    struct page_copy copy = {.host = page, .engine_block = 3};

    cr_assert(eq(int, device->ops->copy(device, memory, COPY_FROM_ENGINE, &copy, 1), 0));

    for (size_t i = 0; i < PAGE; i++)
        cr_assert(eq(chr, (char)page[i], (char)('a' + i / PIECE)));
    finish(memory);
}

Test(device_host, only_the_named_blocks_are_written)
{
    struct engine engine = sealed_engine();
    struct engine_memory *memory = import(&engine);
    uint8_t first[PAGE], last[PAGE];
    memset(engine.bytes, 'c', REGION);
    memset(first, 1, PAGE);
    memset(last, 2, PAGE);
    struct page_copy copies[] = {{.host = last, .engine_block = BLOCKS - 1},
                                 {.host = first, .engine_block = 0}};

    cr_assert(eq(int, device->ops->copy(device, memory, COPY_TO_ENGINE, copies, 2), 0));

    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        for (uint32_t block = 0; block < BLOCKS; block++) {
            uint8_t expected = block == 0 ? 1 : block == BLOCKS - 1 ? 2 : 'c';
            for (uint32_t i = 0; i < PIECE; i++)
                cr_assert(eq(u8, piece(&engine, layer, block)[i], expected));
        }
    }
    finish(memory);
}

Test(device_host, a_region_that_could_shrink_is_refused)
{
    struct engine engine = engine_with(REGION, F_SEAL_GROW);
    struct engine_memory *memory;
    cr_assert(eq(int, device_host_create(&device), 0));

    cr_assert(eq(int, device->ops->import(device, &engine.told, &memory, why), -EINVAL));

    cr_assert(eq(ptr, memory, NULL));
    cr_assert(eq(str, why, "region 0 could shrink under us: a memfd with F_SEAL_SHRINK is needed"));
    device->ops->destroy(device);
}

Test(device_host, a_file_that_cannot_be_sealed_is_refused)
{
    struct engine engine = sealed_engine();
    struct engine_memory *memory;
    FILE *plain = tmpfile();
    cr_assert(eq(int, ftruncate(fileno(plain), REGION), 0));
    engine.told.fds[0] = fileno(plain);
    cr_assert(eq(int, device_host_create(&device), 0));

    cr_assert(eq(int, device->ops->import(device, &engine.told, &memory, why), -EINVAL));

    fclose(plain);
    device->ops->destroy(device);
}

Test(device_host, a_file_smaller_than_its_region_is_refused)
{
    struct engine engine = engine_with(REGION - 1, F_SEAL_SHRINK);
    struct engine_memory *memory;
    cr_assert(eq(int, device_host_create(&device), 0));

    cr_assert(eq(int, device->ops->import(device, &engine.told, &memory, why), -EINVAL));

    cr_assert(eq(str, why, "region 0 is said to have 15000 bytes, its file has fewer"));
    device->ops->destroy(device);
}

Test(device_host, a_layout_that_reaches_out_is_refused)
{
    struct engine engine = sealed_engine();
    struct engine_memory *memory;
    engine.told.layout.segments[2].offset++;
    cr_assert(eq(int, device_host_create(&device), 0));

    cr_assert(eq(int, device->ops->import(device, &engine.told, &memory, why), -EINVAL));

    cr_assert(eq(str, why, "layout: segment 2 reaches out of region 0 (15000 bytes)"));
    device->ops->destroy(device);
}

static size_t mappings_of_pages(void)
{
    size_t count = 0;
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "re");

    while (fgets(line, sizeof line, maps) != NULL)
        count += strstr(line, "/memfd:pages") != NULL;
    fclose(maps);
    return count;
}

Test(device_host, memory_stays_mapped_until_the_last_reference)
{
    struct engine engine = sealed_engine();
    struct engine_memory *memory = import(&engine);
    struct engine_memory *of_a_copy = engine_memory_ref(memory);
    munmap(engine.bytes, REGION); /* the engine dies */
    close(engine.told.fds[0]);

    engine_memory_unref(&memory);

    uint8_t page[PAGE];
    struct page_copy copy = {.host = page, .engine_block = 1};
    cr_assert(eq(ptr, memory, NULL));
    cr_assert(eq(sz, mappings_of_pages(), 1));
    cr_assert(eq(int, device->ops->copy(device, of_a_copy, COPY_FROM_ENGINE, &copy, 1), 0));
    engine_memory_unref(&of_a_copy);
    cr_assert(eq(sz, mappings_of_pages(), 0));
    device->ops->destroy(device);
}

Test(device_host, a_failed_import_leaves_no_mapping)
{
    struct engine engine = sealed_engine();
    struct engine_memory *memory;
    engine.told.layout.region_count = 2;
    engine.told.layout.region_bytes[1] = REGION;
    engine.told.fds[1] = -1;
    cr_assert(eq(int, device_host_create(&device), 0));

    cr_assert(eq(int, device->ops->import(device, &engine.told, &memory, why), -EINVAL));

    cr_assert(eq(sz, mappings_of_pages(), 1)); /* the engine's own */
    device->ops->destroy(device);
}
