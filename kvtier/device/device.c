/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/device/device.h"

#include <assert.h>

/* References are counted without a lock: whoever counts one up holds one already, so that the count
 * cannot reach 0 beside it. */

struct engine_memory *engine_memory_ref(struct engine_memory *memory)
{
    uint32_t before = __atomic_fetch_add(&memory->references, 1, __ATOMIC_RELAXED);

    assert(before > 0 && before < UINT32_MAX);
    return memory;
}

void engine_memory_unref(struct engine_memory **memory)
{
    struct engine_memory *last = *memory;
    uint32_t before;

    *memory = NULL;
    if (last == NULL)
        return;
    /* What other threads did with the memory is done before it is unmapped. */
    before = __atomic_fetch_sub(&last->references, 1, __ATOMIC_ACQ_REL);
    assert(before > 0);
    if (before == 1)
        last->device->ops->unmap(last->device, last);
}
