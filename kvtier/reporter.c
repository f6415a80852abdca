/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/reporter.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backends/runtime/log.h"
#include "backends/runtime/system_random.h"
#include "kvtier/attempt_key.h"
#include "kvtier/life_file.h"
#include "kvtier/state_keeper.h"

/*
 * DESIGN
 *
 *   engine  -> kv_event_source -> cache_events -.
 *                                                alignment -> flush -> residency_report -> Redis
 *   routers -> note_feed       -> note_intake --'
 *
 * A flush looks at all that changed since the last one, so changes gather for FLUSH_MS: that is
 * also how long a flood of events keeps the joins waiting.
 *
 * Three things are lies unless they are acted upon at once: the engine's process ended, or began
 * anew, or a part of what it said is lost for good. Each time all is withdrawn: a removal may be
 * among the lost, and a phantom costs a prefill on the wrong worker for ever, while a hit that was
 * not foreseen costs one. What the engine replays, and what it stores from then on, comes back
 * together with its text, which is kept: names of blocks are made of their content.
 *
 * is_whole: every message of this engine process was seen, from its first on or from one that its
 * replay began with. It is known once a message or the end of a replay has come without a loss.
 */

enum {
    FLUSH_MS = 5,
    IDLE_FLUSH_MS = 1000, /* attempts grow too old also while nothing happens */
    DEPTH_MAX = 131072,   /* blocks of a chain: RESIDENCY_TOKENS_MAX in blocks of 16 */
    ATTEMPTS_MAX = 4096,
    ATTEMPT_WAIT_MS = 10000,
    REPORT_FLUSH_MS = 10,
    LEASE_MS = 3000,
    PAGE_TTL_S = 900,
    CHANGE_COUNT_MAX = 4096,
    REPLAY_IDLE_MS = 2000,
    REPLAY_COOLDOWN_MS = 100,
    RENEW_MS = 30000, /* an engine that was too busy to answer is asked again for all it keeps */
    RATE_CHANGE_DIVISOR = 16,
    ENGINE_ANCHOR_COUNT = 4096,   /* requests under way, and some more */
    QUEUED_BYTES_MAX = 256 << 20, /* of messages: a replay of 10,000 batches is some 40 MiB */
};

/* What the connector said of an attempt, for its answer: a router that need not ask for anchors
 * does not know it. */
struct engine_anchor {
    uint64_t attempt;
    uint64_t last_block;
};

struct reporter {
    struct reporter_config config;
    struct io_loop *io;
    struct alignment alignment;
    struct cache_events events;
    struct note_intake intake;
    struct state_keeper state;
    struct kv_event_source *source;
    struct residency_report *report;
    struct residency_meta meta;
    uv_timer_t flush;
    bool is_flush_soon;
    bool is_connected;
    bool has_lost; /* messages of this engine process */
    bool is_whole;
    uint64_t foreign_fingerprint; /* that was logged last */
    struct life_file life;
    enum life_proof proof; /* of the lives before this one */
    bool is_rival_told;    /* to the log, and not yet that it is over */
    uint64_t claims_total;
    struct engine_anchor anchors[ENGINE_ANCHOR_COUNT]; /* by attempt; the newest of two stays */
    uint64_t anchors_total;
    uint64_t foreign_anchors_total;
    void (*on_closed)(void *ctx);
    void *closed_ctx;
};

/* ---- out ---- */

static void on_claimed(void *ctx, uint64_t hash, uint8_t tiers, uint32_t tokens)
{
    struct reporter *reporter = ctx;

    reporter->claims_total++;
    /* What has no room is counted by the report, and not claimed. */
    (void)!residency_report_set(reporter->report, (struct residency_record){hash, tokens, tiers});
}

/* A router goes on from a block that we do not know: it is told so, whatever it saw. */
static void on_unknown_start(void *ctx, uint64_t start)
{
    struct reporter *reporter = ctx;

    (void)!residency_report_set(reporter->report, (struct residency_record){.hash = start});
}

static uint64_t find_prompt(void *ctx, uint64_t attempt)
{
    const struct reporter *reporter = ctx;
    const struct engine_anchor *anchor = &reporter->anchors[attempt % ENGINE_ANCHOR_COUNT];

    return anchor->attempt == attempt ? anchor->last_block : 0;
}

/* Before the first word of this life; and again while another process of the same state lives: it
 * may be one that is about to end, and may have let go of its lease before it does. */
static void take_life(struct reporter *reporter)
{
    const bool is_live = residency_report_stats(reporter->report).is_live;
    uint64_t before[LIFE_EPOCH_COUNT_MAX];
    const enum life_proof proof =
        life_file_take(&reporter->life, reporter->config.state_dir,
                       state_keeper_worker(&reporter->state), reporter->meta.epoch, before);

    static_assert((int)LIFE_EPOCH_COUNT_MAX == (int)RESIDENCY_FORMER_COUNT_MAX,
                  "all that is known of is told");
    reporter->proof = proof;
    if (proof == LIFE_OVER && !is_live) {
        residency_report_succeed(reporter->report, before);
        LOG(LOG_INFO, "life_succeeded", log_text("worker", reporter->config.spec->name),
            log_text("effect", "should the lease of the process before still be there, it is "
                               "replaced at once"));
    } else if (proof == LIFE_UNWRITABLE) {
        LOG(LOG_WARN, "life_not_kept", log_text("worker", reporter->config.spec->name),
            log_text("effect", "a restart waits until the lease of this process is over"));
    }
}

/* Two agents for one worker is a mistake; one that was just restarted may find its own old lease.
 */
static void tell_rival(struct reporter *reporter)
{
    const bool is_rivalled = residency_report_stats(reporter->report).is_rivalled;

    if (is_rivalled == reporter->is_rival_told)
        return;
    reporter->is_rival_told = is_rivalled;
    if (is_rivalled)
        LOG(LOG_WARN, "lease_of_another", log_text("worker", reporter->config.spec->name),
            log_text("why", life_proof_why(reporter->proof)),
            log_text("effect", "nothing is reported of this worker while another agent, or the one "
                               "before this, holds its lease: up to 3 s after that has ended"));
    else
        LOG(LOG_INFO, "lease_taken", log_text("worker", reporter->config.spec->name));
}

static void on_flush(uv_timer_t *timer)
{
    struct reporter *reporter = timer->data;
    bool is_saving;

    reporter->is_flush_soon = false;
    alignment_flush(&reporter->alignment, io_loop_now_ms(reporter->io));
    is_saving = state_keeper_save_if_due(&reporter->state);
    tell_rival(reporter);
    if (reporter->proof == LIFE_LIVING)
        take_life(reporter);
    uv_timer_start(timer, on_flush, is_saving ? STATE_KEEPER_STEP_MS : IDLE_FLUSH_MS, 0);
}

static void flush_soon(struct reporter *reporter)
{
    if (reporter->is_flush_soon)
        return;
    reporter->is_flush_soon = true;
    uv_timer_start(&reporter->flush, on_flush, FLUSH_MS, 0);
}

static void set_whole(struct reporter *reporter, bool is_whole)
{
    if (is_whole == reporter->is_whole)
        return;
    reporter->is_whole = is_whole;
    residency_report_set_whole(reporter->report, is_whole);
    LOG(LOG_INFO, is_whole ? "cache_known" : "cache_not_known",
        log_text("worker", reporter->config.spec->name));
}

/* ---- the engine's events ---- */

static void withdraw(struct reporter *reporter)
{
    cache_events_begin_epoch(&reporter->events);
    set_whole(reporter, false);
    flush_soon(reporter);
}

/* Blocks of another size than before are said of the engine, not of what it held. */
static void note_geometry(struct reporter *reporter)
{
    uint32_t block_tokens = reporter->events.block_tokens;

    if (block_tokens == 0 || block_tokens == reporter->meta.block_tokens)
        return;
    LOG(LOG_INFO, "engine_geometry", log_text("worker", reporter->config.spec->name),
        log_u64("block_tokens", block_tokens));
    reporter->meta.block_tokens = block_tokens;
    residency_report_set_meta(reporter->report, &reporter->meta);
}

static void on_batch(void *context, struct kv_event_notice notice, struct kv_event_batch *batch)
{
    struct reporter *reporter = context;

    if (notice.is_restarted) {
        reporter->has_lost = false;
        LOG(LOG_INFO, "engine_restarted", log_text("worker", reporter->config.spec->name));
    }
    if (notice.lost_count > 0) {
        reporter->has_lost = true;
        LOG(LOG_WARN, "events_lost", log_text("worker", reporter->config.spec->name),
            log_u64("batches", notice.lost_count),
            log_text("effect", "all that the engine held is withdrawn, and comes back with what it "
                               "replays or stores"));
    }
    if (notice.is_restarted || notice.lost_count > 0)
        withdraw(reporter);
    cache_events_apply(&reporter->events, batch);
    note_geometry(reporter);
    set_whole(reporter, !reporter->has_lost);
    flush_soon(reporter);
}

static void on_contact(void *context, enum kv_event_contact contact)
{
    struct reporter *reporter = context;
    const char *name = reporter->config.spec->name;

    switch (contact) {
    case KV_EVENT_CONTACT_MADE:
        reporter->is_connected = true;
        LOG(LOG_INFO, "events_connected", log_text("worker", name));
        break;
    case KV_EVENT_CONTACT_WHOLE:
        set_whole(reporter, !reporter->has_lost);
        break;
    case KV_EVENT_CONTACT_LOST:
        reporter->is_connected = false;
        reporter->has_lost = false;
        LOG(LOG_WARN, "events_disconnected", log_text("worker", name),
            log_text("effect", "all that the engine held is withdrawn"));
        withdraw(reporter);
        break;
    }
}

static const struct kv_event_source_callbacks source_callbacks = {on_batch, on_contact};

/* ---- the routers' notes, and what the engine says of itself ---- */

void reporter_take_entry(struct reporter *reporter, struct slice entry)
{
    struct note_intake *intake = &reporter->intake;

    note_intake_take(intake, entry, io_loop_now_ms(reporter->io));
    flush_soon(reporter);
    if (intake->foreign_fingerprint == reporter->foreign_fingerprint)
        return;
    reporter->foreign_fingerprint = intake->foreign_fingerprint;
    LOG(LOG_WARN, "foreign_router", log_text("worker", reporter->config.spec->name),
        log_text("why", "a router with another secret or version writes to this worker's agent"),
        log_text("advice", "give all routers and agents the same --secret-file"));
}

void reporter_take_probe(struct reporter *reporter, const struct worker *worker, const char *model)
{
    struct residency_meta *meta = &reporter->meta;
    const struct worker_report *report = &worker->report;

    if (state_keeper_take_up(&reporter->state, model))
        flush_soon(reporter);
    residency_report_set_load(reporter->report, report->is_known, report->running, report->waiting);
    if (!report->is_known)
        return;
    /* Emptying its cache vLLM says nothing of what its connectors hold, and they keep it. */
    reporter->events.clears_all_tiers = worker->engine != ENGINE_VLLM;
    snprintf(meta->engine, sizeof meta->engine, "%s", engine_kind_name(worker->engine));
    if (report->cache_tokens > 0)
        meta->cache_tokens = report->cache_tokens;
    if (meta->block_tokens == 0)
        meta->block_tokens = report->block_tokens;
    residency_report_set_meta(reporter->report, meta);
}

/* ---- the tiers beneath the engine, and its connector ---- */

uint32_t reporter_allow_token_blocks(struct reporter *reporter, uint32_t count)
{
    if (count > reporter->alignment.config.token_nodes_max)
        (void)!alignment_allow_tokens(&reporter->alignment, count); /* or as many as before */
    return reporter->alignment.config.token_nodes_max;
}

void reporter_take_block(struct reporter *reporter, const struct reporter_block *block)
{
    /* Where there is no place for it, it is not claimed: counted by the chain. */
    (void)!token_chain_place(&reporter->alignment.tokens,
                             &(struct token_place){.name = block->name,
                                                   .parent = block->parent,
                                                   .token_count = block->token_count,
                                                   .tiers = block->tiers});
    flush_soon(reporter);
}

void reporter_drop_blocks(struct reporter *reporter)
{
    token_chain_displace_all(&reporter->alignment.tokens);
    flush_soon(reporter);
}

void reporter_take_anchor(struct reporter *reporter, struct slice engine_id, uint64_t last_block,
                          uint32_t prompt_tokens)
{
    const uint64_t attempt = attempt_key_of_engine_id(reporter->config.secret, engine_id);

    if (attempt == 0) {
        reporter->foreign_anchors_total++;
        return;
    }
    reporter->anchors_total++;
    if (last_block == 0)
        return; /* there is nothing of it to find again */
    reporter->anchors[attempt % ENGINE_ANCHOR_COUNT] = (struct engine_anchor){attempt, last_block};
    alignment_anchor(&reporter->alignment,
                     &(struct alignment_anchor){.attempt = attempt,
                                                .last_block = last_block,
                                                .token_count = prompt_tokens,
                                                .cached_tokens = UINT32_MAX},
                     io_loop_now_ms(reporter->io));
    flush_soon(reporter);
}

/* Costs are measured all the time; one that is nearly what was said is not said again. */
static uint64_t settled(uint64_t said, uint64_t measured)
{
    const uint64_t difference = measured > said ? measured - said : said - measured;

    return difference > said / RATE_CHANGE_DIVISOR ? measured : said;
}

static uint32_t settled_u32(uint32_t said, uint32_t measured)
{
    return (uint32_t)settled(said, measured);
}

void reporter_set_tiers(struct reporter *reporter, const struct reporter_tiers *tiers)
{
    struct residency_meta *meta = &reporter->meta;

    meta->has_anchors = tiers->has_connector;
    meta->bytes_per_token = tiers->bytes_per_token;
    meta->cpu_bytes_per_s = settled(meta->cpu_bytes_per_s, tiers->cpu_bytes_per_s);
    meta->ssd_bytes_per_s = settled(meta->ssd_bytes_per_s, tiers->ssd_bytes_per_s);
    meta->cpu_start_us = settled_u32(meta->cpu_start_us, tiers->cpu_start_us);
    meta->ssd_start_us = settled_u32(meta->ssd_start_us, tiers->ssd_start_us);
    meta->prefill_tokens_per_s =
        settled_u32(meta->prefill_tokens_per_s, tiers->prefill_tokens_per_s);
    residency_report_set_meta(reporter->report, meta);
    residency_report_set_queues(reporter->report, tiers->cpu_queue_ms, tiers->ssd_queue_ms);
}

/*
 * The token blocks behind the deepest text block that is known: with their prefix, from the chain's
 * first on, because a hint may begin anywhere.
 */
static void on_prefetch(void *ctx, const uint64_t *hashes, size_t count, uint32_t within_ms)
{
    struct reporter *reporter = ctx;
    const struct alignment *alignment = &reporter->alignment;
    const struct token_node *node = NULL;
    struct digest_128 *names;
    size_t name_count;

    if (reporter->config.on_prefetch == NULL)
        return;
    while (count > 0 && node == NULL) {
        const uint32_t text = text_chain_find(&alignment->text, hashes[--count]);

        if (text != 0)
            node = token_chain_find(&alignment->tokens, alignment->aligned[text].block);
    }
    if (node == NULL || node->depth == 0)
        return;
    name_count = node->depth;
    names = malloc(name_count * sizeof *names);
    if (names == NULL)
        return; /* a hint, no more */
    for (size_t i = name_count; i-- > 0;) {
        names[i] = node->digest;
        node = token_chain_at(&alignment->tokens, node->parent);
    }
    reporter->config.on_prefetch(reporter->config.ctx, reporter, names, name_count, within_ms);
    free(names);
}

void reporter_linked(struct reporter *reporter)
{
    residency_report_linked(reporter->report);
}

/* ---- life ---- */

static void make_meta(struct reporter *reporter, uint64_t epoch)
{
    struct residency_meta *meta = &reporter->meta;

    *meta = (struct residency_meta){
        .fingerprint = reporter->config.fingerprint,
        .version = SAMOVAR_VERSION,
        .epoch = epoch,
        .text_depth_max = DEPTH_MAX,
    };
    snprintf(meta->url, sizeof meta->url, "%s", reporter->config.spec->name);
    if (gethostname(meta->node, sizeof meta->node - 1) < 0)
        meta->node[0] = '\0';
}

static int open_report(struct reporter *reporter, uint64_t epoch)
{
    int status = residency_report_create(
        &reporter->io->loop, reporter->config.link,
        (struct residency_report_config){.worker = reporter->config.spec->name,
                                         .epoch = epoch,
                                         .flush_ms = REPORT_FLUSH_MS,
                                         .lease_ms = LEASE_MS,
                                         .page_ttl_s = PAGE_TTL_S,
                                         .record_count_max = reporter->config.text_blocks_max,
                                         .change_count_max = CHANGE_COUNT_MAX},
        &reporter->report);

    if (status == 0)
        residency_report_set_meta(reporter->report, &reporter->meta);
    return status;
}

static int open_alignment(struct reporter *reporter)
{
    const struct reporter_config *config = &reporter->config;
    int status = alignment_init(
        &reporter->alignment, (struct alignment_config){.secret = config->secret,
                                                        .token_nodes_max = config->token_blocks_max,
                                                        .text_nodes_max = config->text_blocks_max,
                                                        .depth_max = DEPTH_MAX,
                                                        .attempts_max = ATTEMPTS_MAX,
                                                        .wait_ms = ATTEMPT_WAIT_MS,
                                                        .groups = 1,
                                                        .on_claimed = on_claimed,
                                                        .ctx = reporter});

    if (status < 0)
        return status;
    cache_events_init(&reporter->events, config->secret, &reporter->alignment.tokens);
    note_intake_init(&reporter->intake, &reporter->alignment, config->fingerprint);
    reporter->intake.on_unknown_start = on_unknown_start;
    reporter->intake.find_prompt = find_prompt;
    reporter->intake.on_prefetch = on_prefetch;
    reporter->intake.ctx = reporter;
    return 0;
}

static int open_source(struct reporter *reporter)
{
    const struct engine_spec *spec = reporter->config.spec;

    return kv_event_source_create(
        &reporter->io->loop,
        (struct kv_event_source_config){.endpoint = spec->events,
                                        .replay_endpoint =
                                            spec->replay[0] != '\0' ? spec->replay : NULL,
                                        .topic = reporter->config.topic,
                                        .replay_idle_ms = REPLAY_IDLE_MS,
                                        .replay_cooldown_ms = REPLAY_COOLDOWN_MS,
                                        .renew_ms = RENEW_MS,
                                        .queued_bytes_max = QUEUED_BYTES_MAX},
        &source_callbacks, reporter, &reporter->source);
}

int reporter_create(struct io_loop *io, struct reporter_config config, struct reporter **created)
{
    struct reporter *reporter = calloc(1, sizeof *reporter);
    uint64_t epoch = system_random_id();
    int status;

    *created = NULL;
    if (reporter == NULL)
        return -ENOMEM;
    reporter->config = config;
    reporter->io = io;
    reporter->life.fd = -1;
    uv_timer_init(&io->loop, &reporter->flush);
    reporter->flush.data = reporter;
    state_keeper_init(&reporter->state,
                      (struct state_keeper_config){.io = io,
                                                   .alignment = &reporter->alignment,
                                                   .dir = config.state_dir,
                                                   .worker = config.spec->name,
                                                   .secret = config.secret,
                                                   .fingerprint = config.fingerprint});
    make_meta(reporter, epoch);
    status = open_alignment(reporter);
    if (status == 0)
        status = open_report(reporter, epoch);
    if (status == 0)
        take_life(reporter);
    if (status == 0)
        status = open_source(reporter);
    if (status < 0) {
        reporter_close(&reporter, NULL, NULL);
        return status;
    }
    uv_timer_start(&reporter->flush, on_flush, IDLE_FLUSH_MS, 0);
    *created = reporter;
    return 0;
}

struct reporter_stats reporter_stats(const struct reporter *reporter)
{
    return (struct reporter_stats){
        .tokens = &reporter->alignment.tokens,
        .text = &reporter->alignment.text,
        .attempts = &reporter->alignment.attempts,
        .alignment = reporter->alignment.stats,
        .events = reporter->events.stats,
        .notes = reporter->intake.results,
        .source = kv_event_source_stats(reporter->source),
        .report = residency_report_stats(reporter->report),
        .claims_total = reporter->claims_total,
        .anchors_total = reporter->anchors_total,
        .foreign_anchors_total = reporter->foreign_anchors_total,
        .state = reporter->state.stats,
        .epoch = reporter->meta.epoch,
        .block_tokens = reporter->meta.block_tokens,
        .is_connected = reporter->is_connected,
        .is_whole = reporter->is_whole,
    };
}

const char *reporter_name(const struct reporter *reporter)
{
    return reporter->config.spec->name;
}

static void on_timer_closed(uv_handle_t *timer)
{
    struct reporter *reporter = timer->data;
    void (*on_closed)(void *ctx) = reporter->on_closed;
    void *ctx = reporter->closed_ctx;

    life_file_release(&reporter->life);
    alignment_release(&reporter->alignment);
    free(reporter);
    if (on_closed != NULL)
        on_closed(ctx);
}

static void on_report_closed(void *ctx)
{
    struct reporter *reporter = ctx;

    uv_close((uv_handle_t *)&reporter->flush, on_timer_closed);
}

static void close_report(void *ctx)
{
    struct reporter *reporter = ctx;

    if (reporter->report != NULL)
        residency_report_close(&reporter->report, on_report_closed, reporter);
    else
        on_report_closed(reporter);
}

/* Until here batches have come, and each sets the timer: a flush would need the report. */
static void close_source(void *ctx)
{
    struct reporter *reporter = ctx;

    uv_timer_stop(&reporter->flush);
    if (reporter->source != NULL)
        kv_event_source_close(&reporter->source, close_report);
    else
        close_report(reporter);
}

/* State, source, report and timer end one after the other. */
void reporter_close(struct reporter **closed, void (*on_closed)(void *ctx), void *ctx)
{
    struct reporter *reporter = *closed;

    *closed = NULL;
    if (reporter == NULL)
        return;
    reporter->on_closed = on_closed;
    reporter->closed_ctx = ctx;
    state_keeper_close(&reporter->state, close_source, reporter);
}
