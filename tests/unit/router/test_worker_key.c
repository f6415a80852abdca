/* SPDX-License-Identifier: Apache-2.0 */

#include "router/worker_key.h"

#include "tests/support/leak_check.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A file of its own with these bytes; to be unlinked. */
static void write_file(char path[64], const char *bytes, size_t len)
{
    int fd;

    snprintf(path, 64, "/tmp/worker_key.XXXXXX");
    fd = mkstemp(path);
    cr_assert(ge(int, fd, 0));
    cr_assert(eq(int, (int)write(fd, bytes, len), (int)len));
    close(fd);
}

TestSuite(worker_key, .fini = leak_check);

Test(worker_key, the_first_line_is_the_key)
{
    static const char *const files[] = {"k3y", "k3y\n", "k3y\r\n", "k3y\nsecond line\n"};

    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        char path[64], why[256];
        char *authorization;
        write_file(path, files[i], strlen(files[i]));

        cr_assert(eq(int, worker_key_read(path, &authorization, why), 0));

        cr_assert(eq(str, authorization, "Bearer k3y"), "file %zu", i);
        worker_key_forget(&authorization);
        cr_assert(eq(ptr, authorization, NULL));
        unlink(path);
    }
}

Test(worker_key, without_a_file_there_is_none)
{
    char why[256];
    char *authorization;

    cr_assert(eq(int, worker_key_read("", &authorization, why), 0));

    cr_assert(eq(ptr, authorization, NULL));
    worker_key_forget(&authorization);
}

Test(worker_key, what_is_no_key_is_refused_and_not_quoted)
{
    static const struct {
        const char *bytes;
        size_t len;
    } files[] = {
        {"", 0}, {"\n", 1}, {"sec ret\n", 8}, {"sec\tret", 7}, {"secret\x01", 7}, {"secret\x80", 7},
    };

    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        char path[64], why[256] = "";
        char *authorization;
        write_file(path, files[i].bytes, files[i].len);

        cr_assert(eq(int, worker_key_read(path, &authorization, why), -EINVAL), "file %zu", i);

        cr_assert(eq(ptr, authorization, NULL));
        cr_assert(ne(ptr, strstr(why, path), NULL));
        cr_assert(eq(ptr, strstr(why, "sec"), NULL), "%s", why);
        unlink(path);
    }
}

Test(worker_key, a_file_that_cannot_be_read_is_named)
{
    char why[256];
    char *authorization;

    cr_assert(eq(int, worker_key_read("/nowhere/key", &authorization, why), -ENOENT));

    cr_assert(ne(ptr, strstr(why, "/nowhere/key: No such file"), NULL));
}
