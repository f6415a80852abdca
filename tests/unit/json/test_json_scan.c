/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/json/json_locate.h"
#include "backends/json/json_scan.h"
#include "tests/support/leak_check.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

static struct json_value scan(struct json_scanner *scanner, const char *text)
{
    struct parse_error error;
    struct json_value root;

    cr_assert(eq(int, json_scan_copy(scanner, slice_of_string(text), &root, &error), 0), "%s: %s",
              text, error.message);
    return root;
}

TestSuite(json_scan, .fini = leak_check);

Test(json_scan, every_type_is_told_apart)
{
    struct json_scanner *scanner = json_scanner_create();

    struct json_value root =
        scan(scanner, "{\"n\":null,\"b\":true,\"i\":-7,\"u\":18446744073709551615,\"d\":2.5,"
                      "\"s\":\"a\\u0042\\n\",\"a\":[1,2],\"o\":{}}");

    cr_assert(eq(int, json_type(root), JSON_OBJECT));
    cr_assert(eq(sz, json_count(root), 8));
    cr_assert(eq(int, json_type(json_get(root, "n")), JSON_NULL));
    cr_assert(eq(int, json_type(json_get(root, "b")), JSON_BOOL));
    cr_assert(json_bool(json_get(root, "b")));
    cr_assert(eq(int, json_type(json_get(root, "i")), JSON_INT64));
    cr_assert(eq(i64, json_int64(json_get(root, "i")), -7));
    cr_assert(eq(int, json_type(json_get(root, "u")), JSON_UINT64));
    cr_assert(eq(i64, json_int64(json_get(root, "u")), INT64_MAX));
    cr_assert(eq(int, json_type(json_get(root, "d")), JSON_DOUBLE));
    cr_assert(json_double(json_get(root, "d")) == 2.5);
    cr_assert(slice_eq(json_string(json_get(root, "s")), SLICE("aB\n")));
    cr_assert(eq(sz, json_count(json_get(root, "a")), 2));
    cr_assert(eq(int, json_type(json_get(root, "absent")), JSON_NONE));
    json_scanner_destroy(scanner);
}

Test(json_scan, a_getter_of_another_type_gives_nothing)
{
    struct json_scanner *scanner = json_scanner_create();
    struct json_value none = {0};
    struct json_member member;
    struct json_value element;

    struct json_value root = scan(scanner, "[\"1\"]");
    struct json_iterator over_array = json_iterate(root), over_none = json_iterate(none);

    cr_assert(eq(i64, json_int64(root), 0));
    cr_assert(json_string(root).ptr == NULL);
    cr_assert(not(json_bool(none)));
    cr_assert(eq(sz, json_count(none), 0));
    cr_assert(eq(int, json_type(json_get(root, "x")), JSON_NONE));
    cr_assert(eq(int, json_type(json_get(none, "x")), JSON_NONE));
    cr_assert(not(json_next_member(&over_array, &member)));
    cr_assert(not(json_next_element(&over_none, &element)));
    json_scanner_destroy(scanner);
}

Test(json_scan, iteration_keeps_document_order_and_gives_keys_unescaped)
{
    struct json_scanner *scanner = json_scanner_create();
    struct json_member member;
    struct json_value element;
    int64_t sum = 0;

    struct json_value root = scan(scanner, "{\"b\":[1,[9],2],\"\\u0061\":{\"c\":0},\"z\":3}");
    struct json_iterator members = json_iterate(root);
    struct json_iterator elements = json_iterate(json_get(root, "b"));

    cr_assert(json_next_member(&members, &member) && slice_eq(member.key, SLICE("b")));
    cr_assert(json_next_member(&members, &member) && slice_eq(member.key, SLICE("a")));
    cr_assert(json_next_member(&members, &member) && slice_eq(member.key, SLICE("z")));
    cr_assert(eq(i64, json_int64(member.value), 3));
    cr_assert(not(json_next_member(&members, &member)));
    while (json_next_element(&elements, &element))
        sum = sum * 10 + json_int64(element);
    cr_assert(eq(i64, sum, 102));
    json_scanner_destroy(scanner);
}

Test(json_scan, the_first_of_two_members_of_one_name_is_given)
{
    struct json_scanner *scanner = json_scanner_create();

    struct json_value root = scan(scanner, "{\"a\":1,\"a\":2}");

    cr_assert(eq(i64, json_int64(json_get(root, "a")), 1));
    json_scanner_destroy(scanner);
}

static const struct broken {
    const char *text;
    size_t len; /* 0: as a C string */
    size_t offset;
} broken[] = {
    {"", 0, 0},
    {"  ", 0, 2},
    {"{\"a\":1", 0, 6},
    {"{\"a\":1,}", 0, 7},
    {"{\"a\" 1}", 0, 5},
    {"{a:1}", 0, 1},
    {"[1 2]", 0, 3},
    {"[1,]", 0, 3},
    {"[1}", 0, 2},
    {"1 1", 0, 2},
    {"{} x", 0, 3},
    {"[NaN]", 0, 1},
    {"[-Infinity]", 0, 2},
    {"[nul]", 0, 1},
    {"[01]", 0, 1},
    {"[1.]", 0, 3},
    {"[1e]", 0, 3},
    {"[18446744073709551616]", 0, 1},
    {"[-9223372036854775809]", 0, 1},
    {"[1e999]", 0, 1},
    {"\xEF\xBB\xBF{}", 0, 0},
    {"[\"\\ud800\"]", 0, 2},
    {"[\"\\udc00\"]", 0, 2},
    {"[\"\\ud800\\u0041\"]", 0, 2},
    {"[\"\\u12g4\"]", 0, 2},
    {"[\"\\x\"]", 0, 2},
    {"[\"a\nb\"]", 0, 3},
    {"[\"a\0b\"]", 7, 3},
    {"[\"abc", 0, 5},
    {"[\"ab\xff\"]", 0, 4},
    {"[\"\xed\xa0\x80\"]", 0, 2},
    {"[\"\xc0\x80\"]", 0, 2},
    {"['a']", 0, 1},
    {"[1]// x", 0, 3},
};

Test(json_scan, what_is_not_json_is_refused_at_the_place_where_it_stops_being_so)
{
    struct json_scanner *scanner = json_scanner_create();

    for (size_t i = 0; i < array_count(broken); i++) {
        size_t len = broken[i].len > 0 ? broken[i].len : strlen(broken[i].text);
        struct parse_error error;
        struct json_value root;

        int status = json_scan_copy(scanner, slice_of(broken[i].text, len), &root, &error);

        cr_assert(eq(int, status, -EINVAL), "row %zu", i);
        cr_assert(eq(sz, error.offset, broken[i].offset), "row %zu: %s", i, error.message);
        cr_assert(gt(sz, strlen(error.message), 10));
        cr_assert(eq(int, json_type(root), JSON_NONE));
    }
    json_scanner_destroy(scanner);
}

static size_t nested(char *text, size_t depth)
{
    memset(text, '[', depth);
    text[depth] = '1';
    memset(text + depth + 1, ']', depth);
    return 2 * depth + 1;
}

Test(json_scan, nesting_is_fine_up_to_the_limit_and_an_error_beyond_it)
{
    char text[2 * (JSON_DEPTH_MAX + 1) + 1];
    struct json_scanner *scanner = json_scanner_create();
    struct parse_error error;
    struct json_value root;

    size_t len = nested(text, JSON_DEPTH_MAX);
    cr_assert(eq(int, json_scan_copy(scanner, slice_of(text, len), &root, &error), 0));

    len = nested(text, JSON_DEPTH_MAX + 1);
    cr_assert(eq(int, json_scan_copy(scanner, slice_of(text, len), &root, &error), -EINVAL));
    cr_assert(eq(sz, error.offset, JSON_DEPTH_MAX));
    json_scanner_destroy(scanner);
}

Test(json_scan, a_bomb_of_brackets_is_refused)
{
    enum { LEN = 8 << 20 };
    struct json_scanner *scanner = json_scanner_create();
    char *text = malloc(LEN + JSON_PADDING);
    struct parse_error error;
    struct json_value root;
    memset(text, '[', LEN + JSON_PADDING);

    int status = json_scan(scanner, slice_of(text, LEN), &root, &error);

    cr_assert(eq(int, status, -EINVAL));
    cr_assert(eq(sz, error.offset, JSON_DEPTH_MAX));
    json_scanner_trim(scanner);
    cr_assert(eq(int, json_type(scan(scanner, "{}")), JSON_OBJECT));
    free(text);
    json_scanner_destroy(scanner);
}

Test(json_scan, bytes_behind_the_text_are_never_part_of_it)
{
    const char padded[] =
        "12345678]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]";
    struct json_scanner *scanner = json_scanner_create();
    struct parse_error error;
    struct json_value root;

    cr_assert(eq(int, json_scan(scanner, slice_of(padded, 3), &root, &error), 0));

    cr_assert(eq(i64, json_int64(root), 123));
    json_scanner_destroy(scanner);
}

Test(json_scan, the_second_look_agrees_that_good_texts_are_good)
{
    static const char *const good[] = {
        "0",
        "-0",
        "[]",
        "{}",
        "\"\\ud83d\\ude00\"",
        "[1e308,-1.5E-7,0.0]",
        "\"\"",
        "true ",
        "\t[ 1 , 2 ]",
        "{\"\":{\"\":[{}]}}",
        "\"\xf0\x9f\x98\x80\"",
        "[0e99999]",
        "[9223372036854775807,-9223372036854775808,18446744073709551615]",
    };
    struct json_scanner *scanner = json_scanner_create();

    for (size_t i = 0; i < array_count(good); i++) {
        struct parse_error error;

        scan(scanner, good[i]);
        cr_assert(not(json_locate(slice_of_string(good[i]), &error)), "%s", good[i]);
    }
    json_scanner_destroy(scanner);
}

/* Brackets, open_count of them, an empty array inside, in white space up to len bytes. */
static char *nested_text(size_t open_count, size_t len)
{
    char *text = malloc(len + JSON_PADDING);

    memset(text, ' ', len + JSON_PADDING);
    memset(text, '[', open_count);
    memcpy(text + open_count, "[]", 2);
    memset(text + open_count + 2, ']', open_count);
    return text;
}

Test(json_scan, the_limit_of_depth_is_the_same_for_small_and_large_texts)
{
    struct json_scanner *scanner = json_scanner_create();
    const size_t lens[] = {1024, 3 << 20};

    for (size_t i = 0; i < array_count(lens); i++) {
        char *deepest = nested_text(JSON_DEPTH_MAX, lens[i]);
        char *deeper = nested_text(JSON_DEPTH_MAX + 1, lens[i]);
        struct parse_error error;
        struct json_value root;

        cr_assert(eq(int, json_scan(scanner, slice_of(deepest, lens[i]), &root, &error), 0));
        cr_assert(eq(int, json_scan(scanner, slice_of(deeper, lens[i]), &root, &error), -EINVAL));
        cr_assert(eq(sz, error.offset, JSON_DEPTH_MAX));
        free(deepest);
        free(deeper);
    }
    json_scanner_destroy(scanner);
}
