/* SPDX-License-Identifier: Apache-2.0 */

/*
 * mover: the threads that copy, and whose turn it is. Work is queued by class on the loop and given
 * to a thread only when one is free, so that what is more urgent passes what waits, not only what
 * comes later. It knows neither blocks nor tiers. Loop thread only, but for run().
 */
#ifndef KVTIER_TIERS_MOVER_H
#define KVTIER_TIERS_MOVER_H

#include <stdbool.h>
#include <stdint.h>

#include "backends/io_loop.h"
#include "backends/runtime/list.h"
#include "backends/runtime/must_check.h"
#include "backends/thread_pool.h"

struct mover;

/* Most urgent first among those that share a lane. */
enum mover_class {
    MOVER_LOAD,     /* an engine waits to compute */
    MOVER_PREFETCH, /* nobody waits yet */
    MOVER_SAVE,     /* an engine waits to go on */
    MOVER_SCAN,     /* headers on the SSD, read or emptied */
    MOVER_DEMOTE,   /* within the budget for writes */
    MOVER_CLASS_COUNT,
};

/* Threads of their own, so that reads never wait behind writes. */
enum mover_lane { MOVER_LANE_READ, MOVER_LANE_SAVE, MOVER_LANE_WRITE, MOVER_LANE_COUNT };

struct mover_task;

struct mover_task_ops {
    enum mover_class class;
    /* On the loop, when a thread is free for it. False: it is not wanted any more. */
    bool (*on_start)(struct mover_task *task);
    /* On a thread, with that thread's staging bytes (NULL where the lane has none). */
    void (*run)(struct mover_task *task, void *staging);
    /* On the loop; may submit the task anew or free it. has_run: false when on_start() did not want
     * it, or the mover closes. */
    void (*on_done)(struct mover_task *task, bool has_run);
};

/* Embedded in whatever it works on; from submit to on_done the mover's. */
struct mover_task {
    const struct mover_task_ops *ops;
    uint64_t bytes; /* that it moves: for queued_bytes and the budget */
    /* private */
    struct mover *mover;
    struct list_node in_queue;
    bool is_started; /* on_start() was asked */
    struct thread_job job;
};

enum { MOVER_STAGING_ALIGN_BYTES = 4096 };

struct mover_config {
    struct io_loop *io;
    uint32_t thread_counts[MOVER_LANE_COUNT]; /* at least 1 each */
    uint64_t staging_bytes;                   /* of each thread that reads; 0: none */
    uint64_t write_bytes_per_s;               /* of MOVER_DEMOTE; 0: as fast as it goes */
};

/* -ENOMEM. Threads start with the first tasks. */
MUST_CHECK int mover_create(struct mover_config config, struct mover **mover);

/* Takes the task in; how many may wait decides whoever submits. on_start() may come at once, run()
 * and on_done() after a true on_start() do not. */
void mover_submit(struct mover *mover, struct mover_task *task, const struct mover_task_ops *ops);

/* Bytes of class that wait or are being moved. */
uint64_t mover_pending_bytes(const struct mover *mover, enum mover_class class);

/* Whether a task of class submitted now would get a thread at once. */
bool mover_is_idle(const struct mover *mover, enum mover_class class);

/* What waits comes back by on_done() at once, what runs when it is done, and nothing may be
 * submitted any more; then on_closed, once, by the loop. */
void mover_close(struct mover *mover, void (*on_closed)(void *ctx), void *ctx);

#endif
