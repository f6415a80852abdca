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

enum { WORKER = 2, STATE_BYTES_MAX = 256 };

/* A directory of the test's own, ours alone. */
static char directory[] = "/tmp/samovar-state-XXXXXX";

static void init(void)
{
    cr_assert(ne(ptr, mkdtemp(directory), NULL));
}

static void path_of(char path[256])
{
    char name[STATE_FILE_NAME_BYTES];

    state_file_name(WORKER, name);
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

static int read_back(struct buf *out)
{
    buf_init(out, STATE_BYTES_MAX);
    return state_file_read(directory, WORKER, out);
}

TestSuite(state_file, .init = init, .fini = fini);

Test(state_file, what_was_written_last_is_read)
{
    struct buf out;

    cr_assert(eq(int, state_file_write(directory, WORKER, SLICE("older")), 0));
    cr_assert(eq(int, state_file_write(directory, WORKER, SLICE("newer")), 0));
    cr_assert(eq(int, read_back(&out), 0));

    cr_assert(slice_eq(buf_slice(&out), SLICE("newer")));
    buf_release(&out);
}

Test(state_file, there_may_be_none_and_it_may_be_empty)
{
    struct buf out;

    cr_assert(eq(int, read_back(&out), -ENOENT));
    cr_assert(eq(int, state_file_write(directory, WORKER, SLICE("")), 0));
    cr_assert(eq(int, read_back(&out), 0));

    cr_assert(eq(sz, buf_len(&out), 0));
    buf_release(&out);
}

Test(state_file, one_that_is_too_long_is_not_read)
{
    char state[STATE_BYTES_MAX + 1] = {0};
    struct buf out;

    cr_assert(eq(int, state_file_write(directory, WORKER, slice_of(state, sizeof state)), 0));

    cr_assert(eq(int, read_back(&out), -ENOBUFS));
    buf_release(&out);
}

Test(state_file, a_directory_or_a_file_that_others_may_write_is_not_ours)
{
    char path[256], why[STATE_FILE_WHY_BYTES];
    struct buf out;

    cr_assert(eq(int, state_file_write(directory, WORKER, SLICE("state")), 0));
    path_of(path);
    cr_assert(eq(int, chmod(path, 0622), 0));
    cr_assert(eq(int, read_back(&out), -EPERM));
    cr_assert(eq(int, chmod(directory, 0777), 0));

    cr_assert(eq(int, state_file_write(directory, WORKER, SLICE("state")), -EPERM));
    cr_assert(eq(int, state_file_check_directory(directory, why), -EPERM));
    cr_assert(ne(ptr, strstr(why, "chmod 700"), NULL));
    buf_release(&out);
}

Test(state_file, a_link_is_not_followed)
{
    char path[256];
    struct buf out;

    path_of(path);
    cr_assert(eq(int, symlink("/etc/passwd", path), 0));

    cr_assert(eq(int, read_back(&out), -ELOOP));
    cr_assert(eq(int, state_file_write(directory, WORKER, SLICE("state")), 0));
    buf_release(&out);
    cr_assert(eq(int, read_back(&out), 0), "the link was replaced, not its target");
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
