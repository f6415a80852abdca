/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/runtime/log_line.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/support/leak_check.h"

struct line_world {
    char bytes[512];
    struct log_line line;
};

static void line_world_init(struct line_world *world, bool is_json)
{
    log_line_begin(&world->line, world->bytes, sizeof world->bytes - 1, is_json);
}

/* The finished line without its newline. */
static const char *line_world_end(struct line_world *world)
{
    size_t len = log_line_end(&world->line);

    cr_assert(gt(sz, len, 0));
    cr_assert(eq(chr, world->bytes[len - 1], '\n'));
    world->bytes[len - 1] = '\0';
    return world->bytes;
}

static const char *text_line(struct line_world *world, bool is_json, struct slice text)
{
    line_world_init(world, is_json);
    log_line_key(&world->line, "k");
    log_line_text(&world->line, text);
    return line_world_end(world);
}

TestSuite(log_line, .fini = leak_check);

Test(log_line, text_is_escaped_in_both_forms)
{
    static const struct {
        struct slice text;
        const char *logfmt;
        const char *json;
    } rows[] = {
        {SLICE("plain"), "k=plain", "{\"k\":\"plain\"}"},
        {SLICE(""), "k=\"\"", "{\"k\":\"\"}"},
        {SLICE("two words"), "k=\"two words\"", "{\"k\":\"two words\"}"},
        {SLICE("a=b"), "k=\"a=b\"", "{\"k\":\"a=b\"}"},
        {SLICE("http://h:1/x"), "k=http://h:1/x", "{\"k\":\"http://h:1/x\"}"},
        {SLICE("say \"hi\""), "k=\"say \\\"hi\\\"\"", "{\"k\":\"say \\\"hi\\\"\"}"},
        {SLICE("c:\\"), "k=\"c:\\\\\"", "{\"k\":\"c:\\\\\"}"},
        {SLICE("a\nb\tc\rd"), "k=\"a\\nb\\tc\\rd\"", "{\"k\":\"a\\nb\\tc\\rd\"}"},
        {SLICE("\x1b[31m\x7f"), "k=\"\\u001b[31m\\u007f\"", "{\"k\":\"\\u001b[31m\\u007f\"}"},
        {SLICE("nul\0x"), "k=\"nul\\u0000x\"", "{\"k\":\"nul\\u0000x\"}"},
        {SLICE("caf\xc3\xa9 \xe2\x82\xac"), "k=\"caf\xc3\xa9 \xe2\x82\xac\"",
         "{\"k\":\"caf\xc3\xa9 \xe2\x82\xac\"}"},
        {SLICE("\xf0\x9f\x98\x80"), "k=\"\xf0\x9f\x98\x80\"", "{\"k\":\"\xf0\x9f\x98\x80\"}"},
        {SLICE("\xc2\x9b"), "k=\"\\u009b\"", "{\"k\":\"\\u009b\"}"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct line_world world;

        cr_assert(eq(str, (char *)text_line(&world, false, rows[i].text), (char *)rows[i].logfmt));
        cr_assert(eq(str, (char *)text_line(&world, true, rows[i].text), (char *)rows[i].json));
    }
}

Test(log_line, every_byte_outside_valid_utf8_becomes_a_replacement)
{
    static const struct {
        struct slice text;
        int replaced;
    } rows[] = {
        {SLICE("\xff"), 1},
        {SLICE("\xc3"), 1},
        {SLICE("\x80"), 1},
        {SLICE("\xc0\xaf"), 2},
        {SLICE("\xe0\x80\x80"), 3},
        {SLICE("\xed\xa0\x80"), 3},
        {SLICE("\xe2\x82"), 2},
        {SLICE("\xf4\x90\x80\x80"), 4},
        {SLICE("\xf5\x80\x80\x80"), 4},
        {SLICE("a\xc3z"), 1},
        {SLICE("\xf0\x8f\xbf\xbf"), 4},
        {SLICE("\xc3\xa9\xff"), 1},
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct line_world world;
        int replaced = 0;

        const char *line = text_line(&world, true, rows[i].text);

        for (const char *at = line; (at = strstr(at, "\\ufffd")) != NULL; at++)
            replaced++;
        cr_assert(eq(int, replaced, rows[i].replaced), "row %zu: %s", i, line);
    }
}

Test(log_line, numbers_are_written_whole)
{
    struct line_world world;
    line_world_init(&world, false);

    log_line_key(&world.line, "a");
    log_line_unsigned(&world.line, UINT64_MAX);
    log_line_key(&world.line, "b");
    log_line_signed(&world.line, INT64_MIN);
    log_line_key(&world.line, "c");
    log_line_signed(&world.line, 0);

    cr_assert(eq(str, (char *)line_world_end(&world),
                 "a=18446744073709551615 b=-9223372036854775808 c=0"));
}

Test(log_line, decimals_have_three_digits_and_are_rounded)
{
    static const struct {
        double decimal;
        const char *text;
    } rows[] = {{0, "0.000"},      {1.5, "1.500"},           {0.0004, "0.000"},
                {0.0006, "0.001"}, {-0.0001, "0.000"},       {-2.25, "-2.250"},
                {0.9996, "1.000"}, {12345.678, "12345.678"}, {1e15, "1000000000000000.000"},
                {NAN, "null"},     {INFINITY, "null"},       {-INFINITY, "null"},
                {1e300, "null"}};

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct line_world world;
        line_world_init(&world, true);
        char expected[64];
        snprintf(expected, sizeof expected, "{\"k\":%s}", rows[i].text);

        log_line_key(&world.line, "k");
        log_line_decimal(&world.line, rows[i].decimal);

        cr_assert(eq(str, (char *)line_world_end(&world), expected));
    }
}

Test(log_line, decimals_agree_with_printf)
{
    for (uint64_t seed = 1, i = 0; i < 20000; i++) {
        struct line_world world;
        char expected[64];
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        double decimal = (double)(int64_t)(seed >> 20) / 1000 / 64 * (seed & 1 ? 1 : -1);
        line_world_init(&world, false);
        log_line_key(&world.line, "k");
        snprintf(expected, sizeof expected, "%.3f", decimal);

        log_line_decimal(&world.line, decimal);

        double written = strtod(line_world_end(&world) + 2, NULL);
        cr_assert(le(dbl, fabs(written - strtod(expected, NULL)), 0.00101), "%s", expected);
    }
}

Test(log_line, what_does_not_fit_is_no_line_at_all)
{
    char bytes[64];

    for (size_t room = 0; room < 20; room++) {
        struct log_line line;
        memset(bytes, '#', sizeof bytes);

        log_line_begin(&line, bytes, room, true);
        log_line_key(&line, "event");
        log_line_text(&line, SLICE("x\ny"));
        size_t len = log_line_end(&line);

        /* {"event":"x\ny"} and the newline are 17 bytes. */
        cr_assert(eq(sz, len, room >= 17 ? 17 : 0), "room %zu", room);
        cr_assert(eq(chr, bytes[room], '#'));
    }
}
