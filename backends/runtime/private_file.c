/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/runtime/private_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *word_of(int status)
{
    switch (status) {
    case -EINVAL:
        return "it must hold 1 to 4096 bytes";
    case -EPERM:
        return "others may write it: chmod o-w";
    default:
        return strerror(-status);
    }
}

static int explain(int status, const char *option, const char *path,
                   char why[PRIVATE_FILE_WHY_BYTES])
{
    if (status < 0)
        snprintf(why, PRIVATE_FILE_WHY_BYTES, "%s %.120s: %s", option, path, word_of(status));
    return status;
}

/* By read() alone: no copy of it is left in a buffer of stdio. */
static int read_all(int fd, struct private_file *file)
{
    struct stat stat;
    ssize_t count = 1;

    if (fstat(fd, &stat) < 0)
        return -errno;
    if (S_ISDIR(stat.st_mode))
        return -EISDIR;
    if (S_ISREG(stat.st_mode) && (stat.st_mode & S_IWOTH) != 0)
        return -EPERM;
    while (count > 0 && file->len < sizeof file->bytes) {
        count = read(fd, file->bytes + file->len, sizeof file->bytes - file->len);
        if (count < 0)
            return -errno;
        file->len += (size_t)count;
    }
    return file->len > 0 && file->len <= PRIVATE_FILE_BYTES_MAX ? 0 : -EINVAL;
}

int private_file_read(struct private_file *file, const char *option, const char *path,
                      char why[PRIVATE_FILE_WHY_BYTES])
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    int status = fd < 0 ? -errno : 0;

    file->len = 0;
    if (status == 0)
        status = read_all(fd, file);
    if (fd >= 0)
        close(fd);
    if (status < 0)
        private_file_release(file);
    else
        file->bytes[file->len] = '\0';
    return explain(status, option, path, why);
}

static int keep_first_line(struct private_file *file, const char *option, const char *path,
                           char why[PRIVATE_FILE_WHY_BYTES])
{
    size_t len = strcspn(file->bytes, "\r\n");

    memset(file->bytes + len, 0, sizeof file->bytes - len);
    file->len = len;
    for (size_t i = 0; i < len; i++) {
        if (file->bytes[i] < ' ' || file->bytes[i] > '~')
            len = 0;
    }
    if (len > 0)
        return 0;
    private_file_release(file);
    snprintf(why, PRIVATE_FILE_WHY_BYTES,
             "%s %.120s: its first line must be the password, in printable characters", option,
             path);
    return -EINVAL;
}

int private_file_read_line(struct private_file *file, const char *option, const char *path,
                           char why[PRIVATE_FILE_WHY_BYTES])
{
    int status;

    file->len = 0;
    if (path[0] == '\0')
        return 0;
    status = private_file_read(file, option, path, why);
    return status < 0 ? status : keep_first_line(file, option, path, why);
}

void private_file_release(struct private_file *file)
{
    explicit_bzero(file->bytes, sizeof file->bytes);
    file->len = 0;
}
