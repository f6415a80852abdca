/* SPDX-License-Identifier: Apache-2.0 */

/*
 * log: one line an event, as logfmt on a terminal or JSON otherwise, to standard error or a given
 * descriptor. Lines gather in a bounded buffer and leave with log_flush(), once per turn of the
 * event loop; what does not fit because the reader is slow is dropped and counted, never waited
 * for. Values are data of ours: no prompt text, no header value of a client is ever a field.
 * One thread.
 */
#ifndef BACKENDS_RUNTIME_LOG_H
#define BACKENDS_RUNTIME_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/must_check.h"
#include "backends/runtime/slice.h"

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR, LOG_LEVEL_COUNT };
enum log_format { LOG_FORMAT_AUTO, LOG_FORMAT_LOGFMT, LOG_FORMAT_JSON, LOG_FORMAT_COUNT };

/* What both are called in options and in lines; NULL behind the last. */
extern const char *const log_level_words[LOG_LEVEL_COUNT + 1];
extern const char *const log_format_words[LOG_FORMAT_COUNT + 1];

struct log_field {
    const char *key; /* snake_case literal; NULL: the field is left out */
    enum {
        LOG_FIELD_TEXT,
        LOG_FIELD_UNSIGNED,
        LOG_FIELD_SIGNED,
        LOG_FIELD_DECIMAL,
        LOG_FIELD_BOOL
    } kind;
    union {
        struct slice text;
        uint64_t number;
        int64_t signed_number;
        double decimal; /* written with three digits behind the point */
        bool flag;
    };
};

static inline struct log_field log_slice(const char *key, struct slice text)
{
    return (struct log_field){.key = key, .kind = LOG_FIELD_TEXT, .text = text};
}

static inline struct log_field log_text(const char *key, const char *text)
{
    return log_slice(key, slice_of_string(text));
}

static inline struct log_field log_u64(const char *key, uint64_t number)
{
    return (struct log_field){.key = key, .kind = LOG_FIELD_UNSIGNED, .number = number};
}

static inline struct log_field log_i64(const char *key, int64_t number)
{
    return (struct log_field){.key = key, .kind = LOG_FIELD_SIGNED, .signed_number = number};
}

static inline struct log_field log_decimal(const char *key, double decimal)
{
    return (struct log_field){.key = key, .kind = LOG_FIELD_DECIMAL, .decimal = decimal};
}

static inline struct log_field log_bool(const char *key, bool flag)
{
    return (struct log_field){.key = key, .kind = LOG_FIELD_BOOL, .flag = flag};
}

/*
 * Before the first line. fd stays the caller's, and its flags as they are: it is shared with other
 * processes. AUTO: logfmt when fd is a terminal. Whoever logs to a pipe ignores SIGPIPE.
 */
void log_init(int fd, enum log_level level, enum log_format format);
void log_set_level(enum log_level level);
bool log_is_on(enum log_level level);

/*
 * One line: time (RFC 3339, ms, UTC), level, event, then the fields in order. event is a
 * snake_case literal. Nothing happens below the level given to log_init().
 */
void log_write(enum log_level level, const char *event, const struct log_field *fields,
               size_t field_count);

#define LOG(level, event, ...)                                                                     \
    log_write(level, event, (const struct log_field[]){__VA_ARGS__},                               \
              sizeof((const struct log_field[]){__VA_ARGS__}) / sizeof(struct log_field))

/* Hands the gathered lines to the descriptor; keeps what it does not take at once. */
void log_flush(void);

/* At the end of the process: flushes, and waits for a slow reader at most a second. */
void log_finish(void);

/* Lines dropped so far. */
uint64_t log_dropped_count(void);

#endif
