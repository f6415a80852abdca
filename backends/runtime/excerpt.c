/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/runtime/excerpt.h"

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "backends/runtime/must_check.h"
#include "backends/runtime/utf8.h"

/*
 * DESIGN
 *
 * Three measures of a line meet here: bytes, in which texts are kept; characters, in which people
 * and libyaml count; and columns of a terminal, where a CJK character is two wide. A glyph is one
 * step through all three. What would not show as itself is replaced: a tab by an arrow, so that it
 * can be seen and is one column wide, bytes that are no UTF-8 and control characters by U+FFFD.
 * Characters of no width are left out: terminals disagree about them, and a line may have any
 * number of them.
 */

enum { COLUMNS_BEFORE = 32 }; /* of context on the left of the carets of a line that is cut */

struct glyph {
    size_t len;         /* bytes of the line that it takes */
    struct slice shown; /* what stands for it */
    size_t width;       /* columns of that */
};

/* First and last code points of what is two columns wide (East Asian Width W and F, emoji), and of
 * what has none: combining marks, joiners, direction marks, variation selectors. Rising. */
static const uint32_t wide_ranges[][2] = {
    {0x1100, 0x115f},   {0x2e80, 0x303e},   {0x3041, 0xa4cf},   {0xac00, 0xd7a3},
    {0xf900, 0xfaff},   {0xfe30, 0xfe6f},   {0xff00, 0xff60},   {0xffe0, 0xffe6},
    {0x1f300, 0x1f64f}, {0x1f680, 0x1f6ff}, {0x1f900, 0x1f9ff}, {0x20000, 0x3fffd},
};
static const uint32_t narrow_ranges[][2] = {
    {0x0300, 0x036f}, {0x0483, 0x0489}, {0x0591, 0x05bd}, {0x061c, 0x061c}, {0x064b, 0x065f},
    {0x1ab0, 0x1aff}, {0x1dc0, 0x1dff}, {0x200b, 0x200f}, {0x202a, 0x202e}, {0x2060, 0x206f},
    {0x20d0, 0x20ff}, {0xfe00, 0xfe0f}, {0xfe20, 0xfe2f}, {0xfeff, 0xfeff}, {0xe0000, 0xe0fff},
};

static bool is_within(uint32_t code, const uint32_t (*ranges)[2], size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (code >= ranges[i][0] && code <= ranges[i][1])
            return true;
    return false;
}

static uint32_t code_point(struct slice character)
{
    static const unsigned char masks[] = {0, 0, 0x1f, 0x0f, 0x07};
    uint32_t code = (unsigned char)character.ptr[0] & masks[character.len];

    for (size_t i = 1; i < character.len; i++)
        code = code << 6 | ((unsigned char)character.ptr[i] & 0x3f);
    return code;
}

/* The first character of text, which is not empty. */
static struct glyph first_glyph(struct slice text)
{
    unsigned char first = (unsigned char)text.ptr[0];
    struct slice character = slice_of(text.ptr, utf8_sequence_len(text));
    uint32_t code;

    if (first == '\t')
        return (struct glyph){1, SLICE("\u2192"), 1};
    if (first >= 0x20 && first < 0x7f)
        return (struct glyph){1, slice_of(text.ptr, 1), 1};
    if (character.len == 0)
        return (struct glyph){1, SLICE("\ufffd"), 1};
    code = code_point(character);
    if (code < 0xa0)
        return (struct glyph){character.len, SLICE("\ufffd"), 1};
    if (is_within(code, narrow_ranges, array_count(narrow_ranges)))
        return (struct glyph){character.len, SLICE(""), 0};
    return (struct glyph){character.len, character,
                          is_within(code, wide_ranges, array_count(wide_ranges)) ? 2 : 1};
}

/* Length of the line break that text begins with; 0: none. */
static size_t break_len(struct slice text)
{
    if (text.ptr[0] == '\n')
        return 1;
    if (text.ptr[0] == '\r')
        return text.len > 1 && text.ptr[1] == '\n' ? 2 : 1;
    if (slice_starts_with(text, SLICE("\xc2\x85")))
        return 2;
    return slice_starts_with(text, SLICE("\u2028")) || slice_starts_with(text, SLICE("\u2029")) ? 3
                                                                                                : 0;
}

/* The first line of text, without its break; *whole_len counts that too. */
static struct slice first_line(struct slice text, size_t *whole_len)
{
    for (size_t i = 0; i < text.len; i++) {
        size_t len = break_len(slice_skip(text, i));

        if (len > 0) {
            *whole_len = i + len;
            return slice_of(text.ptr, i);
        }
    }
    *whole_len = text.len;
    return text;
}

static void go_to_start(struct excerpt_cursor *cursor)
{
    cursor->line = first_line(cursor->text, &cursor->next);
    cursor->number = 1;
    cursor->column = cursor->at = 0;
}

void excerpt_cursor_init(struct excerpt_cursor *cursor, struct slice text)
{
    cursor->text = text;
    go_to_start(cursor);
}

static void go_to_next_line(struct excerpt_cursor *cursor)
{
    size_t whole_len;

    cursor->line = first_line(slice_skip(cursor->text, cursor->next), &whole_len);
    cursor->next += whole_len;
    cursor->number++;
    cursor->column = cursor->at = 0;
}

struct excerpt excerpt_find(struct excerpt_cursor *cursor, size_t line, size_t column)
{
    if (line + 1 < cursor->number)
        go_to_start(cursor);
    while (cursor->number <= line && cursor->next < cursor->text.len)
        go_to_next_line(cursor);
    if (column < cursor->column)
        cursor->column = cursor->at = 0;
    /* A place behind the last line break: the end of what there is to show. */
    if (cursor->number <= line)
        column = SIZE_MAX;
    for (; cursor->column < column && cursor->at < cursor->line.len; cursor->column++)
        cursor->at += first_glyph(slice_skip(cursor->line, cursor->at)).len;
    return (struct excerpt){cursor->line, cursor->number, cursor->at, cursor->at};
}

struct excerpt excerpt_find_span(struct excerpt_cursor *cursor, const size_t start[2],
                                 const size_t end[2])
{
    struct excerpt excerpt = excerpt_find(cursor, start[0], start[1]);

    if (end[0] + 1 > excerpt.number)
        excerpt.end = excerpt.line.len;
    else if (end[0] + 1 == excerpt.number && end[1] > start[1])
        excerpt.end = excerpt_find(cursor, end[0], end[1]).start;
    return excerpt;
}

struct excerpt excerpt_at_byte(struct slice text, size_t offset)
{
    struct excerpt_cursor cursor;
    size_t line_start = 0, at;

    excerpt_cursor_init(&cursor, text);
    while (cursor.next <= offset && cursor.next < text.len) {
        line_start = cursor.next;
        go_to_next_line(&cursor);
    }
    at = offset - line_start < cursor.line.len ? offset - line_start : cursor.line.len;
    return (struct excerpt){cursor.line, cursor.number, at, at};
}

size_t excerpt_column(const struct excerpt *excerpt)
{
    size_t column = 1;

    for (size_t at = 0; at < excerpt->start; column++)
        at += first_glyph(slice_skip(excerpt->line, at)).len;
    return column;
}

/* Columns that the first len bytes of line take. */
static size_t width_of(struct slice line, size_t len)
{
    size_t width = 0;

    for (size_t at = 0; at < len;) {
        struct glyph glyph = first_glyph(slice_skip(line, at));

        at += glyph.len;
        width += glyph.width;
    }
    return width;
}

struct window {
    size_t left, right; /* columns shown: left <= column < right */
    bool is_cut_left, is_cut_right;
};

static struct window choose_window(size_t line_width, size_t caret)
{
    struct window window = {.left = 0, .right = line_width};

    if (line_width <= EXCERPT_COLUMNS_MAX)
        return window;
    window.left = caret > COLUMNS_BEFORE ? caret - COLUMNS_BEFORE : 0;
    if (window.left + EXCERPT_COLUMNS_MAX > line_width)
        window.left = line_width - EXCERPT_COLUMNS_MAX;
    window.right = window.left + EXCERPT_COLUMNS_MAX;
    window.is_cut_left = window.left > 0;
    window.is_cut_right = window.right < line_width;
    return window;
}

static int write_line(const struct excerpt *excerpt, struct window window, struct buf *out)
{
    int status = buf_printf(out, "%5zu | %s", excerpt->number, window.is_cut_left ? "..." : "");
    size_t column = 0;

    for (size_t at = 0; status == 0 && at < excerpt->line.len && column < window.right;) {
        struct glyph glyph = first_glyph(slice_skip(excerpt->line, at));

        if (column >= window.left && column + glyph.width <= window.right)
            status = buf_append(out, glyph.shown);
        else if (column < window.left && column + glyph.width > window.left)
            status = buf_append(out, SLICE(" ")); /* the right half of a wide one */
        at += glyph.len;
        column += glyph.width;
    }
    if (status == 0 && window.is_cut_right)
        status = buf_append(out, SLICE("..."));
    return status == 0 ? buf_append(out, SLICE("\n")) : status;
}

int excerpt_write(const struct excerpt *excerpt, struct buf *out)
{
    static const char carets[EXCERPT_COLUMNS_MAX + 1] =
        "^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^"
        "^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^";
    size_t start = width_of(excerpt->line, excerpt->start);
    size_t end = width_of(excerpt->line, excerpt->end);
    struct window window = choose_window(width_of(excerpt->line, excerpt->line.len), start);
    size_t indent = start - window.left + (window.is_cut_left ? 3 : 0);
    int status;

    assert(excerpt->start <= excerpt->end && excerpt->end <= excerpt->line.len);
    assert(start >= window.left);

    if (end > window.right)
        end = window.right;
    if (end <= start)
        end = start + 1;
    status = write_line(excerpt, window, out);
    if (status < 0)
        return status;
    return buf_printf(out, "      | %*s%.*s\n", (int)indent, "", (int)(end - start), carets);
}
