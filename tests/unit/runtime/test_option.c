/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/runtime/option.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/leak_check.h"

/* A program of the tests' own, with one option of each kind. */
struct values {
    uint64_t bytes;
    const char *config;
    bool help;
    const char *host;
    int level;
    struct option_list list;
    const char *policy;
    uint64_t port;
    bool usage;
    uint64_t wait;
};

static const char *const levels[] = {"debug", "info", "error", NULL};
static const char *const policies[] = {"ttft", "round_robin", NULL};

static int check_url(struct slice text, char why[OPTION_WHY_BYTES])
{
    snprintf(why, OPTION_WHY_BYTES, "this is no http");
    return slice_starts_with(text, SLICE("ftp:")) ? -EINVAL : 0;
}

#define AT(field) .offset = offsetof(struct values, field)
/* clang-format off */
static const struct option rows[] = {
    {"body-bytes", OPTION_BYTES, "1MiB", 1024, 1ull << 40, "bytes", OPTION_BOOT, "Limits", "Largest body.", NULL, NULL, AT(bytes)},
    {"config", OPTION_TEXT, "", 0, 0, "", OPTION_COMMAND, "General", "File.", NULL, NULL, AT(config)},
    {"help", OPTION_BOOL, "false", 0, 0, "", OPTION_COMMAND, "General", "Help.", NULL, NULL, AT(help)},
    {"host", OPTION_TEXT, "127.0.0.1", 0, 0, "", OPTION_BOOT, "Listening", "Address.", NULL, NULL, AT(host)},
    {"level", OPTION_ENUM, "info", 0, 0, "", OPTION_RELOAD, "General", "Level.", levels, NULL, AT(level)},
    {"policy", OPTION_WORD, "ttft", 0, 0, "", OPTION_BOOT, "General", "Policy.", policies, NULL, AT(policy)},
    {"port", OPTION_INTEGER, "8080", 0, 65535, "", OPTION_BOOT, "Listening", "Port.", NULL, NULL, AT(port)},
    {"urls", OPTION_LIST, NULL, 0, 0, "", OPTION_BOOT, "General", "Workers.", NULL, check_url, AT(list)},
    {"usage-ask", OPTION_BOOL, "true", 0, 0, "", OPTION_BOOT, "General", "Ask.", NULL, NULL, AT(usage)},
    {"wait-ms", OPTION_DURATION, "1s", 10, 3600000, "ms", OPTION_BOOT, "Limits", "Wait.", NULL, NULL, AT(wait)},
};
/* clang-format on */
static const struct option_table table = {rows, sizeof rows / sizeof *rows, "SAMOVAR_"};

struct option_world {
    struct option_set set;
    struct values values;
};

static void option_world_init(struct option_world *world)
{
    option_set_init(&world->set, &table, &world->values);
}

/* Reads flags given as one text, words parted by a bar. */
static void read_flags(struct option_world *world, const char *words)
{
    char copy[512];
    const char *argv[32] = {"program"};
    int argc = 1;

    snprintf(copy, sizeof copy, "%s", words);
    for (char *rest = copy, *word; (word = strsep(&rest, "|")) != NULL;)
        argv[argc++] = word;
    option_set_read_flags(&world->set, words[0] == '\0' ? 1 : argc, argv);
}

static void read_yaml(struct option_world *world, const char *text)
{
    option_set_read_yaml(&world->set, "r.yaml", slice_of_string(text));
}

static void read_env(struct option_world *world, const char *variable)
{
    const char *envp[] = {"PATH=/bin", variable, NULL};

    option_set_read_env(&world->set, envp);
}

/* The errors noted so far, a line each, without what they show of their file. */
static char *errors_of(struct option_world *world)
{
    static char text[8192];
    size_t len = 0;

    text[0] = '\0';
    for (size_t i = 0; i < world->set.error_count; i++) {
        const struct option_error *error = &world->set.errors[i];

        len += (size_t)snprintf(text + len, sizeof text - len, "%s: %s%s%s\n", error->where,
                                error->what, error->advice[0] == '\0' ? "" : "; ", error->advice);
    }
    return text;
}

#define WRITE_PORT "write 0 to 65535; the default is 8080\n"
#define TIME_FORMS                                                                                 \
    ", as in 250ms, 10s, 5m or 1h; a bare number is milliseconds; the default is 1s\n"
#define WRITE_WAIT "write 10ms to 1h" TIME_FORMS
#define WRITE_BYTES                                                                                \
    "write 1KiB to 1TiB, as in 64KiB, 32MiB or 1GiB; a bare number is bytes; the default is "      \
    "1MiB\n"

TestSuite(option, .fini = leak_check);

Test(option, what_is_refused_counts_where_its_value_came_from)
{
    struct option_world from_file, from_nobody;
    option_world_init(&from_file);
    read_yaml(&from_file, "port: 1");
    option_world_init(&from_nobody);

    option_set_refuse(&from_file.set, "port", "is taken", "give another");
    option_set_refuse(&from_nobody.set, "port", "is taken", "give another");

    cr_assert(eq(int, option_set_exit_code(&from_file.set), EXIT_CODE_CONFIG));
    cr_assert(eq(int, option_set_exit_code(&from_nobody.set), EXIT_CODE_USAGE));
    cr_assert(eq(str, (char *)(uintptr_t)from_file.set.errors[0].where, "port"));
    cr_assert(eq(str, (char *)(uintptr_t)from_file.set.errors[0].what, "is taken"));
    option_set_release(&from_file.set);
    option_set_release(&from_nobody.set);
}

Test(option, defaults_are_read_from_the_table)
{
    struct option_world world;

    option_world_init(&world);

    cr_assert(eq(u64, world.values.bytes, 1 << 20));
    cr_assert(eq(u64, world.values.port, 8080));
    cr_assert(eq(u64, world.values.wait, 1000));
    cr_assert(eq(int, world.values.level, 1));
    cr_assert(world.values.usage);
    cr_assert(eq(sz, world.values.list.count, 0));
    cr_assert(eq(str, (char *)world.values.host, "127.0.0.1"));
    cr_assert(eq(str, (char *)world.values.policy, "ttft"));
    option_set_release(&world.set);
}

Test(option, flags_are_read_in_every_form)
{
    static const struct {
        const char *words;
        uint64_t port;
        bool usage;
        const char *host;
        const char *items; /* of the list, joined by a bar */
    } rows_of_words[] = {
        {"", 8080, true, "127.0.0.1", ""},
        {"--port|81", 81, true, "127.0.0.1", ""},
        {"--port=82", 82, true, "127.0.0.1", ""},
        {"--port|1|--port|2", 2, true, "127.0.0.1", ""},
        {"--no-usage-ask", 8080, false, "127.0.0.1", ""},
        {"--usage-ask=off", 8080, false, "127.0.0.1", ""},
        {"--no-usage-ask|--usage-ask", 8080, true, "127.0.0.1", ""},
        {"--usage_ask=no", 8080, false, "127.0.0.1", ""},
        {"--host=", 8080, true, "", ""},
        {"--host=a=b", 8080, true, "a=b", ""},
        {"--host=--x", 8080, true, "--x", ""},
        {"--urls|a|b|--port|83", 83, true, "127.0.0.1", "a|b"},
        {"--urls|a,b c|--urls=d,,e", 8080, true, "127.0.0.1", "a|b|c|d|e"},
    };

    for (size_t i = 0; i < sizeof rows_of_words / sizeof *rows_of_words; i++) {
        struct option_world world;
        char items[256] = "";
        option_world_init(&world);

        read_flags(&world, rows_of_words[i].words);

        for (size_t k = 0; k < world.values.list.count; k++)
            snprintf(items + strlen(items), sizeof items - strlen(items), "%s%s", k == 0 ? "" : "|",
                     world.values.list.items[k]);
        cr_assert(eq(str, errors_of(&world), ""));
        cr_assert(eq(u64, world.values.port, rows_of_words[i].port));
        cr_assert(eq(int, world.values.usage, rows_of_words[i].usage));
        cr_assert(eq(str, (char *)world.values.host, (char *)rows_of_words[i].host));
        cr_assert(eq(str, items, (char *)rows_of_words[i].items));
        option_set_release(&world.set);
    }
}

Test(option, numbers_take_their_units)
{
    static const struct {
        const char *words;
        uint64_t wait, bytes;
    } rows_of_words[] = {
        {"--wait-ms=1500", 1500, 1 << 20},     {"--wait-ms=20ms", 20, 1 << 20},
        {"--wait-ms=10s", 10000, 1 << 20},     {"--wait-ms=5m", 300000, 1 << 20},
        {"--wait-ms=1h", 3600000, 1 << 20},    {"--body-bytes=4096", 1000, 4096},
        {"--body-bytes=4096B", 1000, 4096},    {"--body-bytes=64KiB", 1000, 64 << 10},
        {"--body-bytes=64kib", 1000, 65536},   {"--body-bytes=3MiB", 1000, 3 << 20},
        {"--body-bytes=2GiB", 1000, 1u << 31}, {"--body-bytes=1TiB", 1000, 1ull << 40},
    };

    for (size_t i = 0; i < sizeof rows_of_words / sizeof *rows_of_words; i++) {
        struct option_world world;
        option_world_init(&world);

        read_flags(&world, rows_of_words[i].words);

        cr_assert(eq(str, errors_of(&world), ""));
        cr_assert(eq(u64, world.values.wait, rows_of_words[i].wait));
        cr_assert(eq(u64, world.values.bytes, rows_of_words[i].bytes));
        option_set_release(&world.set);
    }
}

Test(option, a_wrong_flag_says_what_where_and_what_to_do)
{
    static const struct {
        const char *words;
        const char *error;
    } rows_of_words[] = {
        {"--prot|80", "--prot: is no option; did you mean --port?\n"},
        {"--zzz", "--zzz: is no option; --help lists them\n"},
        {"--port", "--port: needs a value; --help says which\n"},
        {"--port|--host|x", "--port: needs a value; --help says which\n"},
        {"--port|70000", "--port: \"70000\" is out of range; " WRITE_PORT},
        {"--port|99999999999999999999999",
         "--port: \"99999999999999999999999\" is out of range; " WRITE_PORT},
        {"--port|x", "--port: \"x\" is not a number; " WRITE_PORT},
        {"--port|8x", "--port: \"8x\" is not a number; " WRITE_PORT},
        {"--port=", "--port: \"\" is not a number; " WRITE_PORT},
        {"--port|-1", "--port: \"-1\" is not a number; " WRITE_PORT},
        {"--wait-ms|5",
         "--wait-ms: \"5\" is out of range: without a unit it is milliseconds; " WRITE_WAIT},
        {"--wait-ms|5ms", "--wait-ms: \"5ms\" is out of range; " WRITE_WAIT},
        {"--wait-ms|5d", "--wait-ms: \"5d\" has no unit that is known; " WRITE_WAIT},
        {"--wait-ms|5sec",
         "--wait-ms: \"5sec\" has no unit that is known; did you mean 5s? Else " WRITE_WAIT},
        {"--wait-ms|5 min",
         "--wait-ms: \"5 min\" has no unit that is known; did you mean 5m? Else " WRITE_WAIT},
        {"--wait-ms|5millis", "--wait-ms: \"5millis\" has no unit that is known; did you mean 5ms? "
                              "Else " WRITE_WAIT},
        {"--wait-ms|1.5s", "--wait-ms: \"1.5s\" is not a whole number; " WRITE_WAIT},
        {"--body-bytes|1KB", "--body-bytes: \"1KB\" has no unit that is known; did you mean 1KiB? "
                             "Else " WRITE_BYTES},
        {"--body-bytes|32M", "--body-bytes: \"32M\" has no unit that is known; did you mean 32MiB? "
                             "Else " WRITE_BYTES},
        {"--body-bytes|99999999999TiB",
         "--body-bytes: \"99999999999TiB\" is out of range; " WRITE_BYTES},
        {"--level|inof", "--level: \"inof\" is not known; did you mean info? There are debug, "
                         "info, error; the default is info\n"},
        {"--policy|best", "--policy: \"best\" is not known; write one of ttft, round_robin; the "
                          "default is ttft\n"},
        {"--usage-ask=maybe", "--usage-ask: \"maybe\" is neither true nor false; write true or "
                              "false; the default is true\n"},
        {"--no-port", "--no-port: --port is no switch; give it a value instead\n"},
        {"--no-usage-ask=1", "--no-usage-ask: takes no value; leave the = out\n"},
        {"stray", "stray: belongs to no option; --help lists all options\n"},
        {"-port", "-port: options begin with two dashes; --help lists all options\n"},
        {"--host|a\x1b[2J", "--host: the value has a control character in it; take it out\n"},
        {"--urls|http://a|ftp://b", "--urls: \"ftp://b\": this is no http\n"},
        {"--urls|ftp://me:secret@b", "--urls: this is no http\n"},
    };

    for (size_t i = 0; i < sizeof rows_of_words / sizeof *rows_of_words; i++) {
        struct option_world world;
        option_world_init(&world);

        read_flags(&world, rows_of_words[i].words);

        cr_assert(eq(str, errors_of(&world), (char *)rows_of_words[i].error));
        cr_assert(eq(sz, world.set.flag_error_count, 1));
        cr_assert(eq(u64, world.values.port, 8080));
        option_set_release(&world.set);
    }
}

Test(option, yaml_gives_the_same_values_as_flags)
{
    struct option_world world;
    option_world_init(&world);

    read_yaml(&world, "# comment\n"
                      "port: 81\n"
                      "wait_ms: 2s   # underscores are fine\n"
                      "host: \"::1\"\n"
                      "usage-ask: no\n"
                      "level: error\n"
                      "urls:\n"
                      "  - http://a:1\n"
                      "  - http://b:2\n");

    cr_assert(eq(str, errors_of(&world), ""));
    cr_assert(eq(u64, world.values.port, 81));
    cr_assert(eq(u64, world.values.wait, 2000));
    cr_assert(eq(str, (char *)world.values.host, "::1"));
    cr_assert(not(world.values.usage));
    cr_assert(eq(int, world.values.level, 2));
    cr_assert(eq(sz, world.values.list.count, 2));
    cr_assert(eq(str, (char *)world.values.list.items[1], "http://b:2"));
    cr_assert(eq(u32, option_set_origin(&world.set, "wait-ms").line, 3));
    option_set_release(&world.set);
}

Test(option, yaml_mistakes_are_named_by_line_and_column)
{
    static const struct {
        const char *yaml;
        const char *error;
    } texts[] = {
        {"", ""},
        {"# nothing\n", ""},
        {"---\n...\n", ""},
        {"{}", ""},
        {"port: 81\nprot: 82\n",
         "r.yaml:2:1: there is no option of this name; did you mean port?\n"},
        {"port: 70000\n", "r.yaml:1:7: port: \"70000\" is out of range; " WRITE_PORT},
        {"port:\n", "r.yaml:1:6: port: has no value; write one, or remove the line to use the "
                    "default\n"},
        {"port: ~\n", "r.yaml:1:7: port: has no value; write one, or remove the line to use the "
                      "default\n"},
        {"port: 1\n\nport: 2\n", "r.yaml:3:1: port is given twice in this file, first in line 1; "
                                 "keep one of the two\n"},
        {"port: [1]\n", "r.yaml:1:7: port: takes one value, not a list; write `name: value`\n"},
        {"port:\n  x: 1\nwait-ms: 5ms\n",
         "r.yaml:2:3: port: takes a value, not a mapping; write `name: value`, each option in the "
         "first column\n"
         "r.yaml:3:10: wait-ms: \"5ms\" is out of range; " WRITE_WAIT},
        {"urls:\n - a\n - {b: [c, {d: e}]}\n - f\nport: x\n",
         "r.yaml:3:4: urls: takes a flat list of values; write one `- value` a line\n"
         "r.yaml:5:7: port: \"x\" is not a number; " WRITE_PORT},
        {"unknown: {a: [1, 2]}\nport: x\n",
         "r.yaml:1:1: there is no option of this name; --help lists all options\n"
         "r.yaml:2:7: port: \"x\" is not a number; " WRITE_PORT},
        {"host: &a x\npolicy: *a\n",
         "r.yaml:2:9: policy: aliases are not supported; write the value out\n"},
        {"*a : x\n", "r.yaml:1:1: aliases are not supported; write the name out\n"},
        {"[a, b]: c\nport: x\n",
         "r.yaml:1:1: a key must be the name of an option; write `name: value`\n"
         "r.yaml:2:7: port: \"x\" is not a number; " WRITE_PORT},
        {"config: other.yaml\n",
         "r.yaml:1:1: config belongs on the command line, not in a file; remove the line\n"},
        {"- a\n- b\n", "r.yaml:1:1: this is no option; write lines of the form `name: value`\n"},
        {"just words\n", "r.yaml:1:1: this is no option; write lines of the form `name: value`\n"},
        {"just words\nport: x\nwait-ms: 1m\n",
         "r.yaml:1:1: this is no option; write lines of the form `name: value`\n"
         "r.yaml:2:7: port: \"x\" is not a number; " WRITE_PORT},
        {"port: 1\n---\nport: 2\n",
         "r.yaml:2:1: a second document begins here; only one is read: remove the ---\n"},
        {"host: \"a\\0b\"\n",
         "r.yaml:1:7: host: the value has a control character in it; take it out\n"},
        {"\xef\xbb\xbfport: x\r\nprot: 1\r\n",
         "r.yaml:1:7: port: \"x\" is not a number; " WRITE_PORT
         "r.yaml:2:1: there is no option of this name; did you mean port?\n"},
        {"host: \"\u65e5\u672c\" \nport: x # \u65e5\n",
         "r.yaml:2:7: port: \"x\" is not a number; " WRITE_PORT},
        {"{\u65e5: 1, port: x}\n",
         "r.yaml:1:2: there is no option of this name; --help lists all options\n"
         "r.yaml:1:14: port: \"x\" is not a number; " WRITE_PORT},
        {"urls:\n  - http://a\n  - ftp://b\n", "r.yaml:3:5: urls: \"ftp://b\": this is no http\n"},
        {"\xff\xfep\0o\0", "r.yaml: this is UTF-16 text; save it as UTF-8\n"},
    };

    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct option_world world;
        option_world_init(&world);

        read_yaml(&world, texts[i].yaml);

        cr_assert(eq(str, errors_of(&world), (char *)texts[i].error));
        cr_assert(eq(sz, world.set.flag_error_count, 0));
        option_set_release(&world.set);
    }
}

/* Every one of them, although libyaml gives up at the first. */
Test(option, yaml_that_is_no_yaml_hides_no_other_mistake)
{
    static const struct {
        const char *broken; /* lines */
        const char *error;  /* the only one of them */
    } texts[] = {
        {"urls: [1\n", "3:7: not YAML: the list is never closed, or lacks a comma; "
                       "write [a, b], or one `- value` a line\n"},
        {"host: {a: 1\n",
         "3:7: host: takes a value, not a mapping; write `name: value`, each "
         "option in the first column\n"
         "r.yaml:3:7: not YAML: the braces are never closed, or lack a comma; take "
         "them out, and write one `name: value` a line\n"},
        {"\thost: x\n", "3:1: not YAML: a tab cannot indent; indent with spaces, and begin every "
                        "option in the first column\n"},
        {"host: b: c\n", "3:8: not YAML: a second colon in one line; put the value in quotes, and "
                         "begin every option in the first column\n"},
        {"host: 'x\n", "3:7: not YAML: the quotes are never closed; close them in the same line\n"},
        {"host x\n", "3:1: not YAML: there is no colon; write `name: value`, with a space behind "
                     "the colon\n"},
        {"host: @x\n", "3:7: not YAML: nothing can begin like this; indent with spaces, not tabs, "
                       "and put values with special characters in quotes\n"},
        {"host: !a!b x\n", "3:7: not YAML: tags (!) are not supported; put the value in quotes\n"},
        {"host: \xff\n", "3:7: not YAML: this byte is no text; save the file as UTF-8, without "
                         "control characters\n"},
        {"host: \x01\n", "3:7: not YAML: this byte is no text; save the file as UTF-8, without "
                         "control characters\n"},
        {"host: \xc2\x80\n", "3:7: not YAML: this byte is no text; save the file as UTF-8, without "
                             "control characters\n"},
    };

    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct option_world world;
        char text[128], expected[1024];
        option_world_init(&world);
        snprintf(text, sizeof text, "wait-ms: 1ms\nlevel: info\n%sport: x\n", texts[i].broken);
        snprintf(expected, sizeof expected,
                 "r.yaml:1:10: wait-ms: \"1ms\" is out of range; " WRITE_WAIT "r.yaml:%s"
                 "r.yaml:4:7: port: \"x\" is not a number; " WRITE_PORT,
                 texts[i].error);

        read_yaml(&world, text);

        cr_assert(eq(str, errors_of(&world), expected));
        option_set_release(&world.set);
    }
}

Test(option, a_mistake_is_shown_in_its_line_with_carets_under_it)
{
    struct option_world world;
    struct buf shown;
    buf_init(&shown, 65536);
    option_world_init(&world);
    read_yaml(&world, "# a file\nhost: x\nlevel: inof # loud?\n  prot: 1\nport: 70000\n");
    read_flags(&world, "--port=x");

    cr_assert(eq(int, option_set_write_errors(&world.set, &shown), 0));

    cr_assert(eq(int, buf_append(&shown, slice_of("", 1)), 0));
    cr_assert(eq(str, (char *)(uintptr_t)buf_slice(&shown).ptr,
                 "r.yaml:3:8: level: \"inof\" is not known\n"
                 "    3 | level: inof # loud?\n"
                 "      |        ^^^^\n"
                 "      = did you mean info? There are debug, info, error; the default is info\n"
                 "r.yaml:4:3: not YAML: the indentation fits no line above\n"
                 "    4 |   prot: 1\n"
                 "      |   ^\n"
                 "      = begin every option in the first column\n"
                 "r.yaml:5:7: port: \"70000\" is out of range\n"
                 "    5 | port: 70000\n"
                 "      |       ^^^^^\n"
                 "      = write 0 to 65535; the default is 8080\n"
                 "--port: \"x\" is not a number; write 0 to 65535; the default is 8080\n"));
    buf_release(&shown);
    option_set_release(&world.set);
}

Test(option, errors_beyond_what_is_kept_are_counted)
{
    struct option_world world;
    struct buf shown;
    buf_init(&shown, 1 << 20);
    option_world_init(&world);
    for (int i = 0; i < OPTION_ERROR_COUNT_MAX + 3; i++)
        read_flags(&world, "--port=x");

    cr_assert(eq(int, option_set_write_errors(&world.set, &shown), 0));

    struct slice text = buf_slice(&shown);
    cr_assert(eq(sz, world.set.flag_error_count, OPTION_ERROR_COUNT_MAX + 3));
    cr_assert(slice_eq(slice_skip(text, text.len - 44),
                       SLICE("\nThere may be more: these are the first 64.\n")));
    buf_release(&shown);
    option_set_release(&world.set);
}

Test(option, a_password_is_not_shown_with_its_mistake)
{
    struct option_world world;
    option_world_init(&world);

    read_yaml(&world, "urls: ftp://me:secret@b\n");

    cr_assert(eq(str, errors_of(&world), "r.yaml:1:7: urls: this is no http\n"));
    cr_assert(eq(str, (char *)(uintptr_t)world.set.errors[0].excerpt, ""));
    option_set_release(&world.set);
}

/* What a reload does: read into a second set, compare, keep what may not change. */
Test(option, two_sets_are_compared_and_a_value_is_carried_over_from_one_to_the_other)
{
    struct option_world old_world, new_world;
    size_t differing = 0;
    option_world_init(&old_world);
    option_world_init(&new_world);
    read_flags(&old_world,
               "--port=1|--urls=a,b|--host=h|--no-usage-ask|--level=error|--wait-ms=2s");
    read_yaml(&new_world, "port: 2\nurls: [a, c]\nhost: h\nbody-bytes: 1MiB\n");

    for (size_t i = 0; i < table.count; i++) {
        bool is_same = option_set_is_same(&old_world.set, &new_world.set, &rows[i]);

        option_set_carry(&new_world.set, &old_world.set, &rows[i]);
        cr_assert(option_set_is_same(&old_world.set, &new_world.set, &rows[i]), "%s", rows[i].name);
        differing += !is_same;
    }
    option_set_release(&old_world.set);

    cr_assert(eq(sz, differing, 5)); /* level, port, urls, usage-ask, wait-ms */
    cr_assert(eq(u64, new_world.values.port, 1));
    cr_assert(eq(str, (char *)new_world.values.list.items[1], "b"));
    cr_assert(eq(str, (char *)new_world.values.host, "h"));
    cr_assert(eq(int, option_set_origin(&new_world.set, "port").source, OPTION_FROM_FLAG));
    option_set_release(&new_world.set);
}

Test(option, value_and_origin_are_written_alone)
{
    struct option_world world;
    struct buf text;
    buf_init(&text, 4096);
    option_world_init(&world);
    read_yaml(&world, "\nurls: [a, b]\n");
    const struct option *urls = option_table_find(&table, SLICE("urls"));

    cr_assert(eq(int, option_set_write_value(&world.set, urls, &text), 0));
    cr_assert(eq(int, buf_append(&text, SLICE(" ")), 0));
    cr_assert(eq(int, option_set_write_origin(&world.set, urls, &text), 0));

    cr_assert(slice_eq(buf_slice(&text), SLICE("[\"a\", \"b\"] r.yaml:2")));
    buf_release(&text);
    option_set_release(&world.set);
}

Test(option, a_higher_source_wins_in_whatever_order_they_are_read)
{
    for (int order = 0; order < 6; order++) {
        static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                         {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
        struct option_world world;
        option_world_init(&world);

        for (int i = 0; i < 3; i++) {
            if (orders[order][i] == 0)
                read_flags(&world, "--port=3|--urls=f1,f2");
            else if (orders[order][i] == 1)
                option_set_read_env(&world.set,
                                    (const char *const[]){"SAMOVAR_PORT=2", "SAMOVAR_HOST=env",
                                                          "SAMOVAR_URLS=e1", NULL});
            else
                read_yaml(&world, "port: 1\nhost: file\nwait-ms: 44\nurls: [y1, y2, y3]\n");
        }

        cr_assert(eq(str, errors_of(&world), ""));
        cr_assert(eq(u64, world.values.port, 3));
        cr_assert(eq(str, (char *)world.values.host, "env"));
        cr_assert(eq(u64, world.values.wait, 44));
        cr_assert(eq(sz, world.values.list.count, 2));
        cr_assert(eq(str, (char *)world.values.list.items[0], "f1"));
        cr_assert(eq(int, option_set_origin(&world.set, "port").source, OPTION_FROM_FLAG));
        cr_assert(eq(int, option_set_origin(&world.set, "host").source, OPTION_FROM_ENV));
        cr_assert(eq(int, option_set_origin(&world.set, "wait-ms").source, OPTION_FROM_FILE));
        cr_assert(eq(int, option_set_origin(&world.set, "level").source, OPTION_FROM_DEFAULT));
        option_set_release(&world.set);
    }
}

Test(option, a_wrong_value_is_an_error_also_where_a_flag_hides_it)
{
    struct option_world world;
    option_world_init(&world);

    read_flags(&world, "--port=3");
    read_yaml(&world, "port: many\n");

    cr_assert(eq(sz, world.set.config_error_count, 1));
    cr_assert(eq(u64, world.values.port, 3));
    option_set_release(&world.set);
}

Test(option, an_empty_variable_is_unset_and_foreign_ones_are_left_alone)
{
    struct option_world world;
    option_world_init(&world);

    read_env(&world, "SAMOVAR_PORT=");
    read_env(&world, "SAMOVAR_UNKNOWN=1");
    read_env(&world, "SAMOVAR_HELP=true");

    cr_assert(eq(str, errors_of(&world), ""));
    cr_assert(eq(u64, world.values.port, 8080));
    cr_assert(not(world.values.help));
    option_set_release(&world.set);
}

Test(option, what_kubernetes_puts_into_the_environment_is_explained)
{
    struct option_world world;
    option_world_init(&world);

    read_env(&world, "SAMOVAR_PORT=tcp://10.0.0.1:8080");

    cr_assert(
        ne(ptr, strstr(errors_of(&world), "SAMOVAR_PORT: \"tcp://10.0.0.1:8080\" is not"), NULL));
    cr_assert(ne(ptr, strstr(errors_of(&world), "enableServiceLinks: false"), NULL));
    option_set_release(&world.set);
}

Test(option, all_errors_are_seen_at_once_and_counted_by_who_made_them)
{
    struct option_world world;
    option_world_init(&world);

    read_flags(&world, "--port=x|--hots=y|--level=loud");
    read_env(&world, "SAMOVAR_WAIT_MS=never");
    read_yaml(&world, "body-bytes: 1\nlevle: info\n");

    cr_assert(eq(sz, world.set.flag_error_count, 3));
    cr_assert(eq(sz, world.set.config_error_count, 3));
    option_set_release(&world.set);
}

Test(option, the_dump_reads_back_to_the_same_values)
{
    struct option_world world, again;
    struct buf dump, dump_again;
    buf_init(&dump, 65536);
    buf_init(&dump_again, 65536);
    option_world_init(&world);
    option_world_init(&again);
    read_flags(&world, "--host=a \"b\" \\ # c|--urls=http://a:1,x: y|--wait-ms=90s|--no-usage-ask|"
                       "--level=debug|--body-bytes=1536");

    cr_assert(eq(int, option_set_dump(&world.set, &dump), 0));
    option_set_read_yaml(&again.set, "dump", buf_slice(&dump));
    cr_assert(eq(int, option_set_dump(&again.set, &dump_again), 0));

    cr_assert(eq(str, errors_of(&again), ""));
    cr_assert(eq(str, (char *)again.values.host, (char *)world.values.host));
    cr_assert(eq(sz, again.values.list.count, 3));
    cr_assert(eq(u64, again.values.wait, 90000));
    cr_assert(eq(u64, again.values.bytes, 1536));
    cr_assert(not(again.values.usage));
    cr_assert(eq(int, again.values.level, 0));
    buf_release(&dump);
    buf_release(&dump_again);
    option_set_release(&world.set);
    option_set_release(&again.set);
}

Test(option, the_dump_names_the_origin_of_every_value)
{
    struct option_world world;
    struct buf dump;
    buf_init(&dump, 65536);
    option_world_init(&world);
    read_flags(&world, "--port=1");
    read_env(&world, "SAMOVAR_HOST=h");
    read_yaml(&world, "\nwait-ms: 2s\n");

    cr_assert(eq(int, option_set_dump(&world.set, &dump), 0));

    cr_assert(slice_eq(buf_slice(&dump),
                       SLICE("body-bytes: 1MiB                         # default\n"
                             "host: \"h\"                                # SAMOVAR_HOST\n"
                             "level: info                              # default\n"
                             "policy: \"ttft\"                           # default\n"
                             "port: 1                                  # --port\n"
                             "urls: []                                 # default\n"
                             "usage-ask: true                          # default\n"
                             "wait-ms: 2s                              # r.yaml:2\n")));
    buf_release(&dump);
    option_set_release(&world.set);
}

Test(option, help_groups_rows_and_names_flag_environment_and_default)
{
    struct buf help;
    buf_init(&help, 65536);

    cr_assert(eq(int, option_table_help(&table, &help), 0));

    cr_assert(slice_starts_with(buf_slice(&help),
                                SLICE("\nLimits\n"
                                      "  --body-bytes SIZE\n"
                                      "      Largest body. [SAMOVAR_BODY_BYTES, default 1MiB, "
                                      "1KiB to 1TiB]\n"
                                      "  --wait-ms TIME\n"
                                      "      Wait. [SAMOVAR_WAIT_MS, default 1s, 10ms to 1h]\n"
                                      "\nGeneral\n"
                                      "  --config TEXT\n"
                                      "      File. [SAMOVAR_CONFIG, default none]\n"
                                      "  --help\n"
                                      "      Help.\n"
                                      "  --level debug|info|error\n")));
    buf_release(&help);
}

/* A new file with this text; path gets its name. */
static void make_file(char path[32], const char *text, size_t len)
{
    int fd;

    snprintf(path, 32, "/tmp/test_option_XXXXXX");
    fd = mkstemp(path);
    cr_assert(ge(int, fd, 0));
    cr_assert(eq(int, (int)write(fd, text, len), (int)len));
    close(fd);
}

Test(option, a_file_is_read_from_disk)
{
    struct option_world world;
    char path[32];
    option_world_init(&world);
    make_file(path, "port: 99\n", 9);

    option_set_read_file(&world.set, path);

    unlink(path);
    cr_assert(eq(u64, world.values.port, 99));
    cr_assert(eq(str, errors_of(&world), ""));
    option_set_release(&world.set);
}

Test(option, what_cannot_be_read_as_a_file_says_why)
{
    struct option_world world;
    char empty[32], pipe_path[40], large[32], expected[1024];
    char *text = malloc((1 << 20) + 1);
    option_world_init(&world);
    make_file(empty, "", 0);
    snprintf(pipe_path, sizeof pipe_path, "%s.pipe", empty);
    cr_assert(eq(int, mkfifo(pipe_path, 0600), 0));
    memset(text, '#', (1 << 20) + 1);
    make_file(large, text, (1 << 20) + 1);

    option_set_read_file(&world.set, "/nowhere/r.yaml");
    option_set_read_file(&world.set, "/tmp");
    option_set_read_file(&world.set, pipe_path); /* and does not wait for a writer */
    option_set_read_file(&world.set, empty);
    option_set_read_file(&world.set, large);

    unlink(empty);
    unlink(pipe_path);
    unlink(large);
    snprintf(expected, sizeof expected,
             "/nowhere/r.yaml: cannot be opened: No such file or directory\n"
             "/tmp: is a folder; name a file of lines `name: value`\n"
             "%s: is not a regular file; name a file of lines `name: value`\n"
             "%s: is empty; write options into it, or a comment if it is meant so\n"
             "%s: is larger than 1MiB; options need a few lines: is this the right file?\n",
             pipe_path, empty, large);
    cr_assert(eq(str, errors_of(&world), expected));
    free(text);
    option_set_release(&world.set);
}

Test(option, a_file_of_the_greatest_size_is_read)
{
    struct option_world world;
    char path[32];
    char *text = malloc(1 << 20);
    option_world_init(&world);
    memset(text, '#', 1 << 20);
    memcpy(text, "port: 9\n", 8);
    make_file(path, text, 1 << 20);

    option_set_read_file(&world.set, path);

    unlink(path);
    cr_assert(eq(str, errors_of(&world), ""));
    cr_assert(eq(u64, world.values.port, 9));
    free(text);
    option_set_release(&world.set);
}

Test(option, a_list_grows_far_and_stops_at_its_limit)
{
    struct option_world world;
    struct buf items;
    buf_init(&items, 1 << 20);
    for (int i = 0; i < 5000; i++)
        cr_assert(eq(int, buf_printf(&items, "item%d,", i), 0));
    option_world_init(&world);

    option_set_assign(&world.set, option_table_find(&table, SLICE("urls")), buf_slice(&items),
                      &(struct option_place){{.source = OPTION_FROM_FLAG}, "--urls", NULL});

    cr_assert(eq(sz, world.values.list.count, 4096));
    cr_assert(eq(str, (char *)world.values.list.items[4095], "item4095"));
    cr_assert(eq(str, errors_of(&world), "--urls: more than 4096 items\n"));
    buf_release(&items);
    option_set_release(&world.set);
}
