/* SPDX-License-Identifier: Apache-2.0 */

/*
 * ranked_memory: the memories of an engine's ranks (tensor or pipeline parallel) as one, whose page
 * is the parts that all ranks have of a block, one behind the other in the order of their ranks.
 * Parts may differ in size, and each may lie on another GPU. Who copies it knows nothing of ranks.
 * Made on the loop thread; copies as device.h says.
 */
#ifndef KVTIER_DEVICE_RANKED_MEMORY_H
#define KVTIER_DEVICE_RANKED_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/must_check.h"
#include "kvtier/device/device.h"

enum { RANK_COUNT_MAX = 64 }; /* of one engine, on one node */

/* Takes a reference on each of ranks; there is at least one. -EINVAL: they do not have the same
 * number of blocks, are not of one kind, or a page is too large; -ENOMEM. With a sentence in why.
 * Its layout says block_count and page_bytes, and no segments. */
MUST_CHECK int ranked_memory_create(struct engine_memory *const *ranks, size_t rank_count,
                                    struct engine_memory **memory, char why[DEVICE_WHY_BYTES]);

#endif
