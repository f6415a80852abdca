/* SPDX-License-Identifier: Apache-2.0 */

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backends/json/json_scan.h"
#include "backends/runtime/arena.h"
#include "hashing/digest.h"
#include "hashing/rendezvous.h"
#include "hashing/stream_identity.h"
#include "router/api/api_request.h"
#include "router/cli/command.h"
#include "router/policy/affinity.h"
#include "router/policy/ladder.h"
#include "router/policy/policy.h"
#include "router/policy/policy_defaults.h"
#include "router/policy/prefill_rate.h"
#include "router/policy/tier_cost.h"
#include "router/prompt/prompt_root.h"
#include "router/prompt/prompt_stream.h"
#include "router/prompt/tool_place.h"

/*
 * DESIGN
 *
 * The router's own parser, stream, chain and policy over files: nothing is imitated. Only the
 * secret is another one (a router draws its own), so the hashes are not a router's; which prompts
 * share which blocks does not depend on it. Nor is an engine asked where a model's template prints
 * tools, so of such as print them late that has to be said (--tool-place).
 */

enum {
    FILE_COUNT_MAX = 32,
    WORKER_COUNT_SHOWN_MAX = 64,
    BODY_BYTES_MAX = 32 << 20,
    ARENA_BYTES_MAX = 64 << 20,
    BLOCK_COUNT_MAX = 1 << 17,
};

static const char usage[] =
    "Usage: samovar explain [--api NAME] [FILE ...] [--worker NAME[,KEY=NUMBER ...] ...]\n"
    "                       [--policy NAME] [--session NAME] [--tool-place PLACE]\n"
    "\n"
    "Reads request bodies (JSON; - or nothing: standard input) and shows their blocks and how\n"
    "many each shares with the earlier ones. --api chat, completions, responses or messages says\n"
    "whose the files behind it are; without it that is taken from their fields. With workers,\n"
    "ranks them for the last body as a router would. Keys of a worker: matched (leading blocks it\n"
    "holds), claimed (of them, by an agent that is believed), ssd (the last of those, on SSD),\n"
    "cpu (those before them, in CPU memory), pending (the last of matched, still being made),\n"
    "queued (uncached prompt tokens ahead), in-flight (requests), decoding, running, waiting,\n"
    "rate (prefill tokens per ms; without it that of the others); of its tiers: token-bytes,\n"
    "cpu-rate and ssd-rate (bytes per s), cpu-start, ssd-start, cpu-queue and ssd-queue (ms).\n"
    "--session is what a session header of the last request says: where no worker holds any of\n"
    "it, the session's own worker has the rung affinity, and CREDIT ms less to compare. Which\n"
    "worker that is depends on their names: write them as urls, http://host:port. --tool-place is\n"
    "where the model's template prints tools: first (if it is not said), before_last_user or\n"
    "behind_last_user. A router asks its workers, and logs it (tool_place_learned) if it is late.\n"
    "Exit codes: 0 fine, 1 a body cannot be read or means nothing, 2 wrong usage.\n";

struct shown_worker {
    const char *text; /* NAME and what follows */
    int name_len;
    struct worker_view view;
    double matched_blocks; /* leading ones that it holds */
    double claimed_blocks; /* of them, by its agent, which is believed */
    double pending_blocks; /* of them, the last ones, still being made */
    double ssd_blocks;     /* of the claimed ones the last, on SSD */
    double cpu_blocks;     /* and those before them, in CPU memory */
    struct tier_facts tiers;
};

struct prompt {
    const char *file;
    enum api api; /* as asked for; API_COUNT: as the body looks */
    struct prompt_blocks blocks;
    struct api_request request; /* its slices are gone with the body: only api is read */
    uint64_t root;
    char model[128];
};

struct explain {
    size_t file_count; /* of prompts[] */
    enum api api;      /* of the files to come */
    enum tool_place tool_place;
    struct shown_worker workers[WORKER_COUNT_SHOWN_MAX];
    size_t worker_count;
    const struct policy *policy;
    const char *session; /* NULL: none */
    bool wants_help;
    struct arena arena;
    struct prompt prompts[FILE_COUNT_MAX];
    uint8_t secret[BLOCK_CHAIN_SECRET_BYTES];
};

/* ---- arguments ---- */

static uint32_t us_of_ms(double ms)
{
    return ms * 1e3 < UINT32_MAX ? (uint32_t)(ms * 1e3) : UINT32_MAX;
}

/* False: it is no key of its tiers, or a rate. */
static bool set_tier_key(struct shown_worker *worker, struct slice name, double number)
{
    if (slice_eq(name, SLICE("ssd")))
        worker->ssd_blocks = number;
    else if (slice_eq(name, SLICE("cpu")))
        worker->cpu_blocks = number;
    else if (slice_eq(name, SLICE("token-bytes")))
        worker->tiers.bytes_per_token = (uint32_t)number;
    else if (slice_eq(name, SLICE("cpu-start")))
        worker->tiers.cpu_start_us = us_of_ms(number);
    else if (slice_eq(name, SLICE("ssd-start")))
        worker->tiers.ssd_start_us = us_of_ms(number);
    else if (slice_eq(name, SLICE("cpu-queue")))
        worker->tiers.cpu_queue_ms = (uint32_t)number;
    else if (slice_eq(name, SLICE("ssd-queue")))
        worker->tiers.ssd_queue_ms = (uint32_t)number;
    else
        return false;
    return true;
}

static int set_key(struct shown_worker *worker, const char *key, size_t key_len, double number)
{
    struct slice name = slice_of(key, key_len);

    if (slice_eq(name, SLICE("cpu-rate"))) {
        worker->tiers.cpu_bytes_per_s = (uint64_t)number;
        return 0;
    }
    if (slice_eq(name, SLICE("ssd-rate"))) {
        worker->tiers.ssd_bytes_per_s = (uint64_t)number;
        return 0;
    }
    if (number >= 1e9) /* of rates only */
        return -EINVAL;
    if (set_tier_key(worker, name, number))
        return 0;
    if (slice_eq(name, SLICE("matched"))) {
        worker->matched_blocks = number;
    } else if (slice_eq(name, SLICE("claimed"))) {
        worker->claimed_blocks = number;
    } else if (slice_eq(name, SLICE("pending"))) {
        worker->pending_blocks = number;
    } else if (slice_eq(name, SLICE("queued"))) {
        worker->view.queued_tokens = number;
    } else if (slice_eq(name, SLICE("in-flight"))) {
        worker->view.in_flight = (uint32_t)number;
    } else if (slice_eq(name, SLICE("decoding"))) {
        worker->view.decoding = (uint32_t)number;
    } else if (slice_eq(name, SLICE("running")) || slice_eq(name, SLICE("waiting"))) {
        worker->view.has_report = true;
        *(name.ptr[0] == 'r' ? &worker->view.reported_running : &worker->view.reported_waiting) =
            (uint32_t)number;
    } else if (slice_eq(name, SLICE("rate")) && number > 0) {
        worker->view.prefill_tokens_per_ms = number;
    } else {
        return -EINVAL;
    }
    return 0;
}

/* NAME[,KEY=NUMBER ...] */
static int read_worker(struct explain *explain, const char *text)
{
    struct shown_worker *worker = &explain->workers[explain->worker_count];
    const char *at = text + strcspn(text, ",");

    if (explain->worker_count == WORKER_COUNT_SHOWN_MAX || at == text) {
        fprintf(stderr, "samovar explain: --worker needs a name; at most %d workers\n",
                WORKER_COUNT_SHOWN_MAX);
        return -EINVAL;
    }
    *worker = (struct shown_worker){
        .text = text,
        .name_len = (int)(at - text),
        .view = {.worker = (uint32_t)explain->worker_count,
                 .name_hash = rendezvous_id(text, (size_t)(at - text)),
                 .decode_ms_per_token = POLICY_DECODE_MS_PER_TOKEN_DEFAULT,
                 .decode_ms_per_request = POLICY_DECODE_MS_PER_REQUEST_DEFAULT,
                 .start_weight = 1},
    };
    while (*at == ',') {
        const char *key = at + 1;
        size_t key_len = strcspn(key, "=,");
        char *end = NULL;
        double number = key[key_len] == '=' ? strtod(key + key_len + 1, &end) : -1;

        if (end == NULL || end == key + key_len + 1 || (*end != ',' && *end != '\0') ||
            !(number >= 0 && number < 1e15) || set_key(worker, key, key_len, number) < 0) {
            fprintf(stderr, "samovar explain: --worker %s: \"%.*s\" is not understood\n%s", text,
                    (int)strcspn(key, ","), key, usage);
            return -EINVAL;
        }
        at = end;
    }
    explain->worker_count++;
    return 0;
}

static int read_policy(struct explain *explain, const char *name)
{
    explain->policy = policy_find(name);
    if (explain->policy != NULL)
        return 0;
    fprintf(stderr, "samovar explain: there is no policy \"%s\"; write one of", name);
    for (size_t i = 0; policy_list()[i] != NULL; i++)
        fprintf(stderr, " %s", policy_list()[i]->name);
    fputc('\n', stderr);
    return -EINVAL;
}

/* The APIs whose prompts have names. */
static int read_api(struct explain *explain, const char *name)
{
    for (enum api api = 0; api < API_COUNT; api++) {
        if (api_work(api) == API_WORK_GENERATE && strcmp(api_name(api), name) == 0) {
            explain->api = api;
            return 0;
        }
    }
    fprintf(stderr, "samovar explain: --api %s: write chat, completions, responses or messages\n",
            name);
    return -EINVAL;
}

static int read_tool_place(struct explain *explain, const char *name)
{
    for (enum tool_place place = 0; place < TOOL_PLACE_COUNT; place++) {
        if (strcmp(tool_place_name(place), name) == 0) {
            explain->tool_place = place;
            return 0;
        }
    }
    fprintf(stderr,
            "samovar explain: --tool-place %s: write first, before_last_user or behind_last_user\n",
            name);
    return -EINVAL;
}

static void add_file(struct explain *explain, const char *path)
{
    explain->prompts[explain->file_count++] = (struct prompt){.file = path, .api = explain->api};
}

static int read_arguments(struct explain *explain, int argc, const char *const *argv)
{
    int status = 0;

    explain->policy = policy_list()[0];
    explain->api = API_COUNT;
    for (int i = 1; i < argc && status == 0; i++) {
        if (strcmp(argv[i], "--worker") == 0 && i + 1 < argc) {
            status = read_worker(explain, argv[++i]);
        } else if (strncmp(argv[i], "--worker=", 9) == 0) {
            status = read_worker(explain, argv[i] + 9);
        } else if (strcmp(argv[i], "--policy") == 0 && i + 1 < argc) {
            status = read_policy(explain, argv[++i]);
        } else if (strncmp(argv[i], "--policy=", 9) == 0) {
            status = read_policy(explain, argv[i] + 9);
        } else if (strcmp(argv[i], "--session") == 0 && i + 1 < argc) {
            explain->session = argv[++i];
        } else if (strncmp(argv[i], "--session=", 10) == 0) {
            explain->session = argv[i] + 10;
        } else if (strcmp(argv[i], "--api") == 0 && i + 1 < argc) {
            status = read_api(explain, argv[++i]);
        } else if (strncmp(argv[i], "--api=", 6) == 0) {
            status = read_api(explain, argv[i] + 6);
        } else if (strcmp(argv[i], "--tool-place") == 0 && i + 1 < argc) {
            status = read_tool_place(explain, argv[++i]);
        } else if (strncmp(argv[i], "--tool-place=", 13) == 0) {
            status = read_tool_place(explain, argv[i] + 13);
        } else if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            explain->wants_help = true;
        } else if ((argv[i][0] == '-' && argv[i][1] != '\0') ||
                   explain->file_count == FILE_COUNT_MAX) {
            fprintf(stderr, "samovar explain: \"%s\" is not understood (at most %d files)\n%s",
                    argv[i], FILE_COUNT_MAX, usage);
            status = -EINVAL;
        } else {
            add_file(explain, argv[i]);
        }
    }
    if (explain->file_count == 0)
        add_file(explain, "-");
    return status;
}

/* ---- bodies ---- */

static int read_body(const char *path, struct buf *body)
{
    FILE *file = strcmp(path, "-") == 0 ? stdin : fopen(path, "re");
    char piece[65536];
    size_t count;
    int status = 0;

    if (file == NULL)
        return -errno;
    while (status == 0 && (count = fread(piece, 1, sizeof piece, file)) > 0)
        status = buf_append(body, slice_of(piece, count));
    if (ferror(file))
        status = -EIO;
    if (file != stdin)
        fclose(file);
    return status;
}

static bool has(struct json_value value, const char *key)
{
    return json_type(json_get(value, key)) != JSON_NONE;
}

/* A tool with its schema at the top is one of the messages API. */
static bool is_flat_tool(struct json_value tools)
{
    struct json_iterator elements = json_iterate(tools);
    struct json_value first;

    return json_next_element(&elements, &first) && has(first, "input_schema");
}

/* A body says by its fields what it is, so mostly nobody has to. Where two APIs would do, it is a
 * chat. */
static enum api api_of(struct json_scanner *scanner, struct slice body)
{
    struct json_value root;
    struct parse_error error;

    if (json_scan(scanner, body, &root, &error) < 0)
        return API_CHAT;
    if (has(root, "messages"))
        return has(root, "system") || is_flat_tool(json_get(root, "tools")) ? API_MESSAGES
                                                                            : API_CHAT;
    if (has(root, "input"))
        return API_RESPONSES;
    return has(root, "prompt") ? API_COMPLETIONS : API_CHAT;
}

static int name_blocks(struct explain *explain, struct prompt *prompt, struct json_scanner *scanner,
                       struct slice body)
{
    struct prompt_stream_config config = {explain->secret, STREAM_BLOCK_BYTES, STREAM_CUT_BYTES_MIN,
                                          explain->tool_place};
    enum api api = prompt->api < API_COUNT ? prompt->api : api_of(scanner, body);
    struct api_fault fault;
    int status = api_request_parse(api, scanner, body, &prompt->request, &fault);

    if (status == 0)
        status = prompt_stream_write(config, &prompt->request, &explain->arena, BLOCK_COUNT_MAX,
                                     &prompt->blocks, &fault);
    if (status == -EINVAL)
        fprintf(stderr, "samovar explain: %s: %s\n", prompt->file, fault.message);
    else if (status < 0)
        fprintf(stderr, "samovar explain: %s: %s\n", prompt->file, strerror(-status));
    if (status < 0)
        return status;
    prompt->root = prompt_root(explain->secret, &prompt->request);
    snprintf(prompt->model, sizeof prompt->model, "%.*s", (int)prompt->request.model.len,
             prompt->request.model.len > 0 ? prompt->request.model.ptr : "");
    return 0;
}

static int read_prompt(struct explain *explain, struct prompt *prompt)
{
    struct json_scanner *scanner = json_scanner_create();
    struct buf body;
    int status;

    buf_init(&body, BODY_BYTES_MAX);
    status = read_body(prompt->file, &body);
    if (status < 0)
        fprintf(stderr, "samovar explain: %s: %s\n", prompt->file, strerror(-status));
    else if (scanner == NULL || buf_reserve(&body, 1) < 0) /* an empty body has an address too */
        status = -ENOMEM;
    else
        status = name_blocks(explain, prompt, scanner, buf_slice(&body));
    buf_release(&body);
    json_scanner_destroy(scanner);
    return status;
}

/* ---- output ---- */

static size_t shared_count(const struct prompt_blocks *a, const struct prompt_blocks *b)
{
    size_t count = 0;

    while (count < a->block_count && count < b->block_count &&
           a->blocks[count].hash == b->blocks[count].hash)
        count++;
    return count;
}

static void print_prompt(const struct explain *explain, size_t index)
{
    const struct prompt *prompt = &explain->prompts[index];
    const struct prompt_blocks *blocks = &prompt->blocks;
    uint64_t start = 0;

    printf("%s: %s, model %s, root %016" PRIx64 ", %" PRIu64 " bytes, %zu blocks\n", prompt->file,
           api_name(prompt->request.api), prompt->model[0] == '\0' ? "(none)" : prompt->model,
           prompt->root, blocks->bytes, blocks->block_count);
    printf("  %s, %" PRIu32 " of at most %" PRIu64 " tokens%s\n",
           prompt->request.is_stream ? "a stream" : "an answer at once",
           prompt->request.choice_count, prompt->request.answer_tokens_max,
           prompt->request.wants_usage ? ", with usage" : "");
    for (size_t i = 0; i < blocks->block_count; i++) {
        printf("  %5zu  %016" PRIx64 "  %8" PRIu64 " .. %" PRIu64 "%s\n", i, blocks->blocks[i].hash,
               start, blocks->blocks[i].end, i >= blocks->closed_count ? "  (end)" : "");
        start = blocks->blocks[i].end;
    }
    for (size_t i = 0; i < index; i++) {
        size_t shared = shared_count(&explain->prompts[i].blocks, blocks);
        uint64_t bytes = shared == 0 ? 0 : blocks->blocks[shared - 1].end;

        printf("  shares the first %zu blocks (%" PRIu64 " bytes) with %s\n", shared, bytes,
               explain->prompts[i].file);
    }
}

static double prompt_tokens(const struct prompt_blocks *blocks)
{
    return blocks->token_ids > 0 ? (double)blocks->token_ids
                                 : (double)blocks->bytes * POLICY_TOKENS_PER_BYTE_DEFAULT;
}

/* The end of the first count blocks, or of all. */
static uint64_t end_of(const struct prompt_blocks *blocks, double count)
{
    size_t last = count < (double)blocks->block_count ? (size_t)count : blocks->block_count;

    return last > 0 ? blocks->blocks[last - 1].end : 0;
}

/* How many of prompt's tokens lie between its first count blocks and the first less of them. */
static double tokens_between(const struct ladder_prompt *prompt, const struct prompt_blocks *blocks,
                             double count, double less)
{
    uint64_t bytes = end_of(blocks, count) - end_of(blocks, count > less ? count - less : 0);

    return prompt->bytes > 0 ? prompt->tokens * (double)bytes / (double)prompt->bytes : 0;
}

static void fill_view(struct shown_worker *worker, const struct prompt_blocks *blocks)
{
    struct ladder_prompt prompt = {blocks->bytes, prompt_tokens(blocks)};
    uint64_t claimed = end_of(blocks, worker->claimed_blocks);
    uint64_t matched = end_of(blocks, worker->matched_blocks);
    double settled_blocks = worker->matched_blocks - worker->pending_blocks;
    double above_ssd = worker->claimed_blocks - worker->ssd_blocks;
    struct ladder_facts facts = {
        .is_believed = worker->claimed_blocks > 0,
        .claimed_bytes = claimed,
        /* as an agent would count them */
        .claimed_tokens =
            blocks->bytes > 0 ? prompt.tokens * (double)claimed / (double)blocks->bytes : 0,
        .claimed_cpu_tokens =
            tokens_between(&prompt, blocks, above_ssd > 0 ? above_ssd : 0, worker->cpu_blocks),
        .claimed_ssd_tokens =
            tokens_between(&prompt, blocks, worker->claimed_blocks, worker->ssd_blocks),
        .guessed_bytes = matched > claimed ? matched - claimed : 0,
        .pending_bytes = matched - end_of(blocks, settled_blocks > 0 ? settled_blocks : 0),
    };
    struct ladder_step step = ladder_step_of(&prompt, &facts);

    worker->view.rung = step.rung;
    worker->view.matched_tokens = step.matched_tokens;
    worker->view.pending_tokens = step.pending_tokens;
    worker->view.near_tokens = step.near_tokens;
    worker->view.cpu = tier_cost_cpu(&worker->tiers, step.cpu_tokens);
    worker->view.ssd = tier_cost_ssd(&worker->tiers, step.ssd_tokens);
}

static void rank(struct explain *explain)
{
    const struct prompt_blocks *blocks = &explain->prompts[explain->file_count - 1].blocks;
    struct worker_view views[WORKER_COUNT_SHOWN_MAX];
    struct route_terms terms[WORKER_COUNT_SHOWN_MAX];
    uint32_t order[WORKER_COUNT_SHOWN_MAX];
    struct route_query query = {.prompt_tokens = prompt_tokens(blocks)};
    struct policy_state *state = policy_state_create(explain->policy, 1);
    bool is_known = false;

    for (size_t i = 0; i < explain->worker_count; i++) {
        fill_view(&explain->workers[i], blocks);
        views[i] = explain->workers[i].view;
        is_known |= views[i].matched_tokens > 0;
    }
    prefill_rate_fill(views, explain->worker_count);
    if (!is_known && explain->worker_count > 1) {
        const char *session = explain->session != NULL ? explain->session : "";

        affinity_choose(&query, *session != '\0' ? affinity_session(session, strlen(session)) : 0,
                        blocks->block_count > 0 ? blocks->blocks[0].hash : 0);
        affinity_mark(&query, views, explain->worker_count);
    }
    explain->policy->choose(state, &query, views, explain->worker_count, order, terms);
    printf("\npolicy %s, about %.0f prompt tokens; milliseconds\n", explain->policy->name,
           query.prompt_tokens);
    printf("  %-4s  %-24s  %-8s  %8s  %8s  %8s  %8s  %8s  %8s  %8s  %8s  %8s\n", "RANK", "WORKER",
           "RUNG", "MATCHED", "CPU", "SSD", "QUEUE", "MOVE", "PREFILL", "DECODE", "TOTAL",
           "CREDIT");
    for (size_t i = 0; i < explain->worker_count; i++) {
        const struct shown_worker *worker = &explain->workers[order[i]];
        const struct route_terms *term = &terms[order[i]];

        printf("  %-4zu  %-24.*s  %-8s  %8.0f  %8.0f  %8.0f  %8.1f  %8.1f  %8.1f  %8.1f  %8.1f  "
               "%8.1f\n",
               i + 1, worker->name_len, worker->text, route_rung_name(views[order[i]].rung),
               worker->view.matched_tokens, worker->view.cpu.tokens, worker->view.ssd.tokens,
               term->queue_ms, term->move_ms, term->prefill_ms, term->decode_ms, term->total_ms,
               term->affinity_ms - term->copy_ms);
    }
    policy_state_destroy(state);
}

static int run(struct explain *explain)
{
    static const char key[] = "samovar explain";

    digest_secret_derive(explain->secret, (const uint8_t *)key, sizeof key);
    for (size_t i = 0; i < explain->file_count; i++) {
        if (read_prompt(explain, &explain->prompts[i]) < 0)
            return EXIT_CODE_FAILED;
        print_prompt(explain, i);
    }
    if (explain->worker_count > 0)
        rank(explain);
    return fflush(stdout) == 0 ? EXIT_CODE_OK : EXIT_CODE_FAILED;
}

int command_explain(int argc, const char *const *argv)
{
    struct explain *explain = calloc(1, sizeof *explain);
    int code = EXIT_CODE_USAGE;

    if (explain == NULL)
        return EXIT_CODE_FAILED;
    arena_init(&explain->arena, ARENA_BYTES_MAX);
    if (read_arguments(explain, argc, argv) == 0) {
        if (explain->wants_help)
            code = fputs(usage, stdout) >= 0 ? EXIT_CODE_OK : EXIT_CODE_FAILED;
        else
            code = run(explain);
    }
    arena_release(&explain->arena);
    free(explain);
    return code;
}
