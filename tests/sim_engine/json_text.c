/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/json_text.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

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

/* The two-character escape of c; NULL: it has none. */
static const char *short_escape(char c)
{
    switch (c) {
    case '"':
        return "\\\"";
    case '\\':
        return "\\\\";
    case '\n':
        return "\\n";
    case '\r':
        return "\\r";
    case '\t':
        return "\\t";
    default:
        return NULL;
    }
}

void json_put_string(struct buf *buf, struct slice text)
{
    size_t plain_start = 0;

    text_put(buf, SLICE("\""));
    for (size_t i = 0; i < text.len; i++) {
        const char *escape = short_escape(text.ptr[i]);

        if (escape == NULL && (unsigned char)text.ptr[i] >= 0x20)
            continue;
        text_put(buf, slice_of(text.ptr + plain_start, i - plain_start));
        if (escape != NULL)
            text_put(buf, slice_of_string(escape));
        else
            text_putf(buf, "\\u%04x", (unsigned)(unsigned char)text.ptr[i]);
        plain_start = i + 1;
    }
    if (text.len > plain_start)
        text_put(buf, slice_of(text.ptr + plain_start, text.len - plain_start));
    text_put(buf, SLICE("\""));
}

static void put_array(struct buf *buf, struct json_value value)
{
    struct json_iterator iterator = json_iterate(value);
    struct json_value element;
    const char *comma = "[";

    if (json_count(value) == 0)
        text_put(buf, SLICE("["));
    for (; json_next_element(&iterator, &element); comma = ",") {
        text_putf(buf, "%s", comma);
        json_put_value(buf, element);
    }
    text_put(buf, SLICE("]"));
}

static void put_object(struct buf *buf, struct json_value value)
{
    struct json_iterator iterator = json_iterate(value);
    struct json_member member;
    const char *comma = "{";

    if (json_count(value) == 0)
        text_put(buf, SLICE("{"));
    for (; json_next_member(&iterator, &member); comma = ",") {
        text_putf(buf, "%s", comma);
        json_put_string(buf, member.key);
        text_put(buf, SLICE(":"));
        json_put_value(buf, member.value);
    }
    text_put(buf, SLICE("}"));
}

void json_put_value(struct buf *buf, struct json_value value)
{
    switch (json_type(value)) {
    case JSON_NONE:
    case JSON_NULL:
        text_put(buf, SLICE("null"));
        break;
    case JSON_BOOL:
        text_putf(buf, "%s", json_bool(value) ? "true" : "false");
        break;
    case JSON_INT64:
        text_putf(buf, "%" PRId64, json_int64(value));
        break;
    case JSON_UINT64:
    case JSON_DOUBLE:
        text_putf(buf, "%.17g", json_double(value));
        break;
    case JSON_STRING:
        json_put_string(buf, json_string(value));
        break;
    case JSON_ARRAY:
        put_array(buf, value);
        break;
    case JSON_OBJECT:
        put_object(buf, value);
        break;
    }
}

void json_put_ids(struct buf *buf, const uint32_t *ids, size_t count)
{
    text_put(buf, SLICE("["));
    for (size_t i = 0; i < count; i++)
        text_putf(buf, "%s%" PRIu32, i > 0 ? "," : "", ids[i]);
    text_put(buf, SLICE("]"));
}
