/* SPDX-License-Identifier: Apache-2.0 */

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "backends/runtime/fault_point.h"
#include "kvtier/app.h"
#include "kvtier/options.h"

enum { TEXT_BYTES_MAX = 1 << 20 };

static int print(const struct agent_option_table *table,
                 int (*write)(const struct agent_option_table *table, struct buf *out))
{
    struct buf page;
    int status;

    buf_init(&page, TEXT_BYTES_MAX);
    status = write(table, &page);
    fwrite(buf_slice(&page).ptr, 1, buf_len(&page), stdout);
    buf_release(&page);
    return status < 0 || fflush(stdout) != 0 ? EXIT_CODE_FAILED : EXIT_CODE_OK;
}

static int run(const struct agent_options *options)
{
    struct agent_app *app = malloc(sizeof *app); /* too large for the stack */
    int code;

    if (app == NULL)
        return EXIT_CODE_FAILED;
    code = agent_app_init(app, options);
    if (code == EXIT_CODE_OK)
        agent_app_run(app);
    if (code != EXIT_CODE_FAILED)
        agent_app_release(app);
    free(app);
    return code;
}

/* Of tests alone: see fault_point.h. */
static int refuse_fault_point(void)
{
    fputs("samovar-agent: SAMOVAR_FAULT_POINT names no point of this program\n", stderr);
    return EXIT_CODE_CONFIG;
}

int main(int argc, char **argv)
{
    struct agent_option_table table;
    struct agent_options options;
    struct option_set set;
    int code;

    agent_option_table_init(&table);
    code = agent_options_parse(
        &set, &table, &options,
        (struct options_input){argc, (const char *const *)argv, (const char *const *)environ});
    if (code != EXIT_CODE_OK)
        option_set_print_errors(&set);
    else if (options.help)
        code = print(&table, agent_options_help);
    else if (options.man)
        code = print(&table, agent_options_man);
    else if (options.version)
        puts("samovar-agent " SAMOVAR_VERSION);
    else if (fault_point_init() < 0)
        code = refuse_fault_point();
    else
        code = run(&options);
    option_set_release(&set);
    return code;
}
