/* SPDX-License-Identifier: Apache-2.0 */

/*
 * move: one copy of one block between two ends (a tier, or an engine's memory), as states. It says
 * which steps there are; what a step does to the index does tier_store_job. Pure; one thread at a
 * time.
 */
#ifndef KVTIER_TIERS_MOVE_H
#define KVTIER_TIERS_MOVE_H

#include <stdbool.h>
#include <stdint.h>

#include "backends/runtime/must_check.h"
#include "kvtier/tiers/block_table.h"

/* From MOVE_RESERVED to an end state: the slot that is read is counted as read, the slot that is
 * written is WRITING. In an end state neither is so on this move's account. */
enum move_state {
    MOVE_RESERVED, /* waits for its turn; no thread has it */
    MOVE_COPYING,  /* a thread has it: copies, and verifies what it read */
    MOVE_ARRIVED,  /* all bytes are there and right; nobody knows of them */
    MOVE_DONE,     /* in the index, and those who watch were told */
    MOVE_ABORTED,  /* whatever was written is not looked at again */
    MOVE_STATE_COUNT,
};

enum move_event {
    MOVE_START,  /* a thread takes it */
    MOVE_ARRIVE, /* the thread is done with it, and it went well */
    MOVE_FAIL,   /* it did not */
    MOVE_COMMIT, /* the bytes may be believed */
    MOVE_CANCEL, /* nobody wants it any more, or the bytes may not be believed */
    MOVE_EVENT_COUNT,
};

enum move_end {
    MOVE_CPU = BLOCK_TIER_CPU,
    MOVE_SSD = BLOCK_TIER_SSD,
    MOVE_ENGINE = BLOCK_TIER_COUNT,
};

struct move {
    uint32_t block;        /* index in the block_table */
    uint32_t engine_block; /* where an end is MOVE_ENGINE */
    uint8_t source;        /* enum move_end */
    uint8_t target;        /* enum move_end */
    uint8_t state;         /* enum move_state; move_step() writes it */
    bool keeps_copy;       /* SSD to engine: passes through a CPU slot, and stays there too */
    int status;            /* why it failed: -EBADMSG, -EIO, -ENOSPC */
};

/* -EINVAL: there is no such step; nothing changes. */
MUST_CHECK int move_step(struct move *move, enum move_event event);

static inline bool move_has_ended(const struct move *move)
{
    return move->state == MOVE_DONE || move->state == MOVE_ABORTED;
}

/* The tier whose slot it writes, BLOCK_TIER_COUNT: none. */
static inline enum block_tier move_written_tier(const struct move *move)
{
    return move->keeps_copy ? BLOCK_TIER_CPU : (enum block_tier)move->target;
}

#endif
