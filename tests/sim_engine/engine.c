/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/engine.h"

#include <assert.h>
#include <time.h>

#include "tests/sim_engine/generation.h"
#include "tests/sim_engine/kv_event_log.h"
#include "tests/sim_engine/prefix_cache.h"
#include "tests/sim_engine/response_store.h"
#include "tests/sim_engine/scheduler.h"

static void on_token(void *ctx, struct sequence *sequence, bool is_last)
{
    (void)ctx;
    generation_on_token(sequence, is_last);
}

static void on_step(void *ctx)
{
    struct engine *engine = ctx;

    if (engine->events != NULL)
        engine->publish(engine->publish_ctx);
}

/* What fits into an empty cache: vLLM does not start with more either. */
static size_t context_tokens_max(const struct engine *engine)
{
    size_t cache_tokens =
        prefix_cache_usable_count(engine->cache) * (size_t)engine->options.block_size;
    size_t wanted = (size_t)engine->options.max_model_len;

    return wanted > 0 && wanted < cache_tokens ? wanted : cache_tokens;
}

static void init_model(struct engine *engine)
{
    const struct options *options = &engine->options;
    const char *date = options->date[0] != '\0' ? options->date : engine->today;

    engine->model = (struct engine_model){
        .name = slice_of_string(options->model),
        .lora_count = options->lora_count,
        .context_tokens_max = context_tokens_max(engine),
        .chat_template = {.habit = options->habit, .date = slice_of_string(date)},
    };
    for (size_t i = 0; i < options->lora_count; i++)
        engine->model.loras[i] = slice_of_string(options->loras[i]);
}

void engine_init(struct engine *engine, const struct options *options, uint64_t seed)
{
    struct scheduler_config config = {
        .time = {.prefill_tokens_per_s = options->prefill_tps,
                 .decode_ms = options->decode_ms,
                 .decode_ms_per_request = options->decode_ms_per_request,
                 .speedup = options->speedup},
        .running_count_max = (uint32_t)options->max_running,
        .on_step = on_step,
    };
    struct kv_event_log_config log_config = {
        .dialect = options->kv_dialect,
        .hash_form = options->kv_hash_form,
        .block_size = (uint32_t)options->block_size,
    };

    *engine = (struct engine){.options = *options, .random = seed, .today = "1970-01-01"};
    engine->cache = prefix_cache_create((uint32_t)options->blocks, (uint32_t)options->block_size);
    if (options->kv_events[0] != '\0')
        engine->events = kv_event_log_create(log_config, engine->cache);
    engine->scheduler = scheduler_create(config, engine->cache, on_token, engine);
    engine->scanner = json_scanner_create();
    engine->form_scanner = json_scanner_create();
    assert(engine->scanner != NULL && engine->form_scanner != NULL);
    engine->responses = response_store_create((size_t)options->stored_responses);
    for (size_t i = 0; i < options->fault_count; i++)
        engine->rules[i] = (struct fault_rule){
            .fault = options->faults[i],
            .random = (uint64_t)options->seed + i,
        };
    init_model(engine);
}

void engine_set_time(struct engine *engine, uint64_t wall_ms)
{
    double days = (double)wall_ms / (engine->options.day_s * 1000);
    time_t now = (time_t)days * 24 * 60 * 60;
    struct tm tm;

    strftime(engine->today, sizeof engine->today, "%Y-%m-%d", gmtime_r(&now, &tm));
}

bool engine_is_aim(const struct engine *engine, const struct fault *fault)
{
    return fault->port == 0 || fault->port == (uint16_t)engine->options.port;
}

enum batch_fate engine_batch_fate(struct engine *engine)
{
    for (size_t i = 0; i < engine->options.fault_count; i++) {
        struct fault_rule *rule = &engine->rules[i];

        if ((rule->fault.kind == FAULT_KV_DROP || rule->fault.kind == FAULT_KV_DROP_HARD) &&
            engine_is_aim(engine, &rule->fault) && fault_rule_hits_inner(rule))
            return rule->fault.kind == FAULT_KV_DROP ? BATCH_DROPPED : BATCH_LOST;
    }
    return BATCH_PUBLISHED;
}

bool engine_dies_at(struct engine *engine, enum fault_kind kind)
{
    bool dies = false;

    for (size_t i = 0; i < engine->options.fault_count; i++) {
        struct fault_rule *rule = &engine->rules[i];

        if (rule->fault.kind == kind && engine_is_aim(engine, &rule->fault))
            dies = fault_rule_hits_inner(rule) || dies;
    }
    return dies;
}

bool engine_hides_replay(const struct engine *engine)
{
    for (size_t i = 0; i < engine->options.fault_count; i++) {
        const struct fault *fault = &engine->options.faults[i];

        if (fault->kind == FAULT_KV_NO_REPLAY && engine_is_aim(engine, fault))
            return true;
    }
    return false;
}

struct request_reader engine_reader(const struct engine *engine)
{
    return (struct request_reader){
        .model = &engine->model,
        .form_scanner = engine->form_scanner,
        .store = engine->responses,
    };
}

void engine_release(struct engine *engine)
{
    assert(engine->active_count == 0);

    scheduler_destroy(engine->scheduler);
    kv_event_log_destroy(engine->events);
    prefix_cache_destroy(engine->cache);
    json_scanner_destroy(engine->scanner);
    json_scanner_destroy(engine->form_scanner);
    response_store_destroy(engine->responses);
}
