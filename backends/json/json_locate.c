/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/json/json_locate.h"

#include "backends/runtime/utf8.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/*
 * DESIGN
 *
 * RFC 8259 as a loop with a stack of one flag per open container, no recursion: a text of brackets
 * costs as much as any other. Each reader leaves `at` on the first byte it does not accept and says
 * why in one sentence; the input's own text is never quoted, as these sentences end in logs.
 */
enum { EXPONENT_MAX = 308, EXPONENT_ENOUGH = 100000 };

struct look {
    const unsigned char *bytes;
    size_t len;
    size_t at;
    const char *why; /* set once, by fail() */
    size_t depth;
    bool is_object[JSON_LOCATE_DEPTH_MAX];
};

static bool fail(struct look *look, const char *why)
{
    look->why = why;
    return false;
}

static bool has(const struct look *look, size_t n)
{
    return look->len - look->at >= n;
}

/* The byte at the place; 0 at the end, which no rule accepts. */
static unsigned char peek(const struct look *look)
{
    return look->at < look->len ? look->bytes[look->at] : 0;
}

static void skip_space(struct look *look)
{
    while (peek(look) == ' ' || peek(look) == '\n' || peek(look) == '\t' || peek(look) == '\r')
        look->at++;
}

static bool is_digit(unsigned char c)
{
    return c >= '0' && c <= '9';
}

static int hex_value(unsigned char c)
{
    if (is_digit(c))
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* `\uXXXX` at the place, not consumed; -1: it is none. */
static int32_t peek_unicode_escape(const struct look *look)
{
    int32_t code = 0;

    if (!has(look, 6) || look->bytes[look->at] != '\\' || look->bytes[look->at + 1] != 'u')
        return -1;
    for (size_t i = 2; i < 6; i++) {
        int digit = hex_value(look->bytes[look->at + i]);

        if (digit < 0)
            return -1;
        code = code << 4 | digit;
    }
    return code;
}

static bool read_unicode_escape(struct look *look)
{
    int32_t code = peek_unicode_escape(look), low;

    if (code < 0)
        return fail(look, "A \\u escape needs four hexadecimal digits.");
    if (code >= 0xDC00 && code <= 0xDFFF)
        return fail(look, "A \\u escape holds a low surrogate without the high one before it.");
    if (code >= 0xD800 && code <= 0xDBFF) {
        size_t high_at = look->at;

        look->at += 6;
        low = peek_unicode_escape(look);
        if (low < 0xDC00 || low > 0xDFFF) {
            look->at = high_at;
            return fail(look, "A \\u escape holds a high surrogate without the low one behind it.");
        }
    }
    look->at += 6;
    return true;
}

static bool read_escape(struct look *look)
{
    if (!has(look, 2))
        return fail(look, "The text ends inside a string.");
    switch (look->bytes[look->at + 1]) {
    case '"':
    case '\\':
    case '/':
    case 'b':
    case 'f':
    case 'n':
    case 'r':
    case 't':
        look->at += 2;
        return true;
    case 'u':
        return read_unicode_escape(look);
    default:
        return fail(look, "A backslash in a string is followed by a character it cannot escape.");
    }
}

static bool read_utf8(struct look *look)
{
    struct slice rest = slice_of((const char *)look->bytes + look->at, look->len - look->at);
    size_t len = utf8_sequence_len(rest);

    if (len == 0)
        return fail(look, "The text is not valid UTF-8 here.");
    look->at += len;
    return true;
}

static bool read_string(struct look *look)
{
    look->at++; /* the quote */
    while (look->at < look->len) {
        unsigned char c = look->bytes[look->at];
        bool is_good = true;

        if (c == '"') {
            look->at++;
            return true;
        }
        if (c < 0x20)
            return fail(look, "A string holds a control character that must be escaped.");
        if (c == '\\')
            is_good = read_escape(look);
        else if (c >= 0x80)
            is_good = read_utf8(look);
        else
            look->at++;
        if (!is_good)
            return false;
    }
    return fail(look, "The text ends inside a string.");
}

static size_t skip_digits(struct look *look)
{
    size_t start = look->at;

    while (is_digit(peek(look)))
        look->at++;
    return look->at - start;
}

/* Whether a whole number passes int64_t when negative, uint64_t when not. */
static bool is_integer_too_large(const unsigned char *digits, size_t count, bool is_negative)
{
    const uint64_t max = is_negative ? (uint64_t)INT64_MAX + 1 : UINT64_MAX;
    uint64_t value = 0;

    for (size_t i = 0; i < count; i++) {
        unsigned digit = digits[i] - '0';

        if (value > (max - digit) / 10)
            return true;
        value = value * 10 + digit;
    }
    return false;
}

/* The exponent behind e or E. False: no digits there. */
static bool read_exponent(struct look *look, long *exponent)
{
    bool is_negative;

    look->at++;
    is_negative = peek(look) == '-';
    if (peek(look) == '-' || peek(look) == '+')
        look->at++;
    if (!is_digit(peek(look)))
        return fail(look, "A number's exponent has no digits.");
    for (; is_digit(peek(look)); look->at++)
        if (*exponent < EXPONENT_ENOUGH)
            *exponent = *exponent * 10 + (peek(look) - '0');
    *exponent = is_negative ? -*exponent : *exponent;
    return true;
}

static bool read_number(struct look *look)
{
    size_t start = look->at, digits_at, digit_count;
    long exponent = 0;
    bool is_negative = peek(look) == '-', is_whole = true;

    look->at += is_negative;
    digits_at = look->at;
    digit_count = skip_digits(look);
    if (digit_count == 0)
        return fail(look, "A number has no digits.");
    if (digit_count > 1 && look->bytes[digits_at] == '0') {
        look->at = digits_at;
        return fail(look, "A number begins with a needless zero.");
    }
    if (peek(look) == '.') {
        is_whole = false;
        look->at++;
        if (skip_digits(look) == 0)
            return fail(look, "A number has no digits behind its point.");
    }
    if (peek(look) == 'e' || peek(look) == 'E') {
        is_whole = false;
        if (!read_exponent(look, &exponent))
            return false;
    }
    if (is_whole
            ? is_integer_too_large(look->bytes + digits_at, digit_count, is_negative)
            : look->bytes[digits_at] != '0' && (long)digit_count - 1 + exponent > EXPONENT_MAX) {
        look->at = start;
        return fail(look, "A number is too large to be read.");
    }
    return true;
}

static bool read_literal(struct look *look, struct slice literal)
{
    struct slice rest = slice_of((const char *)look->bytes + look->at, look->len - look->at);

    if (!slice_starts_with(rest, literal))
        return fail(look, "A value is expected here.");
    look->at += literal.len;
    return true;
}

static bool read_scalar(struct look *look)
{
    switch (peek(look)) {
    case '"':
        return read_string(look);
    case 't':
        return read_literal(look, SLICE("true"));
    case 'f':
        return read_literal(look, SLICE("false"));
    case 'n':
        return read_literal(look, SLICE("null"));
    default:
        if (peek(look) == '-' || is_digit(peek(look)))
            return read_number(look);
        return fail(look, look->at == look->len ? "The text ends where a value is expected."
                                                : "A value is expected here.");
    }
}

/* A key and its colon. */
static bool read_key(struct look *look)
{
    skip_space(look);
    if (peek(look) != '"')
        return fail(look, look->at == look->len ? "The text ends inside an object."
                                                : "A key in double quotes is expected here.");
    if (!read_string(look))
        return false;
    skip_space(look);
    if (peek(look) != ':')
        return fail(look, "A colon is expected behind a key.");
    look->at++;
    return true;
}

/* Opens a container. *is_empty: it was closed at once, and counts as no level, as in simdjson. */
static bool open_container(struct look *look, bool *is_empty)
{
    size_t start = look->at++;
    bool is_object = look->bytes[start] == '{';

    skip_space(look);
    *is_empty = peek(look) == (is_object ? '}' : ']');
    if (*is_empty) {
        look->at++;
        return true;
    }
    if (look->depth == JSON_LOCATE_DEPTH_MAX) {
        look->at = start;
        return fail(look, "Arrays and objects are nested too deep.");
    }
    look->is_object[look->depth++] = is_object;
    return !is_object || read_key(look);
}

/* Behind a value: closes what ends here. True with *wants_value: a comma leads to the next one. */
static bool close_containers(struct look *look, bool *wants_value)
{
    *wants_value = false;
    while (look->depth > 0) {
        bool is_object = look->is_object[look->depth - 1];

        skip_space(look);
        if (peek(look) == ',') {
            look->at++;
            *wants_value = true;
            return !is_object || read_key(look);
        }
        if (peek(look) != (is_object ? '}' : ']'))
            return fail(look, look->at == look->len ? "The text ends inside an array or object."
                              : is_object           ? "A comma or a closing brace is expected here."
                                          : "A comma or a closing bracket is expected here.");
        look->at++;
        look->depth--;
    }
    return true;
}

static bool read_text(struct look *look)
{
    bool wants_value = true;

    while (wants_value) {
        bool is_empty = false;

        skip_space(look);
        if (peek(look) == '{' || peek(look) == '[') {
            if (!open_container(look, &is_empty))
                return false;
            if (!is_empty)
                continue;
        } else if (!read_scalar(look)) {
            return false;
        }
        if (!close_containers(look, &wants_value))
            return false;
    }
    skip_space(look);
    return look->at == look->len || fail(look, "Something follows behind the end of the JSON.");
}

bool json_locate(struct slice text, struct parse_error *error)
{
    struct look look = {.bytes = (const unsigned char *)text.ptr, .len = text.len};

    if (slice_starts_with(text, SLICE("\xEF\xBB\xBF")))
        fail(&look, "The text begins with a byte order mark.");
    else if (read_text(&look))
        return false;
    error->offset = look.at;
    snprintf(error->message, sizeof error->message, "%s", look.why);
    return true;
}
