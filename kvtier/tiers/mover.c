/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/mover.h"

#include "backends/runtime/clock.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

/*
 * DESIGN
 *
 *   submit --> queue of its class --(a thread of its lane is free)--> thread_pool --> on_done
 *
 *   lane    threads        classes, most urgent first
 *   READ    load_threads   LOAD, PREFETCH
 *   SAVE    save_threads   SAVE
 *   WRITE   1              SCAN, DEMOTE
 *
 * A thread_pool is first in, first out; it is never given more than it has threads, so the order is
 * made here. PREFETCH leaves one thread of its lane alone where there are several: a load that
 * comes then waits for nobody, and with one thread for no more than one task.
 *
 * One thread writes to the SSD: a device takes many writes at once from one call, and a scan that
 * shares the thread never sees a slot in the middle of being written.
 *
 * The budget is a time before which the next DEMOTE does not start: each start moves it by what
 * its bytes cost. So no burst is saved up while nothing is written.
 */
enum { RETRY_MS = 10 }; /* when the system gives no thread at all */

static const enum mover_lane lane_of_class[MOVER_CLASS_COUNT] = {
    [MOVER_LOAD] = MOVER_LANE_READ,    [MOVER_PREFETCH] = MOVER_LANE_READ,
    [MOVER_SAVE] = MOVER_LANE_SAVE,    [MOVER_SCAN] = MOVER_LANE_WRITE,
    [MOVER_DEMOTE] = MOVER_LANE_WRITE,
};

struct lane {
    struct thread_pool *pool;
    uint32_t thread_count;
    uint32_t running;
    void *staging[THREAD_POOL_THREAD_COUNT_MAX];
};

struct mover {
    struct io_loop *io;
    struct lane lanes[MOVER_LANE_COUNT];
    struct list queues[MOVER_CLASS_COUNT];
    uint64_t pending_bytes[MOVER_CLASS_COUNT];
    uint64_t write_bytes_per_s;
    uint64_t write_after_us; /* the next DEMOTE does not start before */
    uv_timer_t timer;        /* for the budget, and when there was no thread */
    bool is_dispatching;
    bool is_closing;
    void (*on_closed)(void *ctx);
    void *ctx;
};

static void dispatch(struct mover *mover);
static void close_when_idle(struct mover *mover);

static void on_timer(uv_timer_t *timer)
{
    dispatch(timer->data);
}

static void finish(struct mover_task *task, bool has_run)
{
    task->mover->pending_bytes[task->ops->class] -= task->bytes;
    task->ops->on_done(task, has_run);
}

/* ---- whose turn it is ---- */

static void wait_until(struct mover *mover, uint64_t ms)
{
    int status;

    if (uv_is_active((uv_handle_t *)&mover->timer))
        return;
    status = uv_timer_start(&mover->timer, on_timer, ms, 0);
    assert(status == 0);
}

/* Of the classes of lane. NULL: none may start now. */
static struct list *next_queue(struct mover *mover, enum mover_lane lane_id)
{
    const struct lane *lane = &mover->lanes[lane_id];
    uint32_t free_threads = lane->thread_count - lane->running;

    for (int class = 0; class < MOVER_CLASS_COUNT; class ++) {
        uint64_t now_us;

        if (lane_of_class[class] != lane_id || mover->queues[class].count == 0)
            continue;
        if (class == MOVER_PREFETCH && free_threads < 2 && lane->thread_count > 1)
            continue;
        if (class != MOVER_DEMOTE || mover->write_bytes_per_s == 0)
            return &mover->queues[class];
        now_us = clock_now_us();
        if (now_us >= mover->write_after_us)
            return &mover->queues[class];
        wait_until(mover, (mover->write_after_us - now_us) / 1000 + 1);
    }
    return NULL;
}

static void charge(struct mover *mover, const struct mover_task *task)
{
    uint64_t now_us = clock_now_us();

    if (task->ops->class != MOVER_DEMOTE || mover->write_bytes_per_s == 0)
        return;
    if (mover->write_after_us < now_us)
        mover->write_after_us = now_us;
    mover->write_after_us +=
        (uint64_t)((double)task->bytes * 1e6 / (double)mover->write_bytes_per_s);
}

/* False: the system gives no thread; the task waits on. */
static bool start(struct mover *mover, struct lane *lane, struct list *queue)
{
    struct mover_task *task = container_of(queue->head.next, struct mover_task, in_queue);

    list_remove(queue, &task->in_queue);
    if (!task->is_started && !task->ops->on_start(task)) {
        finish(task, false);
        return true;
    }
    task->is_started = true; /* also where the next line sends it back to wait */
    if (thread_pool_submit(lane->pool, &task->job) < 0) {
        list_prepend(queue, &task->in_queue);
        wait_until(mover, RETRY_MS);
        return false;
    }
    lane->running++;
    charge(mover, task);
    return true;
}

static void dispatch(struct mover *mover)
{
    if (mover->is_dispatching) /* an on_start() or on_done() below submits: it is seen here */
        return;
    mover->is_dispatching = true;
    for (int lane_id = 0; lane_id < MOVER_LANE_COUNT; lane_id++) {
        struct lane *lane = &mover->lanes[lane_id];
        struct list *queue;

        while (!mover->is_closing && lane->running < lane->thread_count &&
               (queue = next_queue(mover, (enum mover_lane)lane_id)) != NULL) {
            if (!start(mover, lane, queue))
                break;
        }
    }
    mover->is_dispatching = false;
}

static void run_task(struct thread_job *job, void *context)
{
    struct mover_task *task = container_of(job, struct mover_task, job);

    task->ops->run(task, context);
}

static void on_task_done(struct thread_job *job)
{
    struct mover_task *task = container_of(job, struct mover_task, job);
    struct mover *mover = task->mover;

    mover->lanes[lane_of_class[task->ops->class]].running--;
    finish(task, true);
    if (mover->is_closing)
        close_when_idle(mover);
    else
        dispatch(mover);
}

void mover_submit(struct mover *mover, struct mover_task *task, const struct mover_task_ops *ops)
{
    assert(!mover->is_closing);

    task->ops = ops;
    task->mover = mover;
    task->is_started = false;
    thread_job_init(&task->job, run_task, on_task_done);
    list_node_init(&task->in_queue);
    list_append(&mover->queues[ops->class], &task->in_queue);
    mover->pending_bytes[ops->class] += task->bytes;
    dispatch(mover);
}

uint64_t mover_pending_bytes(const struct mover *mover, enum mover_class class)
{
    return mover->pending_bytes[class];
}

bool mover_is_idle(const struct mover *mover, enum mover_class class)
{
    const struct lane *lane = &mover->lanes[lane_of_class[class]];

    return mover->queues[class].count == 0 && lane->running < lane->thread_count;
}

/* ---- life ---- */

static void release_lanes(struct mover *mover)
{
    for (int lane_id = 0; lane_id < MOVER_LANE_COUNT; lane_id++) {
        struct lane *lane = &mover->lanes[lane_id];

        thread_pool_close(lane->pool); /* its threads are idle: this waits for nothing */
        for (uint32_t i = 0; i < lane->thread_count; i++)
            free(lane->staging[i]);
    }
}

static void on_timer_closed(uv_handle_t *handle)
{
    struct mover *mover = handle->data;
    void (*on_closed)(void *) = mover->on_closed;
    void *ctx = mover->ctx;

    free(mover);
    if (on_closed != NULL)
        on_closed(ctx);
}

static void close_when_idle(struct mover *mover)
{
    for (int lane_id = 0; lane_id < MOVER_LANE_COUNT; lane_id++) {
        if (mover->lanes[lane_id].running > 0)
            return;
    }
    if (uv_is_closing((uv_handle_t *)&mover->timer))
        return;
    release_lanes(mover);
    uv_close((uv_handle_t *)&mover->timer, on_timer_closed);
}

void mover_close(struct mover *mover, void (*on_closed)(void *ctx), void *ctx)
{
    assert(!mover->is_closing);

    mover->is_closing = true;
    mover->on_closed = on_closed;
    mover->ctx = ctx;
    uv_timer_stop(&mover->timer);
    for (int class = 0; class < MOVER_CLASS_COUNT; class ++) {
        struct list *queue = &mover->queues[class];

        while (queue->count > 0) {
            struct mover_task *task = container_of(queue->head.next, struct mover_task, in_queue);

            list_remove(queue, &task->in_queue);
            finish(task, false);
        }
    }
    close_when_idle(mover);
}

static int create_lane(struct mover *mover, enum mover_lane lane_id, struct mover_config config)
{
    struct lane *lane = &mover->lanes[lane_id];
    uint64_t staging_bytes = lane_id == MOVER_LANE_READ ? config.staging_bytes : 0;

    lane->thread_count = config.thread_counts[lane_id];
    assert(lane->thread_count > 0 && lane->thread_count <= THREAD_POOL_THREAD_COUNT_MAX);
    for (uint32_t i = 0; staging_bytes > 0 && i < lane->thread_count; i++) {
        if (posix_memalign(&lane->staging[i], MOVER_STAGING_ALIGN_BYTES, staging_bytes) != 0)
            return -ENOMEM;
    }
    lane->pool = thread_pool_create(&mover->io->loop, (struct thread_pool_config){
                                                          .thread_count = lane->thread_count,
                                                          .job_count_max = lane->thread_count,
                                                          .contexts = lane->staging,
                                                      });
    return lane->pool != NULL ? 0 : -ENOMEM;
}

int mover_create(struct mover_config config, struct mover **mover)
{
    struct mover *made = calloc(1, sizeof *made);
    int status;

    *mover = NULL;
    if (made == NULL)
        return -ENOMEM;
    made->io = config.io;
    made->write_bytes_per_s = config.write_bytes_per_s;
    for (int class = 0; class < MOVER_CLASS_COUNT; class ++)
        list_init(&made->queues[class]);
    status = uv_timer_init(&config.io->loop, &made->timer);
    assert(status == 0);
    made->timer.data = made;
    for (int lane_id = 0; status == 0 && lane_id < MOVER_LANE_COUNT; lane_id++)
        status = create_lane(made, (enum mover_lane)lane_id, config);
    if (status < 0) {
        mover_close(made, NULL, NULL); /* its memory goes with its handles */
        return status;
    }
    *mover = made;
    return 0;
}
