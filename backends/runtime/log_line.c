/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/runtime/log_line.h"

#include "backends/runtime/utf8.h"

#include <math.h>

/*
 * DESIGN
 *
 * Both forms quote and escape alike (JSON's rules), so there is one escaping; logfmt leaves the
 * quotes away where a value is a plain word. Runs of plain bytes are copied whole: escapes are
 * rare.
 *
 * Escaped beyond JSON's needs: DEL and U+0080..U+009F, which terminals take as commands. A byte
 * that is not part of valid UTF-8 becomes \ufffd.
 */

static const char hex[] = "0123456789abcdef";

void log_line_begin(struct log_line *line, char *bytes, size_t bytes_max, bool is_json)
{
    *line = (struct log_line){
        .start = bytes, .at = bytes, .limit = bytes + bytes_max, .is_json = is_json};
    if (is_json)
        log_line_raw(line, SLICE("{"));
}

void log_line_raw(struct log_line *line, struct slice bytes)
{
    if (line->is_full || (size_t)(line->limit - line->at) < bytes.len) {
        line->is_full = true;
        return;
    }
    if (bytes.len > 0)
        memcpy(line->at, bytes.ptr, bytes.len);
    line->at += bytes.len;
}

void log_line_key(struct log_line *line, const char *key)
{
    bool is_first = line->at == line->start + line->is_json;

    if (line->is_json) {
        log_line_raw(line, is_first ? SLICE("\"") : SLICE(",\""));
        log_line_raw(line, slice_of_string(key));
        log_line_raw(line, SLICE("\":"));
    } else {
        if (!is_first)
            log_line_raw(line, SLICE(" "));
        log_line_raw(line, slice_of_string(key));
        log_line_raw(line, SLICE("="));
    }
}

/* Printable ASCII that needs no escape within quotes. */
static bool is_plain(unsigned char c)
{
    return c >= 0x20 && c < 0x7f && c != '"' && c != '\\';
}

static bool is_word(struct slice text)
{
    for (size_t i = 0; i < text.len; i++) {
        unsigned char c = (unsigned char)text.ptr[i];

        if (!is_plain(c) || c == ' ' || c == '=')
            return false;
    }
    return text.len > 0;
}

static void put_escape(struct log_line *line, unsigned char c)
{
    char escape[6] = {'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]};
    const char *shorter = c == '"'    ? "\\\""
                          : c == '\\' ? "\\\\"
                          : c == '\n' ? "\\n"
                          : c == '\r' ? "\\r"
                          : c == '\t' ? "\\t"
                                      : NULL;

    log_line_raw(line, shorter == NULL ? slice_of(escape, 6) : slice_of_string(shorter));
}

/* What is not plain at the start of text; returns how many bytes it took. */
static size_t put_special(struct log_line *line, struct slice text)
{
    unsigned char first = (unsigned char)text.ptr[0];
    size_t len;

    if (first < 0x80) {
        put_escape(line, first);
        return 1;
    }
    len = utf8_sequence_len(text);
    if (len == 0) {
        log_line_raw(line, SLICE("\\ufffd"));
        return 1;
    }
    if (first == 0xc2 && (unsigned char)text.ptr[1] < 0xa0)
        put_escape(line, (unsigned char)text.ptr[1]); /* U+0080..U+009F */
    else
        log_line_raw(line, slice_of(text.ptr, len));
    return len;
}

void log_line_text(struct log_line *line, struct slice text)
{
    if (!line->is_json && is_word(text)) {
        log_line_raw(line, text);
        return;
    }
    log_line_raw(line, SLICE("\""));
    while (text.len > 0) {
        size_t plain = 0;

        while (plain < text.len && is_plain((unsigned char)text.ptr[plain]))
            plain++;
        log_line_raw(line, slice_of(text.ptr, plain));
        text = slice_skip(text, plain);
        if (text.len > 0)
            text = slice_skip(text, put_special(line, text));
    }
    log_line_raw(line, SLICE("\""));
}

void log_line_unsigned(struct log_line *line, uint64_t number)
{
    char digits[20];
    size_t at = sizeof digits;

    do {
        digits[--at] = (char)('0' + number % 10);
        number /= 10;
    } while (number > 0);
    log_line_raw(line, slice_of(digits + at, sizeof digits - at));
}

void log_line_signed(struct log_line *line, int64_t number)
{
    if (number < 0)
        log_line_raw(line, SLICE("-"));
    log_line_unsigned(line, number < 0 ? 0 - (uint64_t)number : (uint64_t)number);
}

void log_line_decimal(struct log_line *line, double decimal)
{
    double magnitude = fabs(decimal);
    uint64_t whole, thousandths;

    if (!(magnitude < 0x1p63)) { /* NaN as well */
        log_line_raw(line, SLICE("null"));
        return;
    }
    whole = (uint64_t)magnitude;
    thousandths = (uint64_t)((magnitude - (double)whole) * 1000 + 0.5);
    whole += thousandths / 1000;
    thousandths %= 1000;
    if (decimal < 0 && whole + thousandths > 0)
        log_line_raw(line, SLICE("-"));
    log_line_unsigned(line, whole);
    log_line_raw(line, slice_of((char[]){'.', (char)('0' + thousandths / 100),
                                         (char)('0' + thousandths / 10 % 10),
                                         (char)('0' + thousandths % 10)},
                                4));
}

size_t log_line_end(struct log_line *line)
{
    log_line_raw(line, line->is_json ? SLICE("}\n") : SLICE("\n"));
    return line->is_full ? 0 : (size_t)(line->at - line->start);
}
