/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/state_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hashing/digest.h"

/*
 * DESIGN
 *
 *   head   "smvstate", version 8, fingerprint 8, worker 8, model 8, length 8, checksum 8
 *   state  as alignment_save wrote it
 *
 * Numbers are little-endian. The checksum is over the state and finds what a disk or a copy did to
 * it; it keeps nobody out, which is what the owner and the mode of directory and file are for.
 *
 * A file is written beside the old one, synced, and renamed over it, so that a crash leaves one of
 * both. Nothing is followed: a link in our directory is not ours.
 */

enum { VERSION = 1, HEAD_BYTES = 56, STATE_BYTES_MAX = 1 << 30, READ_BYTES = 1 << 16 };

static const char magic[8] = {'s', 'm', 'v', 's', 't', 'a', 't', 'e'};

/* The checksum's key, which is no secret. */
static const uint8_t checksum_key[DIGEST_SECRET_BYTES] = "samovar state file";

struct head {
    struct state_file_identity identity;
    uint64_t length;
    uint64_t checksum;
};

static void put(uint8_t *bytes, uint64_t value, size_t width)
{
    for (size_t i = 0; i < width; i++)
        bytes[i] = (uint8_t)(value >> 8 * i);
}

static uint64_t get(const uint8_t *bytes)
{
    uint64_t value = 0;

    for (size_t i = 8; i-- > 0;)
        value = value << 8 | bytes[i];
    return value;
}

static uint64_t checksum(struct slice state)
{
    return digest_64(checksum_key, DIGEST_BODY, state.ptr, state.len);
}

static void write_head(uint8_t bytes[HEAD_BYTES], const struct head *head)
{
    memcpy(bytes, magic, sizeof magic);
    put(bytes + 8, VERSION, 8);
    put(bytes + 16, head->identity.fingerprint, 8);
    put(bytes + 24, head->identity.worker, 8);
    put(bytes + 32, head->identity.model, 8);
    put(bytes + 40, head->length, 8);
    put(bytes + 48, head->checksum, 8);
}

static int read_head(const uint8_t bytes[HEAD_BYTES], struct head *head)
{
    if (memcmp(bytes, magic, sizeof magic) != 0 || get(bytes + 8) != VERSION)
        return -EBADMSG;
    *head = (struct head){
        .identity = {get(bytes + 16), get(bytes + 24), get(bytes + 32)},
        .length = get(bytes + 40),
        .checksum = get(bytes + 48),
    };
    return head->length <= STATE_BYTES_MAX ? 0 : -EBADMSG;
}

void state_file_name(uint64_t worker, char name[STATE_FILE_NAME_BYTES])
{
    snprintf(name, STATE_FILE_NAME_BYTES, "alignment-%016" PRIx64, worker);
}

static bool is_ours_alone(int fd)
{
    struct stat stat;

    return fstat(fd, &stat) == 0 && stat.st_uid == geteuid() &&
           (stat.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

/* The directory, which is ours alone. -errno. */
static int open_directory(const char *directory)
{
    int fd = open(directory, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    if (fd < 0)
        return -errno;
    if (is_ours_alone(fd))
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
        fd = open_directory(directory);
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
static int write_new(int directory, const char *name, const uint8_t head[HEAD_BYTES],
                     struct slice state)
{
    int fd = openat(directory, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                    S_IRUSR | S_IWUSR);
    int status;

    if (fd < 0)
        return -errno;
    status = write_all(fd, slice_of((const char *)head, HEAD_BYTES));
    if (status == 0)
        status = write_all(fd, state);
    if (status == 0 && fsync(fd) < 0)
        status = -errno;
    if (close(fd) < 0 && status == 0)
        status = -errno;
    return status;
}

int state_file_write(const char *directory, struct state_file_identity identity, struct slice state)
{
    const struct head head = {identity, state.len, checksum(state)};
    char name[STATE_FILE_NAME_BYTES], new_name[STATE_FILE_NAME_BYTES + 4];
    uint8_t bytes[HEAD_BYTES];
    int fd = open_directory(directory), status;

    if (fd < 0)
        return fd;
    write_head(bytes, &head);
    state_file_name(identity.worker, name);
    snprintf(new_name, sizeof new_name, "%s.new", name);
    (void)unlinkat(fd, new_name, 0); /* of one that was killed in the midst */
    status = write_new(fd, new_name, bytes, state);
    if (status == 0 && renameat(fd, new_name, fd, name) < 0)
        status = -errno;
    if (status == 0 && fsync(fd) < 0)
        status = -errno;
    if (status < 0)
        (void)unlinkat(fd, new_name, 0);
    close(fd);
    return status;
}

/* Exactly len bytes. -EBADMSG: there are fewer. */
static int read_exactly(int fd, uint8_t *bytes, size_t len)
{
    while (len > 0) {
        ssize_t count = read(fd, bytes, len);

        if (count < 0 && errno != EINTR)
            return -errno;
        if (count == 0)
            return -EBADMSG;
        if (count > 0) {
            bytes += count;
            len -= (size_t)count;
        }
    }
    return 0;
}

/* Appends len bytes, and only then knows whether there are so many. */
static int read_state(int fd, size_t len, struct buf *out)
{
    uint8_t bytes[READ_BYTES];
    int status = 0;

    while (status == 0 && len > 0) {
        size_t part = len < sizeof bytes ? len : sizeof bytes;

        status = read_exactly(fd, bytes, part);
        if (status == 0)
            status = buf_append(out, slice_of((const char *)bytes, part));
        len -= part;
    }
    return status;
}

static int read_file(int fd, struct state_file_identity *identity, struct buf *out)
{
    uint8_t bytes[HEAD_BYTES];
    struct head head;
    int status = read_exactly(fd, bytes, sizeof bytes);

    if (status == 0)
        status = read_head(bytes, &head);
    if (status == 0 && (head.identity.fingerprint != identity->fingerprint ||
                        head.identity.worker != identity->worker))
        status = -EBADMSG;
    if (status == 0)
        status = read_state(fd, (size_t)head.length, out);
    if (status == 0 && (read(fd, bytes, 1) != 0 || checksum(buf_slice(out)) != head.checksum))
        status = -EBADMSG;
    if (status == 0)
        identity->model = head.identity.model;
    return status;
}

int state_file_read(const char *directory, struct state_file_identity *identity, struct buf *out)
{
    char name[STATE_FILE_NAME_BYTES];
    int directory_fd = open_directory(directory), fd, status;

    if (directory_fd < 0)
        return directory_fd;
    state_file_name(identity->worker, name);
    fd = openat(directory_fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    status = fd < 0 ? -errno : 0;
    close(directory_fd);
    if (status < 0)
        return status;
    status = is_ours_alone(fd) ? read_file(fd, identity, out) : -EPERM;
    close(fd);
    if (status < 0)
        buf_clear(out);
    return status;
}
