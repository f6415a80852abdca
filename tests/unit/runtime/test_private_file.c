/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/runtime/private_file.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/leak_check.h"

struct file_world {
    char path[64];
    struct private_file file;
    char why[PRIVATE_FILE_WHY_BYTES];
};

static void write_file(struct file_world *world, const void *bytes, size_t len, mode_t mode)
{
    int fd;

    memcpy(world->path, "/tmp/test_private_file.XXXXXX", 30);
    fd = mkstemp(world->path);
    cr_assert(fd >= 0 && write(fd, bytes, len) == (ssize_t)len && fchmod(fd, mode) == 0);
    close(fd);
}

static int read_back(struct file_world *world)
{
    int status = private_file_read(&world->file, "secret-file", world->path, world->why);

    unlink(world->path);
    return status;
}

TestSuite(private_file, .fini = leak_check);

Test(private_file, every_byte_of_it_counts)
{
    struct file_world world;
    write_file(&world, "a\0b\n", 4, 0600);

    cr_assert(eq(int, read_back(&world), 0));

    cr_assert(eq(sz, world.file.len, 4));
    cr_assert(memcmp(world.file.bytes, "a\0b\n", 5) == 0);
}

Test(private_file, what_is_empty_or_too_long_or_others_may_write_is_refused_with_a_sentence)
{
    static char large[PRIVATE_FILE_BYTES_MAX + 1];
    struct file_world world;

    write_file(&world, "", 0, 0600);
    cr_assert(eq(int, read_back(&world), -EINVAL));
    cr_assert(strstr(world.why, "secret-file /tmp/") == world.why);
    write_file(&world, large, sizeof large, 0600);
    cr_assert(eq(int, read_back(&world), -EINVAL));
    write_file(&world, large, sizeof large - 1, 0444);
    cr_assert(eq(int, read_back(&world), 0));
    write_file(&world, "hidden", 6, 0606);
    cr_assert(eq(int, read_back(&world), -EPERM));
    cr_assert(strstr(world.why, "chmod o-w") != NULL);
    cr_assert(eq(int, read_back(&world), -ENOENT));
    cr_assert(strstr(world.why, "hidden") == NULL);
}

static int read_line_back(struct file_world *world)
{
    int status = private_file_read_line(&world->file, "p", world->path, world->why);

    unlink(world->path);
    return status;
}

Test(private_file, a_password_is_its_first_line_in_printable_characters)
{
    struct file_world world;

    write_file(&world, "pass word\r\nrest", 15, 0600);
    cr_assert(eq(int, read_line_back(&world), 0));
    cr_assert(eq(str, world.file.bytes, "pass word"));
    write_file(&world, "\npass", 5, 0600);
    cr_assert(eq(int, read_line_back(&world), -EINVAL));
    cr_assert(eq(sz, world.file.len, 0));
    cr_assert(eq(int, read_line_back(&world), -ENOENT));
}

Test(private_file, no_path_is_no_password_and_no_error)
{
    struct file_world world = {.file.len = 7};

    cr_assert(eq(int, private_file_read_line(&world.file, "p", "", world.why), 0));

    cr_assert(eq(sz, world.file.len, 0));
}
