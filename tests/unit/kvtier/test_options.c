/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/options.h"

#include "tests/support/leak_check.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <string.h>

enum { ARGUMENT_COUNT_MAX = 16, TEXT_BYTES_MAX = 1 << 20 };

/* A start with these flags, up to a NULL, and this environment. */
struct start {
    struct agent_option_table table;
    struct agent_options options;
    struct option_set set;
    int code;
};

#define FLAGS(...) ((const char *const[]){"samovar-agent", __VA_ARGS__, NULL})
#define ENOUGH                                                                                     \
    "--engine", "http://a:1", "--kv-events", "tcp://a:2", "--redis", "redis://r", "--secret-file", \
        "/s"

static struct start *start(const char *const *argv, const char *const *envp)
{
    static struct start start;
    int argc = 0;

    while (argv[argc] != NULL)
        argc++;
    agent_option_table_init(&start.table);
    start.code = agent_options_parse(&start.set, &start.table, &start.options,
                                     (struct options_input){argc, argv, envp});
    return &start;
}

static const char *const no_environment[] = {NULL};

TestSuite(agent_options, .fini = leak_check);

Test(agent_options, what_is_enough_is_taken_and_the_rest_has_defaults)
{
    struct start *it = start(FLAGS(ENOUGH), no_environment);

    cr_assert(eq(int, it->code, EXIT_CODE_OK));
    cr_assert(eq(u64, it->options.admin_port, 9092));
    cr_assert(eq(u64, it->options.text_blocks_max, 262144));
    cr_assert(eq(str, (char *)(uintptr_t)it->options.state_dir, ""));
    cr_assert(eq(sz, it->options.kv_replay.count, 0));
    option_set_release(&it->set);
}

Test(agent_options, its_environment_is_not_the_routers)
{
    static const char *const environment[] = {"SAMOVAR_AGENT_ADMIN_PORT=1", "SAMOVAR_ADMIN_PORT=2",
                                              NULL};
    struct start *it = start(FLAGS(ENOUGH), environment);

    cr_assert(eq(int, it->code, EXIT_CODE_OK));
    cr_assert(eq(u64, it->options.admin_port, 1));
    option_set_release(&it->set);
}

Test(agent_options, all_that_is_missing_is_told_at_once)
{
    struct start *it = start(FLAGS("--log-level", "info"), no_environment);

    cr_assert(eq(int, it->code, EXIT_CODE_USAGE));
    cr_assert(eq(sz, it->set.error_count, 3), "engine, redis, secret-file");
    option_set_release(&it->set);
}

Test(agent_options, a_password_in_a_url_is_refused_and_not_shown)
{
    struct start *it = start(FLAGS(ENOUGH, "--redis", "redis://u:hunter2@r"), no_environment);

    cr_assert(eq(int, it->code, EXIT_CODE_USAGE));
    for (size_t i = 0; i < it->set.error_count; i++) {
        cr_assert(strstr(it->set.errors[i].what, "hunter2") == NULL);
        cr_assert(strstr(it->set.errors[i].excerpt, "hunter2") == NULL);
    }
    option_set_release(&it->set);
}

Test(agent_options, help_and_man_page_have_a_line_for_each_row)
{
    struct agent_option_table table;
    struct buf help, page;

    agent_option_table_init(&table);
    buf_init(&help, TEXT_BYTES_MAX);
    buf_init(&page, TEXT_BYTES_MAX);
    cr_assert(eq(int, agent_options_help(&table, &help), 0));
    cr_assert(eq(int, agent_options_man(&table, &page), 0));
    cr_assert(eq(int, buf_append(&help, slice_of("", 1)), 0));

    for (size_t i = 0; i < AGENT_OPTION_COUNT; i++) {
        cr_assert(strstr(buf_slice(&help).ptr, table.options[i].name) != NULL, "%s",
                  table.options[i].name);
        if (i > 0)
            cr_assert(strcmp(table.options[i - 1].name, table.options[i].name) < 0);
    }
    cr_assert(gt(sz, buf_len(&page), buf_len(&help) / 2));
    buf_release(&help);
    buf_release(&page);
}

Test(agent_options, room_for_token_blocks_follows_from_the_tiers_unless_it_is_said)
{
    struct start *it = start(FLAGS(ENOUGH), no_environment);

    cr_assert(eq(u32, agent_options_token_blocks(&it->options, 0), 262144));
    cr_assert(eq(u32, agent_options_token_blocks(&it->options, 1000000), 1262144));
    cr_assert(eq(u32, agent_options_token_blocks(&it->options, 8126464), 8388608));
    cr_assert(eq(u32, agent_options_token_blocks(&it->options, UINT64_MAX), 8388608));
    option_set_release(&it->set);

    it = start(FLAGS(ENOUGH, "--token-blocks-max", "4096"), no_environment);
    cr_assert(eq(u32, agent_options_token_blocks(&it->options, 1000000), 4096));
    option_set_release(&it->set);
}

Test(agent_options, room_for_hardly_any_token_block_is_refused)
{
    struct start *it = start(FLAGS(ENOUGH, "--token-blocks-max", "1023"), no_environment);

    cr_assert(eq(int, it->code, EXIT_CODE_USAGE));
    option_set_release(&it->set);
}
