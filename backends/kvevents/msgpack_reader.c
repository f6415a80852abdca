/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/kvevents/msgpack_reader.h"

#include <errno.h>
#include <stdbool.h>

/*
 * DESIGN
 *
 * The first byte of a value is its form. Below 0xc0 and from 0xe0 on it holds the value or its
 * length itself; the 32 forms between are the table. Written here rather than taken from
 * msgpack-c, which has two ways to read: into a tree that it allocates by the counts a stranger
 * claims (16 GiB for five bytes), or by callbacks, bottom up, which would need a state machine over
 * the path to know what an integer is.
 *
 * Every element takes at least one byte. So a count above the bytes left is a lie, and the number
 * of values still to be passed over is all that a skip has to remember: no stack, no depth limit.
 */

/* What follows the first byte: a number of `width` bytes, big-endian, which is the value, the count
 * or the length, as the type says. */
struct form {
    bool is_used;
    enum msgpack_type type;
    uint8_t width;
    uint8_t number; /* without a width */
    bool is_signed;
};

enum { FORM_FIRST = 0xc0, FORM_END = 0xe0 };

static const struct form forms[FORM_END - FORM_FIRST] = {
    [0xc0 - FORM_FIRST] = {true, MSGPACK_NIL, 0, 0, false},
    [0xc2 - FORM_FIRST] = {true, MSGPACK_BOOL, 0, 0, false},
    [0xc3 - FORM_FIRST] = {true, MSGPACK_BOOL, 0, 1, false},
    [0xc4 - FORM_FIRST] = {true, MSGPACK_BINARY, 1, 0, false},
    [0xc5 - FORM_FIRST] = {true, MSGPACK_BINARY, 2, 0, false},
    [0xc6 - FORM_FIRST] = {true, MSGPACK_BINARY, 4, 0, false},
    [0xc7 - FORM_FIRST] = {true, MSGPACK_EXTENSION, 1, 0, false},
    [0xc8 - FORM_FIRST] = {true, MSGPACK_EXTENSION, 2, 0, false},
    [0xc9 - FORM_FIRST] = {true, MSGPACK_EXTENSION, 4, 0, false},
    [0xca - FORM_FIRST] = {true, MSGPACK_FLOAT, 4, 0, false},
    [0xcb - FORM_FIRST] = {true, MSGPACK_FLOAT, 8, 0, false},
    [0xcc - FORM_FIRST] = {true, MSGPACK_UNSIGNED, 1, 0, false},
    [0xcd - FORM_FIRST] = {true, MSGPACK_UNSIGNED, 2, 0, false},
    [0xce - FORM_FIRST] = {true, MSGPACK_UNSIGNED, 4, 0, false},
    [0xcf - FORM_FIRST] = {true, MSGPACK_UNSIGNED, 8, 0, false},
    [0xd0 - FORM_FIRST] = {true, MSGPACK_UNSIGNED, 1, 0, true},
    [0xd1 - FORM_FIRST] = {true, MSGPACK_UNSIGNED, 2, 0, true},
    [0xd2 - FORM_FIRST] = {true, MSGPACK_UNSIGNED, 4, 0, true},
    [0xd3 - FORM_FIRST] = {true, MSGPACK_UNSIGNED, 8, 0, true},
    [0xd4 - FORM_FIRST] = {true, MSGPACK_EXTENSION, 0, 1, false},
    [0xd5 - FORM_FIRST] = {true, MSGPACK_EXTENSION, 0, 2, false},
    [0xd6 - FORM_FIRST] = {true, MSGPACK_EXTENSION, 0, 4, false},
    [0xd7 - FORM_FIRST] = {true, MSGPACK_EXTENSION, 0, 8, false},
    [0xd8 - FORM_FIRST] = {true, MSGPACK_EXTENSION, 0, 16, false},
    [0xd9 - FORM_FIRST] = {true, MSGPACK_STRING, 1, 0, false},
    [0xda - FORM_FIRST] = {true, MSGPACK_STRING, 2, 0, false},
    [0xdb - FORM_FIRST] = {true, MSGPACK_STRING, 4, 0, false},
    [0xdc - FORM_FIRST] = {true, MSGPACK_ARRAY, 2, 0, false},
    [0xdd - FORM_FIRST] = {true, MSGPACK_ARRAY, 4, 0, false},
    [0xde - FORM_FIRST] = {true, MSGPACK_MAP, 2, 0, false},
    [0xdf - FORM_FIRST] = {true, MSGPACK_MAP, 4, 0, false},
};

static int take(struct msgpack_reader *reader, size_t len, struct slice *bytes)
{
    if (len > reader->rest.len)
        return -EINVAL;
    *bytes = (struct slice){reader->rest.ptr, len};
    reader->rest = slice_skip(reader->rest, len);
    return 0;
}

static int take_number(struct msgpack_reader *reader, size_t width, uint64_t *number)
{
    struct slice bytes;

    if (take(reader, width, &bytes) < 0)
        return -EINVAL;
    *number = 0;
    for (size_t i = 0; i < width; i++)
        *number = *number << 8 | (uint8_t)bytes.ptr[i];
    return 0;
}

static double real_of(uint64_t bits, size_t width)
{
    uint32_t low = (uint32_t)bits;
    double real;
    float single;

    if (width == sizeof real) {
        memcpy(&real, &bits, sizeof real);
        return real;
    }
    memcpy(&single, &low, sizeof single);
    return (double)single;
}

static void extend_sign(struct msgpack_value *value, size_t width)
{
    const uint64_t sign = UINT64_C(1) << (8 * width - 1);

    if ((value->number & sign) == 0)
        return;
    value->type = MSGPACK_NEGATIVE;
    value->number |= ~(sign - 1);
}

/* Its number is read; takes the bytes it counts, or doubts the elements it counts. */
static int finish(struct msgpack_reader *reader, struct msgpack_value *value)
{
    struct slice kind;

    switch (value->type) {
    case MSGPACK_EXTENSION:
        if (take(reader, 1, &kind) < 0)
            return -EINVAL;
        return take(reader, value->number, &value->bytes);
    case MSGPACK_STRING:
    case MSGPACK_BINARY:
        return take(reader, value->number, &value->bytes);
    case MSGPACK_ARRAY:
        return value->number <= reader->rest.len ? 0 : -EINVAL;
    case MSGPACK_MAP:
        return value->number <= reader->rest.len / 2 ? 0 : -EINVAL;
    default:
        return 0;
    }
}

static int read_form(struct msgpack_reader *reader, const struct form *form,
                     struct msgpack_value *value)
{
    if (!form->is_used)
        return -EINVAL;
    value->type = form->type;
    value->number = form->number;
    if (form->width > 0 && take_number(reader, form->width, &value->number) < 0)
        return -EINVAL;
    if (form->is_signed)
        extend_sign(value, form->width);
    if (form->type == MSGPACK_FLOAT)
        value->real = real_of(value->number, form->width);
    return finish(reader, value);
}

int msgpack_reader_next(struct msgpack_reader *reader, struct msgpack_value *value)
{
    uint64_t first;

    *value = (struct msgpack_value){.type = MSGPACK_UNSIGNED};
    if (take_number(reader, 1, &first) < 0)
        return -EINVAL;
    if (first >= FORM_FIRST && first < FORM_END)
        return read_form(reader, &forms[first - FORM_FIRST], value);
    value->number = first;
    if (first >= FORM_END) {
        extend_sign(value, 1);
    } else if (first >= 0xa0) {
        value->type = MSGPACK_STRING;
        value->number = first & 0x1f;
    } else if (first >= 0x80) {
        value->type = first >= 0x90 ? MSGPACK_ARRAY : MSGPACK_MAP;
        value->number = first & 0x0f;
    }
    return finish(reader, value);
}

int msgpack_reader_skip(struct msgpack_reader *reader)
{
    struct msgpack_value value;

    for (uint64_t pending = 1; pending > 0; pending--) {
        if (pending > reader->rest.len || msgpack_reader_next(reader, &value) < 0)
            return -EINVAL;
        if (value.type == MSGPACK_ARRAY)
            pending += value.number;
        else if (value.type == MSGPACK_MAP)
            pending += 2 * value.number;
    }
    return 0;
}
