/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/runtime/buf.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

enum { BUF_CAPACITY_MIN = 256 };

void buf_init(struct buf *buf, size_t bytes_max)
{
    *buf = (struct buf){.bytes_max = bytes_max};
}

static void move_to_front(struct buf *buf)
{
    memmove(buf->bytes, buf->bytes + buf->start, buf_len(buf));
    buf->end -= buf->start;
    buf->start = 0;
}

int buf_reserve(struct buf *buf, size_t len)
{
    size_t needed, capacity;
    char *bytes;

    if (len > buf->bytes_max || buf_len(buf) > buf->bytes_max - len)
        return -ENOBUFS;
    if (buf->bytes != NULL && buf->capacity - buf->end >= len)
        return 0;
    if (buf->start > 0)
        move_to_front(buf);
    needed = buf->end + len;
    if (buf->bytes != NULL && buf->capacity >= needed)
        return 0;

    capacity = buf->capacity * 2 > needed ? buf->capacity * 2 : needed;
    capacity = capacity > BUF_CAPACITY_MIN ? capacity : BUF_CAPACITY_MIN;
    bytes = realloc(buf->bytes, capacity + BUF_PADDING);
    if (bytes == NULL)
        return -ENOMEM;
    memset(bytes + capacity, 0, BUF_PADDING);
    buf->bytes = bytes;
    buf->capacity = capacity;
    return 0;
}

int buf_append(struct buf *buf, struct slice slice)
{
    int status = buf_reserve(buf, slice.len);

    if (status < 0)
        return status;
    if (slice.len > 0)
        memcpy(buf->bytes + buf->end, slice.ptr, slice.len);
    buf->end += slice.len;
    return 0;
}

int buf_printf(struct buf *buf, const char *format, ...)
{
    va_list args;
    int len, status;

    va_start(args, format);
    len = vsnprintf(NULL, 0, format, args);
    va_end(args);
    assert(len >= 0);
    status = buf_reserve(buf, (size_t)len + 1); /* vsnprintf writes a NUL as well */
    if (status < 0)
        return status;
    va_start(args, format);
    vsnprintf(buf->bytes + buf->end, (size_t)len + 1, format, args);
    va_end(args);
    buf->end += (size_t)len;
    return 0;
}

void buf_consume(struct buf *buf, size_t n)
{
    assert(n <= buf_len(buf));

    buf->start += n;
    if (buf->start == buf->end)
        buf_clear(buf);
}

void buf_release(struct buf *buf)
{
    free(buf->bytes);
    buf->bytes = NULL;
    buf->start = buf->end = buf->capacity = 0;
}
