/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/json/json_duplicate.h"
#include "backends/runtime/buf.h"
#include "tests/support/leak_check.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <stdio.h>

/* Expects the first pair of text to be at path; NULL: there is none. */
static void expect(struct slice text, const char *path)
{
    struct json_scanner *scanner = json_scanner_create();
    char found[JSON_PATH_BYTES_MAX];
    struct parse_error error;
    struct json_value root;

    cr_assert(eq(int, json_scan_copy(scanner, text, &root, &error), 0), "%s", error.message);
    cr_assert(eq(int, json_find_duplicate(root, found), path != NULL));
    cr_assert(eq(str, found, (char *)(path != NULL ? path : "")));
    json_scanner_destroy(scanner);
}

static void expect_of(const char *text, const char *path)
{
    expect(slice_of_string(text), path);
}

TestSuite(json_duplicate, .fini = leak_check);

Test(json_duplicate, other_keys_are_no_pair)
{
    expect_of("{}", NULL);
    expect_of("17", NULL);
    expect_of("[{\"a\":1},{\"a\":2}]", NULL);
    expect_of("{\"a\":{\"a\":{\"a\":[\"a\",\"a\"]}},\"aa\":1,\"A\":2,\"\":3}", NULL);
}

Test(json_duplicate, a_pair_is_found_at_each_level)
{
    expect_of("{\"model\":1,\"model\":2}", "model");
    expect_of("{\"b\":1,\"a\":{\"b\":1,\"c\":2,\"b\":3}}", "a.b");
    expect_of("{\"messages\":[{\"role\":1},{\"role\":1,\"x\":0,\"role\":1}]}", "messages[1].role");
    expect_of("[[{}],[0,{\"k\":[],\"k\":[]}]]", "[1][1].k");
}

Test(json_duplicate, keys_count_as_they_are_meant)
{
    expect_of("{\"model\":1,\"mod\\u0065l\":2}", "model");
    expect_of("{\"\\u00e9\":1,\"\xC3\xA9\":2}", "??");
    expect_of("{\"a\\u0000b\":1,\"a\\u0000c\":2}", NULL);
    expect_of("{\"a\\u0000b\":1,\"a\\u0000b\":2}", "a?b");
    expect_of("{\"\":1,\"\":2}", "");
}

Test(json_duplicate, keys_that_look_alike_to_the_quick_look_are_told_apart)
{
    expect_of("{\"abc\":1,\"aXc\":2,\"aYc\":3}", NULL);
    expect_of("{\"abc\":1,\"aXc\":2,\"aYc\":3,\"aXc\":4}", "aXc");
}

Test(json_duplicate, a_long_way_is_shortened_at_its_end)
{
    expect_of("{\"a_key_of_twenty_chars\":{\"a_key_of_twenty_chars\":{\"a_key_of_twenty_chars\":"
              "{\"a\":1,\"a\":2}}}}",
              "a_key_of_twenty_chars.a_key_of_twenty_chars.a_key_of_twenty_cha");
    expect_of("{\"a_key_of_some_thirty_characters\":{\"a_key_of_some_thirty_characters\":"
              "[{\"a\":1,\"a\":2}]}}",
              "a_key_of_some_thirty_characters.a_key_of_some_thirty_characters");
}

/* key_count keys, all other, but the last, which is that of last_number. */
static void expect_of_many(size_t key_count, size_t last_number, const char *path)
{
    struct buf text;
    int status;

    buf_init(&text, 1 << 20);
    status = buf_printf(&text, "{");
    for (size_t i = 0; i + 1 < key_count && status == 0; i++)
        status = buf_printf(&text, "\"key%zu\":{},", i);
    if (status == 0)
        status = buf_printf(&text, "\"key%zu\":[]}", last_number);
    cr_assert(eq(int, status, 0));
    expect(buf_slice(&text), path);
    buf_release(&text);
}

Test(json_duplicate, it_is_found_however_many_keys_there_are)
{
    for (size_t key_count = 2; key_count < 40; key_count++) {
        char last[16];

        snprintf(last, sizeof last, "key%zu", key_count - 2);
        expect_of_many(key_count, key_count, NULL);
        expect_of_many(key_count, 0, "key0");
        expect_of_many(key_count, key_count - 2, last);
    }
    expect_of_many(20000, 19998, "key19998");
}
