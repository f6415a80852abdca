/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/msgpack_text.h"

#include <assert.h>
#include <endian.h>
#include <stdbool.h>
#include <string.h>

#include "tests/sim_engine/json_text.h"

/* The format: github.com/msgpack/msgpack, spec.md. */

static void put_byte(struct buf *buf, uint8_t byte)
{
    char c = (char)byte;

    text_put(buf, slice_of(&c, 1));
}

/* A tag, then the last width bytes of number, big-endian. */
static void put_tagged(struct buf *buf, uint8_t tag, uint64_t number, size_t width)
{
    uint64_t big = htobe64(number);
    char bytes[1 + sizeof big];

    bytes[0] = (char)tag;
    memcpy(bytes + 1, (const char *)&big + sizeof big - width, width);
    text_put(buf, slice_of(bytes, 1 + width));
}

void msgpack_put_nil(struct buf *buf)
{
    put_byte(buf, 0xc0);
}

void msgpack_put_uint(struct buf *buf, uint64_t number)
{
    if (number < 0x80)
        put_byte(buf, (uint8_t)number);
    else if (number <= UINT8_MAX)
        put_tagged(buf, 0xcc, number, 1);
    else if (number <= UINT16_MAX)
        put_tagged(buf, 0xcd, number, 2);
    else if (number <= UINT32_MAX)
        put_tagged(buf, 0xce, number, 4);
    else
        put_tagged(buf, 0xcf, number, 8);
}

void msgpack_put_real(struct buf *buf, double number)
{
    uint64_t bits;

    static_assert(sizeof bits == sizeof number, "doubles are IEEE 754");
    memcpy(&bits, &number, sizeof bits);
    put_tagged(buf, 0xcb, bits, 8);
}

/* tags: of lengths in one, two and four bytes; 0: there is none of one. fixed: of a length within
 * the tag, which may be up to fixed_max. */
struct head_form {
    uint8_t fixed;
    size_t fixed_max;
    uint8_t tags[3];
};

static void put_head(struct buf *buf, struct head_form form, size_t count)
{
    assert(count <= UINT32_MAX);

    if (form.fixed != 0 && count <= form.fixed_max)
        put_byte(buf, (uint8_t)(form.fixed | count));
    else if (form.tags[0] != 0 && count <= UINT8_MAX)
        put_tagged(buf, form.tags[0], count, 1);
    else if (count <= UINT16_MAX)
        put_tagged(buf, form.tags[1], count, 2);
    else
        put_tagged(buf, form.tags[2], count, 4);
}

void msgpack_put_string(struct buf *buf, struct slice text)
{
    put_head(buf, (struct head_form){0xa0, 31, {0xd9, 0xda, 0xdb}}, text.len);
    text_put(buf, text);
}

void msgpack_put_binary(struct buf *buf, struct slice bytes)
{
    put_head(buf, (struct head_form){0, 0, {0xc4, 0xc5, 0xc6}}, bytes.len);
    text_put(buf, bytes);
}

void msgpack_put_array(struct buf *buf, size_t count)
{
    put_head(buf, (struct head_form){0x90, 15, {0, 0xdc, 0xdd}}, count);
}

void msgpack_put_map(struct buf *buf, size_t count)
{
    put_head(buf, (struct head_form){0x80, 15, {0, 0xde, 0xdf}}, count);
}
