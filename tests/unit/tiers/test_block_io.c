/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/block_io.h"

#include "tests/support/leak_check.h"
#include "tests/unit/tiers/slot_world.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SECTOR = BLOCK_IO_SECTOR_BYTES, OP_COUNT = 300, CALLER_COUNT = 6 };

typedef int make_fn(struct block_io **io);
static make_fn *const ways[] = {block_io_uring_create, block_io_threads_create};
enum { WAY_COUNT = 2 };

/* NULL: this kernel does not let us. */
static struct block_io *make(size_t way)
{
    struct block_io *io = NULL;
    int status = ways[way](&io);

    if (way == 0 && (status == -EPERM || status == -ENOSYS))
        cr_log_info("no io_uring here");
    else
        cr_assert(eq(int, status, 0));
    return io;
}

struct file {
    char path[32];
    int fd, direct_fd;
};

static struct file make_file(void)
{
    struct file file = {.path = "/var/tmp/block_io-XXXXXX"};

    file.fd = mkstemp(file.path);
    cr_assert(ge(int, file.fd, 0));
    file.direct_fd = open(file.path, O_RDWR | O_DIRECT | O_CLOEXEC);
    return file;
}

static void drop_file(struct file *file)
{
    close(file->fd);
    if (file->direct_fd >= 0)
        close(file->direct_fd);
    unlink(file->path);
}

static uint8_t *sectors(size_t count)
{
    uint8_t *bytes = aligned_alloc(SECTOR, count * SECTOR);

    cr_assert(bytes != NULL);
    memset(bytes, 0, count * SECTOR);
    return bytes;
}

static struct block_io_op op_of(const struct file *file, uint8_t *bytes, size_t at, bool is_write)
{
    return (struct block_io_op){
        .direct_fd = file->direct_fd,
        .fd = file->fd,
        .is_write = is_write,
        .offset = at * 2 * SECTOR,
        .parts = {{bytes + at * 2 * SECTOR, SECTOR}, {bytes + (at * 2 + 1) * SECTOR, SECTOR}},
        .part_count = 2,
        .status = 1};
}

static size_t run(struct block_io *io, const struct file *file, uint8_t *bytes, bool is_write)
{
    struct block_io_op ops[OP_COUNT];

    for (size_t i = 0; i < OP_COUNT; i++)
        ops[i] = op_of(file, bytes, i, is_write);
    return block_io_run(io, ops, OP_COUNT);
}

/* One way, a file, and memory for all ops. */
struct rig {
    struct block_io *io;
    struct file file;
    uint8_t *bytes;
};

/* False: this kernel does not let us. */
static bool rig_open(struct rig *rig, size_t way)
{
    *rig = (struct rig){.io = make(way)};
    if (rig->io == NULL)
        return false;
    rig->file = make_file();
    rig->bytes = sectors(OP_COUNT * 2);
    return true;
}

static void rig_close(struct rig *rig)
{
    free(rig->bytes);
    drop_file(&rig->file);
    block_io_destroy(&rig->io);
    cr_assert(rig->io == NULL);
}

TestSuite(block_io, .fini = leak_check);

Test(block_io, more_transfers_than_fit_at_once_all_arrive)
{
    for (size_t way = 0; way < WAY_COUNT; way++) {
        struct rig rig;
        if (!rig_open(&rig, way))
            continue;
        slot_fill(rig.bytes, (size_t)OP_COUNT * 2 * SECTOR, 5);

        cr_assert(eq(sz, run(rig.io, &rig.file, rig.bytes, true), OP_COUNT));
        memset(rig.bytes, 0, (size_t)OP_COUNT * 2 * SECTOR);
        cr_assert(eq(sz, run(rig.io, &rig.file, rig.bytes, false), OP_COUNT));

        cr_assert(slot_is_filled(rig.bytes, (size_t)OP_COUNT * 2 * SECTOR, 5));
        rig_close(&rig);
    }
}

Test(block_io, a_read_beyond_the_end_of_the_file_says_so)
{
    for (size_t way = 0; way < WAY_COUNT; way++) {
        struct rig rig;
        if (!rig_open(&rig, way))
            continue;
        struct block_io_op ops[3];
        cr_assert(eq(int, ftruncate(rig.file.fd, 3 * SECTOR + 100), 0));
        for (size_t i = 0; i < 3; i++)
            ops[i] = op_of(&rig.file, rig.bytes, i, false);

        cr_assert(eq(sz, block_io_run(rig.io, ops, 3), 1));

        cr_assert(eq(int, ops[0].status, 0));
        cr_assert(eq(int, ops[1].status, -ENODATA));
        cr_assert(eq(int, ops[2].status, -ENODATA));
        rig_close(&rig);
    }
}

Test(block_io, what_o_direct_does_not_take_goes_through_the_page_cache)
{
    for (size_t way = 0; way < WAY_COUNT; way++) {
        struct rig rig;
        if (!rig_open(&rig, way))
            continue;
        uint8_t byte = 0;
        slot_fill(rig.bytes + 1, 700, 9);
        struct block_io_op op = {.direct_fd = rig.file.direct_fd,
                                 .fd = rig.file.fd,
                                 .is_write = true,
                                 .offset = 1,
                                 .parts = {{rig.bytes + 1, 700}},
                                 .part_count = 1};

        cr_assert(eq(sz, block_io_run(rig.io, &op, 1), 1));

        cr_assert(eq(int, pread(rig.file.fd, &byte, 1, 700), 1));
        cr_assert(eq(u8, byte, rig.bytes[700]));
        rig_close(&rig);
    }
}

Test(block_io, a_file_that_is_not_open_fails_alone)
{
    for (size_t way = 0; way < WAY_COUNT; way++) {
        struct rig rig;
        if (!rig_open(&rig, way))
            continue;
        struct block_io_op ops[2] = {op_of(&rig.file, rig.bytes, 0, true),
                                     op_of(&rig.file, rig.bytes, 1, true)};
        ops[0].fd = ops[0].direct_fd = 9999;

        cr_assert(eq(sz, block_io_run(rig.io, ops, 2), 1));

        cr_assert(eq(int, ops[0].status, -EBADF));
        cr_assert(eq(int, ops[1].status, 0));
        rig_close(&rig);
    }
}

static void count_done(struct block_io_op *op)
{
    atomic_uint *done = op->ctx;

    cr_assert(ne(int, op->status, 1));
    atomic_fetch_add(done, 1);
}

Test(block_io, each_is_told_once_when_it_is_done)
{
    for (size_t way = 0; way < WAY_COUNT; way++) {
        struct rig rig;
        if (!rig_open(&rig, way))
            continue;
        struct block_io_op ops[OP_COUNT];
        atomic_uint done[OP_COUNT] = {0};
        for (size_t i = 0; i < OP_COUNT; i++) {
            ops[i] = op_of(&rig.file, rig.bytes, i, i % 3 != 0); /* some read beyond the end */
            ops[i].on_done = count_done;
            ops[i].ctx = &done[i];
        }

        (void)block_io_run(rig.io, ops, OP_COUNT);

        for (size_t i = 0; i < OP_COUNT; i++)
            cr_assert(eq(u32, atomic_load(&done[i]), 1));
        rig_close(&rig);
    }
}

struct caller {
    struct block_io *io;
    struct file file;
    uint64_t number;
    bool is_right;
};

static void *call(void *ctx)
{
    struct caller *caller = ctx;
    const size_t len = (size_t)OP_COUNT * 2 * SECTOR;
    uint8_t *bytes = aligned_alloc(SECTOR, len);

    slot_fill(bytes, len, caller->number);
    caller->is_right = run(caller->io, &caller->file, bytes, true) == OP_COUNT;
    for (int round = 0; round < 3; round++) {
        memset(bytes, 0, len);
        caller->is_right &= run(caller->io, &caller->file, bytes, false) == OP_COUNT &&
                            slot_is_filled(bytes, len, caller->number);
    }
    free(bytes);
    return NULL;
}

Test(block_io, callers_do_not_get_each_others_bytes)
{
    for (size_t way = 0; way < WAY_COUNT; way++) {
        struct block_io *io = make(way);
        if (io == NULL)
            continue;
        struct caller callers[CALLER_COUNT];
        pthread_t threads[CALLER_COUNT];

        for (size_t i = 0; i < CALLER_COUNT; i++) {
            callers[i] = (struct caller){.io = io, .file = make_file(), .number = i};
            cr_assert(eq(int, pthread_create(&threads[i], NULL, call, &callers[i]), 0));
        }

        for (size_t i = 0; i < CALLER_COUNT; i++) {
            pthread_join(threads[i], NULL);
            cr_assert(callers[i].is_right);
            drop_file(&callers[i].file);
        }
        block_io_destroy(&io);
    }
}

/* As a container's filter does: io_uring_setup() is answered with error. */
static void forbid_uring(int error)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof filter / sizeof *filter, .filter = filter};

    cr_assert(eq(int, prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0));
    cr_assert(eq(int, prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0));
}

Test(block_io, where_io_uring_is_forbidden_threads_do_it)
{
    struct file file = make_file();
    uint8_t *bytes = sectors(OP_COUNT * 2);
    struct block_io *io;
    forbid_uring(EPERM);

    cr_assert(eq(int, block_io_uring_create(&io), -EPERM));
    cr_assert(eq(int, block_io_create(true, &io), 0));

    cr_assert(eq(str, (char *)io->ops->name, "threads"));
    cr_assert(eq(sz, run(io, &file, bytes, true), OP_COUNT));
    free(bytes);
    drop_file(&file);
    block_io_destroy(&io);
}

/* A disk of moods: each try takes the next result; above 0: so many bytes at most, and done. */
struct moody {
    struct block_io io;
    const ssize_t *moods;
    unsigned tries;
    bool was_direct[16];
};

static void try_moody(struct block_io *io, struct block_io_op *ops, size_t count)
{
    struct moody *moody = (struct moody *)io;
    ssize_t mood = moody->moods[moody->tries];

    cr_assert(eq(sz, count, 1));
    moody->was_direct[moody->tries++] = ops->is_direct;
    if (mood > 0)
        mood = pread(ops->fd, ops->parts[0].iov_base,
                     (size_t)mood < ops->parts[0].iov_len ? (size_t)mood : ops->parts[0].iov_len,
                     (off_t)ops->offset);
    block_io_settle(ops, mood);
}

static int run_moody(struct moody *moody, const ssize_t *moods, bool is_write)
{
    static const struct block_io_ops moody_ops = {.name = "moody", .try_all = try_moody};
    struct file file = make_file();
    uint8_t *bytes = sectors(2), *expected = sectors(2);
    struct block_io_op op;

    *moody = (struct moody){.io = {&moody_ops}, .moods = moods};
    slot_fill(expected, 2 * SECTOR, 6);
    cr_assert(eq(int, pwrite(file.fd, expected, 2 * SECTOR, 0), 2 * SECTOR));
    op = op_of(&file, bytes, 0, is_write);
    op.direct_fd = file.fd;
    (void)block_io_run(&moody->io, &op, 1);
    if (op.status == 0)
        cr_assert(eq(int, memcmp(bytes, expected, 2 * SECTOR), 0));
    free(bytes);
    free(expected);
    drop_file(&file);
    return op.status;
}

Test(block_io, what_came_short_goes_on_where_it_ended)
{
    struct moody moody;

    cr_assert(eq(
        int, run_moody(&moody, (const ssize_t[]){1000, -EINTR, 3000, SECTOR, SECTOR}, false), 0));

    cr_assert(eq(u32, moody.tries, 5));
    cr_assert(moody.was_direct[0]);
    cr_assert(not(moody.was_direct[1])); /* O_DIRECT takes no half sectors */
}

Test(block_io, einval_is_tried_once_more_without_o_direct)
{
    struct moody moody;

    cr_assert(eq(int, run_moody(&moody, (const ssize_t[]){-EINVAL, -EINVAL}, false), -EINVAL));
    cr_assert(eq(u32, moody.tries, 2));
    cr_assert(not(moody.was_direct[1]));
    cr_assert(eq(int, run_moody(&moody, (const ssize_t[]){-EINVAL, SECTOR, SECTOR}, false), 0));
}

Test(block_io, errors_of_the_disk_are_told_as_they_are)
{
    struct moody moody;

    cr_assert(eq(int, run_moody(&moody, (const ssize_t[]){-EIO}, false), -EIO));
    cr_assert(eq(int, run_moody(&moody, (const ssize_t[]){SECTOR, -ENOSPC}, true), -ENOSPC));
    cr_assert(eq(int, run_moody(&moody, (const ssize_t[]){0}, false), -ENODATA));
    cr_assert(eq(int, run_moody(&moody, (const ssize_t[]){0}, true), -EIO));
}
