/* SPDX-License-Identifier: Apache-2.0 */

/*
 * bodies: what the worst bodies cost: each is read by a process of its own, whose time and memory
 * beyond the body are shown. The last line is the verdict; --quick for bodies of an eighth.
 */
#include "backends/runtime/buf.h"
#include "router/prompt/body_parse.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const double NESTED_MS_GOAL = 100;
static const double NESTED_MIB_GOAL = 1;

/* head, then unit as often as it fits, then tail. */
static const struct body_kind {
    const char *name;
    enum api api;
    size_t mib;
    const char *head, *unit, *tail;
    bool is_nested; /* the goal is about these */
} kinds[] = {
    {"prose, a chat", API_CHAT, 20,
     "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"",
     "The samovar keeps the water hot, so that the tea is ready when the guests are. ", "\"}]}",
     false},
    {"prose with escapes", API_CHAT, 20,
     "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"",
     "He said \\\"tea\\\".\\nShe said \\\"jam\\\".\\n", "\"}]}", false},
    {"one string of escapes", API_CHAT, 30,
     "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"", "\\u0416\\n", "\"}]}",
     false},
    {"token ids", API_COMPLETIONS, 20, "{\"model\":\"m\",\"prompt\":[1", ",12345", "]}", false},
    {"short messages", API_CHAT, 20, "{\"model\":\"m\",\"messages\":[{\"role\":\"user\"}",
     ",{\"role\":\"user\"}", "]}", false},
    {"[ alone", API_CHAT, 64, "", "[", "", true},
    {"[ in an object", API_CHAT, 64, "{\"messages\":", "[", "", true},
    {"{\"a\": alone", API_CHAT, 64, "", "{\"a\":", "", true},
    {"[ behind prose", API_CHAT, 64, "{\"messages\":\"The samovar\",\"a\":", "[[[[[[[[[[[[[[[[", "",
     true},
    {"[[],[],...", API_CHAT, 32, "{\"model\":\"m\",\"a\":[[]", ",[]", "]}", false},
    {"small keys", API_CHAT, 32, "{\"model\":\"m\"", ",\"k\":1", "}", false},
    {"quotes", API_CHAT, 32, "", "\"", "", false},
    {"backslashes in a string", API_CHAT, 32, "{\"model\":\"", "\\", "\"}", false},
    {"digits", API_CHAT, 32, "{\"n\":", "7", "}", false},
    {"white space", API_CHAT, 32, "", " ", "", false},
    {"commas", API_CHAT, 32, "{\"a\":[1", ",", "]}", false},
};

static const uint8_t secret[BLOCK_CHAIN_SECRET_BYTES] = {3, 1, 4, 1, 5};

static double now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static double rss_peak_mib(void)
{
    struct rusage usage;

    getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_maxrss / 1024;
}

static void build_body(struct buf *body, const struct body_kind *kind, size_t bytes)
{
    size_t unit_len = strlen(kind->unit);
    int status = buf_reserve(body, bytes + 1024);

    if (status == 0)
        status = buf_append(body, slice_of_string(kind->head));
    while (status == 0 && buf_len(body) + unit_len < bytes)
        status = buf_append(body, slice_of(kind->unit, unit_len));
    if (status == 0)
        status = buf_append(body, slice_of_string(kind->tail));
    assert(status == 0);
}

struct cost {
    double ms, mib;
    char verdict[32];
};

static struct cost read_body(const struct body_kind *kind, size_t bytes)
{
    struct json_scanner *scanner = json_scanner_create();
    struct cost cost = {.mib = 0};
    struct body_parse parse;
    struct arena arena;
    struct buf body;

    buf_init(&body, SIZE_MAX / 2);
    build_body(&body, kind, bytes);
    arena_init(&arena, 64 << 20);
    parse = (struct body_parse){
        .api = kind->api, .body = buf_slice(&body), .secret = secret, .arena = &arena};
    cost.mib = rss_peak_mib();
    cost.ms = now_ms();
    body_parse_run(&parse, scanner);
    cost.ms = now_ms() - cost.ms;
    cost.mib = rss_peak_mib() - cost.mib;
    snprintf(cost.verdict, sizeof cost.verdict, "%s",
             parse.request_status == -EINVAL || parse.prompt_status == -EINVAL ? parse.fault.code
                                                                               : "read");
    arena_release(&arena);
    buf_release(&body);
    json_scanner_destroy(scanner);
    return cost;
}

/* In a child: its peak of memory is its own. */
static struct cost measure(const struct body_kind *kind, size_t bytes)
{
    struct cost cost;
    int ends[2], status = pipe(ends);
    pid_t child;

    assert(status == 0);
    child = fork();
    assert(child >= 0);
    if (child == 0) {
        cost = read_body(kind, bytes);
        _exit(write(ends[1], &cost, sizeof cost) == sizeof cost ? 0 : 1);
    }
    close(ends[1]);
    status = (int)read(ends[0], &cost, sizeof cost);
    assert(status == sizeof cost);
    close(ends[0]);
    waitpid(child, &status, 0);
    assert(status == 0);
    return cost;
}

int main(int argc, char **argv)
{
    size_t share = argc > 1 && strcmp(argv[1], "--quick") == 0 ? 8 : 1;
    bool is_reached = true;

    printf("%-26s %9s %8s %14s  %s\n", "body", "MiB", "ms", "MiB beyond it", "verdict");
    for (size_t i = 0; i < array_count(kinds); i++) {
        const struct body_kind *kind = &kinds[i];
        struct cost cost = measure(kind, (kind->mib << 20) / share);

        if (kind->is_nested)
            is_reached &= cost.ms <= NESTED_MS_GOAL && cost.mib <= NESTED_MIB_GOAL;
        printf("%-26s %9zu %8.1f %14.1f  %s\n", kind->name, kind->mib / share, cost.ms, cost.mib,
               cost.verdict);
    }
    printf("%s: nested bodies <= %.0f ms and <= %.0f MiB\n",
           is_reached ? "verdict: REACHED" : "verdict: SHORT of the goal", NESTED_MS_GOAL,
           NESTED_MIB_GOAL);
    return is_reached ? 0 : 1;
}
