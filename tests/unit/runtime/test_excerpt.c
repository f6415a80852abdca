/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/runtime/excerpt.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <stdio.h>

#include "tests/support/leak_check.h"

/* What is shown of it, NUL-terminated. */
static char *shown(const struct excerpt *excerpt)
{
    static char text[EXCERPT_BYTES_MAX + 1];
    struct buf lines;

    buf_init(&lines, EXCERPT_BYTES_MAX);
    cr_assert(eq(int, excerpt_write(excerpt, &lines), 0));
    snprintf(text, sizeof text, "%.*s", (int)buf_len(&lines), buf_slice(&lines).ptr);
    buf_release(&lines);
    return text;
}

TestSuite(excerpt, .fini = leak_check);

Test(excerpt, carets_stand_under_their_characters_in_columns_of_a_terminal)
{
    static const struct {
        const char *text;
        size_t line, start, end; /* in characters, from 0 */
        const char *shown;
    } rows[] = {
        {"port: 70000\n", 0, 6, 11,
         "    1 | port: 70000\n"
         "      |       ^^^^^\n"},
        {"a\r\nb\rc\nd: e", 3, 3, 4,
         "    4 | d: e\n"
         "      |    ^\n"},
        {"port:", 0, 5, 5,
         "    1 | port:\n"
         "      |      ^\n"},
        {"a\n", 1, 0, 0,
         "    1 | a\n" /* behind the last line: its end */
         "      |  ^\n"},
        {"", 0, 0, 0,
         "    1 | \n"
         "      | ^\n"},
        {"\u65e5\u672c: x", 0, 4, 5,
         "    1 | \u65e5\u672c: x\n" /* two columns each */
         "      |       ^\n"},
        {"a: \u65e5\u672c", 0, 3, 5,
         "    1 | a: \u65e5\u672c\n"
         "      |    ^^^^\n"},
        {"\u00fc: x", 0, 3, 4,
         "    1 | \u00fc: x\n"
         "      |    ^\n"},
        {"u\u0308: x", 0, 4, 5,
         "    1 | u: x\n" /* a combining mark takes no column */
         "      |    ^\n"},
        {"a\u202e: x", 0, 4, 5,
         "    1 | a: x\n" /* nor does a direction mark, and it does nothing */
         "      |    ^\n"},
        {"\tx", 0, 1, 2,
         "    1 | \u2192x\n"
         "      |  ^\n"},
        {"\x1b[2J\xffx", 0, 5, 6,
         "    1 | \ufffd[2J\ufffdx\n"
         "      |      ^\n"},
        {"a: 'b\nc'", 0, 3, 99,
         "    1 | a: 'b\n" /* to a later line: up to the end of this one */
         "      |    ^^\n"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct excerpt_cursor cursor;
        excerpt_cursor_init(&cursor, slice_of_string(rows[i].text));

        struct excerpt excerpt =
            excerpt_find_span(&cursor, (size_t[]){rows[i].line, rows[i].start},
                              (size_t[]){rows[i].end == 99 ? 1 : rows[i].line, rows[i].end});

        cr_assert(eq(str, shown(&excerpt), (char *)rows[i].shown), "row %zu", i);
    }
}

Test(excerpt, a_long_line_is_cut_around_the_carets)
{
    char line[1000];
    memset(line, 'x', sizeof line);

    for (size_t start = 0; start <= sizeof line; start += 50) {
        struct excerpt_cursor cursor;
        excerpt_cursor_init(&cursor, slice_of(line, sizeof line));
        struct excerpt excerpt =
            excerpt_find_span(&cursor, (size_t[]){0, start}, (size_t[]){0, start + 5});

        const char *text = shown(&excerpt);

        const char *second = strchr(text, '\n') + 1;
        size_t first_len = (size_t)(second - text) - 1;
        size_t caret = strcspn(second, "^");
        cr_assert(le(sz, first_len, 8 + 3 + EXCERPT_COLUMNS_MAX + 3));
        cr_assert(le(sz, caret, first_len), "caret %zu of %zu at %zu", caret, first_len, start);
        cr_assert(eq(int, start > 32, text[8] == '.'), "%s", text);
        cr_assert(eq(sz, excerpt_column(&excerpt), start + 1));
    }
}

Test(excerpt, carets_end_where_the_window_does)
{
    char line[1000];
    memset(line, 'x', sizeof line);
    struct excerpt_cursor cursor;
    excerpt_cursor_init(&cursor, slice_of(line, sizeof line));
    struct excerpt excerpt =
        excerpt_find_span(&cursor, (size_t[]){0, 0}, (size_t[]){0, sizeof line});

    const char *text = shown(&excerpt);

    const char *second = strchr(text, '\n') + 1;
    cr_assert(eq(sz, strspn(second + 8, "^"), EXCERPT_COLUMNS_MAX));
}

Test(excerpt, a_cursor_finds_the_same_in_any_order)
{
    static const char text[] = "ab\n\u65e5x\n\ncd";
    static const struct {
        size_t line, column, number, start;
    } rows[] = {{0, 1, 1, 1}, {1, 1, 2, 3}, {1, 2, 2, 4}, {1, 0, 2, 0}, {3, 1, 4, 1},
                {2, 0, 3, 0}, {0, 0, 1, 0}, {9, 9, 4, 2}, {3, 0, 4, 0}};
    struct excerpt_cursor cursor;
    excerpt_cursor_init(&cursor, slice_of_string(text));

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct excerpt excerpt = excerpt_find(&cursor, rows[i].line, rows[i].column);

        cr_assert(eq(sz, excerpt.number, rows[i].number), "row %zu", i);
        cr_assert(eq(sz, excerpt.start, rows[i].start), "row %zu", i);
    }
}

Test(excerpt, a_byte_is_found_by_its_offset)
{
    static const char text[] = "ab\ncd\r\n\u65e5x";
    static const struct {
        size_t offset, number, column;
    } rows[] = {{0, 1, 1}, {1, 1, 2},  {2, 1, 3},  {3, 2, 1}, {5, 2, 3},
                {7, 3, 1}, {10, 3, 2}, {11, 3, 3}, {99, 3, 3}};

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct excerpt excerpt = excerpt_at_byte(slice_of_string(text), rows[i].offset);

        cr_assert(eq(sz, excerpt.number, rows[i].number), "row %zu", i);
        cr_assert(eq(sz, excerpt_column(&excerpt), rows[i].column), "row %zu", i);
    }
}
