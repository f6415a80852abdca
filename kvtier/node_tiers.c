/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/node_tiers.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/runtime/log.h"
#include "kvtier/tiers/eviction.h"

/*
 * DESIGN
 *
 *   engines -- engine_sessions -- engine_layouts -- tier_store ---> reporters of the workers whose
 *                    '--- device: their memory ------'              engines have that layout
 *
 * A reporter is told of all blocks when its worker's engine registers, of each change from then on,
 * and that nothing can be reached any more when that engine has gone: blocks that nobody can load
 * are not claimed, though the tiers have them still.
 *
 * Taking down goes from the engines inwards: connections end when nothing copies any more, then the
 * stores, then the devices that they copied by.
 */

enum {
    RATES_MS = 1000,      /* between two looks at what loads cost */
    JOB_COUNT_MAX = 4096, /* of each store, that may wait */
    REQUEST_COUNT_MAX = 8192,
    TOKENS_A_TEXT_BLOCK = 64, /* of 256 bytes: four bytes a token, in English */
};

/* The worker's engine, as it is registered now. */
struct registration {
    const struct engine_session *session; /* NULL: it is not here */
    const struct engine_layout *layout;
};

struct node_tiers {
    struct node_tiers_config config;
    struct device *devices[2]; /* by enum device_kind */
    struct engine_layouts layouts;
    struct engine_sessions *sessions;
    struct registration registrations[ENGINE_WORKER_COUNT_MAX];
    uv_timer_t rates;
    bool is_closing; /* reporters may be gone */
};

/* ---- reporters ---- */

static void tell_block(struct node_tiers *tiers, size_t worker, uint32_t block_tokens,
                       const struct reporter_block *block)
{
    static_assert(1 << TOKEN_TIER_CPU == 1 << BLOCK_TIER_CPU << 1, "beneath HBM: a bit further");
    static_assert(1 << TOKEN_TIER_SSD == 1 << BLOCK_TIER_SSD << 1, "likewise");
    struct reporter_block told = *block;

    told.token_count = block_tokens;
    told.tiers = (uint8_t)(block->tiers << 1);
    reporter_take_block(tiers->config.reporters[worker], &told);
}

static void on_block(void *ctx, const struct engine_layout *layout, struct block_key key,
                     struct digest_128 parent, uint32_t depth, uint8_t places)
{
    struct node_tiers *tiers = ctx;
    const struct reporter_block block = {.name = key.name, .parent = parent, .tiers = places};

    (void)depth;
    if (tiers->is_closing)
        return;
    for (size_t i = 0; i < tiers->config.worker_count; i++)
        if (tiers->registrations[i].layout == layout)
            tell_block(tiers, i, layout->block_tokens, &block);
}

/* What tier_store_tell() says, for one worker. */
struct listener {
    struct node_tiers *tiers;
    size_t worker;
    uint32_t block_tokens;
};

static void on_told(void *ctx, struct block_key key, struct digest_128 parent, uint32_t depth,
                    uint8_t places)
{
    const struct listener *listener = ctx;
    const struct reporter_block block = {.name = key.name, .parent = parent, .tiers = places};

    (void)depth;
    tell_block(listener->tiers, listener->worker, listener->block_tokens, &block);
}

static uint32_t bounded_u32(double number)
{
    return number < UINT32_MAX ? (uint32_t)number : UINT32_MAX;
}

/* As bounded_u32(), by what a double tells apart. */
static uint64_t bounded(double number)
{
    return number < 0x1p53 ? (uint64_t)number : 1ull << 53;
}

/* 0: not measured. */
static uint64_t bytes_per_s(const struct tier_load_stats *load)
{
    return load->is_measured && load->cost.unit_ms > 0 ? bounded(1e3 / load->cost.unit_ms) : 0;
}

/* With what the engine adds. 0: not measured. */
static uint32_t start_us(const struct tier_load_stats *load, double turn_ms)
{
    return load->is_measured ? bounded_u32((load->cost.start_ms + turn_ms) * 1e3 + 1) : 0;
}

/* What a load costs, and what computing does, for routers; all 0 where no engine is registered. */
static void tell_rates(struct node_tiers *tiers, size_t worker)
{
    const struct registration *registration = &tiers->registrations[worker];
    const struct engine_layout *layout = registration->layout;
    struct reporter_tiers told = {.has_connector = layout != NULL};

    if (layout != NULL && layout->store != NULL) {
        const struct tier_store_stats stats = tier_store_stats(layout->store);
        const struct engine_session_costs costs = engine_session_costs(registration->session);

        told.bytes_per_token = layout->page_bytes / layout->block_tokens;
        told.cpu_bytes_per_s = bytes_per_s(&stats.load[BLOCK_TIER_CPU]);
        told.ssd_bytes_per_s = bytes_per_s(&stats.load[BLOCK_TIER_SSD]);
        told.cpu_start_us = start_us(&stats.load[BLOCK_TIER_CPU], costs.turn_ms);
        told.ssd_start_us = start_us(&stats.load[BLOCK_TIER_SSD], costs.turn_ms);
        told.cpu_queue_ms = bounded_u32(stats.load[BLOCK_TIER_CPU].queue_ms);
        told.ssd_queue_ms = bounded_u32(stats.load[BLOCK_TIER_SSD].queue_ms);
        if (costs.prefill_ms_per_token > 0)
            told.prefill_tokens_per_s = bounded_u32(1e3 / costs.prefill_ms_per_token);
    }
    reporter_set_tiers(tiers->config.reporters[worker], &told);
}

static void on_rates_due(uv_timer_t *timer)
{
    struct node_tiers *tiers = timer->data;

    for (size_t i = 0; i < tiers->config.worker_count; i++)
        if (tiers->registrations[i].session != NULL)
            tell_rates(tiers, i);
}

/* ---- engines ---- */

static int find_worker(void *ctx, struct slice name)
{
    const struct node_tiers *tiers = ctx;
    char why[WORKER_URL_WHY_BYTES];
    struct worker_url url;

    if (name.len == 0)
        return tiers->config.worker_count == 1 ? 0 : -ENOENT;
    if (worker_url_parse(name, &url, why) == 0) /* as routers would write it */
        for (size_t i = 0; i < tiers->config.worker_count; i++)
            if (strcmp(tiers->config.specs[i].name, url.name) == 0)
                return (int)i;
    for (size_t i = 0; i < tiers->config.worker_count; i++) /* "http://host:port#rank" */
        if (slice_eq(slice_of_string(tiers->config.specs[i].name), name))
            return (int)i;
    return -ENOENT;
}

static void warn_of_room(const char *option, const char *why, uint64_t needed, uint64_t have)
{
    LOG(LOG_WARN, "option_doubtful", log_text("option", option), log_text("why", why),
        log_u64("needed", needed), log_u64("allowed", have),
        log_text("advice", "raise it above what is needed: --help says what memory that takes"));
}

/* Routers are told of blocks that have a place in the worker's reporter, and of no others. How many
 * there can be is known now that the engine has said how large they are. */
static void make_room(const struct node_tiers *tiers, size_t worker,
                      const struct engine_layout *layout)
{
    const struct agent_options *options = tiers->config.options;
    const struct tier_store_stats stats = tier_store_stats(layout->store);
    const uint64_t slots =
        (uint64_t)stats.slot_count[BLOCK_TIER_CPU] + stats.slot_count[BLOCK_TIER_SSD];
    const uint64_t texts = slots * layout->block_tokens / TOKENS_A_TEXT_BLOCK;
    const uint32_t allowed = reporter_allow_token_blocks(
        tiers->config.reporters[worker], agent_options_token_blocks(options, slots));

    if (slots >= allowed)
        warn_of_room("token-blocks-max",
                     "the tiers alone have more blocks: routers will not be told of all", slots,
                     allowed);
    if (texts > options->text_blocks_max)
        warn_of_room("text-blocks-max",
                     "the tiers hold more text than that: routers will not be told of all", texts,
                     options->text_blocks_max);
}

static void on_registered(void *ctx, const struct engine_session *session, size_t worker,
                          const struct engine_layout *layout)
{
    struct node_tiers *tiers = ctx;
    struct registration *registration = &tiers->registrations[worker];
    struct listener listener = {tiers, worker, layout->block_tokens};

    if (registration->session != NULL) /* its last life, which is not known to be over yet */
        reporter_drop_blocks(tiers->config.reporters[worker]);
    *registration = (struct registration){session, layout};
    LOG(LOG_INFO, "tiers_attached", log_text("worker", tiers->config.specs[worker].name));
    make_room(tiers, worker, layout);
    tier_store_tell(layout->store, on_told, &listener);
    tell_rates(tiers, worker);
}

static void on_gone(void *ctx, const struct engine_session *session, size_t worker)
{
    struct node_tiers *tiers = ctx;
    struct registration *registration = &tiers->registrations[worker];

    if (registration->session != session) /* another life of it has come already */
        return;
    *registration = (struct registration){NULL, NULL};
    LOG(LOG_INFO, "tiers_detached", log_text("worker", tiers->config.specs[worker].name));
    if (tiers->is_closing)
        return;
    reporter_drop_blocks(tiers->config.reporters[worker]);
    tell_rates(tiers, worker);
}

static void on_anchor(void *ctx, size_t worker, struct slice id, uint64_t last_block,
                      uint32_t prompt_tokens)
{
    struct node_tiers *tiers = ctx;

    if (!tiers->is_closing)
        reporter_take_anchor(tiers->config.reporters[worker], id, last_block, prompt_tokens);
}

static const struct engine_sessions_callbacks session_callbacks = {find_worker, on_registered,
                                                                   on_gone, on_anchor};

void node_tiers_prefetch(struct node_tiers *tiers, size_t worker, const struct digest_128 *names,
                         size_t count, uint32_t within_ms)
{
    const struct engine_layout *layout = tiers->registrations[worker].layout;

    if (layout != NULL)
        (void)tier_store_prefetch(layout->store, names, count,
                                  io_loop_now_ms(tiers->config.io) + within_ms);
}

/* ---- life ---- */

static int create_devices(struct node_tiers *tiers, char why[NODE_TIERS_WHY_BYTES])
{
    char device_why[DEVICE_WHY_BYTES];
    int status = device_host_create(&tiers->devices[DEVICE_HOST]);

    if (status < 0) {
        snprintf(why, NODE_TIERS_WHY_BYTES, "%s", strerror(-status));
        return status;
    }
    if (device_cuda_create(&tiers->devices[DEVICE_CUDA], device_why) < 0) {
        tiers->devices[DEVICE_CUDA] = NULL;
        LOG(LOG_INFO, "no_gpu", log_text("why", device_why),
            log_text("effect", "engines whose memory is the host's are served"));
    }
    return 0;
}

static void destroy_devices(struct node_tiers *tiers)
{
    for (size_t i = 0; i < array_count(tiers->devices); i++)
        if (tiers->devices[i] != NULL)
            tiers->devices[i]->ops->destroy(tiers->devices[i]);
}

static void init_layouts(struct node_tiers *tiers)
{
    const struct agent_options *options = tiers->config.options;

    engine_layouts_init(&tiers->layouts,
                        (struct engine_layouts_config){
                            .secret = tiers->config.secret,
                            .layout_count_max = (uint32_t)options->layouts_max,
                            .has_guard = options->thrash_guard,
                            .tiers = {.io = tiers->config.io,
                                      .devices = {tiers->devices[0], tiers->devices[1]},
                                      .cpu_bytes = options->cpu_bytes,
                                      .ssd_bytes = options->ssd_bytes,
                                      .ssd_dir = options->ssd_dir,
                                      .ssd_reserve_bytes = options->ssd_reserve_bytes,
                                      .eviction = eviction_find(options->eviction),
                                      .load_threads = (uint32_t)options->load_threads,
                                      .save_threads = (uint32_t)options->save_threads,
                                      .job_count_max = JOB_COUNT_MAX,
                                      .write_bytes_per_s = options->ssd_write_bytes_per_s,
                                      .has_checksum = options->page_checksums,
                                      .may_use_uring = options->ssd_io != AGENT_IO_THREADS,
                                      .may_use_direct = true},
                            .on_changed = on_block,
                            .ctx = tiers,
                        });
}

static int listen_for_engines(struct node_tiers *tiers, char why[NODE_TIERS_WHY_BYTES])
{
    const struct agent_options *options = tiers->config.options;
    gid_t group = IPC_SOCKET_NO_GROUP;

    if (options->ipc_group[0] != '\0' && ipc_socket_find_group(options->ipc_group, &group) < 0) {
        snprintf(why, NODE_TIERS_WHY_BYTES, "ipc-group %s: there is no such group",
                 options->ipc_group);
        return -EINVAL;
    }
    return engine_sessions_create(
        (struct engine_sessions_config){
            .io = tiers->config.io,
            .secret = tiers->config.secret,
            .path = options->ipc_socket,
            .group = group,
            .conn_count_max = (uint32_t)options->ipc_clients_max,
            .request_count_max = REQUEST_COUNT_MAX,
            .hold_ms = (uint32_t)options->hold_ms,
            .devices = {tiers->devices[DEVICE_HOST], tiers->devices[DEVICE_CUDA]},
            .layouts = &tiers->layouts,
        },
        &session_callbacks, tiers, &tiers->sessions, why);
}

int node_tiers_create(struct node_tiers_config config, struct node_tiers **created,
                      char why[NODE_TIERS_WHY_BYTES])
{
    struct node_tiers *tiers = calloc(1, sizeof *tiers);
    int status;

    *created = NULL;
    snprintf(why, NODE_TIERS_WHY_BYTES, "%s", strerror(ENOMEM));
    if (tiers == NULL)
        return -ENOMEM;
    tiers->config = config;
    status = create_devices(tiers, why);
    if (status == 0) {
        init_layouts(tiers);
        status = listen_for_engines(tiers, why);
    }
    if (status < 0) {
        destroy_devices(tiers);
        free(tiers);
        return status;
    }
    uv_timer_init(&config.io->loop, &tiers->rates);
    tiers->rates.data = tiers;
    uv_timer_start(&tiers->rates, on_rates_due, RATES_MS, RATES_MS);
    LOG(LOG_INFO, "tiers_listening", log_text("socket", config.options->ipc_socket),
        log_u64("cpu_bytes", config.options->cpu_bytes),
        log_u64("ssd_bytes", config.options->ssd_bytes));
    *created = tiers;
    return 0;
}

static void on_rates_closed(uv_handle_t *timer)
{
    free(timer->data);
}

static void on_layouts_closed(void *ctx)
{
    struct node_tiers *tiers = ctx;

    destroy_devices(tiers);
    uv_close((uv_handle_t *)&tiers->rates, on_rates_closed);
}

static void on_sessions_closed(void *ctx)
{
    struct node_tiers *tiers = ctx;

    engine_layouts_close(&tiers->layouts, on_layouts_closed, tiers);
}

void node_tiers_close(struct node_tiers **closed)
{
    struct node_tiers *tiers = *closed;

    if (tiers == NULL)
        return;
    *closed = NULL;
    tiers->is_closing = true;
    uv_timer_stop(&tiers->rates);
    engine_sessions_close(&tiers->sessions, on_sessions_closed, tiers);
}

/* ---- for operators ---- */

static uint64_t more_of(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static void add_tier(struct node_tier_stats *sum, const struct tier_store_stats *stats,
                     enum block_tier tier, uint32_t page_bytes)
{
    const struct tier_load_stats *load = &stats->load[tier];

    sum->slots += stats->slot_count[tier];
    sum->held_blocks += stats->blocks->held[tier];
    sum->held_bytes += stats->blocks->held[tier] * page_bytes;
    sum->free_slots += stats->blocks->free_slots[tier];
    sum->load_bytes_per_s = more_of(sum->load_bytes_per_s, bytes_per_s(load));
    sum->load_start_us = more_of(sum->load_start_us, start_us(load, 0));
    sum->load_queue_ms = more_of(sum->load_queue_ms, (uint64_t)load->queue_ms);
    sum->timed_count += load->timed_count;
    sum->timed_us += load->timed_us;
}

static void add_guard(struct node_tiers_stats *sum, const struct engine_layout *layout)
{
    const struct thrash_guard_stats *stats;
    const uint64_t now_ms = io_loop_now_ms(layout->layouts->config.tiers.io);

    if (layout->guard == NULL)
        return;
    stats = thrash_guard_stats(layout->guard);
    sum->refaults += stats->refaults;
    sum->closed += stats->closed;
    sum->closed_count += thrash_guard_is_closed(layout->guard);
    sum->pressure_percent = more_of(sum->pressure_percent,
                                    (uint64_t)(100 * thrash_guard_pressure(layout->guard, now_ms)));
}

static void add(struct node_tiers_stats *sum, const struct engine_layout *layout)
{
    const struct tier_store_stats stats = tier_store_stats(layout->store);

    sum->layout_count++;
    add_guard(sum, layout);
#define ADD(field) sum->field += stats.field;
    TIER_STORE_COUNTERS(ADD)
#undef ADD
    sum->ssd_writable_count += stats.is_ssd_writable;
    if (stats.ssd_status < 0)
        sum->ssd_status = stats.ssd_status;
    sum->scanning_count += stats.is_scanning;
    sum->holds += stats.blocks->holds;
    sum->hold_oldest_ms = more_of(sum->hold_oldest_ms, stats.hold_oldest_ms);
    for (size_t tier = 0; tier < BLOCK_TIER_COUNT; tier++)
        add_tier(&sum->tier[tier], &stats, (enum block_tier)tier, layout->page_bytes);
}

struct node_tiers_stats node_tiers_stats(const struct node_tiers *tiers)
{
    struct node_tiers_stats sum = {0};

    if (tiers == NULL)
        return sum;
    sum.engines = engine_sessions_stats(tiers->sessions);
    if (tiers->devices[DEVICE_CUDA] != NULL)
        sum.gpus = cuda_device_stats(tiers->devices[DEVICE_CUDA]);
    for (const struct list_node *node = tiers->layouts.all.head.next;
         node != &tiers->layouts.all.head; node = node->next) {
        const struct engine_layout *layout = container_of(node, const struct engine_layout, in_all);

        if (layout->store != NULL)
            add(&sum, layout);
    }
    return sum;
}
