/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/block_io.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

/*
 * DESIGN
 * A call is a batch of transfers on its caller's stack. The threads take transfers of the oldest
 * batch that has any left; the caller takes of its own, so that it never waits with its hands in
 * its lap, and a call goes on even where no thread is free. Who ends the last transfer of a batch
 * wakes its caller. One mutex for all of it: it is held for nanoseconds, a transfer takes tens of
 * microseconds.
 */

enum { THREAD_COUNT = 16 };

struct batch {
    struct block_io_op *ops;
    size_t count;
    size_t next; /* the first that nobody has taken */
    size_t left; /* not done yet */
    pthread_cond_t is_done;
    struct batch *behind;
};

struct block_io_threads {
    struct block_io io;
    pthread_mutex_t mutex;
    pthread_cond_t is_work;
    struct batch *oldest; /* with transfers that nobody has taken */
    struct batch **newest;
    pthread_t threads[THREAD_COUNT];
    unsigned thread_count;
    bool is_stopping;
};

static void transfer(struct block_io_op *op)
{
    int fd = op->is_direct ? op->direct_fd : op->fd;
    int part_count = (int)op->part_count;
    off_t offset = (off_t)op->offset;
    ssize_t result = op->is_write ? pwritev(fd, op->parts, part_count, offset)
                                  : preadv(fd, op->parts, part_count, offset);

    block_io_settle(op, result < 0 ? -errno : result);
}

static void enqueue(struct block_io_threads *io, struct batch *batch)
{
    *io->newest = batch;
    io->newest = &batch->behind;
}

static void dequeue(struct block_io_threads *io, struct batch *batch)
{
    struct batch **at = &io->oldest;

    while (*at != batch)
        at = &(*at)->behind;
    *at = batch->behind;
    if (io->newest == &batch->behind)
        io->newest = at;
}

/* With the mutex held, which is let go for the transfer itself. */
static void work(struct block_io_threads *io, struct batch *batch)
{
    struct block_io_op *op = &batch->ops[batch->next++];

    if (batch->next == batch->count)
        dequeue(io, batch);
    if (!op->is_done) {
        (void)pthread_mutex_unlock(&io->mutex);
        transfer(op);
        (void)pthread_mutex_lock(&io->mutex);
    }
    if (--batch->left == 0)
        (void)pthread_cond_signal(&batch->is_done);
}

static void *run(void *ctx)
{
    struct block_io_threads *io = ctx;

    (void)pthread_mutex_lock(&io->mutex);
    while (!io->is_stopping) {
        if (io->oldest != NULL)
            work(io, io->oldest);
        else
            (void)pthread_cond_wait(&io->is_work, &io->mutex);
    }
    (void)pthread_mutex_unlock(&io->mutex);
    return NULL;
}

static void try_all(struct block_io *base, struct block_io_op *ops, size_t count)
{
    struct block_io_threads *io = (struct block_io_threads *)base;
    struct batch batch = {
        .ops = ops, .count = count, .left = count, .is_done = PTHREAD_COND_INITIALIZER};

    if (count == 0)
        return;
    (void)pthread_mutex_lock(&io->mutex);
    enqueue(io, &batch);
    if (count > 1)
        (void)pthread_cond_broadcast(&io->is_work);
    while (batch.next < batch.count)
        work(io, &batch);
    while (batch.left > 0)
        (void)pthread_cond_wait(&batch.is_done, &io->mutex);
    (void)pthread_mutex_unlock(&io->mutex);
    (void)pthread_cond_destroy(&batch.is_done);
}

static void destroy(struct block_io *base)
{
    struct block_io_threads *io = (struct block_io_threads *)base;

    assert(io->oldest == NULL);
    (void)pthread_mutex_lock(&io->mutex);
    io->is_stopping = true;
    (void)pthread_cond_broadcast(&io->is_work);
    (void)pthread_mutex_unlock(&io->mutex);
    for (unsigned i = 0; i < io->thread_count; i++)
        (void)pthread_join(io->threads[i], NULL);
    (void)pthread_cond_destroy(&io->is_work);
    (void)pthread_mutex_destroy(&io->mutex);
    free(io);
}

static const struct block_io_ops threads_ops = {
    .name = "threads",
    .try_all = try_all,
    .destroy = destroy,
};

int block_io_threads_create(struct block_io **base)
{
    struct block_io_threads *io = calloc(1, sizeof *io);

    if (io == NULL)
        return -ENOMEM;
    io->io.ops = &threads_ops;
    io->newest = &io->oldest;
    (void)pthread_mutex_init(&io->mutex, NULL);
    (void)pthread_cond_init(&io->is_work, NULL);
    while (io->thread_count < THREAD_COUNT &&
           pthread_create(&io->threads[io->thread_count], NULL, run, io) == 0)
        io->thread_count++;
    *base = &io->io;
    return 0; /* with fewer threads, or none, it is slower */
}
