/* SPDX-License-Identifier: Apache-2.0 */

/*
 * excerpt: one line of a text with carets under some of it, as compilers show a mistake. Safe for a
 * terminal, and of bounded size, whatever the text holds. Pure; any thread.
 */
#ifndef BACKENDS_RUNTIME_EXCERPT_H
#define BACKENDS_RUNTIME_EXCERPT_H

#include <stddef.h>

#include "backends/runtime/buf.h"
#include "backends/runtime/must_check.h"
#include "backends/runtime/slice.h"

enum {
    EXCERPT_COLUMNS_MAX =
        96, /* of the line that are shown; a longer one is cut around the carets */
    EXCERPT_BYTES_MAX = 1024, /* of what excerpt_write() appends */
};

/* A piece of one line of a text that somebody else owns. */
struct excerpt {
    struct slice line; /* without its line break */
    size_t number;     /* of the line, from 1 */
    size_t start, end; /* bytes of line; start <= end <= line.len, and equal for a bare place */
};

/* Finds places in a text; those that rise are found in one pass, however many they are. */
struct excerpt_cursor {
    struct slice text; /* borrowed */
    struct slice line; /* where it is */
    size_t number;     /* of that line, from 1 */
    size_t next;       /* byte of text where the next line begins */
    size_t column, at; /* the same place in line, in characters and in bytes */
};

void excerpt_cursor_init(struct excerpt_cursor *cursor, struct slice text);

/*
 * The character in that line and column of the text, both from 0; a column behind the line's end is
 * its end. Lines end as in YAML 1.1: LF, CR LF, CR, NEL, LS and PS.
 */
struct excerpt excerpt_find(struct excerpt_cursor *cursor, size_t line, size_t column);

/* From one character up to another, or to the end of the first one's line where that is before. */
struct excerpt excerpt_find_span(struct excerpt_cursor *cursor, const size_t start[2],
                                 const size_t end[2]);

/* The byte of text at that offset. */
struct excerpt excerpt_at_byte(struct slice text, size_t offset);

/* Of its start, in characters, from 1. */
size_t excerpt_column(const struct excerpt *excerpt);

/*
 * Two lines, the first with the line's number, the second with the carets:
 *
 *        3 | port: 70000
 *          |       ^^^^^
 *
 * -ENOBUFS, -ENOMEM as buf_append().
 */
MUST_CHECK int excerpt_write(const struct excerpt *excerpt, struct buf *out);

#endif
