/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/runtime/huge_array.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/*
 * DESIGN
 *
 * What is looked up at random misses the TLB nearly always with 4 KiB pages, so huge ones are asked
 * for, before the first touch. A refusal costs only speed. Zeroing at once takes all the memory
 * now, which is when its owner can be told that there is not enough.
 */
enum { CACHE_LINE_BYTES = 64, HUGE_PAGE_BYTES = 2 << 20 };

void *huge_array_alloc(size_t count, size_t item_bytes)
{
    size_t size, align;
    void *memory;

    if (count > (SIZE_MAX - HUGE_PAGE_BYTES) / item_bytes)
        return NULL;
    align = count * item_bytes >= HUGE_PAGE_BYTES ? HUGE_PAGE_BYTES : CACHE_LINE_BYTES;
    size = (count * item_bytes + align - 1) / align * align;
    memory = aligned_alloc(align, size > 0 ? size : align);
    if (memory == NULL)
        return NULL;
    if (align == HUGE_PAGE_BYTES)
        (void)madvise(memory, size, MADV_HUGEPAGE);
    memset(memory, 0, size);
    return memory;
}
