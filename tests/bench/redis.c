/* SPDX-License-Identifier: Apache-2.0 */

/*
 * redis: the shared map at its size, through a real redis-server: eight workers with a million
 * entries in all. A process of its own is their agent (residency_report); this one is the router
 * (residency_feed, residency_sync, residency_index). How long until a router that starts knows all
 * of it exactly; then 50,000 changes a second, and how long until each of them is in the router's
 * index; what an entry takes of Redis' memory, and changes of the router's time. Exits 1 when short
 * of a goal, more when it is broken.
 */
#include "backends/redis/residency_feed.h"
#include "backends/redis/residency_report.h"
#include "backends/runtime/random.h"
#include "router/residency/residency_index.h"
#include "router/residency/residency_sync.h"
#include "tests/support/redis_server.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    WORKER_COUNT = 8,
    ENTRY_COUNT = 1000000,
    CHANGES_PER_S = 50000,
    CHANGE_S = 10,
    CHANGE_S_QUICK = 2,
    SETTLE_MS = 1500, /* a router that has just read all of it is not yet what it is later */
    ID_COUNT_MAX = ENTRY_COUNT + CHANGES_PER_S * (CHANGE_S + 2),
    ID_BITS = 24,
    START_COUNT = 3,
    EXACT_MS_MAX = 60000,
    SKIP = 77,
};

static const double START_S_GOAL = 1;
static const double VISIBLE_P99_MS_GOAL = 20;
static const double BYTES_PER_ENTRY_GOAL = 16;
static const uint64_t FINGERPRINT = 0xfe;

enum phase { FILLING, FILLED, CHANGING, CHANGED, ENDING };

/* What both processes see. */
struct shared {
    _Atomic int phase;
    uint64_t change_count;         /* to make */
    _Atomic uint64_t agent_cpu_us; /* of all changes */
    uint64_t set_ns[ID_COUNT_MAX]; /* when it was last set, by id */
};

static uint64_t now_ns(clockid_t clock)
{
    struct timespec now;

    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void must(int status, const char *what)
{
    if (status >= 0)
        return;
    fprintf(stderr, "redis: %s: %s\n", what, strerror(-status));
    exit(2);
}

/* A hash as random as any, but for the bits that its id can be read from. */
static uint64_t hash_of(uint64_t id)
{
    uint64_t random = id;

    return random_next(&random) << ID_BITS | id;
}

static uint64_t id_of(uint64_t hash)
{
    return hash & ((1 << ID_BITS) - 1);
}

static void name_worker(char name[64], uint32_t worker)
{
    snprintf(name, 64, "http://10.0.0.%" PRIu32 ":8000", worker + 1);
}

/* ---- the agent ---- */

struct agent {
    struct shared *shared;
    uv_loop_t loop;
    uv_timer_t timer;
    struct redis_link *link;
    struct residency_report *reports[WORKER_COUNT];
    uint64_t stored, removed; /* ids that were; worker of an id: id % WORKER_COUNT */
    uint64_t changed;
    uint64_t begin_ns, begin_cpu_ns;
};

static void set_record(struct agent *agent, uint64_t id, uint8_t tiers)
{
    const struct residency_record record = {hash_of(id), 64, tiers};

    agent->shared->set_ns[id] = now_ns(CLOCK_MONOTONIC);
    must(residency_report_set(agent->reports[id % WORKER_COUNT], record), "set");
}

static bool is_settled(const struct agent *agent)
{
    for (uint32_t worker = 0; worker < WORKER_COUNT; worker++) {
        const struct residency_report_stats stats = residency_report_stats(agent->reports[worker]);

        if (!stats.is_live || stats.unsaid_count > 0)
            return false;
    }
    return true;
}

/* The oldest goes, a new one comes: as many as are due by now. */
static void change(struct agent *agent)
{
    const uint64_t change_count = agent->shared->change_count;
    uint64_t due = (now_ns(CLOCK_MONOTONIC) - agent->begin_ns) / (1000000000 / CHANGES_PER_S);

    if (due > change_count)
        due = change_count;
    for (; agent->changed + 2 <= due; agent->changed += 2) {
        set_record(agent, agent->removed++, 0);
        set_record(agent, agent->stored++, 1);
    }
    if (agent->changed < change_count || !is_settled(agent))
        return;
    atomic_store(&agent->shared->agent_cpu_us,
                 (now_ns(CLOCK_PROCESS_CPUTIME_ID) - agent->begin_cpu_ns) / 1000);
    atomic_store(&agent->shared->phase, CHANGED);
}

static void on_tick(uv_timer_t *timer)
{
    struct agent *agent = timer->data;

    switch (atomic_load(&agent->shared->phase)) {
    case FILLING:
        if (is_settled(agent))
            atomic_store(&agent->shared->phase, FILLED);
        break;
    case CHANGING:
        if (agent->begin_ns == 0) {
            agent->begin_ns = now_ns(CLOCK_MONOTONIC);
            agent->begin_cpu_ns = now_ns(CLOCK_PROCESS_CPUTIME_ID);
        }
        change(agent);
        break;
    case ENDING:
        exit(0);
    default:
        break;
    }
}

static void on_agent_ready(void *ctx)
{
    struct agent *agent = ctx;

    for (uint32_t worker = 0; worker < WORKER_COUNT; worker++)
        residency_report_linked(agent->reports[worker]);
}

static void on_agent_away(void *ctx, int error, const char *why)
{
    (void)ctx;
    (void)error;
    fprintf(stderr, "redis: the agent lost Redis: %s\n", why);
    exit(2);
}

static void create_report(struct agent *agent, uint32_t worker)
{
    char name[64];
    struct residency_meta meta = {.fingerprint = FINGERPRINT, .engine = "vllm", .block_tokens = 16};
    const struct residency_report_config config = {
        .worker = name,
        .epoch = worker + 1,
        .flush_ms = 10,
        .lease_ms = 3000,
        .page_ttl_s = 900,
        .record_count_max = ENTRY_COUNT / WORKER_COUNT * 2,
        .change_count_max = 4096,
    };

    name_worker(name, worker);
    snprintf(meta.url, sizeof meta.url, "%s", name);
    must(residency_report_create(&agent->loop, agent->link, config, &agent->reports[worker]),
         "report");
    residency_report_set_meta(agent->reports[worker], &meta);
    residency_report_set_whole(agent->reports[worker], true);
}

static void run_agent(struct shared *shared, struct redis_url url)
{
    static struct agent agent;
    const struct redis_link_config config = {
        .url = url,
        .name = "samovar-bench",
        .connect_ms = 5000,
        .command_ms = 10000,
        .back_off_ms = 100,
        .back_off_ms_max = 1000,
        .pending_max = 65536,
    };

    agent.shared = shared;
    must(uv_loop_init(&agent.loop), "loop");
    must(redis_link_open(&agent.loop, config,
                         (struct redis_link_callbacks){on_agent_ready, on_agent_away}, &agent,
                         &agent.link),
         "link");
    for (uint32_t worker = 0; worker < WORKER_COUNT; worker++)
        create_report(&agent, worker);
    while (agent.stored < ENTRY_COUNT)
        set_record(&agent, agent.stored++, 1);
    uv_timer_init(&agent.loop, &agent.timer);
    agent.timer.data = &agent;
    uv_timer_start(&agent.timer, on_tick, 1, 1);
    uv_run(&agent.loop, UV_RUN_DEFAULT);
}

/* ---- the router ---- */

struct router {
    struct shared *shared;
    uv_loop_t loop;
    uv_timer_t timer;
    struct residency_feed *feed;
    struct residency_sync *sync;
    struct residency_index *index;
    uint32_t tickets[RESIDENCY_SOURCE_COUNT_MAX]; /* a source's number is its worker's */
    float *visible_ms;                            /* of each change that was applied */
    size_t visible_count;
};

static void grant(struct router *router, uint32_t source, const struct residency_wish *wish)
{
    int status = 0;

    switch (wish->kind) {
    case RESIDENCY_WISH_LAST:
        status = residency_feed_last(router->feed, source, wish->life);
        break;
    case RESIDENCY_WISH_PAGE:
        status =
            residency_feed_pages(router->feed, source, wish->life, wish->page, wish->page_count);
        break;
    case RESIDENCY_WISH_CHANGES:
        status = residency_feed_changes(router->feed, source, wish->life, wish->sequence);
        break;
    case RESIDENCY_WISH_FOLLOW:
        status = residency_feed_follow(router->feed, source, wish->life, wish->sequence);
        break;
    case RESIDENCY_WISH_NOTHING:
        residency_feed_stop(router->feed, source);
    }
    must(status, "a wish");
}

static void pursue(struct router *router, uint32_t source)
{
    const struct residency_wish wish = residency_sync_wish(router->sync, source);

    if (wish.ticket == router->tickets[source])
        return;
    router->tickets[source] = wish.ticket;
    grant(router, source, &wish);
}

static void on_reach(void *ctx, bool is_reached, const char *why)
{
    (void)ctx;
    if (is_reached)
        return;
    fprintf(stderr, "redis: the router lost Redis: %s\n", why);
    exit(2);
}

static void on_source(void *ctx, uint32_t source)
{
    (void)ctx;
    assert(source < WORKER_COUNT);
}

static void on_polled(void *ctx)
{
    struct router *router = ctx;

    residency_sync_polled(router->sync, uv_now(&router->loop));
}

static void on_lease(void *ctx, uint32_t source, const struct residency_lease *lease)
{
    struct router *router = ctx;

    residency_sync_lease(router->sync, source, lease, uv_now(&router->loop));
    pursue(router, source);
}

static void on_meta(void *ctx, uint32_t source, const struct residency_meta *meta)
{
    struct router *router = ctx;

    residency_sync_meta(router->sync, source, meta, uv_now(&router->loop));
    pursue(router, source);
}

static void on_last(void *ctx, uint32_t source, uint64_t sequence,
                    const struct residency_change *last)
{
    struct router *router = ctx;

    residency_sync_last(router->sync, source, sequence, last, uv_now(&router->loop));
    pursue(router, source);
}

static void on_page(void *ctx, uint32_t source, uint32_t page, struct slice bytes)
{
    struct router *router = ctx;

    residency_sync_page(router->sync, source, page, bytes, uv_now(&router->loop));
    pursue(router, source);
}

/* Each record of it can be matched from now on. */
static void note_visible(struct router *router, struct slice records)
{
    const uint64_t seen_ns = now_ns(CLOCK_MONOTONIC);

    for (; records.len > 0; records = slice_skip(records, RESIDENCY_RECORD_BYTES)) {
        const struct residency_record record = residency_record_read((const uint8_t *)records.ptr);
        const uint64_t age_ns = seen_ns - router->shared->set_ns[id_of(record.hash)];

        if (router->visible_count < router->shared->change_count)
            router->visible_ms[router->visible_count++] = (float)age_ns / 1e6f;
    }
}

static void on_change(void *ctx, uint32_t source, uint64_t sequence,
                      const struct residency_change *changed)
{
    struct router *router = ctx;

    residency_sync_change(router->sync, source, sequence, changed, uv_now(&router->loop));
    if (router->visible_ms != NULL)
        note_visible(router, changed->records);
    pursue(router, source);
}

static void on_no_more(void *ctx, uint32_t source)
{
    struct router *router = ctx;

    residency_sync_no_more(router->sync, source, uv_now(&router->loop));
    pursue(router, source);
}

static void on_broken(void *ctx, uint32_t source, bool is_unreadable)
{
    struct router *router = ctx;

    residency_sync_broken(router->sync, source,
                          is_unreadable ? RESIDENCY_BREAK_UNREADABLE : RESIDENCY_BREAK_FAILED,
                          uv_now(&router->loop));
    pursue(router, source);
}

static void on_router_tick(uv_timer_t *timer)
{
    struct router *router = timer->data;

    residency_sync_tick(router->sync, uv_now(&router->loop));
    for (uint32_t source = 0; source < WORKER_COUNT; source++)
        pursue(router, source);
}

static const struct residency_feed_callbacks feed_callbacks = {
    on_reach, on_source, on_polled, on_lease,   on_meta,
    on_last,  on_page,   on_change, on_no_more, on_broken,
};

static void open_router(struct router *router, struct shared *shared, struct redis_url url)
{
    const struct residency_feed_config config = {.url = url, .fingerprint = FINGERPRINT};
    const size_t index_bytes = (size_t)512 << 20;

    *router = (struct router){.shared = shared};
    must(uv_loop_init(&router->loop), "loop");
    router->index = residency_index_create(index_bytes);
    router->sync = residency_sync_create(
        router->index, (struct residency_sync_config){FINGERPRINT, index_bytes, 1});
    if (router->index == NULL || router->sync == NULL)
        must(-ENOMEM, "replica");
    must(residency_feed_open(&router->loop, config, &feed_callbacks, router, &router->feed),
         "feed");
    uv_timer_init(&router->loop, &router->timer);
    router->timer.data = router;
    uv_timer_start(&router->timer, on_router_tick, 100, 100);
}

static void close_router(struct router *router)
{
    residency_feed_close(&router->feed);
    uv_close((uv_handle_t *)&router->timer, NULL);
    uv_run(&router->loop, UV_RUN_DEFAULT);
    must(uv_loop_close(&router->loop), "loop");
    residency_sync_destroy(router->sync);
    residency_index_destroy(router->index);
    free(router->visible_ms);
}

static bool is_exact(const struct router *router)
{
    return residency_sync_stats(router->sync).exact_count == WORKER_COUNT;
}

/* ---- measuring ---- */

struct figures {
    double start_s[START_COUNT], start_cpu_s[START_COUNT];
    double bytes_per_entry;
    double p50_ms, p99_ms, max_ms;
    double router_cpu_ms, agent_cpu_ms, redis_cpu_ms; /* per 100,000 changes */
    uint64_t change_count;
    uint64_t break_count;
};

/* A number that INFO says. */
static double info(const struct redis_server *server, const char *section, const char *name)
{
    char command[64], key[64], reply[16384];
    const char *found;

    snprintf(command, sizeof command, "INFO %s", section);
    snprintf(key, sizeof key, "\n%s:", name);
    redis_server_ask(server, command, reply, sizeof reply);
    found = strstr(reply, key);
    if (found == NULL)
        must(-EPROTO, name);
    return strtod(found + strlen(key), NULL);
}

static double redis_cpu_s(const struct redis_server *server)
{
    return info(server, "cpu", "used_cpu_user") + info(server, "cpu", "used_cpu_sys");
}

static void await_phase(struct shared *shared, int phase)
{
    const struct timespec pause = {0, 2000000};

    while (atomic_load(&shared->phase) != phase)
        nanosleep(&pause, NULL);
}

static void start_router(struct router *router, struct shared *shared, struct redis_url url,
                         struct figures *figures, size_t round)
{
    const uint64_t begin_ns = now_ns(CLOCK_MONOTONIC);
    const uint64_t begin_cpu_ns = now_ns(CLOCK_PROCESS_CPUTIME_ID);

    open_router(router, shared, url);
    while (!is_exact(router)) {
        uv_run(&router->loop, UV_RUN_ONCE);
        if (now_ns(CLOCK_MONOTONIC) - begin_ns > (uint64_t)EXACT_MS_MAX * 1000000)
            must(-ETIMEDOUT, "the router does not become exact");
    }
    figures->start_s[round] = (double)(now_ns(CLOCK_MONOTONIC) - begin_ns) / 1e9;
    figures->start_cpu_s[round] = (double)(now_ns(CLOCK_PROCESS_CPUTIME_ID) - begin_cpu_ns) / 1e9;
    if (residency_sync_stats(router->sync).record_count != ENTRY_COUNT)
        must(-EPROTO, "the router has not all");
}

static int compare_floats(const void *left, const void *right)
{
    const float *a = left;
    const float *b = right;

    return (*a > *b) - (*a < *b);
}

static void run_for(struct router *router, uint64_t ms)
{
    const uint64_t end_ns = now_ns(CLOCK_MONOTONIC) + ms * 1000000;

    while (now_ns(CLOCK_MONOTONIC) < end_ns)
        uv_run(&router->loop, UV_RUN_ONCE);
}

static void measure_changes(struct router *router, const struct redis_server *server,
                            struct figures *figures)
{
    struct shared *shared = router->shared;
    const double per_100k = 1e5 / (double)shared->change_count;
    const double begin_redis_s = redis_cpu_s(server);
    const uint64_t begin_cpu_ns = now_ns(CLOCK_PROCESS_CPUTIME_ID);
    uint64_t cpu_ns;

    router->visible_ms = calloc(shared->change_count, sizeof *router->visible_ms);
    if (router->visible_ms == NULL)
        must(-ENOMEM, "changes");
    atomic_store(&shared->phase, CHANGING);
    while (router->visible_count < shared->change_count)
        uv_run(&router->loop, UV_RUN_ONCE);
    cpu_ns = now_ns(CLOCK_PROCESS_CPUTIME_ID) - begin_cpu_ns;
    await_phase(shared, CHANGED);
    figures->router_cpu_ms = (double)cpu_ns / 1e6 * per_100k;
    figures->agent_cpu_ms = (double)atomic_load(&shared->agent_cpu_us) / 1e3 * per_100k;
    figures->redis_cpu_ms = (redis_cpu_s(server) - begin_redis_s) * 1e3 * per_100k;
    qsort(router->visible_ms, router->visible_count, sizeof *router->visible_ms, compare_floats);
    figures->p50_ms = (double)router->visible_ms[router->visible_count / 2];
    figures->p99_ms = (double)router->visible_ms[router->visible_count * 99 / 100];
    figures->max_ms = (double)router->visible_ms[router->visible_count - 1];
    figures->change_count = shared->change_count;
    for (size_t i = 0; i < RESIDENCY_BREAK_COUNT; i++)
        figures->break_count += residency_sync_stats(router->sync).breaks_total[i];
}

static int verdict(const char *what, double value, double goal, const char *unit)
{
    const bool is_reached = value <= goal;

    printf("goal: %s <= %g %s: %.3g: %s\n", what, goal, unit, value,
           is_reached ? "REACHED" : "short");
    return is_reached ? 0 : 1;
}

static int report_figures(struct figures *figures)
{
    double start_s = figures->start_s[0];
    int status = 0;

    for (size_t i = 0; i < START_COUNT; i++) {
        printf("a router that starts is exact after %.3f s (%.3f s of CPU)\n", figures->start_s[i],
               figures->start_cpu_s[i]);
        if (figures->start_s[i] > start_s)
            start_s = figures->start_s[i]; /* the worst counts */
    }
    printf("Redis takes %.1f bytes an entry\n", figures->bytes_per_entry);
    printf("%" PRIu64 " changes at %d a second: visible after %.1f ms, p99 %.1f, at most %.1f; "
           "read anew %" PRIu64 " times\n",
           figures->change_count, CHANGES_PER_S, figures->p50_ms, figures->p99_ms, figures->max_ms,
           figures->break_count);
    printf("CPU of 100,000 changes: router %.0f ms, agent %.0f ms, Redis %.0f ms\n",
           figures->router_cpu_ms, figures->agent_cpu_ms, figures->redis_cpu_ms);
    status |= verdict("warm start at 1 M entries", start_s, START_S_GOAL, "s");
    status |= verdict("change to visible, p99", figures->p99_ms, VISIBLE_P99_MS_GOAL, "ms");
    status |= verdict("Redis, an entry", figures->bytes_per_entry, BYTES_PER_ENTRY_GOAL, "bytes");
    printf("%s\n", status == 0 ? "REACHED" : "short");
    return status;
}

static pid_t fork_agent(struct shared *shared, struct redis_url url)
{
    const pid_t pid = fork();

    if (pid == 0)
        run_agent(shared, url);
    must(pid < 0 ? -errno : 0, "fork");
    return pid;
}

int main(int argc, char **argv)
{
    const bool is_quick = argc > 1 && strcmp(argv[1], "--quick") == 0;
    struct shared *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    static struct figures figures;
    static struct router router;
    struct redis_server *server;
    double empty_bytes;
    pid_t agent;
    int status;

    if (system("command -v redis-server >/dev/null") != 0) {
        printf("redis-server is not installed\n");
        return SKIP;
    }
    if (shared == MAP_FAILED)
        must(-errno, "mmap");
    signal(SIGPIPE, SIG_IGN);
    shared->change_count = (uint64_t)CHANGES_PER_S * (is_quick ? CHANGE_S_QUICK : CHANGE_S);
    server = redis_server_create(NULL);
    empty_bytes = info(server, "memory", "used_memory");
    agent = fork_agent(shared, redis_server_url(server));
    await_phase(shared, FILLED);
    figures.bytes_per_entry =
        (info(server, "memory", "used_memory") - empty_bytes) / (double)ENTRY_COUNT;
    for (size_t round = 0; round < START_COUNT; round++) {
        start_router(&router, shared, redis_server_url(server), &figures, round);
        if (round + 1 < START_COUNT)
            close_router(&router);
    }
    run_for(&router, SETTLE_MS);
    measure_changes(&router, server, &figures);
    close_router(&router);
    atomic_store(&shared->phase, ENDING);
    waitpid(agent, NULL, 0);
    redis_server_destroy(server);
    status = report_figures(&figures);
    return status;
}
