/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/options.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include "tests/support/leak_check.h"

static enum options_verdict parse(struct options *options, char *message, size_t size,
                                  const char *const *arguments)
{
    char *argv[16] = {"samovar-sim"};
    int argc = 1;

    for (; arguments[argc - 1] != NULL; argc++)
        argv[argc] = (char *)(uintptr_t)arguments[argc - 1];
    return options_parse(argc, argv, options, message, size);
}

TestSuite(options, .fini = leak_check);

Test(options, defaults_are_those_of_the_design)
{
    struct options options;
    char message[256];

    cr_assert(
        eq(int, parse(&options, message, sizeof message, (const char *[]){NULL}), OPTIONS_RUN));

    cr_assert(eq(dbl, options.blocks, 8192));
    cr_assert(eq(dbl, options.block_size, 16));
    cr_assert(eq(dbl, options.prefill_tps, 8000));
    cr_assert(eq(dbl, options.decode_ms, 6));
    cr_assert(eq(dbl, options.decode_ms_per_request, 0.35));
    cr_assert(eq(int, options.habit, CHAT_PLAIN));
}

Test(options, values_come_behind_a_blank_or_an_equals_sign)
{
    struct options options;
    char message[256];

    cr_assert(eq(int,
                 parse(&options, message, sizeof message,
                       (const char *[]){"--port", "0", "--template=dated", "--fault", "hang,nth=2",
                                        "--fault=slow=5", "--lora", "a", NULL}),
                 OPTIONS_RUN),
              "%s", message);

    cr_assert(eq(dbl, options.port, 0));
    cr_assert(eq(int, options.habit, CHAT_DATED));
    cr_assert(eq(sz, options.fault_count, 2));
    cr_assert(eq(u64, options.faults[1].arg, 5));
    cr_assert(eq(sz, options.lora_count, 1));
}

Test(options, what_is_wrong_is_said)
{
    static const struct {
        const char *arguments[4];
        const char *word;
    } cases[] = {
        {{"--speed", "2"}, "no option --speed"},
        {{"port"}, "no option port"},
        {{"--port"}, "needs a value"},
        {{"--port", "70000"}, "whole number from 0"},
        {{"--blocks", "2.5"}, "whole number"},
        {{"--blocks", "x"}, "whole number"},
        {{"--template", "odd"}, "plain"},
        {{"--fault", "sleep"}, "no fault of that name"},
        {{"--prefill-tps", "0"}, "number from"},
        {{"--kv-dialect", "odd"}, "map or array"},
        {{"--kv-hashes", "odd"}, "int or bytes"},
        {{"--kv-replay", "ipc://x"}, "needs --kv-events"},
    };

    for (size_t i = 0; i < array_count(cases); i++) {
        struct options options;
        char message[256] = "";

        cr_assert(
            eq(int, parse(&options, message, sizeof message, cases[i].arguments), OPTIONS_WRONG));
        cr_assert(strstr(message, cases[i].word) != NULL, "%s", message);
    }
}

Test(options, forms_of_events_are_read)
{
    struct options options;
    char message[256];

    cr_assert(eq(int,
                 parse(&options, message, sizeof message,
                       (const char *[]){"--kv-events", "tcp://127.0.0.1:*", "--kv-dialect", "array",
                                        "--kv-hashes=bytes", NULL}),
                 OPTIONS_RUN),
              "%s", message);

    cr_assert(eq(int, options.kv_dialect, KV_DIALECT_ARRAY));
    cr_assert(eq(int, options.kv_hash_form, KV_HASH_BYTES));
    cr_assert(eq(dbl, options.kv_buffer_steps, 10000));
}
