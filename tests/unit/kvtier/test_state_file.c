/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/state_file.h"

#include "tests/support/leak_check.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { STATE_BYTES_MAX = 1 << 20 };

static const struct state_file_identity identity = {1, 2, 3};

/* A directory of the test's own, ours alone. */
static char directory[] = "/tmp/samovar-state-XXXXXX";

static void init(void)
{
    cr_assert(ne(ptr, mkdtemp(directory), NULL));
}

static void path_of(char path[256])
{
    char name[STATE_FILE_NAME_BYTES];

    state_file_name(identity.worker, name);
    snprintf(path, 256, "%s/%s", directory, name);
}

static void fini(void)
{
    char path[256];

    path_of(path);
    (void)unlink(path);
    (void)!rmdir(directory);
    leak_check();
}

static int read_back(struct state_file_identity *read, struct buf *out)
{
    *read = (struct state_file_identity){identity.fingerprint, identity.worker, 0};
    buf_init(out, STATE_BYTES_MAX);
    return state_file_read(directory, read, out);
}

static ssize_t read_file_bytes(int fd, char bytes[256])
{
    ssize_t len = pread(fd, bytes, 255, 0);

    cr_assert(gt(i64, len, 0));
    return len;
}

static void write_file_bytes(int fd, const char *bytes, ssize_t len)
{
    cr_assert(eq(int, ftruncate(fd, 0), 0));
    cr_assert(eq(i64, pwrite(fd, bytes, (size_t)len, 0), len));
}

TestSuite(state_file, .init = init, .fini = fini);

Test(state_file, what_was_written_last_is_read)
{
    struct state_file_identity read;
    struct buf out;

    cr_assert(eq(int, state_file_write(directory, identity, SLICE("older")), 0));
    cr_assert(eq(int, state_file_write(directory, identity, SLICE("newer")), 0));
    cr_assert(eq(int, read_back(&read, &out), 0));

    cr_assert(slice_eq(buf_slice(&out), SLICE("newer")));
    cr_assert(eq(u64, read.model, identity.model));
    buf_release(&out);
}

Test(state_file, there_may_be_none_and_it_may_be_empty)
{
    struct state_file_identity read;
    struct buf out;

    cr_assert(eq(int, read_back(&read, &out), -ENOENT));
    cr_assert(eq(int, state_file_write(directory, identity, SLICE("")), 0));
    cr_assert(eq(int, read_back(&read, &out), 0));

    cr_assert(eq(sz, buf_len(&out), 0));
    buf_release(&out);
}

Test(state_file, another_fingerprint_finds_nothing_that_fits)
{
    struct state_file_identity other = identity;
    struct buf out;

    cr_assert(eq(int, state_file_write(directory, identity, SLICE("state")), 0));
    other.fingerprint++;
    buf_init(&out, STATE_BYTES_MAX);

    cr_assert(eq(int, state_file_read(directory, &other, &out), -EBADMSG));
    cr_assert(eq(sz, buf_len(&out), 0));
    buf_release(&out);
}

/* Every cut of a file, every byte of it changed, and a byte too many. */
Test(state_file, a_file_that_is_not_whole_is_refused)
{
    struct state_file_identity read;
    char path[256], bytes[256];
    struct buf out;
    ssize_t len;
    int fd;

    cr_assert(eq(int, state_file_write(directory, identity, SLICE("state")), 0));
    path_of(path);
    fd = open(path, O_RDWR);
    len = read_file_bytes(fd, bytes);
    for (ssize_t cut = 0; cut < len; cut++) {
        cr_assert(eq(int, ftruncate(fd, cut), 0));
        cr_assert(eq(int, read_back(&read, &out), -EBADMSG), "%zd", cut);
        buf_release(&out);
        write_file_bytes(fd, bytes, len);
    }
    for (ssize_t at = 0; at < len; at++) {
        if (at >= 32 && at < 40) /* the model, which is for the caller to judge */
            continue;
        bytes[at] ^= 1;
        write_file_bytes(fd, bytes, len);
        cr_assert(eq(int, read_back(&read, &out), -EBADMSG), "%zd", at);
        buf_release(&out);
        bytes[at] ^= 1;
    }
    write_file_bytes(fd, bytes, len + 1);
    cr_assert(eq(int, read_back(&read, &out), -EBADMSG));
    buf_release(&out);
    close(fd);
}

Test(state_file, a_directory_or_a_file_that_others_may_write_is_not_ours)
{
    char path[256], why[STATE_FILE_WHY_BYTES];
    struct state_file_identity read;
    struct buf out;

    cr_assert(eq(int, state_file_write(directory, identity, SLICE("state")), 0));
    path_of(path);
    cr_assert(eq(int, chmod(path, 0622), 0));
    cr_assert(eq(int, read_back(&read, &out), -EPERM));
    cr_assert(eq(int, chmod(directory, 0777), 0));

    cr_assert(eq(int, state_file_write(directory, identity, SLICE("state")), -EPERM));
    cr_assert(eq(int, state_file_check_directory(directory, why), -EPERM));
    cr_assert(ne(ptr, strstr(why, "chmod 700"), NULL));
    buf_release(&out);
}

Test(state_file, a_link_is_not_followed)
{
    char path[256];
    struct state_file_identity read;
    struct buf out;

    path_of(path);
    cr_assert(eq(int, symlink("/etc/passwd", path), 0));

    cr_assert(eq(int, read_back(&read, &out), -ELOOP));
    cr_assert(eq(int, state_file_write(directory, identity, SLICE("state")), 0));
    buf_release(&out);
    cr_assert(eq(int, read_back(&read, &out), 0), "the link was replaced, not its target");
    buf_release(&out);
}

Test(state_file, its_directory_is_made_for_us_alone)
{
    char inner[256], why[STATE_FILE_WHY_BYTES];
    struct stat stat;

    snprintf(inner, sizeof inner, "%s/inner", directory);
    cr_assert(eq(int, state_file_check_directory(inner, why), 0));
    cr_assert(eq(int, state_file_check_directory(inner, why), 0));

    cr_assert(eq(int, lstat(inner, &stat), 0));
    cr_assert(eq(u32, stat.st_mode & 0777, 0700));
    cr_assert(eq(int, rmdir(inner), 0));
    snprintf(inner, sizeof inner, "%s/no/such", directory);
    cr_assert(eq(int, state_file_check_directory(inner, why), -ENOENT));
}
