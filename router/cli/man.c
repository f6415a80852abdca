/* SPDX-License-Identifier: Apache-2.0 */

#include <stdio.h>
#include <string.h>

#include "router/cli/command.h"
#include "router/policy/policy.h"

/*
 * DESIGN
 *
 * The man page is made of the table that the router itself reads its options with, so that the two
 * cannot differ. What is not an option stands here, as roff.
 */

enum { PAGE_BYTES_MAX = 1 << 20 };

static const char usage[] = "Usage: samovar man\n"
                            "\n"
                            "Prints samovar-router(1) as roff: `samovar man | man -l -`.\n"
                            "Exit codes: 0 printed, 1 not, 2 wrong arguments.\n";

static const char head[] =
    ".TH SAMOVAR\\-ROUTER 1 \"\" \"Samovar " SAMOVAR_VERSION "\"\n"
    ".ad l\n"
    ".SH NAME\n"
    "samovar\\-router \\- send each prompt to the engine that already holds its prefix\n"
    ".SH SYNOPSIS\n"
    ".B samovar\\-router \\-\\-worker\\-urls\n"
    ".I URL ...\n"
    "[\\fIOPTION\\fR ...]\n"
    ".SH DESCRIPTION\n"
    "An OpenAI endpoint in front of inference servers. It remembers which worker has read which\n"
    "prefix, predicts the time to the first token on each, and sends a request where that is\n"
    "least.\n"
    ".PP\n"
    "A flag wins over the environment, that over the file, that over the default. All mistakes "
    "are\n"
    "told at once;\n"
    ".B samovar check\n"
    "tells them without a start.\n";

static const char tail[] =
    ".SH FILES\n"
    "The file that \\-\\-config names is YAML: one line `name: value` an option, by the names "
    "above\n"
    "without dashes; lists as [a, b], or one `\\- value` a line.\n"
    ".PP\n"
    ".nf\n"
    "worker\\-urls:\n"
    "  \\- http://10.0.0.1:8000\n"
    "  \\- http://10.0.0.2:8000\n"
    "drain\\-ms: 30s\n"
    ".fi\n"
    ".SH SIGNALS\n"
    ".TP\n"
    ".B SIGTERM, SIGINT\n"
    "No new requests; running answers end, for at most \\-\\-drain\\-ms. A second one cuts them.\n"
    ".TP\n"
    ".B SIGHUP\n"
    "Reads file, environment and flags again: all or nothing. Each change is logged; with a\n"
    "mistake nothing changes, and each mistake is logged.\n"
    ".SH EXIT STATUS\n"
    "0 ended well, 1 failed, 2 wrong flags, 3 wrong file or environment, 4 an address cannot be\n"
    "listened on.\n"
    ".SH SEE ALSO\n"
    ".B samovar \\-\\-help\n";

static int write_page(struct buf *page)
{
    const char *policies[POLICY_NAME_COUNT_MAX];
    struct router_option_table table;
    int status = buf_append(page, slice_of_string(head));

    policy_names(policies);
    router_option_table_init(&table, policies);
    if (status == 0)
        status = option_table_man(&table.table, page);
    return status == 0 ? buf_append(page, slice_of_string(tail)) : status;
}

int command_man(int argc, const char *const *argv)
{
    struct buf page;
    int code;

    if (argc > 1) {
        bool wants_help = strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0;

        fputs(wants_help ? usage : "samovar man: takes no argument\n",
              wants_help ? stdout : stderr);
        return wants_help ? EXIT_CODE_OK : EXIT_CODE_USAGE;
    }
    buf_init(&page, PAGE_BYTES_MAX);
    code = write_page(&page) < 0 ? EXIT_CODE_FAILED : command_print(&page);
    buf_release(&page);
    return code;
}
