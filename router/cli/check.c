/* SPDX-License-Identifier: Apache-2.0 */

#include <stdio.h>
#include <string.h>

#include "backends/runtime/machine.h"
#include "router/cli/check_json.h"
#include "router/cli/command.h"
#include "router/cli/router_words.h"

/*
 * DESIGN
 *
 * The same table, readers and order as samovar-router's own start, so that what passes here passes
 * there. Names of workers are not resolved: whether something is an error must not depend on the
 * machine. What is only doubtful may: it is about memory and limits too.
 */

enum { TEXT_BYTES_MAX = 4 << 20 };

static const char usage[] =
    "Usage: samovar check [FILE] [--print-effective] [--json] [--strict] [-q] [OPTION ...]\n"
    "\n"
    "Reads FILE, the environment and the options of samovar-router exactly as the router does,\n"
    "and says everything that is wrong, and what is legal but most likely a mistake.\n"
    "\n"
    "  --print-effective  print the values in force as YAML, each with its origin\n"
    "  --json             print all of it as one JSON object, for programs\n"
    "  --strict           fail on what is doubtful too\n"
    "  -q, --quiet        print nothing: the exit code says it\n"
    "\n"
    "Exit codes: 0 fine, 1 doubtful (with --strict), 2 wrong flags, 3 wrong file or environment.\n";

struct arguments {
    bool wants_help;
    bool wants_values;
    bool wants_json;
    bool is_quiet;
    bool is_strict;
    struct router_words words; /* all others */
};

/* Whether word was one of ours. */
static bool take_word(struct arguments *arguments, const char *word)
{
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0)
        arguments->wants_help = true;
    else if (strcmp(word, "--print-effective") == 0)
        arguments->wants_values = true;
    else if (strcmp(word, "--json") == 0)
        arguments->wants_json = true;
    else if (strcmp(word, "--quiet") == 0 || strcmp(word, "-q") == 0)
        arguments->is_quiet = true;
    else if (strcmp(word, "--strict") == 0)
        arguments->is_strict = true;
    else
        return false;
    return true;
}

static int sort_arguments(struct arguments *arguments, int argc, const char *const *argv)
{
    *arguments = (struct arguments){.wants_help = false};
    if (router_words_init(&arguments->words, "samovar check", argc) < 0)
        return -1;
    for (int i = 1; i < argc; i++) {
        if (!take_word(arguments, argv[i]))
            router_words_add(&arguments->words, argv[i]);
    }
    return 0;
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

/* "router.yaml:3: warning: worker-idle-ms: 10s: engines close ...; stay below 5s" */
static void print_doubt(const struct option_set *set, const struct doubt *doubt)
{
    const struct option *option = option_table_find(set->table, slice_of_string(doubt->option));
    struct buf text;

    buf_init(&text, TEXT_BYTES_MAX);
    if (option_set_write_origin(set, option, &text) == 0 &&
        buf_printf(&text, ": warning: %s: ", option->name) == 0 &&
        option_set_write_value(set, option, &text) == 0 &&
        buf_printf(&text, ": %s; %s\n", doubt->why, doubt->advice) == 0)
        fwrite(buf_slice(&text).ptr, 1, buf_len(&text), stderr);
    buf_release(&text);
}

static int print_json(const struct check_findings *findings)
{
    struct buf text;
    int code;

    buf_init(&text, TEXT_BYTES_MAX);
    code = check_json_write(findings, &text) < 0 ? EXIT_CODE_FAILED : command_print(&text);
    buf_release(&text);
    return code;
}

static int print_text(const struct check_findings *findings)
{
    if (option_set_has_errors(findings->set)) {
        option_set_print_errors(findings->set);
        return EXIT_CODE_OK;
    }
    for (size_t i = 0; i < findings->doubt_count; i++)
        print_doubt(findings->set, findings->doubts[i]);
    return findings->wants_values ? print_values(findings->set) : EXIT_CODE_OK;
}

/* What the configuration is worth, once all that was to be printed is. */
static int judge(const struct check_findings *findings, bool is_strict)
{
    int code = option_set_exit_code(findings->set);

    if (code != EXIT_CODE_OK)
        return code;
    return is_strict && findings->doubt_count > 0 ? EXIT_CODE_FAILED : EXIT_CODE_OK;
}

static int check(const struct option_set *set, const struct router_options *options,
                 const struct arguments *arguments)
{
    struct check_findings findings = {.set = set, .wants_values = arguments->wants_values};
    struct machine machine = machine_read();
    int code = EXIT_CODE_OK;

    if (!option_set_has_errors(set))
        findings.doubt_count = doubts_find(options, &machine, findings.doubts);
    if (!arguments->is_quiet)
        code = arguments->wants_json ? print_json(&findings) : print_text(&findings);
    if (code == EXIT_CODE_OK)
        code = judge(&findings, arguments->is_strict);
    if (code == EXIT_CODE_OK && !arguments->is_quiet && !arguments->wants_json &&
        !arguments->wants_values)
        puts("ok");
    return code;
}

int command_check(int argc, const char *const *argv)
{
    struct router_reading reading;
    struct arguments arguments;
    int code;

    if (sort_arguments(&arguments, argc, argv) < 0)
        return EXIT_CODE_USAGE;
    if (arguments.wants_help) {
        fputs(usage, stdout);
        return EXIT_CODE_OK;
    }
    code = router_words_read(&arguments.words, &reading);
    if (!reading.options.version || code != EXIT_CODE_OK)
        code = check(&reading.set, &reading.options, &arguments);
    option_set_release(&reading.set);
    return code;
}
