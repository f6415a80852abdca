/* SPDX-License-Identifier: Apache-2.0 */

#include "router/options.h"

#include <assert.h>

#include "backends/redis/redis_url.h"
#include "backends/runtime/log.h"
#include "backends/worker_url.h"

#define OPTION_GROUP_CHOICE  "Choosing"
#define OPTION_GROUP_GENERAL "General"
#define OPTION_GROUP_LIMIT   "Limits"
#define OPTION_GROUP_LISTEN  "Listening"
#define OPTION_GROUP_MAP     "Shared map"
#define OPTION_GROUP_OUTPUT  "Logs"
#define OPTION_GROUP_TIMER   "Timers"
#define OPTION_GROUP_WORKER  "Workers"

static const struct option rows[] = {
#define OPTION(...) OPTION_ROW(struct router_options, __VA_ARGS__)
#include "router/options.def"
};
static_assert(array_count(rows) == ROUTER_OPTION_COUNT, "one row per field");

void router_option_table_init(struct router_option_table *table, const char *const *policy_names)
{
    memcpy(table->options, rows, sizeof rows);
    option_row(table->options, "log-format")->words = log_format_words;
    option_row(table->options, "log-level")->words = log_level_words;
    option_row(table->options, "policy")->words = policy_names;
    option_row(table->options, "redis")->check = redis_url_check;
    option_row(table->options, "worker-urls")->check = worker_url_check;
    table->table = (struct option_table){table->options, ROUTER_OPTION_COUNT, "SAMOVAR_"};
}

/* What no single option can see. */
static void check_together(struct option_set *set, const struct router_options *options)
{
    bool has_map = options->redis[0] != '\0';

    if (options->worker_urls.count == 0 && !has_map)
        option_set_refuse(
            set, "worker-urls", "no worker is given",
            "add --worker-urls http://host:port, SAMOVAR_WORKER_URLS, or worker-urls in the "
            "file; or --redis, where agents name theirs");
    if (has_map && options->secret_file[0] == '\0')
        option_set_refuse(
            set, "redis", "needs a secret-file",
            "give the one that the agents have: by it all of them name prompts alike");
    if (!has_map && options->redis_password_file[0] != '\0')
        option_set_refuse(set, "redis-password-file", "is for redis, which is not given",
                          "add --redis");
    if (options->port != 0 && options->port == options->admin_port &&
        strcmp(options->host, options->admin_host) == 0)
        option_set_refuse(set, "admin-port", "is the same address as port", "give it another one");
}

int options_parse(struct option_set *set, const struct router_option_table *table,
                  struct router_options *options, struct options_input input)
{
    option_set_init(set, &table->table, options);
    option_set_read_flags(set, input.argc, input.argv);
    if (options->help || options->version)
        return EXIT_CODE_OK;
    option_set_read_env(set, input.envp);
    if (options->config[0] != '\0')
        option_set_read_file(set, options->config);
    if (!option_set_has_errors(set))
        check_together(set, options);
    return option_set_exit_code(set);
}

int options_help(const struct router_option_table *table, struct buf *out)
{
    int status = buf_append(out, SLICE("Usage: samovar-router --worker-urls URL ... [OPTION ...]\n"
                                       "\n"
                                       "Sends each prompt to the inference server that already "
                                       "holds its prefix.\n"
                                       "A flag wins over the environment, that over the file, "
                                       "that over the default.\n"));

    return status < 0 ? status : option_table_help(&table->table, out);
}
