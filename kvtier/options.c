/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/options.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "backends/redis/redis_url.h"
#include "backends/runtime/log.h"
#include "backends/runtime/machine.h"
#include "backends/tcp_listen.h"
#include "backends/worker_url.h"
#include "kvtier/connector/ipc_socket.h"
#include "kvtier/identity/token_chain.h"
#include "kvtier/tiers/eviction.h"

enum { TOKEN_BLOCKS_MIN = 1024 }; /* that option token-blocks-max may say */

#define OPTION_GROUP_ENGINE  "Engines"
#define OPTION_GROUP_GENERAL "General"
#define OPTION_GROUP_LIMIT   "Limits"
#define OPTION_GROUP_LISTEN  "Listening"
#define OPTION_GROUP_MAP     "The map"
#define OPTION_GROUP_OUTPUT  "Logs"
#define OPTION_GROUP_TIER    "Tiers"

static const struct option rows[] = {
#define OPTION(...) OPTION_ROW(struct agent_options, __VA_ARGS__)
#include "kvtier/options.def"
};
static_assert(array_count(rows) == AGENT_OPTION_COUNT, "one row per field");

static const char *const io_words[] = {
    [AGENT_IO_AUTO] = "auto", [AGENT_IO_URING] = "uring", [AGENT_IO_THREADS] = "threads", NULL};

static int check_socket(struct slice text, char why[OPTION_WHY_BYTES])
{
    if (text.len == 0 || (text.ptr[0] == '/' && text.len < IPC_SOCKET_PATH_BYTES_MAX))
        return 0;
    snprintf(why, OPTION_WHY_BYTES, "write an absolute path of at most %d bytes",
             IPC_SOCKET_PATH_BYTES_MAX - 1);
    return -EINVAL;
}

/* The policies that there are; the first is the default. */
static void name_evictions(struct agent_option_table *table)
{
    struct option *row = option_row(table->options, "eviction");
    size_t count = 0;

    for (; eviction_registry[count] != NULL; count++) {
        assert(count < AGENT_EVICTION_COUNT_MAX);
        table->evictions[count] = eviction_registry[count]->name;
    }
    table->evictions[count] = NULL;
    row->words = table->evictions;
    row->default_text = table->evictions[0];
}

void agent_option_table_init(struct agent_option_table *table)
{
    memcpy(table->options, rows, sizeof rows);
    name_evictions(table);
    option_row(table->options, "ipc-socket")->check = check_socket;
    option_row(table->options, "ssd-io")->words = io_words;
    option_row(table->options, "advertise")->check = worker_url_check;
    option_row(table->options, "engine")->check = worker_url_check;
    option_row(table->options, "kv-events")->check = engine_endpoint_check;
    option_row(table->options, "kv-replay")->check = engine_endpoint_check;
    option_row(table->options, "log-format")->words = log_format_words;
    option_row(table->options, "log-level")->words = log_level_words;
    option_row(table->options, "redis")->check = redis_url_check;
    table->table = (struct option_table){table->options, AGENT_OPTION_COUNT, "SAMOVAR_AGENT_"};
}

struct engine_lists agent_options_engines(const struct agent_options *options)
{
    return (struct engine_lists){options->engine, options->advertise, options->kv_events,
                                 options->kv_replay};
}

uint32_t agent_options_token_blocks(const struct agent_options *options, uint64_t tier_blocks)
{
    static_assert((uint64_t)AGENT_TOKEN_BLOCKS_MAX * TOKEN_NODE_BYTES <= 2ull << 30, "as promised");

    if (options->token_blocks_max > 0)
        return (uint32_t)options->token_blocks_max;
    return tier_blocks < AGENT_TOKEN_BLOCKS_MAX - AGENT_TOKEN_BLOCKS_MIN
               ? AGENT_TOKEN_BLOCKS_MIN + (uint32_t)tier_blocks
               : AGENT_TOKEN_BLOCKS_MAX;
}

static void check_tiers(struct option_set *set, const struct agent_options *options)
{
    gid_t group;

    if (options->cpu_bytes > 0 && options->ipc_socket[0] == '\0')
        option_set_refuse(set, "cpu-bytes", "engines have no way to these tiers",
                          "add --ipc-socket /run/samovar/agent.sock, and name it to the engines");
    if (options->cpu_bytes == 0 && options->ipc_socket[0] != '\0')
        option_set_refuse(set, "ipc-socket", "there are no tiers that engines could come to",
                          "add --cpu-bytes, or leave --ipc-socket out");
    if (options->ssd_bytes > 0 && options->cpu_bytes == 0)
        option_set_refuse(set, "ssd-bytes", "blocks come to the SSD by CPU memory, and go by it",
                          "add --cpu-bytes");
    if (options->ssd_bytes > 0 && options->ssd_dir[0] == '\0')
        option_set_refuse(set, "ssd-bytes", "there is no place to keep them",
                          "add --ssd-dir with a directory of the agent's own");
    if (options->ssd_bytes == 0 && options->ssd_dir[0] != '\0')
        option_set_refuse(set, "ssd-dir", "nothing is kept there without a size",
                          "add --ssd-bytes, the most that may lie there");
    if (options->ipc_group[0] != '\0' && ipc_socket_find_group(options->ipc_group, &group) < 0)
        option_set_refuse(set, "ipc-group", "this system has no such group",
                          "write the name of one in /etc/group, or its number");
}

/* What no single option can see. */
static void check_together(struct option_set *set, const struct agent_options *options)
{
    struct engine_spec specs[ENGINE_WORKER_COUNT_MAX];
    char why[ENGINE_SPEC_WHY_BYTES];
    struct engine_lists lists = agent_options_engines(options);
    const char *option;

    if (engine_specs_make(&lists, specs, &option, why) < 0)
        option_set_refuse(set, option, why, "");
    check_tiers(set, options);
    if (options->token_blocks_max > 0 && options->token_blocks_max < TOKEN_BLOCKS_MIN)
        option_set_refuse(set, "token-blocks-max", "hardly a prompt would be known",
                          "write at least 1024, or leave it out: then it follows from the tiers");
    if (options->redis[0] == '\0')
        option_set_refuse(set, "redis", "there is no map to report to",
                          "add --redis redis://host:6379");
    if (options->secret_file[0] == '\0')
        option_set_refuse(set, "secret-file", "names cannot be made without the cluster's secret",
                          "add --secret-file FILE, the same as the routers'");
}

int agent_options_parse(struct option_set *set, const struct agent_option_table *table,
                        struct agent_options *options, struct options_input input)
{
    option_set_init(set, &table->table, options);
    option_set_read_flags(set, input.argc, input.argv);
    if (options->help || options->version || options->man)
        return EXIT_CODE_OK;
    option_set_read_env(set, input.envp);
    if (options->config[0] != '\0')
        option_set_read_file(set, options->config);
    if (!option_set_has_errors(set))
        check_together(set, options);
    return option_set_exit_code(set);
}

int agent_options_help(const struct agent_option_table *table, struct buf *out)
{
    int status = buf_append(
        out,
        SLICE("Usage: samovar-agent --engine URL --kv-events ENDPOINT --redis URL "
              "--secret-file FILE [OPTION ...]\n"
              "\n"
              "Tells routers what the engines of this node hold in their caches, and keeps for\n"
              "them what these have no more room for.\n"
              "A flag wins over the environment, that over the file, that over the "
              "default.\n"));

    return status < 0 ? status : option_table_help(&table->table, out);
}

static const char man_head[] =
    ".TH SAMOVAR\\-AGENT 1 \"\" \"Samovar " SAMOVAR_VERSION "\"\n"
    ".ad l\n"
    ".SH NAME\n"
    "samovar\\-agent \\- tell routers what the engines of this node hold in their caches\n"
    ".SH SYNOPSIS\n"
    ".B samovar\\-agent \\-\\-engine\n"
    ".I URL\n"
    ".B \\-\\-kv\\-events\n"
    ".I ENDPOINT\n"
    ".B \\-\\-redis\n"
    ".I URL\n"
    ".B \\-\\-secret\\-file\n"
    ".I FILE\n"
    "[\\fIOPTION\\fR ...]\n"
    ".SH DESCRIPTION\n"
    "Listens to what inference servers publish about their KV caches, joins their blocks of "
    "tokens\n"
    "with the blocks of text that routers know, and keeps a map of them in Redis up to date.\n"
    ".PP\n"
    "With \\-\\-cpu\\-bytes it keeps blocks of engines in CPU memory, and with \\-\\-ssd\\-bytes "
    "on\n"
    "SSD, and gives them back: engines load its connector and reach it by \\-\\-ipc\\-socket.\n"
    ".PP\n"
    "A flag wins over the environment, that over the file, that over the default. All mistakes "
    "are\n"
    "told at once.\n";

static const char man_tail[] =
    ".SH FILES\n"
    "The file that \\-\\-config names is YAML: one line `name: value` an option, by the names "
    "above\n"
    "without dashes; lists as [a, b], or one `\\- value` a line. Lists about engines have the\n"
    "order of `engine`.\n"
    ".PP\n"
    ".nf\n"
    "engine:\n"
    "  \\- http://127.0.0.1:8000\n"
    "  \\- http://127.0.0.1:8001\n"
    "advertise: [http://10.0.0.1:8000, http://10.0.0.1:8001]\n"
    "kv\\-events: [tcp://127.0.0.1:5557, tcp://127.0.0.1:5567]\n"
    "kv\\-replay: [tcp://127.0.0.1:5558, tcp://127.0.0.1:5568]\n"
    "redis: redis://agent@10.0.0.9\n"
    ".fi\n"
    ".SH SIGNALS\n"
    ".TP\n"
    ".B SIGTERM, SIGINT\n"
    "Saves its state, takes back what it claims, and ends.\n"
    ".SH WHAT IT SAYS\n"
    "Its log is standard error. By HTTP on \\-\\-admin\\-host and \\-\\-admin\\-port:\n"
    ".TP\n"
    ".B /metrics\n"
    "all that it counts, for Prometheus\n"
    ".TP\n"
    ".B /ready\n"
    "200 while routers can believe it, else 503 and why not\n"
    ".TP\n"
    ".B /health\n"
    "200 while it lives\n"
    ".TP\n"
    ".B /tiers\n"
    "how the tiers beneath its engines are, in sentences, and what to do about what is wrong: "
    "the same\n"
    "as `samovar show tiers`\n"
    ".SH EXIT STATUS\n"
    "0 ended well, 1 failed, 2 wrong flags, 3 wrong file or environment, 4 an address cannot be\n"
    "listened on.\n"
    ".SH SEE ALSO\n"
    ".B samovar\\-router\\fR(1)\n";

int agent_options_man(const struct agent_option_table *table, struct buf *out)
{
    int status = buf_append(out, slice_of_string(man_head));

    if (status == 0)
        status = option_table_man(&table->table, out);
    return status < 0 ? status : buf_append(out, slice_of_string(man_tail));
}

/* ---- doubts ---- */

static void doubt(const char *option, const char *why, const char *advice)
{
    LOG(LOG_WARN, "option_doubtful", log_text("option", option), log_text("why", why),
        log_text("advice", advice));
}

/* A router on another machine would send its requests to itself. */
static bool is_any_unreachable(const struct agent_options *options)
{
    const struct option_list *list =
        options->advertise.count > 0 ? &options->advertise : &options->engine;
    char ignored[WORKER_URL_WHY_BYTES];
    struct worker_url url;
    struct redis_url redis;

    if (redis_url_parse(slice_of_string(options->redis), &redis, ignored) < 0 ||
        redis.host[0] == '\0' || tcp_is_loopback(redis.host))
        return false; /* all of it runs on one machine */
    for (size_t i = 0; i < list->count; i++)
        if (worker_url_parse(slice_of_string(list->items[i]), &url, ignored) == 0 &&
            tcp_is_loopback(url.host))
            return true;
    return false;
}

static void doubt_tiers(const struct agent_options *options)
{
    if (options->cpu_bytes > machine_read().memory_bytes / 10 * 9)
        doubt("cpu-bytes", "this machine has hardly more memory in all",
              "leave some to the engines and the system, or processes will be killed");
    if (options->ssd_bytes > 0 && options->ssd_bytes < options->cpu_bytes)
        doubt("ssd-bytes", "an SSD smaller than the CPU memory above it holds little else",
              "make it several times --cpu-bytes, or leave it out");
    if (options->ssd_bytes > 0 && !options->page_checksums)
        doubt("page-checksums", "a bit that flips in CPU memory is written to the SSD as if right",
              "leave it on where blocks stay for long");
}

void agent_options_log_doubts(const struct agent_options *options)
{
    doubt_tiers(options);
    if (!tcp_is_loopback(options->admin_host))
        doubt("admin-host", "whoever reaches this address reads the metrics: it has no password",
              "use 127.0.0.1, or an address that only the operators reach");
    if (is_any_unreachable(options))
        doubt("advertise", "routers on other machines cannot reach a loopback address",
              "name the address that they reach the engine at");
    if (options->kv_replay.count == 0)
        doubt("kv-replay",
              "what a warm engine holds is not known, and each lost message costs all that is",
              "give engines a replay_endpoint (vLLM: --kv-events-config), and name it here");
    if (options->state_dir[0] == '\0')
        doubt("state-dir",
              "a restart of the agent forgets how text and tokens are joined, and after a crash "
              "waits until its lease is over, 3 s",
              "name a directory of its own");
}
