/* SPDX-License-Identifier: Apache-2.0 */

#include "router/prompt/value_stream.h"
#include "tests/support/leak_check.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK_COUNT_MAX = 64 };

/* A chain whose names tell two writings apart. */
struct chain_world {
    struct block blocks[BLOCK_COUNT_MAX];
    struct block_chain chain;
    struct prompt_writer writer;
};

static int reserve_blocks(void *ctx, size_t block_count)
{
    (void)ctx;
    return block_count <= BLOCK_COUNT_MAX ? 0 : -ENOBUFS;
}

static void chain_world_init(struct chain_world *world)
{
    static const uint8_t secret[BLOCK_CHAIN_SECRET_BYTES] = {9};

    block_chain_init(&world->chain, (struct block_chain_config){secret, 256, 64}, 1, world->blocks,
                     BLOCK_COUNT_MAX);
    world->writer = (struct prompt_writer){&world->chain, reserve_blocks, NULL, 0};
}

static uint64_t chain_world_name(struct chain_world *world)
{
    size_t count = prompt_write_tail(&world->writer);

    return count == 0 ? 0 : world->blocks[count - 1].hash;
}

/* The name of the value as the prompt of a next turn has it. */
static uint64_t name_whole(const char *text)
{
    struct json_scanner *scanner = json_scanner_create();
    struct chain_world world;
    struct parse_error error;
    struct json_value root;
    uint64_t name;

    cr_assert(eq(int, json_scan_copy(scanner, slice_of_string(text), &root, &error), 0), "%s",
              text);
    chain_world_init(&world);
    prompt_write_value(&world.writer, root);
    name = chain_world_name(&world);
    json_scanner_destroy(scanner);
    return name;
}

/* The same, read in two pieces. False: it was no value. */
static bool name_in_pieces(const char *text, size_t split, uint64_t *name)
{
    struct slice whole = slice_of_string(text);
    struct value_stream stream;
    struct chain_world world;
    bool is_value;

    chain_world_init(&world);
    value_stream_init(&stream);
    is_value = value_stream_feed(&stream, &world.writer, slice_of(text, split)) &&
               value_stream_feed(&stream, &world.writer, slice_skip(whole, split)) &&
               value_stream_end(&stream, &world.writer);
    *name = chain_world_name(&world);
    return is_value;
}

static const char *const values[] = {
    "{}",
    "[]",
    " { } ",
    "{\"cups\":2}",
    "{ \"cups\" :\t2 ,\n\"milk\": false, \"sugar\":null,\"hot\":true }",
    "[1,-1,0,-0,9223372036854775807,9223372036854775808,-9223372036854775808]",
    "[1.5,15e-1,0.15E1,1e300,-0.0,123456789.123456789]",
    "{\"a\":{\"b\":[{\"c\":[[]]},{},[\"d\"]]},\"e\":\"\"}",
    "\"text\"",
    "12",
    "true",
    "[\"\\\"\\\\\\/\\b\\f\\n\\r\\t\",\"\\u0041\\u00e9\\u20AC\\uD83D\\uDE00\\u0000\",\"é€😀\"]",
    "{\"k\\u0065y\\n\":\"v\"}",
    "{\"code\":\"int main(void)\\n{\\n    puts(\\\"tea\\\");\\n}\\n\",\"line\":-17}",
};

TestSuite(value_stream, .fini = leak_check);

Test(value_stream, a_value_cut_anywhere_has_the_name_of_the_whole)
{
    for (size_t i = 0; i < array_count(values); i++) {
        uint64_t expected = name_whole(values[i]);

        for (size_t split = 0; split <= strlen(values[i]); split++) {
            uint64_t name;

            cr_assert(name_in_pieces(values[i], split, &name), "%s at %zu", values[i], split);
            cr_assert(eq(u64, name, expected), "%s at %zu", values[i], split);
        }
    }
}

Test(value_stream, byte_by_byte_is_the_same_as_well)
{
    for (size_t i = 0; i < array_count(values); i++) {
        struct value_stream stream;
        struct chain_world world;
        chain_world_init(&world);
        value_stream_init(&stream);

        for (const char *at = values[i]; *at != '\0'; at++)
            cr_assert(value_stream_feed(&stream, &world.writer, slice_of(at, 1)));

        cr_assert(value_stream_end(&stream, &world.writer));
        cr_assert(eq(u64, chain_world_name(&world), name_whole(values[i])), "%s", values[i]);
    }
}

Test(value_stream, what_is_no_value_is_told)
{
    static const char *const bad[] = {
        "",
        "{",
        "[1",
        "{\"a\"}",
        "{\"a\":}",
        "{\"a\":1,}",
        "[1,]",
        "[,1]",
        "{]",
        "[}",
        "}",
        "{} {}",
        "{}x",
        "\"open",
        "\"\\x\"",
        "\"\\u12g4\"",
        "\"\\uD83D\"",
        "\"\\uDE00\"",
        "\"\n\"",
        "truth",
        "nul",
        "1.2.3",
        "nan",
        "0x10",
        "{1:2}",
        "1e999",
        "\"\\uD83Dx\"",
        "\"\\uD83D\\n\"",
        "\"\\uD83D\\uD83D\"",
        "[true false]",
    };

    for (size_t i = 0; i < array_count(bad); i++) {
        uint64_t name;

        for (size_t split = 0; split <= strlen(bad[i]); split++)
            cr_assert(not(name_in_pieces(bad[i], split, &name)), "%s", bad[i]);
    }
}

Test(value_stream, depth_and_numbers_have_their_limits)
{
    char text[2 * VALUE_STREAM_DEPTH_MAX + 3] = {0};
    uint64_t name;

    memset(text, '[', VALUE_STREAM_DEPTH_MAX);
    memset(text + VALUE_STREAM_DEPTH_MAX, ']', VALUE_STREAM_DEPTH_MAX);
    cr_assert(name_in_pieces(text, 7, &name));
    cr_assert(eq(u64, name, name_whole(text)));

    memset(text, '[', VALUE_STREAM_DEPTH_MAX + 1);
    memset(text + VALUE_STREAM_DEPTH_MAX + 1, ']', VALUE_STREAM_DEPTH_MAX + 1);
    cr_assert(not(name_in_pieces(text, 7, &name)));

    memset(text, '7', VALUE_STREAM_ATOM_BYTES_MAX + 1);
    text[VALUE_STREAM_ATOM_BYTES_MAX + 1] = '\0';
    cr_assert(not(name_in_pieces(text, 7, &name)));
}
