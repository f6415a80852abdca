/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/engine_metrics.h"

#include <inttypes.h>
#include <stdio.h>

#include "tests/sim_engine/json_text.h"

/* One metric of the table below: every line is `vllm:<name>{<labels>,engine="0",model_name="m"} v`,
 * labels in alphabetical order as the Python client writes them. */
struct metric_row {
    const char *name;
    const char *kind;
    const char *before; /* labels that sort before model_name but behind engine; "" or ",a=\"b\"" */
    const char *behind; /* labels that sort behind model_name */
    double value;
};

static void put_rows(struct buf *buf, struct slice model, const struct metric_row *rows,
                     size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const struct metric_row *row = &rows[i];

        if (i == 0 || strcmp(row->name, rows[i - 1].name) != 0)
            text_putf(buf, "# TYPE vllm:%s %s\n", row->name, row->kind);
        text_putf(buf, "vllm:%s{engine=\"0\"%s,model_name=\"%.*s\"%s} %.17g%s\n", row->name,
                  row->before, (int)model.len, model.ptr, row->behind, row->value,
                  row->value == (double)(int64_t)row->value ? ".0" : "");
    }
}

static void put_cache_config(struct buf *buf, const struct engine_metrics_input *input)
{
    size_t block_count = prefix_cache_usable_count(input->cache) + 1;

    text_putf(buf,
              "# TYPE vllm:cache_config_info gauge\n"
              "vllm:cache_config_info{block_size=\"%" PRIu32 "\",enable_prefix_caching=\"True\","
              "engine=\"0\",kv_cache_size_tokens=\"%zu\",num_gpu_blocks=\"%zu\","
              "prefix_caching_hash_algo=\"sha256\"} 1.0\n",
              input->block_size, block_count * input->block_size, block_count);
}

static void put_connector(struct buf *buf, const struct connector_stats *stats)
{
#define PUT_STAT(field, type, help)                                                                \
    text_putf(buf,                                                                                 \
              "# HELP sim_" #field " " help "\n# TYPE sim_" #field " " type "\n"                   \
              "sim_" #field " %" PRIu64 "\n",                                                      \
              stats->field);
    CONNECTOR_STATS(PUT_STAT)
#undef PUT_STAT
}

void engine_metrics_put(struct buf *buf, const struct engine_metrics_input *input)
{
    struct scheduler_stats stats = scheduler_stats(input->scheduler);
    size_t usable = prefix_cache_usable_count(input->cache);
    double used = (double)(usable - prefix_cache_free_count(input->cache));
    double running = (double)scheduler_running_count(input->scheduler);
    double waiting = (double)scheduler_waiting_count(input->scheduler);
    double computed = (double)(stats.prompt_tokens - stats.cached_tokens);
    double cached = (double)stats.cached_tokens;
    double loaded = (double)stats.loaded_tokens;
    double deferred = (double)scheduler_loading_count(input->scheduler);
    const struct metric_row rows[] = {
        {"num_requests_running", "gauge", "", "", running},
        {"num_requests_waiting", "gauge", "", "", waiting},
        {"num_requests_waiting_by_reason", "gauge", "", ",reason=\"capacity\"", waiting - deferred},
        {"num_requests_waiting_by_reason", "gauge", "", ",reason=\"deferred\"", deferred},
        {"kv_cache_usage_perc", "gauge", "", "", used / (double)usable},
        {"prefix_cache_queries_total", "counter", "", "", (double)stats.prompt_tokens},
        {"prefix_cache_hits_total", "counter", "", "", cached - loaded},
        {"external_prefix_cache_queries_total", "counter", "", "",
         input->connector != NULL ? (double)stats.asked_tokens : 0},
        {"external_prefix_cache_hits_total", "counter", "", "", loaded},
        {"num_preemptions_total", "counter", "", "", (double)stats.preemption_count},
        {"prompt_tokens_total", "counter", "", "", (double)stats.prompt_tokens},
        {"prompt_tokens_by_source_total", "counter", "", ",source=\"local_compute\"", computed},
        {"prompt_tokens_by_source_total", "counter", "", ",source=\"local_cache_hit\"",
         cached - loaded},
        {"prompt_tokens_by_source_total", "counter", "", ",source=\"external_kv_transfer\"",
         loaded},
        {"prompt_tokens_cached_total", "counter", "", "", cached},
        {"generation_tokens_total", "counter", "", "", (double)stats.generation_tokens},
        {"request_success_total", "counter", ",finished_reason=\"stop\"", "",
         (double)input->counts.ended_by_stop},
        {"request_success_total", "counter", ",finished_reason=\"length\"", "",
         (double)input->counts.ended_by_length},
        {"request_success_total", "counter", ",finished_reason=\"abort\"", "",
         (double)input->counts.aborted},
    };

    put_rows(buf, input->model, rows, sizeof rows / sizeof rows[0]);
    put_cache_config(buf, input);
    if (input->connector != NULL)
        put_connector(buf, input->connector);
    if (input->events != NULL)
        text_putf(buf,
                  "# HELP sim_kv_batches_total Batches of KV events published.\n"
                  "# TYPE sim_kv_batches_total counter\nsim_kv_batches_total %" PRIu64 "\n",
                  kv_event_log_count(input->events));
}
