/* SPDX-License-Identifier: Apache-2.0 */

/*
 * tier_copy: what a thread does for some moves that go the same way: takes bytes from where they
 * are, verifies them, puts them where they shall be. It knows slots and bytes, not the index.
 * tier_copy_run() may run on any thread; who made the copy looks at it before and after.
 */
#ifndef KVTIER_TIERS_TIER_COPY_H
#define KVTIER_TIERS_TIER_COPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/must_check.h"
#include "kvtier/device/device.h"
#include "kvtier/tiers/move.h"
#include "kvtier/tiers/tier.h"

struct tier_copy_block {
    uint32_t slots[BLOCK_TIER_COUNT]; /* BLOCK_SLOT_NONE: it has to do with no slot there */
    uint32_t engine_block;
};

struct tier_copy {
    struct tier *const *tiers;    /* [BLOCK_TIER_COUNT] */
    struct engine_memory *memory; /* where an end is MOVE_ENGINE */
    enum move_end source;
    enum move_end target;
    bool is_by_processor; /* what copies to and from the engine's memory */
    size_t count;
    struct tier_copy_block *blocks;  /* [count] */
    struct tier_transfer *transfers; /* [count]: key, parent, depth; status comes back: 0, what the
                                      * tier said, or -EFAULT: the engine's memory */
    struct page_copy *pages;         /* [count] of scratch */
    uint64_t staging_bytes;          /* that tier_copy_run() is given */
    uint64_t run_us;                 /* how long it took */
};

/* Sets run_us and every status. staging: where source is MOVE_SSD and target MOVE_ENGINE, for
 * pages that no CPU slot was set aside for. */
void tier_copy_run(struct tier_copy *copy, void *staging);

#endif
