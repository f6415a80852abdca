/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/runtime/file_replace.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

/* All of bytes, or -errno. */
static int write_all(int fd, struct slice bytes)
{
    while (bytes.len > 0) {
        ssize_t written = write(fd, bytes.ptr, bytes.len);

        if (written < 0 && errno != EINTR)
            return -errno;
        if (written > 0)
            bytes = slice_skip(bytes, (size_t)written);
    }
    return 0;
}

/* Writes name, which must not be there, to the disk. -errno: it may be there in part. */
static int write_new(int dir_fd, const char *name, struct slice bytes)
{
    int fd = openat(dir_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                    S_IRUSR | S_IWUSR);
    int status;

    if (fd < 0)
        return -errno;
    status = write_all(fd, bytes);
    if (status == 0 && fsync(fd) < 0)
        status = -errno;
    if (close(fd) < 0 && status == 0)
        status = -errno;
    return status;
}

int file_replace(int dir_fd, const char *name, struct slice bytes)
{
    char new_name[FILE_REPLACE_NAME_BYTES + sizeof ".new"];
    int len = snprintf(new_name, sizeof new_name, "%s.new", name);
    int status;

    assert(len > 0 && (size_t)len < sizeof new_name);
    (void)len;

    (void)unlinkat(dir_fd, new_name, 0); /* of one that was killed in the midst */
    status = write_new(dir_fd, new_name, bytes);
    if (status == 0 && renameat(dir_fd, new_name, dir_fd, name) < 0)
        status = -errno;
    if (status == 0 && fsync(dir_fd) < 0)
        status = -errno;
    if (status < 0)
        (void)unlinkat(dir_fd, new_name, 0);
    return status;
}
