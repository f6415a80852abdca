/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/block_io.h"

#include <liburing.h>

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

/*
 * DESIGN
 * A ring belongs to one call at a time: submitting and reaping need no lock then, and a call waits
 * for its own transfers only, so reads never wait for another thread's writes. Rings are made when
 * more calls run at once than ever before, up to RING_COUNT_MAX; then a call waits for a ring, and
 * it does not where making another fails. One was made at the start, which is also how we learn
 * whether the kernel lets us.
 *
 * Buffers are not registered: pages of the arena come and go with any slot, and pinning them for
 * each transfer costs less than 2 % of a 64 KiB read.
 */

enum { RING_ENTRIES = 128, RING_COUNT_MAX = 64 };

struct ring {
    struct io_uring uring;
    struct ring *next; /* free */
};

struct block_io_uring {
    struct block_io io;
    pthread_mutex_t mutex;
    pthread_cond_t is_free;
    struct ring *free;
    unsigned ring_count;
};

static struct ring *make_ring(int *status)
{
    struct ring *ring = calloc(1, sizeof *ring);

    *status = ring == NULL ? -ENOMEM : io_uring_queue_init(RING_ENTRIES, &ring->uring, 0);
    if (*status == 0)
        return ring;
    free(ring);
    return NULL;
}

static void destroy_ring(struct ring *ring)
{
    io_uring_queue_exit(&ring->uring);
    free(ring);
}

static struct ring *acquire(struct block_io_uring *io)
{
    struct ring *ring = NULL;
    int status;

    (void)pthread_mutex_lock(&io->mutex);
    if (io->free == NULL && io->ring_count < RING_COUNT_MAX) {
        ring = make_ring(&status);
        io->ring_count += ring != NULL;
    }
    while (ring == NULL) {
        ring = io->free;
        if (ring != NULL)
            io->free = ring->next;
        else
            (void)pthread_cond_wait(&io->is_free, &io->mutex);
    }
    (void)pthread_mutex_unlock(&io->mutex);
    return ring;
}

static void give_back(struct block_io_uring *io, struct ring *ring)
{
    (void)pthread_mutex_lock(&io->mutex);
    ring->next = io->free;
    io->free = ring;
    (void)pthread_cond_signal(&io->is_free);
    (void)pthread_mutex_unlock(&io->mutex);
}

/* Hands over what is prepared and waits until at least one transfer is done. Returns how many
 * were. The kernel writes into memory of the caller, so there is no way out before all are. */
static size_t reap(struct ring *ring)
{
    int status = io_uring_submit_and_wait(&ring->uring, 1);
    struct io_uring_cqe *cqe;
    size_t count = 0;

    assert(status >= 0 || status == -EINTR || status == -EAGAIN || status == -EBUSY ||
           status == -ENOMEM);
    while (io_uring_peek_cqe(&ring->uring, &cqe) == 0) {
        struct block_io_op *op = io_uring_cqe_get_data(cqe);
        int result = cqe->res;

        io_uring_cqe_seen(&ring->uring, cqe);
        block_io_settle(op, result);
        count++;
    }
    return count;
}

static void prepare(struct io_uring_sqe *sqe, struct block_io_op *op)
{
    int fd = op->is_direct ? op->direct_fd : op->fd;

    if (op->is_write)
        io_uring_prep_writev(sqe, fd, op->parts, op->part_count, op->offset);
    else
        io_uring_prep_readv(sqe, fd, op->parts, op->part_count, op->offset);
    io_uring_sqe_set_data(sqe, op);
}

static void try_all(struct block_io *base, struct block_io_op *ops, size_t count)
{
    struct block_io_uring *io = (struct block_io_uring *)base;
    struct ring *ring = acquire(io);
    size_t in_flight = 0;

    for (size_t i = 0; i < count; i++) {
        if (ops[i].is_done)
            continue;
        while (in_flight == RING_ENTRIES)
            in_flight -= reap(ring);
        prepare(io_uring_get_sqe(&ring->uring), &ops[i]);
        in_flight++;
    }
    while (in_flight > 0)
        in_flight -= reap(ring);
    give_back(io, ring);
}

static void destroy(struct block_io *base)
{
    struct block_io_uring *io = (struct block_io_uring *)base;

    for (struct ring *ring = io->free; ring != NULL;) {
        struct ring *next = ring->next;

        destroy_ring(ring);
        ring = next;
    }
    (void)pthread_cond_destroy(&io->is_free);
    (void)pthread_mutex_destroy(&io->mutex);
    free(io);
}

static const struct block_io_ops uring_ops = {
    .name = "io_uring",
    .try_all = try_all,
    .destroy = destroy,
};

int block_io_uring_create(struct block_io **base)
{
    struct block_io_uring *io = calloc(1, sizeof *io);
    int status;

    if (io == NULL)
        return -ENOMEM;
    io->free = make_ring(&status);
    if (io->free == NULL) {
        free(io);
        return status;
    }
    io->ring_count = 1;
    io->io.ops = &uring_ops;
    (void)pthread_mutex_init(&io->mutex, NULL);
    (void)pthread_cond_init(&io->is_free, NULL);
    *base = &io->io;
    return 0;
}
