/* SPDX-License-Identifier: Apache-2.0 */

/*
 * buf: bytes that grow at the end and are consumed at the start, up to a limit.
 * Keeps BUF_PADDING readable bytes behind its end, as simdjson wants. One thread at a time.
 */
#ifndef BACKENDS_RUNTIME_BUF_H
#define BACKENDS_RUNTIME_BUF_H

#include <stdarg.h>
#include <stddef.h>

#include "backends/runtime/must_check.h"
#include "backends/runtime/slice.h"

enum { BUF_PADDING = 64 };

struct buf {
    char *bytes;
    size_t start; /* consumed so far */
    size_t end;   /* just past the last byte */
    size_t capacity;
    size_t bytes_max; /* limit of end - start */
};

/* Takes no memory yet. */
void buf_init(struct buf *buf, size_t bytes_max);

/* Makes room for len bytes more in one step. -ENOBUFS: would pass bytes_max; -ENOMEM. */
MUST_CHECK int buf_reserve(struct buf *buf, size_t len);

/* Appends a copy; all or nothing. Errors as buf_reserve(). */
MUST_CHECK int buf_append(struct buf *buf, struct slice slice);
MUST_CHECK int buf_printf(struct buf *buf, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Drops the first n bytes; n <= what is there. */
void buf_consume(struct buf *buf, size_t n);

/* The bytes now held: valid until the next append, consume or release. */
static inline struct slice buf_slice(const struct buf *buf)
{
    return (struct slice){buf->bytes != NULL ? buf->bytes + buf->start : NULL,
                          buf->end - buf->start};
}

static inline size_t buf_len(const struct buf *buf)
{
    return buf->end - buf->start;
}

/* Forgets the bytes, keeps the memory. */
static inline void buf_clear(struct buf *buf)
{
    buf->start = buf->end = 0;
}

/* Frees the memory; empty afterwards, may be used again. */
void buf_release(struct buf *buf);

#endif
