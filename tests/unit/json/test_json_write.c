/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/json/json_write.h"

#include "tests/support/leak_check.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>

/* What text becomes when it is read and written again; freed by the caller. */
static struct buf rewrite(const char *text)
{
    struct json_scanner *scanner = json_scanner_create();
    struct parse_error error;
    struct json_value root;
    struct buf buf;

    buf_init(&buf, 1 << 20);
    cr_assert(eq(int, json_scan_copy(scanner, slice_of_string(text), &root, &error), 0));
    cr_assert(eq(int, json_write_value(&buf, root), 0));
    json_scanner_destroy(scanner);
    return buf;
}

TestSuite(json_write, .fini = leak_check);

Test(json_write, values_lose_their_blanks_and_nothing_else)
{
    static const struct {
        const char *text;
        const char *written;
    } rows[] = {
        {" { } ", "{}"},
        {"[ ]", "[]"},
        {"[ 1 , [ 2 ] , { \"b\" : 3 , \"a\" : null } ]", "[1,[2],{\"b\":3,\"a\":null}]"},
        {"{\"a\":1,\"a\":2}", "{\"a\":1,\"a\":2}"},
        {"[true, false]", "[true,false]"},
        {"[-9223372036854775808, 9223372036854775807]",
         "[-9223372036854775808,9223372036854775807]"},
        {"[0.1, 1.0, -0.0, 1e300, 5e-324, 0.30000000000000004]",
         "[0.1,1.0,-0.0,1e+300,4.94065645841247e-324,0.30000000000000004]"},
        {"\"\\u00e9 \\\" \\\\ \\/ \\b \\t \\n \\u0000\"",
         "\"\xc3\xa9 \\\" \\\\ / \\u0008 \\t \\n \\u0000\""},
    };

    for (size_t i = 0; i < array_count(rows); i++) {
        struct buf once = rewrite(rows[i].text);

        cr_assert(slice_eq(buf_slice(&once), slice_of_string(rows[i].written)), "%s became %.*s",
                  rows[i].text, (int)buf_len(&once), buf_slice(&once).ptr);
        buf_release(&once);
    }
}

Test(json_write, what_is_written_reads_back_as_itself)
{
    struct buf once = rewrite("{\"x\":[1.5e-7,\"\\ud83d\\ude00\",18446744073709551615],\"\":{}}");
    cr_assert(eq(int, buf_append(&once, slice_of("", 1)), 0)); /* a NUL behind it */

    struct buf twice = rewrite(buf_slice(&once).ptr);

    cr_assert(slice_eq(buf_slice(&twice), slice_of(buf_slice(&once).ptr, buf_len(&once) - 1)));
    buf_release(&once);
    buf_release(&twice);
}

Test(json_write, a_string_is_valid_whatever_its_bytes)
{
    static const struct {
        struct slice bytes;
        const char *written;
    } rows[] = {
        {SLICE("plain"), "\"plain\""},
        {SLICE("\xc3\xa9\xe2\x82\xac\xf0\x9f\xab\x96"), "\"\xc3\xa9\xe2\x82\xac\xf0\x9f\xab\x96\""},
        {SLICE("\"\\\n\r\t\x01"), "\"\\\"\\\\\\n\\r\\t\\u0001\""},
        {SLICE("a\0b"), "\"a\\u0000b\""},
        {SLICE("\xff"
               "a"),
         "\"\\ufffda\""},
        {SLICE("\xe2\x82"), "\"\\ufffd\\ufffd\""},            /* cut in a character */
        {SLICE("\xc0\xaf"), "\"\\ufffd\\ufffd\""},            /* overlong */
        {SLICE("\xed\xa0\x80"), "\"\\ufffd\\ufffd\\ufffd\""}, /* a surrogate */
    };

    for (size_t i = 0; i < array_count(rows); i++) {
        struct buf buf;
        buf_init(&buf, 1 << 10);

        cr_assert(eq(int, json_write_string(&buf, rows[i].bytes), 0));

        cr_assert(slice_eq(buf_slice(&buf), slice_of_string(rows[i].written)), "row %zu: %.*s", i,
                  (int)buf_len(&buf), buf.bytes);
        buf_release(&buf);
    }
}

Test(json_write, a_full_buf_is_told)
{
    struct buf buf;
    buf_init(&buf, 5);

    cr_assert(eq(int, json_write_string(&buf, SLICE("abcd")), -ENOBUFS));

    buf_release(&buf);
}
