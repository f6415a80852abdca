/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/state_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backends/runtime/file_replace.h"

/*
 * DESIGN
 *
 * Nothing is followed: a link in our directory is not ours.
 */

enum { READ_BYTES = 1 << 16 };

void state_file_name(uint64_t worker, char name[STATE_FILE_NAME_BYTES])
{
    snprintf(name, STATE_FILE_NAME_BYTES, "alignment-%016" PRIx64, worker);
}

bool state_file_is_ours_alone(int fd)
{
    struct stat stat;

    return fstat(fd, &stat) == 0 && stat.st_uid == geteuid() &&
           (stat.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

int state_file_open_directory(const char *directory)
{
    int fd = open(directory, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    if (fd < 0)
        return -errno;
    if (state_file_is_ours_alone(fd))
        return fd;
    close(fd);
    return -EPERM;
}

int state_file_check_directory(const char *directory, char why[STATE_FILE_WHY_BYTES])
{
    int fd;

    if (mkdir(directory, S_IRWXU) < 0 && errno != EEXIST)
        fd = -errno;
    else
        fd = state_file_open_directory(directory);
    if (fd >= 0 && faccessat(fd, ".", W_OK, AT_EACCESS) < 0) {
        int error = errno;

        close(fd);
        fd = -error;
    }
    if (fd == -EPERM)
        snprintf(why, STATE_FILE_WHY_BYTES,
                 "state-dir %s: others than this user may write it: chown and chmod 700",
                 directory);
    else if (fd < 0)
        snprintf(why, STATE_FILE_WHY_BYTES, "state-dir %s: %s", directory, strerror(-fd));
    if (fd < 0)
        return fd;
    close(fd);
    return 0;
}

int state_file_write(const char *directory, uint64_t worker, struct slice state)
{
    char name[STATE_FILE_NAME_BYTES];
    int fd = state_file_open_directory(directory), status;

    if (fd < 0)
        return fd;
    state_file_name(worker, name);
    status = file_replace(fd, name, state);
    close(fd);
    return status;
}

static int read_all(int fd, struct buf *out)
{
    char bytes[READ_BYTES];
    ssize_t count = 1;
    int status = 0;

    while (status == 0 && count != 0) {
        count = read(fd, bytes, sizeof bytes);
        if (count < 0 && errno != EINTR)
            status = -errno;
        if (count > 0)
            status = buf_append(out, slice_of(bytes, (size_t)count));
    }
    return status;
}

int state_file_read(const char *directory, uint64_t worker, struct buf *out)
{
    char name[STATE_FILE_NAME_BYTES];
    int directory_fd = state_file_open_directory(directory), fd, status;

    if (directory_fd < 0)
        return directory_fd;
    state_file_name(worker, name);
    fd = openat(directory_fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    status = fd < 0 ? -errno : 0;
    close(directory_fd);
    if (status < 0)
        return status;
    status = state_file_is_ours_alone(fd) ? read_all(fd, out) : -EPERM;
    close(fd);
    return status;
}
