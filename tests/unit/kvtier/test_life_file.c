/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/life_file.h"

#include "tests/support/leak_check.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORKER = 2, PATH_BYTES = 256 };

/* A directory of the test's own, ours alone, and one for copies. */
static char directory[] = "/tmp/samovar-life-XXXXXX";
static char copy[] = "/tmp/samovar-life-copy-XXXXXX";

static void init(void)
{
    cr_assert(ne(ptr, mkdtemp(directory), NULL));
    cr_assert(ne(ptr, mkdtemp(copy), NULL));
}

static void path_in(const char *parent, char path[PATH_BYTES])
{
    char name[LIFE_FILE_NAME_BYTES];

    life_file_name(WORKER, name);
    snprintf(path, PATH_BYTES, "%s/%s", parent, name);
}

static void fini(void)
{
    char path[PATH_BYTES];

    path_in(directory, path);
    (void)unlink(path);
    path_in(copy, path);
    (void)unlink(path);
    (void)!rmdir(directory);
    (void)!rmdir(copy);
    leak_check();
}

TestSuite(life_file, .init = init, .fini = fini, .timeout = 30);

static enum life_proof take(struct life_file *file, uint64_t epoch,
                            uint64_t before[LIFE_EPOCH_COUNT_MAX])
{
    return life_file_take(file, directory, WORKER, epoch, before);
}

static void check_before(const uint64_t before[LIFE_EPOCH_COUNT_MAX], uint64_t first,
                         uint64_t second)
{
    cr_assert(eq(u64, before[0], first));
    cr_assert(eq(u64, before[1], second));
    cr_assert(eq(u64, before[2], 0));
}

Test(life_file, who_ended_is_succeeded_and_who_was_not_heard_of_is_not)
{
    uint64_t before[LIFE_EPOCH_COUNT_MAX];
    struct life_file file;

    cr_assert(eq(int, (int)take(&file, 11, before), LIFE_FIRST));
    check_before(before, 0, 0);
    life_file_release(&file);
    cr_assert(eq(int, (int)take(&file, 12, before), LIFE_OVER));
    check_before(before, 11, 0);
    life_file_release(&file);
    cr_assert(eq(int, (int)take(&file, 13, before), LIFE_OVER));

    check_before(before, 12, 11);
    life_file_release(&file);
    life_file_release(&file);
}

/* It takes the record in the name of epoch, says so by the pipe, and lives until it is killed. */
static pid_t start_holder(uint64_t epoch)
{
    uint64_t before[LIFE_EPOCH_COUNT_MAX];
    struct life_file file;
    int pipe_fds[2];
    char byte;
    pid_t pid;

    cr_assert(eq(int, pipe(pipe_fds), 0));
    pid = fork();
    if (pid == 0) {
        (void)take(&file, epoch, before);
        (void)!write(pipe_fds[1], "x", 1);
        for (;;)
            pause();
    }
    cr_assert(eq(long, read(pipe_fds[0], &byte, 1), 1));
    close(pipe_fds[0]);
    close(pipe_fds[1]);
    return pid;
}

Test(life_file, who_lives_is_not_and_stays_written_down_until_it_is_killed)
{
    uint64_t before[LIFE_EPOCH_COUNT_MAX];
    struct life_file file;
    const pid_t holder = start_holder(11);

    cr_assert(eq(int, (int)take(&file, 12, before), LIFE_LIVING));
    check_before(before, 0, 0);
    cr_assert(eq(int, file.fd, -1));
    kill(holder, SIGSTOP); /* it stands still: that is no end */
    cr_assert(eq(int, (int)take(&file, 12, before), LIFE_LIVING));
    kill(holder, SIGKILL);
    waitpid(holder, NULL, 0);

    cr_assert(eq(int, (int)take(&file, 12, before), LIFE_OVER));
    check_before(before, 11, 0);
    life_file_release(&file);
}

/* As cp does. */
static void copy_file(void)
{
    char from[PATH_BYTES], to[PATH_BYTES], bytes[1024];
    ssize_t count;
    int fd;

    path_in(directory, from);
    path_in(copy, to);
    fd = open(from, O_RDONLY);
    count = read(fd, bytes, sizeof bytes);
    close(fd);
    cr_assert(eq(long, count, (long)sizeof(struct life_record)));
    fd = open(to, O_WRONLY | O_CREAT, 0600);
    cr_assert(eq(long, write(fd, bytes, (size_t)count), count));
    close(fd);
}

Test(life_file, a_copy_says_nothing_of_whose_it_was_and_begins_its_own_line)
{
    uint64_t before[LIFE_EPOCH_COUNT_MAX];
    struct life_file file;
    const pid_t holder = start_holder(11);
    copy_file();

    cr_assert(eq(int, (int)life_file_take(&file, copy, WORKER, 12, before), LIFE_COPIED));
    check_before(before, 0, 0);
    life_file_release(&file);
    cr_assert(eq(int, (int)life_file_take(&file, copy, WORKER, 13, before), LIFE_OVER));

    check_before(before, 12, 0);
    life_file_release(&file);
    kill(holder, SIGKILL);
    waitpid(holder, NULL, 0);
}

static void write_over(const char *bytes, size_t len)
{
    char path[PATH_BYTES];
    int fd;

    path_in(directory, path);
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    cr_assert(eq(long, write(fd, bytes, len), (long)len));
    close(fd);
}

Test(life_file, what_is_no_record_is_replaced_and_proves_nothing)
{
    uint64_t before[LIFE_EPOCH_COUNT_MAX];
    struct life_file file;
    write_over("?", 1);

    cr_assert(eq(int, (int)take(&file, 11, before), LIFE_UNREADABLE));
    check_before(before, 0, 0);
    life_file_release(&file);

    cr_assert(eq(int, (int)take(&file, 12, before), LIFE_OVER));
    check_before(before, 11, 0);
    life_file_release(&file);
}

Test(life_file, without_a_directory_or_in_one_of_others_nothing_is_held)
{
    uint64_t before[LIFE_EPOCH_COUNT_MAX];
    char path[PATH_BYTES];
    struct life_file file;

    cr_assert(eq(int, (int)life_file_take(&file, "", WORKER, 11, before), LIFE_NOT_KEPT));
    cr_assert(eq(int, (int)life_file_take(&file, "/nowhere", WORKER, 11, before), LIFE_UNWRITABLE));
    cr_assert(eq(int, chmod(directory, 0777), 0));
    cr_assert(eq(int, (int)take(&file, 11, before), LIFE_UNWRITABLE));
    cr_assert(eq(int, chmod(directory, 0700), 0));
    path_in(directory, path);
    cr_assert(eq(int, symlink("/etc/passwd", path), 0));

    cr_assert(eq(int, (int)take(&file, 11, before), LIFE_UNWRITABLE));
    cr_assert(eq(int, file.fd, -1));
    life_file_release(&file);
}
