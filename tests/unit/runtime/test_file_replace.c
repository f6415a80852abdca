/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/runtime/file_replace.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/leak_check.h"

static const char name[] = "state", new_name[] = "state.new", other[] = "other";

/* A directory of the test's own. */
static char directory[] = "/tmp/samovar-replace-XXXXXX";
static int dir_fd = -1;

static void init(void)
{
    cr_assert(ne(ptr, mkdtemp(directory), NULL));
    dir_fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    cr_assert(ge(int, dir_fd, 0));
}

static void fini(void)
{
    (void)unlinkat(dir_fd, name, 0);
    (void)unlinkat(dir_fd, name, AT_REMOVEDIR);
    (void)unlinkat(dir_fd, new_name, 0);
    (void)unlinkat(dir_fd, other, 0);
    close(dir_fd);
    rmdir(directory);
    leak_check();
}

TestSuite(file_replace, .init = init, .fini = fini);

static void put(const char *file, const char *text)
{
    int fd = openat(dir_fd, file, O_WRONLY | O_CREAT | O_TRUNC, S_IRUSR | S_IWUSR);

    cr_assert(eq(long, (long)write(fd, text, strlen(text)), (long)strlen(text)));
    close(fd);
}

static void assert_holds(const char *file, const char *text)
{
    char bytes[64] = {0};
    int fd = openat(dir_fd, file, O_RDONLY | O_NOFOLLOW);

    cr_assert(ge(int, fd, 0));
    cr_assert(ge(long, (long)read(fd, bytes, sizeof bytes - 1), 0L));
    close(fd);
    cr_assert(eq(str, bytes, (char *)text));
}

static bool is_there(const char *file)
{
    return faccessat(dir_fd, file, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

Test(file_replace, the_new_bytes_stand_in_place_of_the_old_for_the_owner_only)
{
    struct stat stat;

    put(name, "a longer text that was there before");

    cr_assert(eq(int, file_replace(dir_fd, name, SLICE("new")), 0));

    assert_holds(name, "new");
    cr_assert(eq(int, fstatat(dir_fd, name, &stat, AT_SYMLINK_NOFOLLOW), 0));
    cr_assert(eq(u32, stat.st_mode & 0777, 0600));
    cr_assert(not(is_there(new_name)));
}

Test(file_replace, what_a_killed_one_left_is_no_hindrance)
{
    put(new_name, "half of");

    cr_assert(eq(int, file_replace(dir_fd, name, SLICE("whole")), 0));

    assert_holds(name, "whole");
    cr_assert(not(is_there(new_name)));
}

Test(file_replace, no_link_is_followed)
{
    put(other, "somebody else's");
    cr_assert(eq(int, symlinkat(other, dir_fd, name), 0));
    cr_assert(eq(int, symlinkat(other, dir_fd, new_name), 0));

    cr_assert(eq(int, file_replace(dir_fd, name, SLICE("ours")), 0));

    assert_holds(name, "ours");
    assert_holds(other, "somebody else's");
}

Test(file_replace, what_cannot_be_replaced_stays_and_nothing_is_left_beside_it)
{
    cr_assert(eq(int, mkdirat(dir_fd, name, 0700), 0));

    cr_assert(eq(int, file_replace(dir_fd, name, SLICE("new")), -EISDIR));

    cr_assert(is_there(name));
    cr_assert(not(is_there(new_name)));
}
