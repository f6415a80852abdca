/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/runtime/log.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <sys/socket.h>
#include <sys/wait.h>

#include "backends/runtime/clock.h"
#include "tests/support/leak_check.h"

enum { OUTPUT_BYTES_MAX = 1 << 20 };

/* A log that writes into a pipe (or a socket pair) which nobody reads until asked to. */
struct log_world {
    int fds[2];
    char *text;
    size_t len;
};

static void log_world_start(struct log_world *world, enum log_format format)
{
    signal(SIGPIPE, SIG_IGN);
    fcntl(world->fds[0], F_SETFL, O_NONBLOCK);
    world->text = calloc(1, OUTPUT_BYTES_MAX);
    world->len = 0;
    log_init(world->fds[1], LOG_INFO, format);
}

static void log_world_init(struct log_world *world, enum log_format format)
{
    cr_assert(eq(int, pipe(world->fds), 0));
    log_world_start(world, format);
}

/* Flushes and reads until nothing comes any more. */
static const char *log_world_read(struct log_world *world)
{
    ssize_t count;

    do {
        log_flush();
        count = read(world->fds[0], world->text + world->len, OUTPUT_BYTES_MAX - 1 - world->len);
        if (count > 0)
            world->len += (size_t)count;
    } while (count > 0);
    return world->text;
}

static void log_world_release(struct log_world *world)
{
    free(world->text);
    close(world->fds[0]);
    close(world->fds[1]);
}

static size_t count_of(const char *text, const char *part)
{
    size_t count = 0;

    for (; (text = strstr(text, part)) != NULL; text++)
        count++;
    return count;
}

/* Whether every line of text is a JSON object, by a reader that is not ours. */
static bool python_reads_json_lines(const char *text)
{
    FILE *python = popen("python3 -c 'import json, sys\n"
                         "for line in sys.stdin.buffer.read().decode().splitlines():\n"
                         "    assert isinstance(json.loads(line), dict)'",
                         "w");

    fputs(text, python);
    return pclose(python) == 0;
}

TestSuite(log, .fini = leak_check);

Test(log, a_line_has_time_level_event_and_the_fields_in_order)
{
    struct log_world world;
    log_world_init(&world, LOG_FORMAT_LOGFMT);

    LOG(LOG_WARN, "worker_down", log_text("worker", "http://a:1"), log_u64("failures", 3),
        log_i64("delta", -2), log_decimal("ttft_ms", 12.3456), log_bool("is_last", true),
        log_text(NULL, "left out"));

    const char *line = log_world_read(&world);
    cr_assert(eq(int, strncmp(line, "time=20", 7), 0));
    cr_assert(eq(str, (char *)strchr(line, ' '),
                 " level=warn event=worker_down worker=http://a:1 failures=3 delta=-2 "
                 "ttft_ms=12.346 is_last=true\n"));
    log_world_release(&world);
}

Test(log, the_time_is_rfc_3339_and_now)
{
    struct log_world world;
    int year, month, day, hour, minute, second, ms, end = 0;
    log_world_init(&world, LOG_FORMAT_LOGFMT);
    time_t before = (time_t)(clock_wall_ms() / 1000);

    LOG(LOG_INFO, "started", log_bool("ok", true));

    const char *line = log_world_read(&world);
    cr_assert(eq(int,
                 sscanf(line, "time=%4d-%2d-%2dT%2d:%2d:%2d.%3dZ %n", &year, &month, &day, &hour,
                        &minute, &second, &ms, &end),
                 7));
    cr_assert(eq(int, end, 30));
    struct tm parts = {.tm_year = year - 1900,
                       .tm_mon = month - 1,
                       .tm_mday = day,
                       .tm_hour = hour,
                       .tm_min = minute,
                       .tm_sec = second};
    cr_assert(ge(long, timegm(&parts), before));
    cr_assert(le(long, timegm(&parts), before + 5));
    log_world_release(&world);
}

Test(log, json_lines_parse_whatever_the_bytes)
{
    struct log_world world;
    log_world_init(&world, LOG_FORMAT_JSON);

    for (unsigned i = 0; i < 256; i++) {
        char bytes[5] = {(char)i, (char)(i * 7), '"', (char)(255 - i), '\\'};
        LOG(LOG_INFO, "bytes", log_slice("text", slice_of(bytes, sizeof bytes)),
            log_decimal("d", i / 3.0 - 40), log_i64("i", (int64_t)i - 128), log_bool("b", i % 2));
    }

    const char *text = log_world_read(&world);
    cr_assert(eq(sz, count_of(text, "\n"), 256));
    cr_assert(python_reads_json_lines(text));
    log_world_release(&world);
}

Test(log, auto_is_json_where_there_is_no_terminal)
{
    struct log_world world;
    log_world_init(&world, LOG_FORMAT_AUTO);

    LOG(LOG_INFO, "started", log_bool("ok", true));

    cr_assert(eq(chr, log_world_read(&world)[0], '{'));
    log_world_release(&world);
}

Test(log, nothing_below_the_level_is_written)
{
    struct log_world world;
    log_world_init(&world, LOG_FORMAT_LOGFMT);

    LOG(LOG_DEBUG, "detail", log_bool("ok", true));

    cr_assert(not(log_is_on(LOG_DEBUG)));
    cr_assert(log_is_on(LOG_INFO));
    cr_assert(eq(str, (char *)log_world_read(&world), ""));
    log_world_release(&world);
}

/* Logs line_count lines while nobody reads, then reads all: what is lost is counted, what is there
 * is whole and in order. */
static void stall_and_read(struct log_world *world, unsigned line_count)
{
    for (unsigned i = 0; i < line_count; i++) {
        LOG(LOG_INFO, "tick", log_u64("number", i), log_text("padding", "0123456789012345678901"));
        if (i % 100 == 0)
            log_flush(); /* would hang here if a stalled reader could stall us */
    }
    uint64_t dropped = log_dropped_count();

    const char *text = log_world_read(world);

    cr_assert(gt(u64, dropped, 0));
    cr_assert(eq(u64, count_of(text, "\"event\":\"tick\"") + dropped, line_count));
    cr_assert(eq(sz, count_of(text, "\"event\":\"log_lines_dropped\""), 1));
    cr_assert(python_reads_json_lines(text));
}

Test(log, a_full_pipe_drops_whole_lines_and_counts_them, .timeout = 20)
{
    struct log_world world;
    log_world_init(&world, LOG_FORMAT_JSON);

    stall_and_read(&world, 10000);

    cr_assert(eq(int, fcntl(world.fds[1], F_GETFL) & O_NONBLOCK, 0));
    log_world_release(&world);
}

Test(log, a_full_socket_drops_whole_lines_and_counts_them, .timeout = 20)
{
    struct log_world world;
    cr_assert(eq(int, socketpair(AF_UNIX, SOCK_STREAM, 0, world.fds), 0));
    log_world_start(&world, LOG_FORMAT_JSON);

    stall_and_read(&world, 20000);

    cr_assert(eq(int, fcntl(world.fds[1], F_GETFL) & O_NONBLOCK, 0));
    log_world_release(&world);
}

Test(log, a_reader_that_left_costs_its_lines_only)
{
    struct log_world world;
    log_world_init(&world, LOG_FORMAT_JSON);
    close(world.fds[0]);

    LOG(LOG_INFO, "tick", log_u64("number", 1));
    LOG(LOG_INFO, "tick", log_u64("number", 2));
    log_flush();

    cr_assert(eq(u64, log_dropped_count(), 2));
    close(world.fds[1]);
    free(world.text);
}

Test(log, finish_waits_for_a_slow_reader_and_gives_it_everything)
{
    struct log_world world;
    log_world_init(&world, LOG_FORMAT_JSON);
    for (unsigned i = 0; i < 1500; i++)
        LOG(LOG_INFO, "tick", log_u64("number", i));
    fcntl(world.fds[0], F_SETFL, 0);
    pid_t reader = fork();
    if (reader == 0) {
        char bytes[512];
        size_t lines = 0;
        close(world.fds[1]);
        for (ssize_t count; (count = read(world.fds[0], bytes, sizeof bytes)) > 0;)
            for (ssize_t i = 0; i < count; i++)
                lines += bytes[i] == '\n';
        _exit(lines == 1500 ? 0 : 1);
    }

    log_finish();

    int status = -1;
    close(world.fds[1]);
    log_init(STDERR_FILENO, LOG_INFO, LOG_FORMAT_JSON); /* closes its own end of the pipe */
    cr_assert(eq(int, waitpid(reader, &status, 0), reader));
    cr_assert(eq(int, status, 0));
    free(world.text);
    close(world.fds[0]);
}
