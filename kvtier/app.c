/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/app.h"

#include <assert.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "backends/redis/residency_wire.h"
#include "backends/runtime/log.h"
#include "backends/runtime/machine.h"
#include "backends/runtime/metric.h"
#include "backends/secret_file.h"
#include "hashing/fingerprint.h"
#include "kvtier/metrics.h"
#include "kvtier/state_file.h"
#include "kvtier/tier_sentences.h"

/*
 * DESIGN
 *
 *   engines ------> reporters (one a worker) ------> map: one link to Redis for all of them
 *                      ^        ^
 *   note_feed ---------'  ^     '------- engine_probes
 *                         '--------------- node_tiers <-- the engines' connectors
 *
 * Stopping takes down the tiers first, which tell reporters of their blocks no more. Then it takes
 * down the reporters first, each of which gives up its lease by the link, and the link when the
 * last of them has gone.
 */

enum {
    ADMIN_CLIENT_MS = 10000,
    REGISTRATION_MS = 1000, /* a Redis that was emptied knows the workers again that soon */
    CONNECT_MS = 2000,
    COMMAND_MS = 1000,
    BACK_OFF_MS = 50,
    BACK_OFF_MS_MAX = 1000,
    MAP_PENDING_MAX = 4096,
    WHY_BYTES = 256,
};
static_assert((int)ENGINE_WORKER_COUNT_MAX <= (int)NOTE_FEED_STREAM_COUNT_MAX,
              "one connection reads the notes for all workers");

/* ---- stopping ---- */

static void on_reporter_closed(void *ctx)
{
    struct agent_app *app = ctx;

    if (--app->open_reporter_count == 0 && app->map != NULL)
        redis_link_close(&app->map, NULL, NULL);
}

static void close_reporters(struct agent_app *app)
{
    app->open_reporter_count = 1; /* until all are told */
    for (size_t i = 0; i < app->worker_count; i++) {
        app->open_reporter_count += app->reporters[i] != NULL;
        reporter_close(&app->reporters[i], on_reporter_closed, app);
    }
    on_reporter_closed(app);
}

static void stop(struct agent_app *app)
{
    if (app->is_stopping)
        return;
    app->is_stopping = true;
    admin_server_close(&app->admin);
    note_feed_close(&app->notes);
    engine_probes_close(&app->probes);
    node_tiers_close(&app->tiers);
    io_close((uv_handle_t *)&app->registration);
    close_reporters(app);
    for (size_t i = 0; i < array_count(app->signals); i++)
        io_close((uv_handle_t *)&app->signals[i]);
    io_close((uv_handle_t *)&app->turn_end);
    io_loop_stop_tick(&app->io);
}

static void on_stop_signal(uv_signal_t *signal, int number)
{
    LOG(LOG_INFO, "stopping", log_text("signal", number == SIGTERM ? "TERM" : "INT"));
    stop(signal->data);
}

static void on_hangup(uv_signal_t *signal, int number)
{
    (void)signal;
    (void)number;
    LOG(LOG_WARN, "reload_refused", log_text("why", "options are read at the start only"),
        log_text("advice", "restart the agent: its state is kept in --state-dir"));
}

static void on_prepare(uv_prepare_t *prepare)
{
    struct agent_app *app = prepare->data;

    io_loop_end_turn(&app->io);
    log_flush();
}

/* ---- Redis ---- */

/* Names are only ever added: whoever is gone has no lease. */
static void register_workers(struct agent_app *app)
{
    char key[RESIDENCY_KEY_BYTES_MAX];
    struct slice words[2 + ENGINE_WORKER_COUNT_MAX] = {
        SLICE("SADD"), slice_of(key, residency_key_workers(key, app->fingerprint))};

    for (size_t i = 0; i < app->worker_count; i++)
        words[2 + i] = slice_of_string(app->names[i]);
    if (app->is_map_ready) /* what is not taken now is with the next turn */
        (void)!redis_link_send(app->map, words, 2 + app->worker_count, NULL, NULL);
}

static void on_registration_due(uv_timer_t *timer)
{
    register_workers(timer->data);
}

static void on_map_ready(void *ctx)
{
    struct agent_app *app = ctx;

    if (app->is_stopping) /* whoever could say something has gone */
        return;
    app->is_map_ready = true;
    app->is_away_logged = false;
    LOG(LOG_INFO, "redis_ready");
    register_workers(app);
    for (size_t i = 0; i < app->worker_count; i++)
        reporter_linked(app->reporters[i]);
}

/* One line for each time that it is away, however often it is tried. */
static void on_map_away(void *ctx, int error, const char *why)
{
    struct agent_app *app = ctx;

    (void)error; /* why says it in words */
    app->is_map_ready = false;
    if (app->is_away_logged || app->is_stopping)
        return;
    app->is_away_logged = true;
    LOG(LOG_WARN, "redis_away", log_text("redis", app->options->redis), log_text("why", why),
        log_text("effect", "what engines hold is reported when it is back"));
}

static struct redis_link_config link_config(const struct agent_app *app, const char *name)
{
    return (struct redis_link_config){
        .url = app->redis,
        .password = app->password.len > 0 ? app->password.bytes : NULL,
        .name = name,
        .connect_ms = CONNECT_MS,
        .command_ms = COMMAND_MS,
        .back_off_ms = BACK_OFF_MS,
        .back_off_ms_max = BACK_OFF_MS_MAX,
        .pending_max = MAP_PENDING_MAX,
    };
}

/* ---- notes and probes ---- */

static void on_entry(void *ctx, size_t index, struct slice entry)
{
    struct agent_app *app = ctx;

    reporter_take_entry(app->reporters[index], entry);
}

static const struct note_feed_callbacks note_callbacks = {.on_entry = on_entry};

static void on_report(void *ctx, size_t index, const struct worker *worker, const char *model)
{
    struct agent_app *app = ctx;

    reporter_take_probe(app->reporters[index], worker, model);
}

static const struct engine_probes_callbacks probe_callbacks = {on_report};

/* ---- tiers ---- */

static void on_prefetch(void *ctx, struct reporter *reporter, const struct digest_128 *names,
                        size_t count, uint32_t within_ms)
{
    struct agent_app *app = ctx;

    for (size_t i = 0; app->tiers != NULL && i < app->worker_count; i++)
        if (app->reporters[i] == reporter)
            node_tiers_prefetch(app->tiers, i, names, count, within_ms);
}

/* ---- for operators ---- */

static int answer_metrics(void *ctx, struct admin_answer *answer)
{
    const struct agent_app *app = ctx;

    answer->content_type = METRIC_CONTENT_TYPE;
    return agent_metrics_write(&answer->body, &(struct agent_metrics_sources){
                                                  .reporters = app->reporters,
                                                  .reporter_count = app->worker_count,
                                                  .map = redis_link_stats(app->map),
                                                  .notes = note_feed_stats(app->notes),
                                                  .tiers = node_tiers_stats(app->tiers),
                                                  .is_map_ready = app->is_map_ready,
                                                  .log_dropped_count = log_dropped_count(),
                                              });
}

static int answer_health(void *ctx, struct admin_answer *answer)
{
    (void)ctx;
    return buf_append(&answer->body, SLICE("ok\n"));
}

/* Ready: routers can believe what it says of each worker. A line for each that they cannot. */
static int answer_ready(void *ctx, struct admin_answer *answer)
{
    const struct agent_app *app = ctx;
    int status = 0;

    if (!app->is_map_ready)
        status = buf_append(&answer->body, SLICE("Redis is away\n"));
    for (size_t i = 0; status == 0 && i < app->worker_count; i++) {
        struct reporter_stats stats = reporter_stats(app->reporters[i]);

        if (!stats.is_connected)
            status = buf_printf(&answer->body, "%s: not connected to its events\n", app->names[i]);
        else if (stats.report.is_rivalled)
            status = buf_printf(&answer->body, "%s: another agent claims it\n", app->names[i]);
        else if (!stats.report.is_live && app->is_map_ready)
            status = buf_printf(&answer->body, "%s: not all is published yet\n", app->names[i]);
    }
    if (buf_len(&answer->body) > 0)
        answer->status = 503;
    else if (status == 0)
        status = buf_append(&answer->body, SLICE("ready\n"));
    return status;
}

static int answer_tiers(void *ctx, struct admin_answer *answer)
{
    const struct agent_app *app = ctx;
    const struct node_tiers_stats stats = node_tiers_stats(app->tiers);

    return tier_sentences_write(&answer->body, app->tiers != NULL ? &stats : NULL,
                                app->options->ipc_socket);
}

static const struct admin_endpoint endpoints[] = {
    {"/health", answer_health},
    {"/metrics", answer_metrics},
    {"/ready", answer_ready},
    {"/tiers", answer_tiers},
};

/* ---- boot ---- */

static int fail(int code, const char *why)
{
    fprintf(stderr, "samovar-agent: %s\n", why);
    return code;
}

static int read_secrets(struct agent_app *app)
{
    const struct agent_options *options = app->options;
    char why[PRIVATE_FILE_WHY_BYTES];
    int status = secret_file_read(app->secret, options->secret_file, why);

    if (status == 0)
        status = private_file_read_line(&app->password, "redis-password-file",
                                        options->redis_password_file, why);
    if (status == 0)
        status = private_file_read_line(&app->api_key, "engine-api-key-file",
                                        options->engine_api_key_file, why);
    if (status == 0 && app->api_key.len > 0)
        snprintf(app->authorization, sizeof app->authorization, "Bearer %s", app->api_key.bytes);
    app->fingerprint = fingerprint_of_secret(app->secret);
    return status < 0 ? fail(EXIT_CODE_CONFIG, why) : EXIT_CODE_OK;
}

static int check_state_directory(const struct agent_app *app)
{
    char why[STATE_FILE_WHY_BYTES];

    return app->options->state_dir[0] != '\0' &&
                   state_file_check_directory(app->options->state_dir, why) < 0
               ? fail(EXIT_CODE_CONFIG, why)
               : EXIT_CODE_OK;
}

/* Both were checked when the options were read. */
static void read_places(struct agent_app *app)
{
    char why[ENGINE_SPEC_WHY_BYTES], redis_why[REDIS_URL_WHY_BYTES];
    const char *option;
    struct engine_lists lists = agent_options_engines(app->options);
    int count = engine_specs_make(&lists, app->specs, &option, why);
    int status = redis_url_parse(slice_of_string(app->options->redis), &app->redis, redis_why);

    assert(count > 0);
    assert(status == 0);
    app->worker_count = (size_t)count;
    for (size_t i = 0; i < app->worker_count; i++)
        app->names[i] = app->specs[i].name;
}

/* The fingerprint is what routers' must be too. */
static void log_start(const struct agent_app *app)
{
    char text[sizeof "0123456789abcdef"];

    snprintf(text, sizeof text, "%016" PRIx64, app->fingerprint);
    LOG(LOG_INFO, "start", log_text("version", SAMOVAR_VERSION),
        log_u64("workers", app->worker_count), log_text("redis", app->options->redis),
        log_text("fingerprint", text));
}

static void start_handles(struct agent_app *app)
{
    io_signal_start(&app->io, &app->signals[0], SIGTERM, on_stop_signal);
    io_signal_start(&app->io, &app->signals[1], SIGINT, on_stop_signal);
    io_signal_start(&app->io, &app->signals[2], SIGHUP, on_hangup);
    for (size_t i = 0; i < array_count(app->signals); i++)
        app->signals[i].data = app;
    signal(SIGPIPE, SIG_IGN); /* a peer that is gone is seen by its connection */
    signal(SIGXFSZ,
           SIG_IGN); /* a limit on files turns writes to the SSD off, as a full disk does */
    uv_prepare_init(&app->io.loop, &app->turn_end);
    app->turn_end.data = app;
    uv_prepare_start(&app->turn_end, on_prepare);
    uv_timer_init(&app->io.loop, &app->registration);
    app->registration.data = app;
    uv_timer_start(&app->registration, on_registration_due, REGISTRATION_MS, REGISTRATION_MS);
}

static int start_reporters(struct agent_app *app)
{
    int status =
        redis_link_open(&app->io.loop, link_config(app, "samovar-agent-map"),
                        (struct redis_link_callbacks){on_map_ready, on_map_away}, app, &app->map);

    for (size_t i = 0; status == 0 && i < app->worker_count; i++) {
        status =
            reporter_create(&app->io,
                            (struct reporter_config){
                                .spec = &app->specs[i],
                                .secret = app->secret,
                                .fingerprint = app->fingerprint,
                                .topic = app->options->kv_topic,
                                .token_blocks_max = agent_options_token_blocks(app->options, 0),
                                .text_blocks_max = (uint32_t)app->options->text_blocks_max,
                                .link = app->map,
                                .state_dir = app->options->state_dir,
                                .on_prefetch = app->options->cpu_bytes > 0 ? on_prefetch : NULL,
                                .ctx = app},
                            &app->reporters[i]);
        if (status == 0)
            LOG(LOG_INFO, "worker", log_text("worker", app->specs[i].name),
                log_text("engine", app->specs[i].url.name),
                log_text("events", app->specs[i].events), log_text("replay", app->specs[i].replay));
    }
    if (status == 0)
        status = note_feed_create(&app->io.loop,
                                  (struct note_feed_config){
                                      .link = link_config(app, "samovar-agent-notes"),
                                      .workers = app->names,
                                      .worker_count = app->worker_count,
                                  },
                                  &note_callbacks, app, &app->notes);
    return status < 0 ? fail(EXIT_CODE_CONFIG, strerror(-status)) : EXIT_CODE_OK;
}

/* The system would promise more memory than there is, and end a process when it is used. */
static int check_memory(const struct agent_app *app)
{
    const struct machine machine = machine_read();
    char why[WHY_BYTES];

    if (app->options->cpu_bytes <= machine.memory_bytes)
        return EXIT_CODE_OK;
    snprintf(why, sizeof why,
             "cpu-bytes: %" PRIu64 " bytes are more than the %" PRIu64
             " that this machine, or its control group, has: leave some of these to the engines "
             "and the system",
             app->options->cpu_bytes, machine.memory_bytes);
    return fail(EXIT_CODE_CONFIG, why);
}

static int start_tiers(struct agent_app *app)
{
    char why[NODE_TIERS_WHY_BYTES];
    int code = check_memory(app);

    if (app->options->cpu_bytes == 0 || code != EXIT_CODE_OK)
        return code;
    return node_tiers_create((struct node_tiers_config){.io = &app->io,
                                                        .secret = app->secret,
                                                        .options = app->options,
                                                        .specs = app->specs,
                                                        .reporters = app->reporters,
                                                        .worker_count = app->worker_count},
                             &app->tiers, why) < 0
               ? fail(EXIT_CODE_BIND, why)
               : EXIT_CODE_OK;
}

static int listen_on(struct agent_app *app)
{
    char why[TCP_LISTEN_WHY_BYTES];
    struct admin_server_config config = {
        .listen = {app->options->admin_host, (uint16_t)app->options->admin_port, "admin_listening"},
        .endpoints = endpoints,
        .endpoint_count = array_count(endpoints),
        .client_ms_max = ADMIN_CLIENT_MS,
        .ctx = app,
    };

    return admin_server_open(&app->admin, &app->io, config, why) < 0 ? fail(EXIT_CODE_BIND, why)
                                                                     : EXIT_CODE_OK;
}

int agent_app_init(struct agent_app *app, const struct agent_options *options)
{
    int code;

    memset(app, 0, sizeof *app);
    app->options = options;
    log_init(STDERR_FILENO, (enum log_level)options->log_level,
             (enum log_format)options->log_format);
    code = io_loop_init(&app->io);
    if (code < 0)
        return fail(EXIT_CODE_FAILED, "no event loop");
    start_handles(app);
    read_places(app);
    code = read_secrets(app);
    if (code == EXIT_CODE_OK)
        code = check_state_directory(app);
    if (code != EXIT_CODE_OK)
        return code;
    log_start(app);
    agent_options_log_doubts(options);
    code = start_reporters(app);
    if (code == EXIT_CODE_OK)
        code = start_tiers(app);
    if (code != EXIT_CODE_OK)
        return code;
    app->probes =
        engine_probes_create(&app->io, app->specs, app->worker_count,
                             (struct engine_probes_config){
                                 .interval_ms = options->probe_interval_ms,
                                 .authorization = app->api_key.len > 0 ? app->authorization : NULL,
                             },
                             &probe_callbacks, app);
    return listen_on(app);
}

void agent_app_run(struct agent_app *app)
{
    uv_run(&app->io.loop, UV_RUN_DEFAULT);
}

void agent_app_release(struct agent_app *app)
{
    stop(app);
    uv_run(&app->io.loop, UV_RUN_DEFAULT);
    private_file_release(&app->password);
    private_file_release(&app->api_key);
    explicit_bzero(app->authorization, sizeof app->authorization);
    explicit_bzero(app->secret, sizeof app->secret);
    io_loop_release(&app->io);
    log_finish();
}
