/* SPDX-License-Identifier: Apache-2.0 */

#include "router/config.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "backends/runtime/log.h"
#include "tests/support/leak_check.h"

static const char *const policies[] = {"ttft", "random", NULL};

/* A router's configuration with a file of its own, and a log that can be read. */
struct config_world {
    struct config config;
    char path[32];
    const char *argv[5];
    int log_fds[2];
};

static void write_file(const struct config_world *world, const char *text)
{
    FILE *file = fopen(world->path, "w");

    cr_assert(ne(ptr, file, NULL));
    fputs(text, file);
    fclose(file);
}

static const char *const no_env[] = {NULL};

static void config_world_init(struct config_world *world, const char *text)
{
    snprintf(world->path, sizeof world->path, "/tmp/test_config_XXXXXX");
    close(mkstemp(world->path));
    cr_assert(eq(int, pipe2(world->log_fds, O_NONBLOCK), 0));
    log_init(world->log_fds[1], LOG_INFO, LOG_FORMAT_LOGFMT);
    write_file(world, text);
    memcpy(world->argv,
           (const char *const[]){"samovar-router", "--config", world->path, "--connect-ms", "3s"},
           sizeof world->argv);
    cr_assert(eq(
        int, config_init(&world->config, policies, (struct options_input){5, world->argv, no_env}),
        EXIT_CODE_OK));
}

/* What was logged since the last call, without the times. */
static char *logged(struct config_world *world)
{
    static char text[8192];
    char raw[8192];
    ssize_t count;
    size_t len = 0;

    log_flush();
    count = read(world->log_fds[0], raw, sizeof raw - 1);
    raw[count > 0 ? count : 0] = '\0';
    text[0] = '\0';
    for (char *rest = raw, *line; (line = strsep(&rest, "\n")) != NULL && *line != '\0';)
        len += (size_t)snprintf(text + len, sizeof text - len, "%s\n", strstr(line, "level="));
    return text;
}

static void config_world_release(struct config_world *world)
{
    config_release(&world->config);
    unlink(world->path);
    close(world->log_fds[0]);
    close(world->log_fds[1]);
}

TestSuite(config, .fini = leak_check);

Test(config, a_reload_tells_what_changed_and_from_where)
{
    struct config_world world;
    char expected[512];
    config_world_init(&world, "worker-urls: http://a:1\ndrain-ms: 10s\nconnect-ms: 1s\n");
    write_file(&world, "worker-urls: http://a:1\nretry-count-max: 1\nconnect-ms: 9s\n");

    cr_assert(eq(int, config_prepare(&world.config), 0));
    cr_assert(eq(u64, config_options(&world.config)->retry_count_max, 3), "not before the commit");
    cr_assert(eq(u64, config_candidate(&world.config)->retry_count_max, 1));
    cr_assert(eq(sz, config_commit(&world.config), 2));

    snprintf(expected, sizeof expected,
             "level=info event=option_changed option=drain-ms old=10s new=1m origin=default\n"
             "level=info event=option_changed option=retry-count-max old=3 new=1 origin=%s:2\n",
             world.path);
    cr_assert(eq(str, logged(&world), expected));
    cr_assert(eq(u64, config_options(&world.config)->drain_ms, 60000));
    cr_assert(eq(u64, config_options(&world.config)->connect_ms, 3000), "the flag still wins");
    config_world_release(&world);
}

Test(config, a_mistake_changes_nothing_and_each_is_logged)
{
    struct config_world world;
    config_world_init(&world, "worker-urls: http://a:1\n");
    write_file(&world, "worker-urls: ftp://a\nretry-count-max: 99\ndrain-ms: 1s\n");

    cr_assert(lt(int, config_prepare(&world.config), 0));

    char *text = logged(&world);
    cr_assert(ne(ptr, strstr(text, ":2:18: retry-count-max\""), NULL), "%s", text);
    cr_assert(ne(ptr, strstr(text, ":1:14: worker-urls\""), NULL), "%s", text);
    cr_assert(ne(ptr, strstr(text, "event=config_refused errors=2"), NULL), "%s", text);
    cr_assert(eq(u64, config_options(&world.config)->drain_ms, 60000));
    cr_assert(eq(sz, config_options(&world.config)->worker_urls.count, 1));
    config_world_release(&world);
}

Test(config, what_needs_a_restart_stays_and_is_said_again_each_time)
{
    struct config_world world;
    char expected[512];
    config_world_init(&world, "worker-urls: http://a:1\nport: 81\n");
    write_file(&world, "worker-urls: http://a:1\nport: 82\n");

    for (int i = 0; i < 3; i++) {
        cr_assert(eq(int, config_prepare(&world.config), 0));
        cr_assert(eq(sz, config_commit(&world.config), 0));

        snprintf(expected, sizeof expected,
                 "level=warn event=option_needs_restart option=port in_force=81 wanted=82 "
                 "origin=%s:2\n",
                 world.path);
        cr_assert(eq(str, logged(&world), expected));
        cr_assert(eq(u64, config_options(&world.config)->port, 81));
        cr_assert(eq(u32, option_set_origin(config_set(&world.config), "port").line, 2));
    }
    config_world_release(&world);
}

Test(config, a_candidate_that_cannot_be_applied_is_discarded)
{
    struct config_world world;
    config_world_init(&world, "worker-urls: http://a:1\n");
    write_file(&world, "worker-urls: http://a:1\ndrain-ms: 1s\n");
    cr_assert(eq(int, config_prepare(&world.config), 0));

    config_discard(&world.config, "worker-urls", "http://a:1 is there twice");

    cr_assert(
        eq(str, logged(&world),
           "level=error event=config_error where=worker-urls what=\"http://a:1 is there twice\" "
           "advice=\"\"\nlevel=error event=config_refused errors=1 effect=\"nothing changed\"\n"));
    cr_assert(eq(u64, config_options(&world.config)->drain_ms, 60000));
    cr_assert(eq(int, config_prepare(&world.config), 0), "and may be tried again");
    cr_assert(eq(sz, config_commit(&world.config), 1));
    config_world_release(&world);
}

Test(config, reloads_that_follow_each_other_leave_no_trace)
{
    struct config_world world;
    config_world_init(&world, "worker-urls: http://a:1\ndrain-ms: 1s\n");

    for (int i = 0; i < 20; i++) {
        write_file(&world, i % 2 == 0 ? "worker-urls: http://a:1\ndrain-ms: 2s\n"
                                      : "worker-urls: http://a:1\ndrain-ms: 1s\n");
        cr_assert(eq(int, config_prepare(&world.config), 0));
        cr_assert(eq(sz, config_commit(&world.config), 1));
        cr_assert(eq(u64, config_options(&world.config)->drain_ms, i % 2 == 0 ? 2000 : 1000));
    }

    config_world_release(&world);
}
