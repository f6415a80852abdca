/* SPDX-License-Identifier: Apache-2.0 */

/*
 * note_post: brings notes to the agents of workers, through Redis: gathered for a few milliseconds,
 * then one XADD for each worker. While Redis is away they are dropped, and so is what is too much:
 * an agent that misses a note knows less, and no request waits for one. Loop thread only.
 */
#ifndef ROUTER_JOIN_NOTE_POST_H
#define ROUTER_JOIN_NOTE_POST_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "backends/redis/redis_link.h"
#include "backends/runtime/must_check.h"
#include "router/join/note_batch.h"

struct note_post;

struct note_post_config {
    uv_loop_t *loop;
    struct redis_link *link; /* borrowed until close */
    uint64_t fingerprint;
    uint64_t router; /* the sender's id */
};

struct note_post_stats {
    uint64_t posted_total;  /* notes that Redis has taken */
    uint64_t entries_total; /* XADDs that carried them */
    uint64_t dropped_total; /* notes that were not sent: Redis away, or too many waited */
    uint64_t refused_total; /* notes that Redis did not take, or did not confirm */
};

/* NULL: no memory. */
struct note_post *note_post_create(struct note_post_config config);

/* Notes would be sent now. */
bool note_post_is_open(const struct note_post *post);

/* As note_batch_add(). -ENOTCONN: Redis is away. What is not taken is counted. */
MUST_CHECK int note_post_add(struct note_post *post, struct note_receiver receiver,
                             const struct residency_note *note,
                             const struct residency_note_block *blocks, size_t block_count);

struct note_post_stats note_post_stats(const struct note_post *post);

/* NULLs *post. To be called before its link is closed, which tells of what is under way; the memory
 * goes when both are over. */
void note_post_close(struct note_post **post);

#endif
