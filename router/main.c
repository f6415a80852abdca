/* SPDX-License-Identifier: Apache-2.0 */

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "router/app.h"
#include "router/options.h"
#include "router/policy/policy.h"

enum { POLICY_COUNT_MAX = 16 };

static void print(FILE *file, const struct buf *text)
{
    fwrite(buf_slice(text).ptr, 1, buf_len(text), file);
}

static int print_help(const struct router_option_table *table)
{
    struct buf help;
    int status;

    buf_init(&help, 1 << 20);
    status = options_help(table, &help);
    print(stdout, &help);
    buf_release(&help);
    return status < 0 ? EXIT_CODE_FAILED : EXIT_CODE_OK;
}

static int run(const struct router_options *options)
{
    struct app *app = malloc(sizeof *app); /* too large for the stack */
    int code;

    if (app == NULL)
        return EXIT_CODE_FAILED;
    code = app_init(app, options);
    if (code == EXIT_CODE_OK)
        app_run(app);
    if (code != EXIT_CODE_FAILED)
        app_release(app);
    free(app);
    return code;
}

int main(int argc, char **argv)
{
    const char *policy_names[POLICY_COUNT_MAX] = {NULL};
    struct router_option_table table;
    struct router_options options;
    struct option_set set;
    int code;

    for (size_t i = 0; policy_list()[i] != NULL && i < POLICY_COUNT_MAX - 1; i++)
        policy_names[i] = policy_list()[i]->name;
    router_option_table_init(&table, policy_names);
    code = options_parse(
        &set, &table, &options,
        (struct options_input){argc, (const char *const *)argv, (const char *const *)environ});
    if (code != EXIT_CODE_OK)
        print(stderr, &set.errors);
    else if (options.help)
        code = print_help(&table);
    else if (options.version)
        puts("samovar-router " SAMOVAR_VERSION);
    else
        code = run(&options);
    option_set_release(&set);
    return code;
}
