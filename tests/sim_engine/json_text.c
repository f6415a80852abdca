/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/json_text.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

#include "backends/json/json_write.h"

void text_put(struct buf *buf, struct slice text)
{
    int status = buf_append(buf, text);

    assert(status == 0);
}

void text_putf(struct buf *buf, const char *format, ...)
{
    char line[2048];
    va_list args;
    int len;

    va_start(args, format);
    len = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    assert(len >= 0 && (size_t)len < sizeof line); /* long texts go by text_put() */
    text_put(buf, slice_of(line, (size_t)len));
}

void text_end_piece(struct buf *buf)
{
    text_put(buf, slice_of("", 1));
}

struct slice text_piece(const struct buf *buf, size_t index)
{
    struct slice rest = buf_slice(buf);

    for (;; index--) {
        const char *end = memchr(rest.ptr, '\0', rest.len);

        assert(end != NULL);
        if (index == 0)
            return slice_of(rest.ptr, (size_t)(end - rest.ptr));
        rest = slice_skip(rest, (size_t)(end - rest.ptr) + 1);
    }
}

void json_put_string(struct buf *buf, struct slice text)
{
    int status = json_write_string(buf, text);

    assert(status == 0);
}

void json_put_string_or_null(struct buf *buf, const char *string)
{
    if (string != NULL)
        json_put_string(buf, slice_of_string(string));
    else
        text_put(buf, SLICE("null"));
}

void json_put_value(struct buf *buf, struct json_value value)
{
    int status = json_write_value(buf, value);

    assert(status == 0);
}

void json_put_ids(struct buf *buf, const uint32_t *ids, size_t count)
{
    text_put(buf, SLICE("["));
    for (size_t i = 0; i < count; i++)
        text_putf(buf, "%s%" PRIu32, i > 0 ? "," : "", ids[i]);
    text_put(buf, SLICE("]"));
}
