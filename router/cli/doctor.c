/* SPDX-License-Identifier: Apache-2.0 */

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/secret_file.h"
#include "hashing/fingerprint.h"
#include "router/cli/command.h"
#include "router/cli/doctor_parts.h"
#include "router/cli/router_words.h"
#include "router/worker_key.h"

/*
 * DESIGN
 *
 * From the outside in, in the order in which things must work: Redis, the agents that write there,
 * the engines, and last the router in front of them. Each sentence stands alone; one that is not
 * fine ends with what to do. What was found is printed at once, since some of it takes seconds.
 */

enum { SENTENCE_BYTES_MAX = 1024 };

static const char usage[] =
    "Usage: samovar doctor [FILE] [--admin http://HOST:PORT] [--no-probe] [OPTION ...]\n"
    "\n"
    "Reads FILE, the environment and the options of samovar-router exactly as the router does, "
    "and\n"
    "tries all that it needs: Redis and what its user may do there, agents and what they say,\n"
    "workers and how long they keep idle connections, and the running router. Ends with a probe: "
    "a\n"
    "conversation of two turns with each worker, and one through the router, whose second turn\n"
    "must be found in a cache. Takes some ten seconds.\n"
    "\n"
    "  --admin     the running router's admin listener, if not that of the options\n"
    "  --no-probe  send no prompt\n"
    "\n"
    "Exit codes: 0 fine or doubtful, 1 something is wrong, 2 wrong flags, 3 wrong file or "
    "environment.\n";

struct arguments {
    bool wants_help;
    bool is_probing;
    const char *admin;
    struct router_words words; /* all others */
};

static int sort_arguments(struct arguments *arguments, int argc, const char *const *argv)
{
    *arguments = (struct arguments){.is_probing = true};
    if (router_words_init(&arguments->words, "samovar doctor", argc) < 0)
        return -1;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            arguments->wants_help = true;
        } else if (strcmp(argv[i], "--no-probe") == 0) {
            arguments->is_probing = false;
        } else if (strcmp(argv[i], "--admin") == 0 && i + 1 < argc) {
            arguments->admin = argv[++i];
        } else if (strncmp(argv[i], "--admin=", 8) == 0) {
            arguments->admin = argv[i] + 8;
        } else {
            router_words_add(&arguments->words, argv[i]);
        }
    }
    return 0;
}

void doctor_say(struct doctor *doctor, enum doctor_level level, const char *format, ...)
{
    static const char *const words[] = {
        [DOCTOR_FINE] = "fine", [DOCTOR_DOUBT] = "doubt", [DOCTOR_BAD] = "WRONG"};
    char sentence[SENTENCE_BYTES_MAX];
    va_list args;

    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    printf("%-5s  %s\n", words[level], sentence);
    fflush(stdout);
    doctor->doubt_count += level == DOCTOR_DOUBT;
    doctor->bad_count += level == DOCTOR_BAD;
}

/* ---- what is examined ---- */

/* The url of a worker's name: without its rank. */
static int read_url(const char *name, struct worker_url *url, char why[WORKER_URL_WHY_BYTES])
{
    return worker_url_parse(slice_of(name, strcspn(name, "#")), url, why);
}

struct doctor_worker *doctor_add_worker(struct doctor *doctor, const char *name)
{
    struct doctor_worker *worker = &doctor->workers[doctor->worker_count];
    char why[WORKER_URL_WHY_BYTES];

    for (size_t i = 0; i < doctor->worker_count; i++) {
        if (strcmp(doctor->workers[i].name, name) == 0)
            return &doctor->workers[i];
    }
    if (doctor->worker_count == DOCTOR_WORKER_COUNT_MAX || strlen(name) >= sizeof worker->name)
        return NULL;
    memset(worker, 0, sizeof *worker);
    if (read_url(name, &worker->url, why) < 0 ||
        worker_url_resolve(&worker->url, &worker->address, why) < 0) {
        doctor_say(doctor, DOCTOR_BAD, "%s", why);
        return NULL;
    }
    snprintf(worker->name, sizeof worker->name, "%s", name);
    doctor->worker_count++;
    return worker;
}

/* Of the configuration. Those behind a name of many addresses are the router's to find. */
static void add_configured(struct doctor *doctor)
{
    const struct option_list *urls = &doctor->options->worker_urls;
    char name[WORKER_NAME_BYTES_MAX + 16], why[WORKER_URL_WHY_BYTES];
    struct worker_url url;

    for (size_t i = 0; i < urls->count; i++) {
        if (worker_url_parse(slice_of_string(urls->items[i]), &url, why) < 0) {
            doctor_say(doctor, DOCTOR_BAD, "%s", why);
        } else if (url.is_dns) {
            doctor_say(doctor, DOCTOR_DOUBT,
                       "%s: workers behind a name are examined only as agents name them", url.name);
        } else if (url.rank_count == 0) {
            (void)doctor_add_worker(doctor, url.name);
        } else {
            for (uint32_t rank = 0; rank < url.rank_count; rank++) {
                snprintf(name, sizeof name, "%s#%u", url.name, rank);
                (void)doctor_add_worker(doctor, name);
            }
        }
    }
}

/* -errno: it was said what is wrong. */
static int make_fingerprint(struct doctor *doctor)
{
    const char *path = doctor->options->secret_file;
    uint8_t secret[DIGEST_SECRET_BYTES];
    char why[PRIVATE_FILE_WHY_BYTES];
    int status;

    if (path[0] == '\0')
        return 0;
    status = secret_file_read(secret, path, why);
    if (status < 0) {
        doctor_say(doctor, DOCTOR_BAD, "%s", why);
        return status;
    }
    doctor->fingerprint = fingerprint_of_secret(secret);
    explicit_bzero(secret, sizeof secret);
    return 0;
}

static void examine_all(struct doctor *doctor, bool is_probing)
{
    add_configured(doctor);
    if (make_fingerprint(doctor) == 0) {
        doctor_examine_redis(doctor);
        doctor_examine_agents(doctor);
    }
    doctor_examine_workers(doctor, is_probing);
    doctor_examine_router(doctor, is_probing);
    doctor_close_redis(doctor);
}

static int examine(const struct router_options *options, const struct arguments *arguments)
{
    struct doctor doctor = {.options = options, .admin = arguments->admin};
    char why[256], *authorization = NULL;

    if (worker_key_read(options->worker_api_key_file, &authorization, why) < 0) {
        fprintf(stderr, "samovar doctor: %s\n", why);
        return EXIT_CODE_CONFIG;
    }
    doctor.authorization = authorization;
    doctor.io = malloc(sizeof *doctor.io); /* its read buffer is too large for the stack */
    doctor.workers = calloc(DOCTOR_WORKER_COUNT_MAX + 1, sizeof *doctor.workers);
    if (doctor.io == NULL || doctor.workers == NULL || io_loop_init(doctor.io) < 0) {
        fputs("samovar doctor: out of memory\n", stderr);
        abort();
    }
    examine_all(&doctor, arguments->is_probing);
    io_loop_stop_tick(doctor.io);
    uv_run(&doctor.io->loop, UV_RUN_DEFAULT);
    io_loop_release(doctor.io);
    free(doctor.io);
    free(doctor.workers);
    worker_key_forget(&authorization);
    if (doctor.bad_count > 0)
        fprintf(stderr, "samovar doctor: %u wrong, %u doubtful\n", doctor.bad_count,
                doctor.doubt_count);
    return doctor.bad_count > 0 ? EXIT_CODE_FAILED : EXIT_CODE_OK;
}

int command_doctor(int argc, const char *const *argv)
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
    if (code == EXIT_CODE_OK)
        code = examine(&reading.options, &arguments);
    else
        option_set_print_errors(&reading.set);
    option_set_release(&reading.set);
    return code;
}
