/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/json/json_write.h"

#include "backends/runtime/utf8.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/*
 * DESIGN
 *
 * Written from values, not by copying text: whatever spelling came in, one comes out, and it is
 * surely valid. Numbers keep their value: integers exactly; others with the fewest digits that read
 * back as the same double, and with a point, so that a reader that tells 1.0 from 1 still can.
 */

enum { DOUBLE_DIGITS_MIN = 15, DOUBLE_DIGITS_MAX = 17 };

/* How many bytes at the start of text need no escape; a character is plain as a whole, or not. */
static size_t plain_len(struct slice text)
{
    size_t len = 0;

    while (len < text.len) {
        unsigned char c = (unsigned char)text.ptr[len];
        size_t char_len = c < 0x80 ? 1 : utf8_sequence_len(slice_skip(text, len));

        if (c < 0x20 || c == '"' || c == '\\' || char_len == 0)
            break;
        len += char_len;
    }
    return len;
}

static int write_escape(struct buf *buf, char c)
{
    switch (c) {
    case '"':
        return buf_append(buf, SLICE("\\\""));
    case '\\':
        return buf_append(buf, SLICE("\\\\"));
    case '\n':
        return buf_append(buf, SLICE("\\n"));
    case '\r':
        return buf_append(buf, SLICE("\\r"));
    case '\t':
        return buf_append(buf, SLICE("\\t"));
    default:
        /* What is no character of UTF-8 becomes the one that stands for that. */
        return buf_printf(buf, "\\u%04x", (unsigned char)c < 0x80 ? (unsigned)c : 0xfffdu);
    }
}

int json_write_string(struct buf *buf, struct slice text)
{
    int status = buf_append(buf, SLICE("\""));

    while (status == 0 && text.len > 0) {
        size_t len = plain_len(text);

        status = buf_append(buf, slice_of(text.ptr, len));
        text = slice_skip(text, len);
        if (status == 0 && text.len > 0) {
            status = write_escape(buf, *text.ptr);
            text = slice_skip(text, 1);
        }
    }
    return status == 0 ? buf_append(buf, SLICE("\"")) : status;
}

static int write_double(struct buf *buf, double number)
{
    char text[40];

    for (int digits = DOUBLE_DIGITS_MIN; digits <= DOUBLE_DIGITS_MAX; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, number);
        if (strtod(text, NULL) == number)
            break;
    }
    return buf_printf(buf, "%s%s", text, strpbrk(text, ".e") == NULL ? ".0" : "");
}

static int write_array(struct buf *buf, struct json_value array)
{
    struct json_iterator iterator = json_iterate(array);
    struct json_value element;
    bool is_first = true;
    int status = buf_append(buf, SLICE("["));

    while (status == 0 && json_next_element(&iterator, &element)) {
        if (!is_first)
            status = buf_append(buf, SLICE(","));
        if (status == 0)
            status = json_write_value(buf, element);
        is_first = false;
    }
    return status == 0 ? buf_append(buf, SLICE("]")) : status;
}

static int write_object(struct buf *buf, struct json_value object)
{
    struct json_iterator iterator = json_iterate(object);
    struct json_member member;
    bool is_first = true;
    int status = buf_append(buf, SLICE("{"));

    while (status == 0 && json_next_member(&iterator, &member)) {
        if (!is_first)
            status = buf_append(buf, SLICE(","));
        if (status == 0)
            status = json_write_string(buf, member.key);
        if (status == 0)
            status = buf_append(buf, SLICE(":"));
        if (status == 0)
            status = json_write_value(buf, member.value);
        is_first = false;
    }
    return status == 0 ? buf_append(buf, SLICE("}")) : status;
}

int json_write_value(struct buf *buf, struct json_value value)
{
    switch (json_type(value)) {
    case JSON_NONE:
    case JSON_NULL:
        return buf_append(buf, SLICE("null"));
    case JSON_BOOL:
        return buf_append(buf, json_bool(value) ? SLICE("true") : SLICE("false"));
    case JSON_INT64:
        return buf_printf(buf, "%" PRId64, json_int64(value));
    case JSON_UINT64: /* above INT64_MAX: json_int64() cannot hold it */
    case JSON_DOUBLE:
        return write_double(buf, json_double(value));
    case JSON_STRING:
        return json_write_string(buf, json_string(value));
    case JSON_ARRAY:
        return write_array(buf, value);
    case JSON_OBJECT:
        return write_object(buf, value);
    }
    assert(false && "a JSON type without a writer");
    return 0;
}
