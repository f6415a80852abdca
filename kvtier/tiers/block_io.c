/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/block_io.h"

#include <assert.h>
#include <errno.h>

/*
 * DESIGN
 * The two ways try each transfer once and say what came of it; what that means is decided here for
 * both. Whether O_DIRECT can be used is a matter of each transfer: file systems refuse it by how
 * memory, offset or length are aligned, and a rest after a short transfer may be aligned otherwise.
 *
 * What is to be done with each transfer (a checksum) is done as soon as it ends: the disk goes on
 * with the others meanwhile.
 */

enum { TRY_COUNT_MAX = 1000 };

/* Takes count bytes off the front. */
static void skip(struct block_io_op *op, size_t count)
{
    op->offset += count;
    while (op->part_count > 0 && count >= op->parts[0].iov_len) {
        count -= op->parts[0].iov_len;
        op->part_count--;
        for (uint32_t i = 0; i < op->part_count; i++)
            op->parts[i] = op->parts[i + 1];
    }
    if (op->part_count > 0) {
        op->parts[0].iov_base = (uint8_t *)op->parts[0].iov_base + count;
        op->parts[0].iov_len -= count;
    }
}

static void end(struct block_io_op *op, int status)
{
    op->status = status;
    op->is_done = true;
}

static void settle_bytes(struct block_io_op *op, size_t bytes)
{
    skip(op, bytes);
    if (op->part_count == 0)
        end(op, 0);
    else if (bytes == 0)
        end(op, op->is_write ? -EIO : -ENODATA);
    else if (op->offset % BLOCK_IO_SECTOR_BYTES != 0)
        op->is_direct = false;
}

void block_io_settle(struct block_io_op *op, ssize_t result)
{
    assert(!op->is_done);

    op->try_count++;
    if (result >= 0)
        settle_bytes(op, (size_t)result);
    else if (result == -EINVAL && op->is_direct)
        op->is_direct = false;
    else if ((result != -EINTR && result != -EAGAIN) || op->try_count == TRY_COUNT_MAX)
        end(op, (int)result);
    if (op->is_done && op->on_done != NULL)
        op->on_done(op);
}

int block_io_create(bool may_use_uring, struct block_io **io)
{
    if (may_use_uring && block_io_uring_create(io) == 0)
        return 0;
    return block_io_threads_create(io);
}

size_t block_io_run(struct block_io *io, struct block_io_op *ops, size_t count)
{
    size_t done = 0, good = 0;

    for (size_t i = 0; i < count; i++) {
        assert(ops[i].part_count > 0 && ops[i].part_count <= BLOCK_IO_PART_COUNT_MAX);
        ops[i].is_direct = ops[i].direct_fd >= 0;
        ops[i].is_done = false;
        ops[i].try_count = 0;
    }
    while (done < count) {
        io->ops->try_all(io, ops, count);
        done = 0;
        for (size_t i = 0; i < count; i++)
            done += ops[i].is_done;
    }
    for (size_t i = 0; i < count; i++)
        good += ops[i].status == 0;
    return good;
}

void block_io_destroy(struct block_io **io)
{
    if (*io != NULL)
        (*io)->ops->destroy(*io);
    *io = NULL;
}
