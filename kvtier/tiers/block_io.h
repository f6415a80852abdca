/* SPDX-License-Identifier: Apache-2.0 */

/*
 * block_io: many transfers between memory and files at once: by io_uring, or by threads where the
 * kernel does not let us. A call blocks until all of its transfers are done; any number of threads
 * may call at once. It knows files and bytes, not slots.
 */
#ifndef KVTIER_TIERS_BLOCK_IO_H
#define KVTIER_TIERS_BLOCK_IO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "backends/runtime/must_check.h"

enum { BLOCK_IO_PART_COUNT_MAX = 2, BLOCK_IO_SECTOR_BYTES = 4096 };

/* One transfer: of one run of bytes of a file, of up to two of memory. */
struct block_io_op {
    int direct_fd; /* opened with O_DIRECT; -1: none. Used unless the kernel says EINVAL to it, */
    int fd;        /* then this: the same file, buffered */
    bool is_write;
    uint64_t offset;
    struct iovec parts[BLOCK_IO_PART_COUNT_MAX]; /* used up on the way */
    uint32_t part_count;
    int status; /* out: 0: every byte; -ENODATA: the file ends before; -errno: any may be there */
    /* Once, when status is known, while others are still on their way; by any thread. NULL: nothing
     * is to be done. */
    void (*on_done)(struct block_io_op *op);
    void *ctx;
    /* For who tries: */
    bool is_direct; /* this time by direct_fd */
    bool is_done;   /* leave it alone */
    unsigned try_count;
};

struct block_io;

struct block_io_ops {
    const char *name; /* "io_uring", "threads" */
    /* Tries each that is not done once, as a single preadv() or pwritev() would, and settles it. */
    void (*try_all)(struct block_io *io, struct block_io_op *ops, size_t count);
    void (*destroy)(struct block_io *io);
};

/* Embedded first in each. */
struct block_io {
    const struct block_io_ops *ops;
};

/* io_uring where it may be used and the kernel has it and allows it, else threads. -ENOMEM. */
MUST_CHECK int block_io_create(bool may_use_uring, struct block_io **io);

/* -ENOSYS, -EPERM: not in this kernel, forbidden (a container's seccomp filter); -ENOMEM. */
MUST_CHECK int block_io_uring_create(struct block_io **io);
MUST_CHECK int block_io_threads_create(struct block_io **io);

/* For who tries: bytes or -errno came of it. Any thread, each op once a try. */
void block_io_settle(struct block_io_op *op, ssize_t result);

/* Tries until every status is known: what came short goes on, EINTR is tried again, EINVAL is
 * tried without O_DIRECT. Returns how many are 0. */
size_t block_io_run(struct block_io *io, struct block_io_op *ops, size_t count);

/* NULLs *io, which may be NULL. Nobody may be in a call. */
void block_io_destroy(struct block_io **io);

#endif
