/* SPDX-License-Identifier: Apache-2.0 */

/*
 * handover: text blocks that a worker's agent was told of, each lot with the time from which on
 * what the map says of them is the truth: then the guess is to forget them. Bounded in lots and in
 * blocks; what does not fit simply stays a guess. Pure; the caller tells the time.
 */
#ifndef ROUTER_JOIN_HANDOVER_H
#define ROUTER_JOIN_HANDOVER_H

#include <stddef.h>
#include <stdint.h>

#include "backends/redis/residency_wire.h"
#include "backends/runtime/must_check.h"

struct handover_lot {
    uint64_t due_ms;
    uint64_t worker;                     /* its id */
    struct residency_note_block *blocks; /* heap */
    size_t block_count;
};

struct handover {
    struct handover_lot *lots; /* a heap, the first due on top */
    size_t lot_count;
    size_t lot_count_max;
    size_t block_count;
    size_t block_count_max;
};

/* Empty. -ENOMEM. */
MUST_CHECK int handover_init(struct handover *handover, size_t lot_count_max,
                             size_t block_count_max);

/* Takes lot's blocks. -ENOBUFS: full; they stay the caller's. */
MUST_CHECK int handover_add(struct handover *handover, struct handover_lot lot);

/* The first that is due, whose blocks the caller frees; blocks NULL: none is. */
struct handover_lot handover_take_due(struct handover *handover, uint64_t now_ms);

/* When the next one is due; UINT64_MAX: there is none. */
uint64_t handover_next_ms(const struct handover *handover);

/* Frees everything; may be called twice, and after a failed init. */
void handover_release(struct handover *handover);

#endif
