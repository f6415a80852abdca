/* SPDX-License-Identifier: Apache-2.0 */

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "router/app.h"
#include "router/config.h"
#include "router/options.h"
#include "router/policy/policy.h"

static int print_help(const struct router_option_table *table)
{
    struct buf help;
    int status;

    buf_init(&help, 1 << 20);
    status = options_help(table, &help);
    fwrite(buf_slice(&help).ptr, 1, buf_len(&help), stdout);
    buf_release(&help);
    return status < 0 ? EXIT_CODE_FAILED : EXIT_CODE_OK;
}

static int run(struct config *config)
{
    struct app *app = malloc(sizeof *app); /* too large for the stack */
    int code;

    if (app == NULL)
        return EXIT_CODE_FAILED;
    code = app_init(app, config);
    if (code == EXIT_CODE_OK)
        app_run(app);
    if (code != EXIT_CODE_FAILED)
        app_release(app);
    free(app);
    return code;
}

int main(int argc, char **argv)
{
    const char *policies[POLICY_NAME_COUNT_MAX];
    struct config config;
    int code;

    policy_names(policies);
    code = config_init(
        &config, policies,
        (struct options_input){argc, (const char *const *)argv, (const char *const *)environ});
    if (code != EXIT_CODE_OK)
        option_set_print_errors(config_set(&config));
    else if (config_options(&config)->help)
        code = print_help(&config.table);
    else if (config_options(&config)->version)
        puts("samovar-router " SAMOVAR_VERSION);
    else
        code = run(&config);
    config_release(&config);
    return code;
}
