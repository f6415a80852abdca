/* SPDX-License-Identifier: Apache-2.0 */

#include "router/options.h"

#include <assert.h>

#include "backends/redis/redis_url.h"
#include "backends/runtime/log.h"
#include "backends/worker_url.h"

static const char *const log_level_words[] = {
    [LOG_DEBUG] = "debug", [LOG_INFO] = "info",      [LOG_WARN] = "warn",
    [LOG_ERROR] = "error", [LOG_LEVEL_COUNT] = NULL,
};
static const char *const log_format_words[] = {
    [LOG_FORMAT_AUTO] = "auto",
    [LOG_FORMAT_LOGFMT] = "logfmt",
    [LOG_FORMAT_JSON] = "json",
    [LOG_FORMAT_COUNT] = NULL,
};

#define OPTION_GROUP_CHOICE  "Choosing"
#define OPTION_GROUP_GENERAL "General"
#define OPTION_GROUP_LIMIT   "Limits"
#define OPTION_GROUP_LISTEN  "Listening"
#define OPTION_GROUP_MAP     "Shared map"
#define OPTION_GROUP_OUTPUT  "Logs"
#define OPTION_GROUP_TIMER   "Timers"
#define OPTION_GROUP_WORKER  "Workers"

static const struct option rows[] = {
#define OPTION(field_, name_, kind_, default_, min_, max_, unit_, phase_, group_, help_)           \
    {                                                                                              \
        .name = name_,                                                                             \
        .kind = OPTION_##kind_,                                                                    \
        .default_text = default_,                                                                  \
        .min = min_,                                                                               \
        .max = max_,                                                                               \
        .unit = unit_,                                                                             \
        .phase = OPTION_##phase_,                                                                  \
        .group = OPTION_GROUP_##group_,                                                            \
        .help = help_,                                                                             \
        .offset = offsetof(struct router_options, field_),                                         \
    },
#include "router/options.def"
};
static_assert(array_count(rows) == ROUTER_OPTION_COUNT, "one row per field");

static_assert((int)WORKER_URL_WHY_BYTES == (int)OPTION_WHY_BYTES, "one sentence for both");
static int check_worker_url(struct slice text, char why[OPTION_WHY_BYTES])
{
    struct worker_url url;

    return worker_url_parse(text, &url, why);
}

static_assert((int)REDIS_URL_WHY_BYTES == (int)OPTION_WHY_BYTES, "one sentence for both");
static int check_redis(struct slice text, char why[OPTION_WHY_BYTES])
{
    struct redis_url url;

    return text.len > 0 ? redis_url_parse(text, &url, why) : 0;
}

static struct option *row_of(struct router_option_table *table, const char *name)
{
    size_t i = 0;

    while (strcmp(table->options[i].name, name) != 0)
        i++;
    return &table->options[i];
}

void router_option_table_init(struct router_option_table *table, const char *const *policy_names)
{
    memcpy(table->options, rows, sizeof rows);
    row_of(table, "log-format")->words = log_format_words;
    row_of(table, "log-level")->words = log_level_words;
    row_of(table, "policy")->words = policy_names;
    row_of(table, "redis")->check = check_redis;
    row_of(table, "worker-urls")->check = check_worker_url;
    table->table = (struct option_table){table->options, ROUTER_OPTION_COUNT, "SAMOVAR_"};
}

/* An error of nobody's line: it counts where the option came from, so that the exit code fits. */
static void refuse(struct option_set *set, const char *name, const char *what, const char *advice)
{
    struct option_place place = {.origin = option_set_origin(set, name), .text = name};

    if (place.origin.source == OPTION_FROM_DEFAULT)
        place.origin.source = OPTION_FROM_FLAG;
    option_set_error(set, &place, advice, "%s", what);
}

/* What no single option can see. */
static void check_together(struct option_set *set, const struct router_options *options)
{
    bool has_map = options->redis[0] != '\0';

    if (options->worker_urls.count == 0 && !has_map)
        refuse(set, "worker-urls", "no worker is given",
               "add --worker-urls http://host:port, SAMOVAR_WORKER_URLS, or worker-urls in the "
               "file; or --redis, where agents name theirs");
    if (has_map && options->secret_file[0] == '\0')
        refuse(set, "redis", "needs a secret-file",
               "give the one that the agents have: by it all of them name prompts alike");
    if (!has_map && options->redis_password_file[0] != '\0')
        refuse(set, "redis-password-file", "is for redis, which is not given", "add --redis");
    if (options->port != 0 && options->port == options->admin_port &&
        strcmp(options->host, options->admin_host) == 0)
        refuse(set, "admin-port", "is the same address as port", "give it another one");
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
    if (set->flag_error_count > 0)
        return EXIT_CODE_USAGE;
    return set->config_error_count > 0 ? EXIT_CODE_CONFIG : EXIT_CODE_OK;
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
