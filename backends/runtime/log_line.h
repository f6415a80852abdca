/* SPDX-License-Identifier: Apache-2.0 */

/*
 * log_line: forms one line of logfmt or JSON in memory of the caller. Whatever bytes a text has,
 * the line is one line of valid UTF-8, without control characters that a terminal would obey.
 * Pure; any thread.
 */
#ifndef BACKENDS_RUNTIME_LOG_LINE_H
#define BACKENDS_RUNTIME_LOG_LINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/slice.h"

struct log_line {
    char *start;
    char *at;
    char *limit;
    bool is_json;
    bool is_full; /* it did not fit: nothing more is written */
};

void log_line_begin(struct log_line *line, char *bytes, size_t bytes_max, bool is_json);

/* The next member's key, a literal that needs no escape; then exactly one value. */
void log_line_key(struct log_line *line, const char *key);
void log_line_text(struct log_line *line, struct slice text);
void log_line_unsigned(struct log_line *line, uint64_t number);
void log_line_signed(struct log_line *line, int64_t number);

/* Three digits behind the point, halves away from zero; null where it is not finite or passes
 * 2^63. */
void log_line_decimal(struct log_line *line, double decimal);
void log_line_raw(struct log_line *line, struct slice bytes);

/* Ends the line. Its length with the newline, or 0 when it was full. */
size_t log_line_end(struct log_line *line);

#endif
