/* SPDX-License-Identifier: Apache-2.0 */

#include "router/prompt/value_stream.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/*
 * DESIGN
 *
 * A state machine over bytes; the runs of a string that need no unescaping go through whole. The
 * nesting is a stack of bits. It reads what json_scan reads, and a little more (numbers like 01):
 * what is no JSON comes back from no client, so what it is called does not matter.
 */
enum state {
    STATE_VALUE,         /* a value must come */
    STATE_FIRST_ELEMENT, /* or ] */
    STATE_FIRST_KEY,     /* or } */
    STATE_KEY,
    STATE_COLON,
    STATE_AFTER, /* , or the end of what encloses the value */
    STATE_STRING,
    STATE_ESCAPE,
    STATE_HEX,
    STATE_ATOM, /* in a number, true, false or null */
    STATE_DONE,
    STATE_BAD,
};

static void fail(struct value_stream *stream)
{
    stream->state = STATE_BAD;
}

static bool is_in_object(const struct value_stream *stream)
{
    return (stream->objects >> (stream->depth - 1) & 1) != 0;
}

static void end_value(struct value_stream *stream)
{
    stream->state = stream->depth == 0 ? STATE_DONE : STATE_AFTER;
}

static void open_level(struct value_stream *stream, struct prompt_writer *writer, bool is_object)
{
    uint64_t bit;

    if (stream->depth == VALUE_STREAM_DEPTH_MAX) {
        fail(stream);
        return;
    }
    bit = UINT64_C(1) << stream->depth++;
    stream->objects = is_object ? stream->objects | bit : stream->objects & ~bit;
    stream->state = is_object ? STATE_FIRST_KEY : STATE_FIRST_ELEMENT;
    prompt_write_tag(writer, is_object ? TAG_OBJECT : TAG_ARRAY);
}

static void close_level(struct value_stream *stream, struct prompt_writer *writer, char mark)
{
    if (stream->depth == 0 || is_in_object(stream) != (mark == '}')) {
        fail(stream);
        return;
    }
    prompt_write_tag(writer, is_in_object(stream) ? TAG_OBJECT_END : TAG_ARRAY_END);
    stream->depth--;
    end_value(stream);
}

static void begin_string(struct value_stream *stream, struct prompt_writer *writer, bool is_key)
{
    stream->is_key = is_key;
    stream->state = STATE_STRING;
    prompt_write_tag(writer, is_key ? TAG_KEY : TAG_STRING);
}

static void begin_value(struct value_stream *stream, struct prompt_writer *writer, char first)
{
    if (first == '{' || first == '[') {
        open_level(stream, writer, first == '{');
    } else if (first == '"') {
        begin_string(stream, writer, false);
    } else {
        stream->state = STATE_ATOM;
        stream->atom[0] = first;
        stream->atom_len = 1;
    }
}

/* One byte between tokens. */
static void read_mark(struct value_stream *stream, struct prompt_writer *writer, char mark)
{
    bool is_end = mark == '}' || mark == ']';

    if (mark == ' ' || mark == '\t' || mark == '\n' || mark == '\r')
        return;
    switch (stream->state) {
    case STATE_VALUE:
        begin_value(stream, writer, mark);
        return;
    case STATE_FIRST_ELEMENT:
        if (is_end)
            close_level(stream, writer, mark);
        else
            begin_value(stream, writer, mark);
        return;
    case STATE_FIRST_KEY:
    case STATE_KEY:
        if (mark == '"')
            begin_string(stream, writer, true);
        else if (is_end && stream->state == STATE_FIRST_KEY)
            close_level(stream, writer, mark);
        else
            fail(stream);
        return;
    case STATE_COLON:
        stream->state = mark == ':' ? STATE_VALUE : STATE_BAD;
        return;
    case STATE_AFTER:
        if (mark == ',')
            stream->state = is_in_object(stream) ? STATE_KEY : STATE_VALUE;
        else
            close_level(stream, writer, mark);
        return;
    default:
        fail(stream);
    }
}

/* ---- numbers and words ---- */

static void write_double(struct prompt_writer *writer, double number)
{
    uint64_t bits;

    memcpy(&bits, &number, sizeof bits);
    prompt_write_digest(writer, TAG_DOUBLE, bits);
}

static bool write_number(struct prompt_writer *writer, const char *text)
{
    bool is_integer = strpbrk(text, ".eE") == NULL;
    char *end;
    long long integer;
    double number;

    if (text[strspn(text, "0123456789+-.eE")] != '\0')
        return false;
    errno = 0;
    integer = strtoll(text, &end, 10);
    if (is_integer && errno == 0) {
        prompt_write_digest(writer, TAG_INTEGER, (uint64_t)integer);
        return *end == '\0';
    }
    number = strtod(text, &end);
    write_double(writer, number);
    return *end == '\0' && isfinite(number);
}

static void end_atom(struct value_stream *stream, struct prompt_writer *writer)
{
    stream->atom[stream->atom_len] = '\0';
    end_value(stream);
    if (strcmp(stream->atom, "true") == 0)
        prompt_write_tag(writer, TAG_TRUE);
    else if (strcmp(stream->atom, "false") == 0)
        prompt_write_tag(writer, TAG_FALSE);
    else if (strcmp(stream->atom, "null") == 0)
        prompt_write_tag(writer, TAG_NULL);
    else if (!write_number(writer, stream->atom))
        fail(stream);
}

/* Bytes used; 0: the byte that ended it is still to be read. */
static size_t read_atom(struct value_stream *stream, struct prompt_writer *writer, char byte)
{
    bool is_part = (byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'z') || byte == '.' ||
                   byte == '+' || byte == '-' || byte == 'E';

    if (!is_part) {
        end_atom(stream, writer);
        return 0;
    }
    if (stream->atom_len == VALUE_STREAM_ATOM_BYTES_MAX)
        fail(stream);
    else
        stream->atom[stream->atom_len++] = byte;
    return 1;
}

/* ---- strings ---- */

/* A run without escapes, or the byte that ends one. */
static size_t read_string(struct value_stream *stream, struct prompt_writer *writer,
                          struct slice rest)
{
    size_t len = 0;

    while (len < rest.len && rest.ptr[len] != '"' && rest.ptr[len] != '\\' &&
           (unsigned char)rest.ptr[len] >= 0x20)
        len++;
    if (stream->surrogate != 0 && (len > 0 || rest.ptr[0] != '\\')) {
        fail(stream);
        return 1;
    }
    prompt_write_text(writer, slice_of(rest.ptr, len));
    if (len > 0)
        return len;
    if (rest.ptr[0] == '\\')
        stream->state = STATE_ESCAPE;
    else if (rest.ptr[0] != '"')
        fail(stream);
    else if (stream->is_key)
        stream->state = STATE_COLON;
    else
        end_value(stream);
    return 1;
}

static void read_escape(struct value_stream *stream, struct prompt_writer *writer, char letter)
{
    static const char letters[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    const char *found = letter == '\0' ? NULL : strchr(letters, letter);

    if (letter == 'u') {
        stream->state = STATE_HEX;
        stream->code = stream->hex_len = 0;
    } else if (found == NULL || stream->surrogate != 0) {
        fail(stream);
    } else {
        stream->state = STATE_STRING;
        prompt_write_text(writer, slice_of(&meanings[found - letters], 1));
    }
}

static void write_utf8(struct prompt_writer *writer, uint32_t code)
{
    char bytes[4];
    size_t len;

    if (code < 0x80) {
        bytes[0] = (char)code;
        len = 1;
    } else if (code < 0x800) {
        bytes[0] = (char)(0xC0 | code >> 6);
        len = 2;
    } else if (code < 0x10000) {
        bytes[0] = (char)(0xE0 | code >> 12);
        len = 3;
    } else {
        bytes[0] = (char)(0xF0 | code >> 18);
        len = 4;
    }
    for (size_t i = 1; i < len; i++)
        bytes[i] = (char)(0x80 | (code >> 6 * (len - 1 - i) & 0x3F));
    prompt_write_text(writer, slice_of(bytes, len));
}

/* A whole \u escape: a character, or half of one. */
static void end_hex(struct value_stream *stream, struct prompt_writer *writer)
{
    bool is_first = stream->code >= 0xD800 && stream->code < 0xDC00;
    bool is_second = stream->code >= 0xDC00 && stream->code < 0xE000;

    stream->state = STATE_STRING;
    if (is_second != (stream->surrogate != 0))
        fail(stream);
    else if (is_second)
        write_utf8(writer,
                   0x10000 + ((stream->surrogate - 0xD800) << 10) + (stream->code - 0xDC00));
    else if (!is_first)
        write_utf8(writer, stream->code);
    stream->surrogate = is_first ? stream->code : 0;
}

static void read_hex(struct value_stream *stream, struct prompt_writer *writer, char byte)
{
    uint32_t digit;

    if (byte >= '0' && byte <= '9') {
        digit = (uint32_t)(byte - '0');
    } else if ((byte | 0x20) >= 'a' && (byte | 0x20) <= 'f') {
        digit = (uint32_t)((byte | 0x20) - 'a') + 10;
    } else {
        fail(stream);
        return;
    }
    stream->code = stream->code << 4 | digit;
    if (++stream->hex_len == 4)
        end_hex(stream, writer);
}

/* ---- the whole ---- */

void value_stream_init(struct value_stream *stream)
{
    *stream = (struct value_stream){.state = STATE_VALUE};
}

/* Bytes used of rest, which is not empty; 0 only where the state changes. */
static size_t step(struct value_stream *stream, struct prompt_writer *writer, struct slice rest)
{
    switch (stream->state) {
    case STATE_STRING:
        return read_string(stream, writer, rest);
    case STATE_ESCAPE:
        read_escape(stream, writer, rest.ptr[0]);
        return 1;
    case STATE_HEX:
        read_hex(stream, writer, rest.ptr[0]);
        return 1;
    case STATE_ATOM:
        return read_atom(stream, writer, rest.ptr[0]);
    default:
        read_mark(stream, writer, rest.ptr[0]);
        return 1;
    }
}

bool value_stream_feed(struct value_stream *stream, struct prompt_writer *writer,
                       struct slice piece)
{
    while (piece.len > 0 && stream->state != STATE_BAD)
        piece = slice_skip(piece, step(stream, writer, piece));
    return stream->state != STATE_BAD;
}

bool value_stream_end(struct value_stream *stream, struct prompt_writer *writer)
{
    if (stream->state == STATE_ATOM)
        end_atom(stream, writer);
    return stream->state == STATE_DONE;
}
