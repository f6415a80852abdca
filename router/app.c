/* SPDX-License-Identifier: Apache-2.0 */

#include "router/app.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "backends/http/worker_pool.h"
#include "backends/runtime/clock.h"
#include "backends/runtime/log.h"
#include "backends/runtime/random.h"
#include "backends/runtime/system_random.h"
#include "backends/secret_file.h"
#include "hashing/digest.h"
#include "hashing/fingerprint.h"
#include "router/api/admin.h"
#include "router/api/public.h"
#include "router/client_conn.h"
#include "router/exchange.h"
#include "router/join/join.h"
#include "router/join/place_asker.h"
#include "router/residency_map.h"
#include "router/worker_key.h"

/*
 * DESIGN
 *
 * Stopping has two steps. The drain: not ready any more, no new work, running answers go on, idle
 * connections close; it ends when nothing runs, when its time is over, or at a second signal. Then
 * the stop: everything still open is ended, and the loop runs until the last handle is closed.
 */
enum {
    PROBE_TIMEOUT_MS = 5000,
    PROBE_FAIL_COUNT = 3,
    PROBE_PASS_COUNT = 2,
    MODELS_INTERVAL_MS = 30000,
    PROGRESS_MS = 10000,
    CLIENT_LINGER_MS = 2000,
    CLIENT_HANGUP_MS = 40, /* with the tick: a client that left is noticed within 100 ms */
    ANSWER_HEAD_BYTES_MAX = 64 * 1024,
    LAG_PERIOD_MS = 100,
    DRAIN_CHECK_MS = 20,
    MAPPED_BYTES_MIN = 1 << 20,
    HEAP_SPARE_BYTES_MAX = 8 << 20,
};

/* ---- stopping ---- */

/* Calls act on every client; act may close it. */
static void each_client(struct relay *relay, void (*act)(struct client_conn *conn))
{
    struct list_node *node = relay->clients.head.next;

    while (node != &relay->clients.head) {
        struct list_node *next = node->next;

        act(container_of(node, struct client_conn, in_clients));
        node = next;
    }
}

static void stop(struct app *app)
{
    if (app->is_stopping)
        return;
    app->is_stopping = true;
    listener_close(&app->listener);
    listener_close(&app->admin_listener);
    each_client(&app->relay, client_conn_kill);
    app_stop_join(app);
    if (app->relay.place_asker != NULL)
        place_asker_close(app->relay.place_asker);
    thread_pool_close(app->relay.parse_threads);
    app->relay.parse_threads = NULL;
    if (app->relay.map != NULL)
        residency_map_close(&app->relay.map);
    if (app->fleet != NULL) /* else the start came to nothing */
        fleet_close(app->fleet);
    for (size_t i = 0; i < array_count(app->signals); i++)
        io_close((uv_handle_t *)&app->signals[i]);
    io_close((uv_handle_t *)&app->lag);
    io_close((uv_handle_t *)&app->drain);
    io_close((uv_handle_t *)&app->turn_end);
    io_loop_stop_tick(&app->io);
}

/* Whether some client has an answer that is complete here but not with it. */
static bool owes_a_client(const struct relay *relay)
{
    const struct list_node *head = &relay->clients.head;

    for (const struct list_node *node = head->next; node != head; node = node->next) {
        if (client_conn_is_owed(container_of(node, struct client_conn, in_clients)))
            return true;
    }
    return false;
}

static void on_drain_check(uv_timer_t *timer)
{
    struct app *app = timer->data;
    bool is_over = io_loop_now_ms(&app->io) >= app->drain_end_ms;

    each_client(&app->relay, client_conn_drain);
    if ((app->relay.stats.requests_in_flight > 0 || owes_a_client(&app->relay)) && !is_over)
        return;
    LOG(is_over && app->relay.stats.requests_in_flight > 0 ? LOG_WARN : LOG_INFO, "drained",
        log_u64("cut", app->relay.stats.requests_in_flight));
    stop(app);
}

static void on_stop_signal(uv_signal_t *signal, int number)
{
    struct app *app = signal->data;

    if (app->is_draining) {
        LOG(LOG_WARN, "stopping", log_text("why", "second signal"));
        stop(app);
        return;
    }
    app->is_draining = true;
    app->relay.is_draining = true;
    app->drain_end_ms = io_loop_now_ms(&app->io) + app->drain_ms;
    LOG(LOG_INFO, "draining", log_text("signal", number == SIGTERM ? "TERM" : "INT"),
        log_u64("in_flight", app->relay.stats.requests_in_flight),
        log_u64("drain_ms", app->drain_ms));
    uv_timer_start(&app->drain, on_drain_check, 0, DRAIN_CHECK_MS);
}

/* ---- the loop's own health ---- */

static void on_prepare(uv_prepare_t *prepare)
{
    struct app *app = prepare->data;

    io_loop_end_turn(&app->io);
    outbox_hub_flush(&app->relay.outboxes);
    log_flush();
}

static void on_lag(uv_timer_t *timer)
{
    struct app *app = timer->data;
    uint64_t now_ns = uv_hrtime();
    uint64_t late_ns = now_ns > app->lag_due_ns ? now_ns - app->lag_due_ns : 0;

    if (app->lag_due_ns > 0) {
        histogram_observe(&app->relay.stats.loop_lag_seconds, (double)late_ns / 1e9);
        if (app->relay.join != NULL)
            join_note_lag(app->relay.join, late_ns / 1000000);
    }
    app->lag_due_ns = now_ns + (uint64_t)LAG_PERIOD_MS * 1000000;
}

/* ---- configuration ---- */

static io_expired_fn *const on_expired[] = {
    [RELAY_WAIT_CLIENT_HEADER] = client_conn_expired,
    [RELAY_WAIT_CLIENT_BODY] = client_conn_expired,
    [RELAY_WAIT_CLIENT_IDLE] = client_conn_expired,
    [RELAY_WAIT_CLIENT_STALL] = client_conn_expired,
    [RELAY_WAIT_CLIENT_LINGER] = client_conn_expired,
    [RELAY_WAIT_CLIENT_HANGUP] = client_conn_check_hangup,
    [RELAY_WAIT_CONNECT] = exchange_expired,
    [RELAY_WAIT_EARLY_HEAD] = exchange_early_head_due,
    [RELAY_WAIT_KEEPALIVE] = exchange_keepalive_due,
    [RELAY_WAIT_UPSTREAM_HEADER] = exchange_expired,
    [RELAY_WAIT_UPSTREAM_IDLE] = exchange_expired,
    [RELAY_WAIT_WORKER_IDLE] = worker_pool_idle_expired,
};
static_assert(array_count(on_expired) == RELAY_WAIT_COUNT, "every wait ends somewhere");

static struct relay_config relay_config_of(const struct router_options *options)
{
    return (struct relay_config){
        .wait_ms =
            {
                [RELAY_WAIT_CLIENT_HEADER] = options->client_header_ms,
                [RELAY_WAIT_CLIENT_BODY] = options->client_body_ms,
                [RELAY_WAIT_CLIENT_IDLE] = options->client_idle_ms,
                [RELAY_WAIT_CLIENT_STALL] = options->client_stall_ms,
                [RELAY_WAIT_CLIENT_LINGER] = CLIENT_LINGER_MS,
                [RELAY_WAIT_CLIENT_HANGUP] = CLIENT_HANGUP_MS,
                [RELAY_WAIT_CONNECT] = options->connect_ms,
                [RELAY_WAIT_EARLY_HEAD] = options->early_head_ms,
                [RELAY_WAIT_KEEPALIVE] = options->keepalive_ms,
                [RELAY_WAIT_UPSTREAM_HEADER] = options->upstream_header_ms,
                [RELAY_WAIT_UPSTREAM_IDLE] = options->upstream_idle_ms,
                [RELAY_WAIT_WORKER_IDLE] = options->worker_idle_ms,
            },
        .body_bytes_max = options->body_bytes_max,
        .client_count_max = options->client_count_max,
        .worker_conn_count_max = (uint32_t)options->worker_conn_count_max,
        .retry_count_max = (uint32_t)options->retry_count_max,
        .worker_cache_tokens = options->worker_cache_tokens,
        .poison_memory_ms = options->poison_memory_ms,
        .usage_ask = options->usage_ask,
        .prefetch_hints = options->prefetch_hints,
        .anchor_echo = options->anchor_echo,
        .client_half_close = options->client_half_close,
        .cors_origins = options->cors_origins,
        .panic_percent = (uint32_t)options->panic_percent,
        .session_headers = options->session_headers,
    };
}

/* ---- reload ---- */

/* Running attempts keep the choice that was made for them. What the old policy remembered was about
 * who was chosen lately: the new one begins with nothing. */
static void apply_policy(struct relay *relay, const char *name)
{
    const struct policy *policy = policy_find(name);
    struct policy_state *state;

    assert(policy != NULL); /* options know only those that exist */

    if (policy == relay->policy)
        return;
    state = policy_state_create(policy, random_next(&relay->id_state));
    assert(state != NULL);
    policy_state_destroy(relay->policy_state);
    relay->policy = policy;
    relay->policy_state = state;
}

/* What may change while answers run; a wait that runs gets the new length too. */
static void apply(struct app *app, const struct router_options *options)
{
    struct relay *relay = &app->relay;

    relay_configure(relay, relay_config_of(options));
    if (relay->join != NULL)
        join_configure(relay->join, options->anchor_bytes_min, (uint32_t)options->anchor_rate_max);
    apply_policy(relay, options->policy);
    fleet_set_probe_interval(app->fleet, options->probe_interval_ms);
    if (relay->map != NULL)
        residency_map_set_leave_ms(relay->map, options->redis_leave_ms);
    log_set_level((enum log_level)options->log_level);
    app->drain_ms = options->drain_ms;
    for (uint32_t i = 0; i < worker_set_count(relay->workers); i++) {
        struct worker *worker = worker_set_at(relay->workers, i);

        if (worker != NULL && worker->pool != NULL)
            worker_pool_set_conn_count_max(worker->pool, relay->config.worker_conn_count_max);
    }
}

static void note_config(struct app *app, enum reload_result result)
{
    struct router_stats *stats = &app->relay.stats;

    stats->config_reload_total[result]++;
    if (result == RELOAD_APPLIED)
        stats->config_last_success_timestamp_seconds = clock_wall_ms() / 1000;
}

/* All or nothing: config_prepare() has checked each value, fleet_set_urls() all workers together,
 * before anything changes here. */
static void on_hangup(uv_signal_t *signal, int number)
{
    struct app *app = signal->data;
    const struct router_options *candidate;
    char why[WORKER_URL_WHY_BYTES];
    size_t count;

    (void)number;
    if (config_prepare(app->config) < 0) {
        note_config(app, RELOAD_REFUSED);
        return;
    }
    candidate = config_candidate(app->config);
    if (fleet_set_urls(app->fleet, candidate->worker_urls.items, candidate->worker_urls.count, NULL,
                       why) < 0) {
        config_discard(app->config, "worker-urls", why);
        note_config(app, RELOAD_REFUSED);
        return;
    }
    apply(app, candidate);
    count = config_commit(app->config);
    note_config(app, RELOAD_APPLIED);
    config_log_doubts(app->config);
    LOG(LOG_INFO, "config_reloaded", log_u64("changed", count));
}

/* ---- boot ---- */

static void start_handles(struct app *app)
{
    io_signal_start(&app->io, &app->signals[0], SIGTERM, on_stop_signal);
    io_signal_start(&app->io, &app->signals[1], SIGINT, on_stop_signal);
    io_signal_start(&app->io, &app->signals[2], SIGHUP, on_hangup);
    for (size_t i = 0; i < array_count(app->signals); i++)
        app->signals[i].data = app;
    signal(SIGPIPE, SIG_IGN); /* a peer that is gone is seen by its connection */
    signal(SIGUSR1, SIG_IGN); /* "reopen your log", which is standard error here: nothing to do */

    uv_prepare_init(&app->io.loop, &app->turn_end);
    app->turn_end.data = app;
    uv_prepare_start(&app->turn_end, on_prepare);
    uv_timer_init(&app->io.loop, &app->lag);
    app->lag.data = app;
    uv_timer_start(&app->lag, on_lag, LAG_PERIOD_MS, LAG_PERIOD_MS);
    uv_timer_init(&app->io.loop, &app->drain);
    app->drain.data = app;
}

/* The secret of a file, which others have too. */
static int read_secret(struct relay *relay, const char *path)
{
    char why[PRIVATE_FILE_WHY_BYTES];

    if (secret_file_read(relay->secret, path, why) < 0) {
        fprintf(stderr, "samovar-router: %s\n", why);
        return EXIT_CODE_CONFIG;
    }
    return EXIT_CODE_OK;
}

/* Random unless a seed was given, to repeat a run. The random secret and the random seed share
 * nothing: request ids show the seed to whoever reads them. */
static int make_secret(struct relay *relay, const struct router_options *options, uint64_t *seed)
{
    uint8_t bytes[64] = {0};

    static_assert((int)DIGEST_SECRET_BYTES == (int)BLOCK_CHAIN_SECRET_BYTES, "one secret for both");
    *seed = options->seed;
    if (options->seed == 0) {
        system_random_fill(bytes, sizeof bytes);
        system_random_fill(seed, sizeof *seed);
    } else {
        memcpy(bytes, seed, sizeof *seed);
    }
    digest_secret_derive(relay->secret, bytes, sizeof bytes);
    return options->secret_file[0] != '\0' ? read_secret(relay, options->secret_file)
                                           : EXIT_CODE_OK;
}

static void log_start(const struct relay *relay, const struct router_options *options)
{
    char text[17];

    snprintf(text, sizeof text, "%016" PRIx64, relay->fingerprint);
    LOG(LOG_INFO, "start", log_text("version", SAMOVAR_VERSION),
        log_text("policy", options->policy), log_u64("workers", options->worker_urls.count),
        log_text(options->redis[0] != '\0' ? "redis" : NULL, options->redis),
        log_text("fingerprint", text));
}

/* Under a map the guess only goes on where the map ends, and needs less. */
static void make_residency(struct relay *relay, size_t bytes_max, bool has_map)
{
    const size_t guess_bytes_max = has_map ? bytes_max / 4 : bytes_max;

    if (has_map) {
        relay->index = residency_index_create(bytes_max - guess_bytes_max);
        relay->sync =
            residency_sync_create(relay->index, (struct residency_sync_config){
                                                    .fingerprint = relay->fingerprint,
                                                    .index_bytes_max = bytes_max - guess_bytes_max,
                                                    .seed = random_next(&relay->id_state),
                                                });
    }
    relay->guess_index = residency_index_create(guess_bytes_max);
    relay->guess = relay->guess_index != NULL ? residency_guess_create(relay->guess_index) : NULL;
    assert(!has_map || (relay->index != NULL && relay->sync != NULL));
    assert(relay->guess != NULL);
}

static void make_knowledge(struct app *app, const struct router_options *options, uint64_t seed)
{
    struct relay *relay = &app->relay;

    relay->workers = worker_set_create();
    make_residency(relay, options->residency_bytes_max, options->redis[0] != '\0');
    relay->responses = response_table_create(relay->secret, options->response_count_max);
    relay->scanner = json_scanner_create();
    relay->policy = policy_find(options->policy);
    assert(relay->policy != NULL); /* options know only those that exist */
    relay->policy_state = policy_state_create(relay->policy, seed);
    assert(relay->workers != NULL && relay->responses != NULL && relay->scanner != NULL &&
           relay->policy_state != NULL);
}

static int make_place_asker(struct app *app)
{
    struct relay *relay = &app->relay;

    relay->place_asker = place_asker_create((struct place_asker_config){
        .io = &app->io,
        .workers = relay->workers,
        .scanner = relay->scanner,
        .authorization = app->worker_authorization,
        .secret = relay->secret,
    });
    if (relay->place_asker != NULL)
        return EXIT_CODE_OK;
    fprintf(stderr, "samovar-router: no memory\n");
    return EXIT_CODE_FAILED;
}

static int start_parse_threads(struct app *app, const struct router_options *options)
{
    struct thread_pool_config config = {
        .thread_count = (uint32_t)options->parse_thread_count,
        .job_count_max = (uint32_t)options->parse_queue_max,
        .contexts = app->parse_scanners,
    };

    if (config.thread_count == 0)
        return EXIT_CODE_OK;
    for (uint32_t i = 0; i < config.thread_count; i++)
        app->parse_scanners[i] = json_scanner_create();
    app->relay.parse_threads = thread_pool_create(&app->io.loop, config);
    if (app->relay.parse_threads == NULL) {
        fprintf(stderr, "samovar-router: no memory\n");
        return EXIT_CODE_FAILED;
    }
    return EXIT_CODE_OK;
}

/*
 * Large bodies get mappings of their own, which grow without being copied and go back when freed.
 * glibc would raise that threshold with the first of them, up to 32 MiB, and keep more for later
 * ones. The heap below may keep some, so that bodies of a few hundred KiB do not fault it in anew.
 */
static void set_up_memory(void)
{
    mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES_MIN);
    mallopt(M_TRIM_THRESHOLD, HEAP_SPARE_BYTES_MAX);
}

/* Each stream takes two descriptors: take what the system allows. */
static void raise_descriptor_limit(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
}

static int listen_on(struct app *app, const struct router_options *options)
{
    struct relay *relay = &app->relay;
    char why[256];

    if (listener_open(&app->listener, relay, &public_endpoints,
                      (struct listener_config){options->host, (uint16_t)options->port, "listening"},
                      why) < 0 ||
        listener_open(&app->admin_listener, relay, &admin_endpoints,
                      (struct listener_config){options->admin_host, (uint16_t)options->admin_port,
                                               "admin_listening"},
                      why) < 0) {
        fprintf(stderr, "samovar-router: %s\n", why);
        return EXIT_CODE_BIND;
    }
    return EXIT_CODE_OK;
}

/* Makes the fleet and gives it its workers. */
static int start_fleet(struct app *app, const struct router_options *options)
{
    char why[256];
    int status = worker_key_read(options->worker_api_key_file, &app->worker_authorization, why);

    app->fleet =
        fleet_create(&app->relay, (struct fleet_config){
                                      .health =
                                          {
                                              .probe_interval_ms = options->probe_interval_ms,
                                              .probe_timeout_ms = PROBE_TIMEOUT_MS,
                                              .fail_count = PROBE_FAIL_COUNT,
                                              .pass_count = PROBE_PASS_COUNT,
                                              .models_interval_ms = MODELS_INTERVAL_MS,
                                              .progress_ms = PROGRESS_MS,
                                              .authorization = app->worker_authorization,
                                          },
                                      .resolver = &resolver_system,
                                      .resolver_ctx = &app->io.loop,
                                      .dns_interval_ms = options->dns_interval_ms,
                                      .answer_head_bytes_max = ANSWER_HEAD_BYTES_MAX,
                                  });
    app->relay.fleet = app->fleet;
    if (status == 0)
        status = fleet_set_urls(app->fleet, options->worker_urls.items, options->worker_urls.count,
                                NULL, why);
    if (status < 0)
        fprintf(stderr, "samovar-router: %s\n", why);
    return status < 0 ? EXIT_CODE_CONFIG : EXIT_CODE_OK;
}

int app_init(struct app *app, struct config *config)
{
    const struct router_options *options = config_options(config);
    uint64_t seed;
    int code;

    memset(app, 0, sizeof *app);
    app->config = config;
    log_init(STDERR_FILENO, (enum log_level)options->log_level,
             (enum log_format)options->log_format);
    raise_descriptor_limit();
    set_up_memory();
    code = io_loop_init(&app->io);
    if (code < 0) {
        fprintf(stderr, "samovar-router: no event loop: %s\n", strerror(-code));
        return EXIT_CODE_FAILED;
    }
    app->drain_ms = options->drain_ms;
    relay_init(&app->relay, &app->io, relay_config_of(options), on_expired);
    code = make_secret(&app->relay, options, &seed);
    app->relay.fingerprint = fingerprint_of_secret(app->relay.secret);
    app->relay.id_state = seed;
    make_knowledge(app, options, seed);
    start_handles(app);
    log_start(&app->relay, options);
    config_log_doubts(config);
    app->relay.stats.config_last_success_timestamp_seconds = clock_wall_ms() / 1000;
    if (code == EXIT_CODE_OK)
        code = start_parse_threads(app, options);
    if (code == EXIT_CODE_OK)
        code = start_fleet(app, options);
    if (code == EXIT_CODE_OK)
        code = make_place_asker(app);
    if (code == EXIT_CODE_OK)
        code = app_start_map(app, options);
    return code == EXIT_CODE_OK ? listen_on(app, options) : code;
}

void app_run(struct app *app)
{
    uv_run(&app->io.loop, UV_RUN_DEFAULT);
}

void app_release(struct app *app)
{
    struct relay *relay = &app->relay;

    stop(app);
    uv_run(&app->io.loop, UV_RUN_DEFAULT);
    join_destroy(relay->join);
    place_asker_destroy(relay->place_asker);
    fleet_destroy(app->fleet);
    worker_key_forget(&app->worker_authorization);
    policy_state_destroy(relay->policy_state);
    json_scanner_destroy(relay->scanner);
    response_table_destroy(relay->responses);
    for (size_t i = 0; i < array_count(app->parse_scanners); i++)
        json_scanner_destroy(app->parse_scanners[i]);
    residency_guess_destroy(relay->guess);
    residency_index_destroy(relay->guess_index);
    residency_sync_destroy(relay->sync);
    residency_index_destroy(relay->index);
    worker_set_destroy(relay->workers);
    outbox_hub_release(&relay->outboxes);
    io_loop_release(&app->io);
    log_finish();
}
