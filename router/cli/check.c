/* SPDX-License-Identifier: Apache-2.0 */

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "backends/worker_url.h"
#include "router/cli/command.h"

/*
 * DESIGN
 *
 * The same table, readers and order as samovar-router's own start, so that what passes here passes
 * there. Names of workers are not resolved: a check must give the same answer on every machine.
 */

enum { ARGUMENT_COUNT_MAX = 256, TEXT_BYTES_MAX = 4 << 20 };

static const char usage[] =
    "Usage: samovar check [FILE] [--print-effective] [OPTION ...]\n"
    "\n"
    "Reads FILE, the environment and the options of samovar-router exactly as the router does,\n"
    "and says everything that is wrong. --print-effective prints the values in force as YAML,\n"
    "each with its origin.\n"
    "Exit codes: 0 fine, 2 wrong flags, 3 wrong file or environment.\n";

/* What is left for the router's own reader when our words are taken out. */
struct arguments {
    bool wants_help;
    bool wants_values;
    const char *words[ARGUMENT_COUNT_MAX + 3];
    int count;
};

static int sort_arguments(struct arguments *arguments, int argc, const char *const *argv)
{
    *arguments = (struct arguments){.words = {"samovar check"}, .count = 1};
    if (argc > ARGUMENT_COUNT_MAX) {
        fprintf(stderr, "samovar check: more than %d arguments\n", ARGUMENT_COUNT_MAX);
        return -1;
    }
    if (argc > 1 && argv[1][0] != '-')
        arguments->words[arguments->count++] = "--config";
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            arguments->wants_help = true;
        else if (strcmp(argv[i], "--print-effective") == 0)
            arguments->wants_values = true;
        else
            arguments->words[arguments->count++] = argv[i];
    }
    return 0;
}

/* What the router finds out only when it makes its workers. */
static void check_workers(struct option_set *set, const struct router_options *options)
{
    struct option_place place = {option_set_origin(set, "worker-urls"), "worker-urls"};
    struct worker_url url;
    char why[WORKER_URL_WHY_BYTES];

    for (size_t i = 0; i < options->worker_urls.count; i++) {
        const char *text = options->worker_urls.items[i];

        if (worker_url_parse(slice_of_string(text), &url, why) == 0)
            continue;
        if (strchr(text, '@') != NULL) /* what stands before it is no output's business */
            option_set_error(set, &place, "%s", why);
        else
            option_set_error(set, &place, "\"%s\": %s", text, why);
    }
}

static int print_values(const struct option_set *set)
{
    struct buf text;
    int code;

    buf_init(&text, TEXT_BYTES_MAX);
    code = option_set_dump(set, &text) < 0 ? EXIT_CODE_FAILED : command_print(&text);
    buf_release(&text);
    return code;
}

static int check(struct option_set *set, const struct router_options *options, bool wants_values)
{
    struct slice errors;

    check_workers(set, options);
    errors = buf_slice(&set->errors);
    if (errors.len > 0)
        fwrite(errors.ptr, 1, errors.len, stderr);
    if (set->flag_error_count > 0)
        return EXIT_CODE_USAGE;
    if (set->config_error_count > 0)
        return EXIT_CODE_CONFIG;
    if (wants_values)
        return print_values(set);
    puts("ok");
    return EXIT_CODE_OK;
}

int command_check(int argc, const char *const *argv)
{
    const char *policy_names[COMMAND_POLICY_COUNT_MAX];
    struct router_option_table table;
    struct router_options options;
    struct option_set set;
    struct arguments arguments;
    int code;

    if (sort_arguments(&arguments, argc, argv) < 0)
        return EXIT_CODE_USAGE;
    if (arguments.wants_help) {
        fputs(usage, stdout);
        return EXIT_CODE_OK;
    }
    command_policy_names(policy_names);
    router_option_table_init(&table, policy_names);
    code = options_parse(
        &set, &table, &options,
        (struct options_input){arguments.count, arguments.words, (const char *const *)environ});
    if (!options.version || code != EXIT_CODE_OK)
        code = check(&set, &options, arguments.wants_values);
    option_set_release(&set);
    return code;
}
