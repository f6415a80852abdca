/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/life_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kvtier/state_file.h"

/*
 * DESIGN
 *
 * The file is overwritten in its place, never replaced: its inode carries the lock. It is shorter
 * than a page, so that a process which is killed leaves it as it was or as it is to be; what a
 * machine leaves that loses its power is of another boot, and proves nothing. So it is not synced.
 */

void life_file_name(uint64_t worker, char name[LIFE_FILE_NAME_BYTES])
{
    snprintf(name, LIFE_FILE_NAME_BYTES, "life-%016" PRIx64, worker);
}

/* Locked. -EWOULDBLOCK: somebody else has it; -errno. */
static int open_locked(const char *directory, uint64_t worker)
{
    char name[LIFE_FILE_NAME_BYTES];
    int directory_fd = state_file_open_directory(directory), fd, status;

    if (directory_fd < 0)
        return directory_fd;
    life_file_name(worker, name);
    fd = openat(directory_fd, name, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR);
    status = fd < 0 ? -errno : 0;
    close(directory_fd);
    if (status == 0 && !state_file_is_ours_alone(fd))
        status = -EPERM;
    if (status == 0 && flock(fd, LOCK_EX | LOCK_NB) < 0)
        status = -errno;
    if (status == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return status;
}

/* Where fd's file is. -errno; -EIO: the kernel does not say. */
static int find_place(int fd, struct life_place *place)
{
    int boot = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    struct stat stat;
    ssize_t count;

    *place = (struct life_place){.device = 0};
    if (boot < 0)
        return -errno;
    count = read(boot, place->boot, sizeof place->boot - 1);
    close(boot);
    if (count <= 0)
        return -EIO;
    if (fstat(fd, &stat) < 0)
        return -errno;
    place->device = (uint64_t)stat.st_dev;
    place->inode = (uint64_t)stat.st_ino;
    return 0;
}

/* All of it, or -errno. */
static int write_record(int fd, const struct life_record *record)
{
    ssize_t count = pwrite(fd, record, sizeof *record, 0);

    if (count < 0)
        return -errno;
    return count == (ssize_t)sizeof *record ? 0 : -EIO;
}

enum life_proof life_file_take(struct life_file *file, const char *directory, uint64_t worker,
                               uint64_t epoch, uint64_t before[LIFE_EPOCH_COUNT_MAX])
{
    struct life_record found, own;
    struct life_place place;
    enum life_proof proof;
    ssize_t count;
    int fd;

    file->fd = -1;
    memset(before, 0, LIFE_EPOCH_COUNT_MAX * sizeof before[0]);
    if (directory[0] == '\0')
        return LIFE_NOT_KEPT;
    fd = open_locked(directory, worker);
    if (fd < 0)
        return fd == -EWOULDBLOCK ? LIFE_LIVING : LIFE_UNWRITABLE;
    count = pread(fd, &found, sizeof found, 0);
    if (count < 0 || find_place(fd, &place) < 0) {
        close(fd);
        return LIFE_UNWRITABLE;
    }
    proof = life_record_prove(&found, (size_t)count, &place);
    own = life_record_begin(proof == LIFE_OVER ? &found : NULL, &place, epoch);
    if (write_record(fd, &own) < 0) {
        close(fd);
        return LIFE_UNWRITABLE;
    }
    if (proof == LIFE_OVER)
        memcpy(before, found.epochs, sizeof found.epochs);
    file->fd = fd;
    return proof;
}

void life_file_release(struct life_file *file)
{
    if (file->fd >= 0)
        close(file->fd);
    file->fd = -1;
}
