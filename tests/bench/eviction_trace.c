/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/bench/eviction_trace.h"

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backends/runtime/random.h"
#include "hashing/block_map.h"

/*
 * DESIGN
 *
 * A block's number is that of (its parent's number, its id), so equal numbers have equal prefixes
 * whatever the file means by its ids. Files are read through gzip(1), which every system has.
 */

enum { MAP_BYTES_MAX = 1 << 30, ID_COUNT_MAX = 1 << 16 };

struct builder {
    struct eviction_trace *trace;
    struct block_map numbers;
    size_t ref_room;
    size_t request_room;
};

static void *grown(void *array, size_t count, size_t *room, size_t size)
{
    if (count < *room)
        return array;
    *room = *room * 2 + 1024;
    array = realloc(array, *room * size);
    if (array == NULL)
        abort(); /* a benchmark without memory has nothing to say */
    return array;
}

static void begin_request(struct builder *builder)
{
    struct eviction_trace *trace = builder->trace;

    trace->begin =
        grown(trace->begin, trace->request_count + 1, &builder->request_room, sizeof *trace->begin);
    trace->begin[trace->request_count++] = trace->ref_count;
}

/* Adds the block of that id behind parent, a number or 0; returns its number. */
static uint32_t add_block(struct builder *builder, uint32_t parent, uint64_t id)
{
    struct eviction_trace *trace = builder->trace;
    uint64_t state = id, name = random_next(&state) ^ parent * 0x9e3779b97f4a7c15u;
    uint64_t *number = block_map_claim(&builder->numbers, random_next(&name) | 1);

    if (number == NULL)
        abort();
    if (*number == 0)
        *number = ++trace->block_count;
    trace->refs = grown(trace->refs, trace->ref_count, &builder->ref_room, sizeof *trace->refs);
    return trace->refs[trace->ref_count++] = (uint32_t)*number;
}

static void builder_begin(struct builder *builder, struct eviction_trace *trace)
{
    *trace = (struct eviction_trace){.refs = NULL};
    *builder = (struct builder){.trace = trace};
    block_map_init(&builder->numbers, MAP_BYTES_MAX);
}

/* Looks ahead: who has each block next. */
static void builder_end(struct builder *builder)
{
    struct eviction_trace *trace = builder->trace;
    uint32_t *seen = malloc(((size_t)trace->block_count + 1) * sizeof *seen);

    trace->next = malloc((trace->ref_count + 1) * sizeof *trace->next);
    if (seen == NULL || trace->next == NULL)
        abort();
    if (trace->request_count > 0)
        trace->begin[trace->request_count] = trace->ref_count;
    memset(seen, 0xff, ((size_t)trace->block_count + 1) * sizeof *seen);
    for (size_t request = trace->request_count; request-- > 0;)
        for (size_t i = trace->begin[request]; i < trace->begin[request + 1]; i++) {
            trace->next[i] = seen[trace->refs[i]];
            seen[trace->refs[i]] = (uint32_t)request;
        }
    free(seen);
    block_map_release(&builder->numbers);
}

/* The output of gzip -dc, which *pid writes. */
static FILE *open_packed(const char *path, pid_t *pid)
{
    int ends[2];

    if (access(path, R_OK) < 0 || pipe(ends) < 0)
        return NULL;
    *pid = fork();
    if (*pid == 0) {
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        close(ends[1]);
        execlp("gzip", "gzip", "-dc", "--", path, (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    if (*pid < 0) {
        close(ends[0]);
        return NULL;
    }
    return fdopen(ends[0], "r");
}

/* Hands each line to take; 0 or what went wrong first. */
static int read_lines(const char *path, int (*take)(void *ctx, const char *line), void *ctx)
{
    pid_t pid = -1;
    FILE *file = open_packed(path, &pid);
    char *line = NULL;
    size_t room = 0;
    int status = 0, exit_status = 0;

    if (file == NULL)
        return -errno;
    while (status == 0 && getline(&line, &room, file) > 0)
        status = take(ctx, line);
    free(line);
    fclose(file);
    if (waitpid(pid, &exit_status, 0) != pid || (status == 0 && exit_status != 0))
        status = -EBADMSG;
    return status;
}

/* Behind `"name":` and spaces, looked for from at on; NULL: not there. */
static const char *behind_name(const char *at, const char *name)
{
    char quoted[32];
    const int len = snprintf(quoted, sizeof quoted, "\"%s\":", name);

    assert(len > 0 && (size_t)len < sizeof quoted);
    at = strstr(at, quoted);
    return at != NULL ? at + len + strspn(at + len, " ") : NULL;
}

static int take_request(void *ctx, const char *line)
{
    struct builder *builder = ctx;
    const char *at = behind_name(line, "hash_ids");
    uint32_t parent = 0;

    if (at == NULL || *at != '[')
        return -EBADMSG;
    begin_request(builder);
    for (at++; *at != ']';) {
        char *end;
        const unsigned long long id = strtoull(at, &end, 10);

        if (end == at)
            return -EBADMSG;
        parent = add_block(builder, parent, id);
        at = end + strspn(end, ", ");
    }
    return 0;
}

int eviction_trace_read_requests(const char *path, struct eviction_trace *trace)
{
    struct builder builder;
    int status;

    builder_begin(&builder, trace);
    status = read_lines(path, take_request, &builder);
    builder_end(&builder);
    return status;
}

/* A request of a session, to be put in order among those of all sessions. */
struct turn {
    double time_s;
    const char *ids; /* behind `"h":` in the session's line */
    uint64_t session;
    uint64_t shared_key; /* sessions of equal keys share their first blocks */
    uint64_t shared_count;
    size_t order; /* as read: ties keep it */
};

struct sessions {
    struct turn *turns;
    size_t turn_count;
    size_t turn_room;
    char **lines;
    size_t line_count;
    size_t line_count_max;
};

static int take_session(void *ctx, const char *text)
{
    struct sessions *sessions = ctx;
    const char *tool = behind_name(text, "tool_tokens");
    const char *system = behind_name(text, "system_tokens");
    const char *at;
    uint64_t tool_tokens, system_tokens;

    if (sessions->line_count == sessions->line_count_max)
        return 0;
    if (tool == NULL || system == NULL)
        return -EBADMSG;
    tool_tokens = strtoull(tool, NULL, 10);
    system_tokens = strtoull(system, NULL, 10);
    at = sessions->lines[sessions->line_count++] = strdup(text);
    if (at == NULL)
        return -ENOMEM;
    while ((at = behind_name(at, "t")) != NULL) {
        struct turn turn = {
            .time_s = strtod(at, NULL),
            .ids = behind_name(at, "h"),
            .session = sessions->line_count,
            .shared_key = tool_tokens << 32 | system_tokens,
            .shared_count = (tool_tokens + system_tokens) / 64,
            .order = sessions->turn_count,
        };

        if (turn.ids == NULL)
            return -EBADMSG;
        sessions->turns = grown(sessions->turns, sessions->turn_count, &sessions->turn_room,
                                sizeof *sessions->turns);
        sessions->turns[sessions->turn_count++] = turn;
    }
    return 0;
}

static int by_time(const void *left, const void *right)
{
    const struct turn *a = left, *b = right;

    if (a->time_s != b->time_s)
        return (a->time_s > b->time_s) - (a->time_s < b->time_s);
    return (a->order > b->order) - (a->order < b->order);
}

/* [[first, count], ..] */
static int add_turn(struct builder *builder, const struct turn *turn)
{
    const char *at = turn->ids + 1;
    uint32_t parent = 0;
    uint64_t depth = 0;

    begin_request(builder);
    while (*at == '[') {
        char *end;
        const uint64_t first = strtoull(at + 1, &end, 10);
        const uint64_t count = strtoull(end + 1, &end, 10);

        if (*end != ']' || count > ID_COUNT_MAX)
            return -EBADMSG;
        for (uint64_t i = 0; i < count; i++, depth++) {
            uint64_t scope = depth < turn->shared_count ? turn->shared_key : turn->session;

            parent = add_block(builder, parent, random_next(&scope) + first + i);
        }
        at = end + 1 + strspn(end + 1, ", ");
    }
    return *at == ']' ? 0 : -EBADMSG;
}

int eviction_trace_read_sessions(const char *path, size_t session_count_max,
                                 struct eviction_trace *trace)
{
    struct sessions sessions = {.line_count_max = session_count_max};
    struct builder builder;
    int status;

    builder_begin(&builder, trace);
    sessions.lines = calloc(session_count_max, sizeof *sessions.lines);
    status = sessions.lines != NULL ? read_lines(path, take_session, &sessions) : -ENOMEM;
    if (sessions.turn_count > 0)
        qsort(sessions.turns, sessions.turn_count, sizeof *sessions.turns, by_time);
    for (size_t i = 0; i < sessions.turn_count && status == 0; i++)
        status = add_turn(&builder, &sessions.turns[i]);
    for (size_t i = 0; i < sessions.line_count; i++)
        free(sessions.lines[i]);
    free(sessions.lines);
    free(sessions.turns);
    builder_end(&builder);
    return status;
}

void eviction_trace_generate(size_t request_count, uint64_t seed, struct eviction_trace *trace)
{
    enum { CHAT_COUNT = 60, AGENT_COUNT = 6, SYSTEM_COUNT = 5 };
    struct {
        uint64_t id;
        uint32_t len;
    } talks[CHAT_COUNT + AGENT_COUNT] = {{0, 0}};
    struct builder builder;
    uint64_t id = 1000;

    builder_begin(&builder, trace);
    for (size_t i = 0; i < request_count; i++) {
        const uint64_t kind = random_next(&seed) % 10;
        const bool is_agent = kind < 3;
        const size_t at = is_agent ? CHAT_COUNT + random_next(&seed) % AGENT_COUNT
                                   : random_next(&seed) % CHAT_COUNT;
        const uint64_t system = random_next(&seed) % 97 % SYSTEM_COUNT;
        uint32_t parent = 0, len;

        if (talks[at].len == 0 || random_next(&seed) % (is_agent ? 40 : 6) == 0) {
            talks[at].id = ++id;
            talks[at].len = is_agent ? 60 : 4;
        }
        talks[at].len += (uint32_t)(random_next(&seed) % (is_agent ? 8 : 4));
        begin_request(&builder);
        for (uint64_t block = 0; block < 10; block++)
            parent = add_block(&builder, parent, system << 32 | block);
        len = kind == 9 ? 30 : talks[at].len;
        id += kind == 9; /* a prompt that comes once */
        for (uint64_t block = 0; block < len; block++)
            parent = add_block(&builder, parent,
                               (kind == 9 ? id : talks[at].id) << 32 | block << 8 | system);
    }
    builder_end(&builder);
}

void eviction_trace_release(struct eviction_trace *trace)
{
    free(trace->refs);
    free(trace->begin);
    free(trace->next);
    *trace = (struct eviction_trace){.refs = NULL};
}
