/* SPDX-License-Identifier: Apache-2.0 */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/http/http_fetch.h"
#include "backends/io_loop.h"
#include "backends/json/json_scan.h"
#include "backends/worker_url.h"
#include "router/cli/command.h"

#define ROUTER_ADMIN "http://127.0.0.1:9091"

enum { TIMEOUT_MS = 5000, BODY_BYTES_MAX = 16 << 20 };

static const char usage[] =
    "Usage: samovar show workers|residency|tiers [--admin http://HOST:PORT] [--json]\n"
    "\n"
    "Asks a running router's admin listener (http://127.0.0.1:9091 if not given) for its workers,\n"
    "or for what their agents say they hold, who is believed, and why not. Asks an agent's\n"
    "(http://127.0.0.1:9092) how the tiers beneath its engines are, and what to do about it.\n"
    "--json prints the answer as it came.\n"
    "Exit codes: 0 fine, 1 no usable answer, 2 wrong usage.\n";

/* What can be asked for. */
struct subject {
    const char *name;
    const char *whose;                     /* who has the admin listener */
    const char *admin;                     /* where it is, unless it is said */
    const char *target;                    /* of it */
    void (*print)(struct json_value root); /* NULL: the answer is text for people already */
};

struct arguments {
    const struct subject *subject;
    const char *admin;
    bool is_json;
    bool wants_help;
};

/* The answer, kept beyond the call that brings it. */
struct answer {
    int error;
    int status;
    struct buf body;
};

static void on_done(void *ctx, int error, int status, struct slice body)
{
    struct answer *answer = ctx;

    answer->error = error;
    answer->status = status;
    if (error == 0)
        answer->error = buf_append(&answer->body, body);
}

/* Fills answer; its error says what went wrong. */
static void fetch(const struct sockaddr_storage *address, const char *authority, const char *target,
                  struct answer *answer)
{
    struct io_loop *io = malloc(sizeof *io); /* its read buffer is too large for the stack */
    struct http_fetch_request request = {.address = address,
                                         .authority = authority,
                                         .target = target,
                                         .timeout_ms = TIMEOUT_MS,
                                         .body_bytes_max = BODY_BYTES_MAX};

    if (io == NULL || io_loop_init(io) < 0 ||
        http_fetch_get(&io->loop, request, on_done, answer) == NULL) {
        fputs("samovar show: out of memory\n", stderr);
        abort();
    }
    /* The tick keeps the deadline; it is stopped when nothing else is left to wait for. */
    while (answer->error == -EINPROGRESS)
        uv_run(&io->loop, UV_RUN_ONCE);
    io_loop_stop_tick(io);
    uv_run(&io->loop, UV_RUN_DEFAULT);
    io_loop_release(io);
    free(io);
}

static struct slice text_of(struct json_value worker, const char *key)
{
    return json_string(json_get(worker, key));
}

static void print_ratio(int64_t part, int64_t whole)
{
    if (whole > 0)
        printf("  %7.1f%%", 100.0 * (double)part / (double)whole);
    else
        printf("  %8s", "-");
}

static void print_worker(struct json_value worker)
{
    struct slice url = text_of(worker, "url"), state = text_of(worker, "state");
    struct slice engine = text_of(worker, "engine");
    struct json_value report = json_get(worker, "report");
    int64_t prompt = json_int64(json_get(worker, "prompt_tokens_total"));

    printf("%-32.*s  %-8.*s  %-7.*s", (int)url.len, url.ptr, (int)state.len, state.ptr,
           (int)engine.len, engine.ptr);
    printf("  %9lld  %7.0f  %8lld  %8lld", (long long)json_int64(json_get(worker, "in_flight")),
           json_double(json_get(worker, "queued_tokens")),
           (long long)json_int64(json_get(worker, "chosen_total")),
           (long long)json_int64(json_get(worker, "failures_total")));
    print_ratio(json_int64(json_get(worker, "cached_tokens_total")), prompt);
    print_ratio(json_int64(json_get(worker, "prediction_error_tokens_total")), prompt);
    if (json_type(report) == JSON_OBJECT)
        printf("  %lld/%lld", (long long)json_int64(json_get(report, "running")),
               (long long)json_int64(json_get(report, "waiting")));
    else
        printf("  -");
    putchar('\n');
}

static void print_workers(struct json_value root)
{
    struct json_iterator workers = json_iterate(json_get(root, "workers"));
    struct json_value worker;

    printf("%-32s  %-8s  %-7s  %9s  %7s  %8s  %8s  %8s  %8s  %s\n", "WORKER", "STATE", "ENGINE",
           "IN_FLIGHT", "QUEUED", "CHOSEN", "FAILURES", "CACHED", "ERROR", "RUNNING/WAITING");
    while (json_next_element(&workers, &worker))
        print_worker(worker);
}

static long long number_of(struct json_value object, const char *key)
{
    return (long long)json_int64(json_get(object, key));
}

static void print_replica(struct json_value worker)
{
    struct slice url = text_of(worker, "url"), state = text_of(worker, "state");
    struct slice doubt = text_of(worker, "doubt"), last = text_of(worker, "last_break");
    struct slice node = text_of(json_get(worker, "agent"), "node");
    bool is_believed = slice_eq(doubt, SLICE("none"));

    if (node.len == 0)
        node = SLICE("-");
    printf("%-32.*s  %-16.*s  %-9.*s  %-12.*s", (int)url.len, url.ptr, (int)node.len, node.ptr,
           (int)state.len, state.ptr, is_believed ? 3 : (int)doubt.len,
           is_believed ? "yes" : doubt.ptr);
    printf("  %9lld  %9lld  %9lld  %9lld  %10lld  %5lld  %6.1f%%  %6lld",
           number_of(worker, "records"), number_of(worker, "hbm"), number_of(worker, "cpu"),
           number_of(worker, "ssd"), number_of(worker, "sequence"), number_of(worker, "lag"),
           100 * json_double(json_get(worker, "missing")), number_of(worker, "breaks_total"));
    if (last.len > 0)
        printf("  %.*s\n", (int)last.len, last.ptr);
    else
        printf("  -\n");
}

/* What its agent measured; a dash: nothing yet, and a router takes its defaults. */
static void print_measured(double value)
{
    if (value > 0)
        printf("  %10.1f", value);
    else
        printf("  %10s", "-");
}

static void print_cost(struct json_value worker)
{
    struct json_value agent = json_get(worker, "agent");
    struct slice url = text_of(worker, "url");

    printf("%-32.*s  %11lld", (int)url.len, url.ptr, number_of(agent, "bytes_per_token"));
    print_measured((double)number_of(agent, "cpu_start_us") / 1e3);
    print_measured((double)number_of(agent, "cpu_bytes_per_s") / 1e6);
    print_measured((double)number_of(agent, "ssd_start_us") / 1e3);
    print_measured((double)number_of(agent, "ssd_bytes_per_s") / 1e6);
    print_measured((double)number_of(agent, "prefill_tokens_per_s") / 1e3);
    putchar('\n');
}

/* Of workers with tiers: what to bring a token nearer costs, and to compute it. */
static void print_costs(struct json_value root)
{
    struct json_iterator workers = json_iterate(json_get(root, "workers"));
    struct json_value worker;
    bool is_first = true;

    while (json_next_element(&workers, &worker)) {
        if (number_of(json_get(worker, "agent"), "bytes_per_token") == 0)
            continue;
        if (is_first)
            printf("%-32s  %11s  %10s  %10s  %10s  %10s  %10s\n", "WORKER", "BYTES/TOKEN", "CPU_MS",
                   "CPU_MB/S", "SSD_MS", "SSD_MB/S", "TOKENS/MS");
        is_first = false;
        print_cost(worker);
    }
}

static void print_index(struct json_value root, const char *name, const char *label)
{
    struct json_value index = json_get(root, name);

    printf("%s: %lld blocks, %lld holders, %.1f MiB, %lld refused for want of room\n", label,
           number_of(index, "blocks"), number_of(index, "holders"),
           json_double(json_get(index, "bytes")) / (1 << 20), number_of(index, "refused_total"));
}

static void print_residency(struct json_value root)
{
    struct json_value map = json_get(root, "map");
    struct json_iterator workers = json_iterate(json_get(root, "workers"));
    struct json_value worker;

    printf("%-32s  %-16s  %-9s  %-12s  %9s  %9s  %9s  %9s  %10s  %5s  %7s  %6s  %s\n", "WORKER",
           "NODE", "STATE", "BELIEVED", "RECORDS", "HBM", "CPU", "SSD", "SEQUENCE", "LAG",
           "MISSING", "BREAKS", "LAST");
    while (json_next_element(&workers, &worker))
        print_replica(worker);
    print_costs(root);
    if (json_type(map) == JSON_OBJECT)
        printf("map: %s, %lld workers listed\n",
               json_bool(json_get(map, "reached")) ? "reached" : "away", number_of(map, "listed"));
    else
        printf("map: none (option --redis)\n");
    print_index(root, "exact", "exact");
    print_index(root, "guess", "guess");
}

static const struct subject subjects[] = {
    {"workers", "a router", ROUTER_ADMIN, "/workers", print_workers},
    {"residency", "a router", ROUTER_ADMIN, "/residency", print_residency},
    {"tiers", "an agent", "http://127.0.0.1:9092", "/tiers", NULL},
};

static const struct subject *find_subject(const char *name)
{
    for (size_t i = 0; i < sizeof subjects / sizeof *subjects; i++) {
        if (strcmp(subjects[i].name, name) == 0)
            return &subjects[i];
    }
    return NULL;
}

static int read_arguments(struct arguments *arguments, int argc, const char *const *argv)
{
    *arguments = (struct arguments){.subject = NULL};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0) {
            arguments->is_json = true;
        } else if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            arguments->wants_help = true;
        } else if (strcmp(argv[i], "--admin") == 0 && i + 1 < argc) {
            arguments->admin = argv[++i];
        } else if (strncmp(argv[i], "--admin=", 8) == 0) {
            arguments->admin = argv[i] + 8;
        } else if (arguments->subject == NULL && find_subject(argv[i]) != NULL) {
            arguments->subject = find_subject(argv[i]);
        } else {
            fprintf(stderr, "samovar show: \"%s\" is not understood\n%s", argv[i], usage);
            return -1;
        }
    }
    if (arguments->subject == NULL && !arguments->wants_help) {
        fputs(usage, stderr);
        return -1;
    }
    if (arguments->admin == NULL && arguments->subject != NULL)
        arguments->admin = arguments->subject->admin;
    return 0;
}

static int print_table(const struct subject *subject, struct slice body)
{
    struct json_scanner *scanner = json_scanner_create();
    struct json_value root;
    struct parse_error error;
    int status = scanner == NULL ? -ENOMEM : json_scan(scanner, body, &root, &error);

    if (status == 0)
        subject->print(root);
    else
        fputs("samovar show: the answer is not JSON; is this the admin port of a router?\n",
              stderr);
    json_scanner_destroy(scanner);
    return status == 0 ? EXIT_CODE_OK : EXIT_CODE_FAILED;
}

static int print_answer(const struct arguments *arguments, const struct answer *answer)
{
    const char *whose = arguments->subject->whose;

    if (answer->error < 0) {
        fprintf(stderr, "samovar show: %s: %s; is this the admin port of %s, and is it running?\n",
                arguments->admin, strerror(-answer->error), whose);
        return EXIT_CODE_FAILED;
    }
    if (answer->status != 200) {
        fprintf(stderr, "samovar show: %s answered %d; is this the admin port of %s?\n",
                arguments->admin, answer->status, whose);
        return EXIT_CODE_FAILED;
    }
    return arguments->is_json || arguments->subject->print == NULL
               ? command_print(&answer->body)
               : print_table(arguments->subject, buf_slice(&answer->body));
}

int command_show(int argc, const char *const *argv)
{
    struct arguments arguments;
    struct worker_url url;
    struct sockaddr_storage address;
    struct answer answer = {.error = -EINPROGRESS};
    char why[WORKER_URL_WHY_BYTES];
    int code;

    if (read_arguments(&arguments, argc, argv) < 0)
        return EXIT_CODE_USAGE;
    if (arguments.wants_help) {
        fputs(usage, stdout);
        return EXIT_CODE_OK;
    }
    if (worker_url_parse(slice_of_string(arguments.admin), &url, why) < 0 ||
        worker_url_resolve(&url, &address, why) < 0) {
        fprintf(stderr, "samovar show: --admin %s: %s\n", arguments.admin, why);
        return EXIT_CODE_USAGE;
    }
    if (url.is_dns || url.rank_count > 0) {
        fprintf(stderr, "samovar show: --admin %s: write http://HOST:PORT\n", arguments.admin);
        return EXIT_CODE_USAGE;
    }
    buf_init(&answer.body, BODY_BYTES_MAX);
    fetch(&address, url.authority, arguments.subject->target, &answer);
    code = print_answer(&arguments, &answer);
    buf_release(&answer.body);
    return code;
}
