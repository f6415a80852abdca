/* SPDX-License-Identifier: Apache-2.0 */

/*
 * prefetch_hint: tells the agent of a just chosen worker which blocks of the prompt it has on SSD
 * only, so that they are in CPU memory when the engine asks for them: while the request waits for a
 * connection, on the wire, and behind others in the engine. A hint, with a deadline: nobody waits
 * for it, and an agent may do nothing about it. Loop thread only.
 */
#ifndef ROUTER_PREFETCH_HINT_H
#define ROUTER_PREFETCH_HINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/redis/residency_wire.h"
#include "hashing/block_chain.h"
#include "router/residency/residency_index.h"

struct relay;
struct worker;

/* Blocks of one hint: 256 KiB of text, and one note. The first ones are wanted first. */
enum { PREFETCH_HINT_BLOCK_COUNT_MAX = 1024 };

struct prefetch_cold {
    uint64_t start; /* hash of the block before the first; 0: there is none */
    size_t block_count;
    struct residency_note_block blocks[PREFETCH_HINT_BLOCK_COUNT_MAX];
};

/* Finds those of blocks[0..count) that holder has on SSD and nowhere nearer. Pure. */
void prefetch_hint_find(const struct residency_index *index, uint32_t holder,
                        const struct block *blocks, size_t count, struct prefetch_cold *cold);

/* Of one attempt. Borrowed for the call. */
struct prefetch_wish {
    const struct worker *worker;
    const struct block *blocks; /* of the prompt: those that its agent claims */
    size_t block_count;
    double within_ms; /* until they are needed, as predicted */
    uint64_t told_id; /* worker whose agent this request has sent a hint already; 0: none */
};

/* Sends what is cold there, if anything is; the relay has a map. Whatever comes of it is counted
 * (prefetch_hints_total). True: a hint is on its way. */
bool prefetch_hint_send(struct relay *relay, const struct prefetch_wish *wish);

#endif
