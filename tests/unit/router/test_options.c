/* SPDX-License-Identifier: Apache-2.0 */

#include "router/options.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "backends/runtime/log.h"
#include "tests/support/leak_check.h"

static const char *const policies[] = {"ttft", "round_robin", "random", "least_load", NULL};

struct options_world {
    struct router_option_table table;
    struct router_options options;
    struct option_set set;
};

/* argv without the program's name, NULL-terminated. */
static int parse(struct options_world *world, const char *const *words, const char *const *envp)
{
    const char *argv[16] = {"samovar-router"};
    int argc = 1;

    while (words[argc - 1] != NULL) {
        argv[argc] = words[argc - 1];
        argc++;
    }
    router_option_table_init(&world->table, policies);
    return options_parse(&world->set, &world->table, &world->options,
                         (struct options_input){argc, argv, envp});
}

#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})
static const char *const no_env[] = {NULL};

TestSuite(options, .fini = leak_check);

Test(options, defaults_are_what_the_relay_was_promised)
{
    struct options_world world;

    cr_assert(eq(int, parse(&world, WORDS("--worker-urls", "http://a:1"), no_env), EXIT_CODE_OK));

    const struct router_options *options = &world.options;
    cr_assert(eq(str, (char *)options->host, "127.0.0.1"));
    cr_assert(eq(u64, options->port, 8080));
    cr_assert(eq(u64, options->admin_port, 9091));
    cr_assert(eq(str, (char *)options->policy, "ttft"));
    cr_assert(eq(int, options->log_level, LOG_INFO));
    cr_assert(eq(int, options->log_format, LOG_FORMAT_AUTO));
    cr_assert(eq(u64, options->client_header_ms, 10000));
    cr_assert(eq(u64, options->client_body_ms, 30000));
    cr_assert(eq(u64, options->client_stall_ms, 60000));
    cr_assert(eq(u64, options->client_idle_ms, 75000));
    cr_assert(eq(u64, options->connect_ms, 2000));
    cr_assert(eq(u64, options->upstream_header_ms, 600000));
    cr_assert(eq(u64, options->upstream_idle_ms, 120000));
    cr_assert(eq(u64, options->worker_idle_ms, 4000));
    cr_assert(eq(u64, options->drain_ms, 60000));
    cr_assert(eq(u64, options->body_bytes_max, 32 << 20));
    cr_assert(eq(u64, options->client_count_max, 16384));
    cr_assert(eq(u64, options->worker_conn_count_max, 4096));
    cr_assert(eq(u64, options->retry_count_max, 3));
    cr_assert(eq(u64, options->residency_bytes_max, 256 << 20));
    cr_assert(eq(u64, options->worker_cache_tokens, 0));
    cr_assert(eq(u64, options->seed, 0));
    cr_assert(options->usage_ask);
    option_set_release(&world.set);
}

Test(options, the_exit_code_says_whose_mistake_it_was)
{
    static const struct {
        const char *words[6];
        const char *env;
        int code;
    } rows[] = {
        {{"--worker-urls", "http://a:1"}, NULL, EXIT_CODE_OK},
        {{NULL}, "SAMOVAR_WORKER_URLS=http://a:1", EXIT_CODE_OK},
        {{NULL}, NULL, EXIT_CODE_USAGE}, /* no worker */
        {{"--help", "--port", "x"}, NULL, EXIT_CODE_OK},
        {{"--version"}, "SAMOVAR_PORT=x", EXIT_CODE_OK},
        {{"--worker-urls", "http://a:1", "--port", "x"}, NULL, EXIT_CODE_USAGE},
        {{"--worker-urls", "http://a:1"}, "SAMOVAR_PORT=x", EXIT_CODE_CONFIG},
        {{"--worker-urls", "http://a:1", "--config", "/nowhere"}, NULL, EXIT_CODE_CONFIG},
        {{"--worker-urls", "http://a:1", "--policy", "magic"}, NULL, EXIT_CODE_USAGE},
        {{"--worker-urls", "http://a:1", "--port", "9091"}, NULL, EXIT_CODE_USAGE},
        {{"--worker-urls", "http://a:1", "--port=0", "--admin-port=0"}, NULL, EXIT_CODE_OK},
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct options_world world;
        const char *envp[] = {rows[i].env, NULL};

        int code = parse(&world, rows[i].words, envp);

        cr_assert(eq(int, code, rows[i].code), "row %zu", i);
        option_set_release(&world.set);
    }
}

Test(options, a_config_file_is_found_by_flag_or_environment)
{
    char path[] = "/tmp/test_options_XXXXXX", env[64];
    static const char text[] = "worker-urls: [http://a:1, http://b:2]\nlog-level: debug\n";
    int fd = mkstemp(path);
    cr_assert(eq(int, (int)write(fd, text, sizeof text - 1), (int)sizeof text - 1));
    close(fd);
    snprintf(env, sizeof env, "SAMOVAR_CONFIG=%s", path);

    for (int is_env = 0; is_env < 2; is_env++) {
        struct options_world world;
        const char *envp[] = {is_env ? env : NULL, NULL};
        const char *const *words = is_env ? WORDS(NULL) : WORDS("--config", path);

        cr_assert(eq(int, parse(&world, words, envp), EXIT_CODE_OK));

        cr_assert(eq(sz, world.options.worker_urls.count, 2));
        cr_assert(eq(int, world.options.log_level, LOG_DEBUG));
        option_set_release(&world.set);
    }
    unlink(path);
}

Test(options, help_names_every_row)
{
    struct router_option_table table;
    struct buf help;
    buf_init(&help, 1 << 20);
    router_option_table_init(&table, policies);

    cr_assert(eq(int, options_help(&table, &help), 0));

    cr_assert(eq(int, buf_append(&help, slice_of("", 1)), 0));
    for (size_t i = 0; i < table.table.count; i++) {
        char flag[96];
        bool is_switch =
            table.options[i].kind == OPTION_BOOL && table.options[i].phase != OPTION_COMMAND;
        snprintf(flag, sizeof flag, "\n  --%s%s", is_switch ? "[no-]" : "", table.options[i].name);
        cr_assert(ne(ptr, strstr(buf_slice(&help).ptr, flag), NULL), "%s", flag);
    }
    cr_assert(
        ne(ptr, strstr(buf_slice(&help).ptr, "--policy ttft|round_robin|random|least_load"), NULL));
    buf_release(&help);
}

Test(options, the_man_page_names_every_row)
{
    struct router_option_table table;
    struct buf man;
    buf_init(&man, 1 << 20);
    router_option_table_init(&table, policies);

    cr_assert(eq(int, option_table_man(&table.table, &man), 0));

    cr_assert(eq(int, buf_append(&man, slice_of("", 1)), 0));
    for (size_t i = 0; i < table.table.count; i++) {
        const struct option *option = &table.options[i];
        char env[96];
        struct buf entry;
        buf_init(&entry, 4096);
        option_env_name(&table.table, option, env);
        bool is_switch = option->kind == OPTION_BOOL && option->phase != OPTION_COMMAND;
        cr_assert(eq(int, buf_append(&entry, is_switch ? SLICE("--[no-]") : SLICE("--")), 0));
        cr_assert(eq(int, buf_append(&entry, slice_of_string(option->name)), 0));
        struct buf flag;
        buf_init(&flag, 4096);
        cr_assert(eq(int, option_man_text(buf_slice(&entry), &flag), 0));
        cr_assert(eq(int, buf_append(&flag, slice_of("", 1)), 0));

        cr_assert(ne(ptr, strstr(buf_slice(&man).ptr, buf_slice(&flag).ptr), NULL), "%s",
                  option->name);
        cr_assert(option->phase == OPTION_COMMAND || strstr(buf_slice(&man).ptr, env) != NULL);
        buf_release(&entry);
        buf_release(&flag);
    }
    buf_release(&man);
}

Test(options, what_roff_would_read_is_escaped)
{
    struct buf text;
    buf_init(&text, 4096);

    cr_assert(eq(int, option_man_text(SLICE(".a-b\\c\n'd.\ne"), &text), 0));

    cr_assert(slice_eq(buf_slice(&text), SLICE("\\&.a\\-b\\ec\n\\&'d.\ne")));
    buf_release(&text);
}

Test(options, a_map_brings_workers_and_needs_the_secret_that_agents_have)
{
    struct options_world world;
    struct options_world alone;

    int with = parse(&world, WORDS("--redis", "unix:///run/r", "--secret-file", "/s"), no_env);
    int without = parse(&alone, WORDS("--redis", "unix:///run/r"), no_env);

    cr_assert(eq(int, with, EXIT_CODE_OK));
    cr_assert(eq(u64, world.options.redis_leave_ms, 60000));
    cr_assert(eq(int, without, EXIT_CODE_USAGE));
    cr_assert(eq(str, (char *)alone.set.errors[0].what, "needs a secret-file"));
    option_set_release(&world.set);
    option_set_release(&alone.set);
}
