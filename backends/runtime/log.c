/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/runtime/log.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include <sys/socket.h>
#include <sys/stat.h>

#include "backends/runtime/clock.h"
#include "backends/runtime/log_line.h"

/*
 * DESIGN
 *
 *    bytes  [ sent | lines not yet taken by the reader |  free  ]
 *           0      start                               end      BUFFER_BYTES
 *
 * A line is formed in place behind end and counts only once it is whole: what does not fit leaves
 * end where it was, and the line is dropped and counted.
 *
 * Standard error is often a pipe whose reader may stall, and its O_NONBLOCK flag is no one's to
 * set: it belongs to the open file, which the parent and its other children share. So a pipe or
 * terminal is opened anew through /proc, which gives an open file of our own; a socket is written
 * with MSG_DONTWAIT; and where neither works, poll() promises a pipe room for PIPE_BUF bytes, so
 * that pieces of that size do not block.
 *
 * This is the one module with state of its own: a line must be possible from everywhere.
 */

enum { BUFFER_BYTES = 256 << 10, PIECE_BYTES = 4096, FINISH_MS = 1000 };

enum log_output {
    OUTPUT_PLAIN,  /* write(): a file, or our own non-blocking open file */
    OUTPUT_SOCKET, /* send() */
    OUTPUT_POLLED, /* poll(), then a piece */
};

static struct {
    int fd;
    int own_fd; /* opened by us, or -1 */
    enum log_output output;
    enum log_level level;
    bool is_json;
    uint64_t dropped_count;
    uint64_t reported_count; /* of the dropped ones: a line has said so */
    time_t second;           /* that second_text shows */
    char second_text[20];    /* "2026-01-31T23:59:59" */
    size_t start, end;
    char bytes[BUFFER_BYTES];
} logger = {.fd = STDERR_FILENO, .own_fd = -1, .level = LOG_INFO, .second = -1};

const char *const log_level_words[] = {
    [LOG_DEBUG] = "debug", [LOG_INFO] = "info",      [LOG_WARN] = "warn",
    [LOG_ERROR] = "error", [LOG_LEVEL_COUNT] = NULL,
};
const char *const log_format_words[] = {
    [LOG_FORMAT_AUTO] = "auto",
    [LOG_FORMAT_LOGFMT] = "logfmt",
    [LOG_FORMAT_JSON] = "json",
    [LOG_FORMAT_COUNT] = NULL,
};

static void open_output(int fd)
{
    struct stat status;
    char path[32];

    logger.fd = fd;
    logger.output = OUTPUT_PLAIN;
    if (fstat(fd, &status) < 0 || S_ISREG(status.st_mode))
        return;
    logger.output = S_ISSOCK(status.st_mode) ? OUTPUT_SOCKET : OUTPUT_POLLED;
    if (logger.output == OUTPUT_SOCKET)
        return;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    logger.own_fd = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    if (logger.own_fd >= 0) {
        logger.fd = logger.own_fd;
        logger.output = OUTPUT_PLAIN;
    }
}

void log_init(int fd, enum log_level level, enum log_format format)
{
    assert(level < LOG_LEVEL_COUNT);
    assert(format < LOG_FORMAT_COUNT);

    if (logger.own_fd >= 0)
        close(logger.own_fd);
    logger.own_fd = -1;
    open_output(fd);
    logger.level = level;
    logger.is_json = format == LOG_FORMAT_JSON || (format == LOG_FORMAT_AUTO && isatty(fd) == 0);
    logger.start = logger.end = 0;
    logger.dropped_count = logger.reported_count = 0;
}

void log_set_level(enum log_level level)
{
    assert(level < LOG_LEVEL_COUNT);

    logger.level = level;
}

bool log_is_on(enum log_level level)
{
    return level >= logger.level;
}

/* The time up to the second changes once in many lines. */
static struct slice format_time(char text[24])
{
    uint64_t now_ms = clock_wall_ms();
    time_t second = (time_t)(now_ms / 1000);
    unsigned ms = (unsigned)(now_ms % 1000);
    struct tm parts;

    if (second != logger.second) {
        gmtime_r(&second, &parts);
        strftime(logger.second_text, sizeof logger.second_text, "%Y-%m-%dT%H:%M:%S", &parts);
        logger.second = second;
    }
    memcpy(text, logger.second_text, 19);
    text[19] = '.';
    text[20] = (char)('0' + ms / 100);
    text[21] = (char)('0' + ms / 10 % 10);
    text[22] = (char)('0' + ms % 10);
    text[23] = 'Z';
    return slice_of(text, 24);
}

static void put_field(struct log_line *line, const struct log_field *field)
{
    log_line_key(line, field->key);
    switch (field->kind) {
    case LOG_FIELD_TEXT:
        log_line_text(line, field->text);
        break;
    case LOG_FIELD_UNSIGNED:
        log_line_unsigned(line, field->number);
        break;
    case LOG_FIELD_SIGNED:
        log_line_signed(line, field->signed_number);
        break;
    case LOG_FIELD_DECIMAL:
        log_line_decimal(line, field->decimal);
        break;
    case LOG_FIELD_BOOL:
        log_line_raw(line, field->flag ? SLICE("true") : SLICE("false"));
        break;
    }
}

/* Frees the sent part, if it is large enough to be worth moving the rest. */
static bool compact(void)
{
    if (logger.start < BUFFER_BYTES / 4)
        return false;
    memmove(logger.bytes, logger.bytes + logger.start, logger.end - logger.start);
    logger.end -= logger.start;
    logger.start = 0;
    return true;
}

static bool form_line(enum log_level level, const char *event, const struct log_field *fields,
                      size_t field_count)
{
    struct log_line line;
    char time_text[24];

    log_line_begin(&line, logger.bytes + logger.end, BUFFER_BYTES - logger.end, logger.is_json);
    log_line_key(&line, "time");
    log_line_text(&line, format_time(time_text));
    log_line_key(&line, "level");
    log_line_text(&line, slice_of_string(log_level_words[level]));
    log_line_key(&line, "event");
    log_line_text(&line, slice_of_string(event));
    for (size_t i = 0; i < field_count; i++)
        if (fields[i].key != NULL)
            put_field(&line, &fields[i]);
    logger.end += log_line_end(&line);
    return !line.is_full;
}

void log_write(enum log_level level, const char *event, const struct log_field *fields,
               size_t field_count)
{
    if (!log_is_on(level))
        return;
    if (form_line(level, event, fields, field_count))
        return;
    if (!compact() || !form_line(level, event, fields, field_count))
        logger.dropped_count++;
}

/* As write(), but never blocks: -1 with EAGAIN instead. */
static ssize_t write_some(const char *bytes, size_t len)
{
    struct pollfd pollfd = {.fd = logger.fd, .events = POLLOUT};

    if (logger.output == OUTPUT_SOCKET)
        return send(logger.fd, bytes, len, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (logger.output == OUTPUT_POLLED) {
        if (poll(&pollfd, 1, 0) <= 0) {
            errno = EAGAIN;
            return -1;
        }
        len = len < PIECE_BYTES ? len : PIECE_BYTES;
    }
    return write(logger.fd, bytes, len);
}

/* Nobody will read them: the reader is gone or the disk is full. */
static void drop_all(void)
{
    for (size_t i = logger.start; i < logger.end; i++)
        logger.dropped_count += logger.bytes[i] == '\n';
    logger.start = logger.end = 0;
}

void log_flush(void)
{
    while (logger.start < logger.end) {
        ssize_t count = write_some(logger.bytes + logger.start, logger.end - logger.start);

        if (count > 0) {
            logger.start += (size_t)count;
        } else if (count < 0 && errno != EINTR) {
            if (errno != EAGAIN && errno != EWOULDBLOCK)
                drop_all();
            return;
        }
    }
    logger.start = logger.end = 0;
    if (logger.dropped_count > logger.reported_count) {
        uint64_t count = logger.dropped_count - logger.reported_count;

        logger.reported_count = logger.dropped_count;
        LOG(LOG_WARN, "log_lines_dropped", log_u64("count", count));
    }
}

void log_finish(void)
{
    uint64_t deadline_ms = clock_now_ms() + FINISH_MS;
    struct pollfd pollfd = {.fd = logger.fd, .events = POLLOUT};

    log_flush();
    while (logger.start < logger.end) {
        uint64_t now_ms = clock_now_ms();

        if (now_ms >= deadline_ms || poll(&pollfd, 1, (int)(deadline_ms - now_ms)) == 0)
            return;
        log_flush();
    }
}

uint64_t log_dropped_count(void)
{
    return logger.dropped_count;
}
