/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/page_memory.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/leak_check.h"

enum { BLOCK_COUNT = 5, PAGE_BYTES = 4 * 256 };

static struct page_memory *create(void)
{
    struct page_memory *memory;

    cr_assert(eq(int, page_memory_create(BLOCK_COUNT, PAGE_BYTES, &memory), 0));
    return memory;
}

/* As an agent sees it. */
static char *map(const struct page_memory *memory)
{
    char *bytes = mmap(NULL, page_memory_bytes(memory), PROT_READ | PROT_WRITE, MAP_SHARED,
                       page_memory_fd(memory), 0);

    cr_assert(bytes != MAP_FAILED);
    return bytes;
}

TestSuite(page_memory, .fini = leak_check);

Test(page_memory, a_page_holds_what_was_written_and_no_other_name)
{
    struct page_memory *memory = create();

    page_memory_write(memory, 2, 77);

    cr_assert(page_memory_holds(memory, 2, 77));
    cr_assert(not(page_memory_holds(memory, 2, 78)));
    cr_assert(not(page_memory_holds(memory, 1, 77)));
    page_memory_destroy(memory);
}

Test(page_memory, one_changed_byte_anywhere_is_seen)
{
    struct page_memory *memory = create();
    char *bytes = map(memory);
    page_memory_write(memory, 3, 9);

    for (uint64_t layer = 0; layer < PAGE_LAYER_COUNT; layer++) {
        for (uint64_t i = 0; i < page_memory_layer_bytes(memory); i++) {
            char *byte = bytes + layer * page_memory_layer_stride(memory) +
                         3 * page_memory_layer_bytes(memory) + i;

            *byte ^= 1;
            cr_assert(not(page_memory_holds(memory, 3, 9)), "layer %d byte %d", (int)layer, (int)i);
            *byte ^= 1;
        }
    }

    cr_assert(page_memory_holds(memory, 3, 9));
    munmap(bytes, page_memory_bytes(memory));
    page_memory_destroy(memory);
}

Test(page_memory, no_two_lines_of_two_pages_are_alike)
{
    struct page_memory *memory = create();
    char *bytes = map(memory);
    size_t line_count = 2 * PAGE_BYTES / PAGE_LINE_BYTES;
    const char *lines[2 * PAGE_BYTES / PAGE_LINE_BYTES];
    size_t count = 0;

    page_memory_write(memory, 0, 1);
    page_memory_write(memory, 1, 2);

    for (uint64_t layer = 0; layer < PAGE_LAYER_COUNT; layer++) {
        for (uint64_t i = 0; i < 2 * page_memory_layer_bytes(memory); i += PAGE_LINE_BYTES)
            lines[count++] = bytes + layer * page_memory_layer_stride(memory) + i;
    }
    cr_assert(eq(sz, count, line_count));
    for (size_t i = 0; i < count; i++) {
        for (size_t j = 0; j < i; j++)
            cr_assert(memcmp(lines[i], lines[j], PAGE_LINE_BYTES) != 0);
    }
    munmap(bytes, page_memory_bytes(memory));
    page_memory_destroy(memory);
}

Test(page_memory, whoever_maps_it_cannot_be_cut_off)
{
    struct page_memory *memory = create();

    cr_assert(lt(int, ftruncate(page_memory_fd(memory), 0), 0));
    cr_assert(lt(int, ftruncate(page_memory_fd(memory), 1 << 20), 0));
    page_memory_destroy(memory);
}
