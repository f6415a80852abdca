/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/load_report.h"

#include "backends/runtime/must_check.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

/*
 * DESIGN
 *
 *   name{label="value",...} number [timestamp]        one sample a line; the rest is comments
 *
 * One pass over the lines, no memory. A table says which names mean what, so a renamed metric is
 * one more row. Numbers that no count or share can be (NaN, infinite, negative) are not samples.
 *
 * Where they say the size of the KV cache:
 *   vLLM      labels of vllm:cache_config_info. kv_cache_size_tokens is right also for models with
 *             several cache groups, but recent; else block_size x num_gpu_blocks.
 *   SGLang    gauges max_total_num_tokens and page_size; before 0.5.11 labels page_size and
 *             num_pages of sglang:cache_config_info.
 * Labels that are not yet known say "None".
 *
 * SGLang can report every tensor- and pipeline-parallel rank: they all run the same requests, so
 * only rank 0 counts. With dp_rank each series is a scheduler of its own; vLLM calls that label
 * engine.
 */

enum {
    NUMBER_BYTES_MAX = 63,
    COUNT_DIGITS_MAX = 12 /* of a label: far above any cache, and a product fits in 64 bits */
};

enum meaning {
    MEANS_RUNNING,
    MEANS_WAITING,
    MEANS_USAGE,
    MEANS_CACHE,   /* its labels say the size of the cache */
    MEANS_TOKENS,  /* of the cache */
    MEANS_BLOCK,   /* tokens of one */
    MEANS_PROMPTS, /* tokens processed */
};

/* clang-format off */
static const struct metric_name {
    const char *name;
    enum engine_kind engine;
    enum meaning meaning;
} metric_names[] = {
    {"vllm:num_requests_running",   ENGINE_VLLM,   MEANS_RUNNING},
    {"vllm:num_requests_waiting",   ENGINE_VLLM,   MEANS_WAITING},
    {"vllm:kv_cache_usage_perc",    ENGINE_VLLM,   MEANS_USAGE},
    {"vllm:gpu_cache_usage_perc",   ENGINE_VLLM,   MEANS_USAGE}, /* before 0.10 */
    {"vllm:cache_config_info",      ENGINE_VLLM,   MEANS_CACHE},
    {"vllm:prompt_tokens_total",    ENGINE_VLLM,   MEANS_PROMPTS},
    {"sglang:num_running_reqs",     ENGINE_SGLANG, MEANS_RUNNING},
    {"sglang:num_queue_reqs",       ENGINE_SGLANG, MEANS_WAITING},
    {"sglang:token_usage",          ENGINE_SGLANG, MEANS_USAGE},
    {"sglang:cache_config_info",    ENGINE_SGLANG, MEANS_CACHE},
    {"sglang:max_total_num_tokens", ENGINE_SGLANG, MEANS_TOKENS},
    {"sglang:page_size",            ENGINE_SGLANG, MEANS_BLOCK},
    {"sglang:prompt_tokens_total",  ENGINE_SGLANG, MEANS_PROMPTS},
};
/* clang-format on */

struct sample {
    struct slice name;
    struct slice labels; /* between the braces */
    double value;
};

struct totals {
    bool has_running;
    bool has_waiting;
    double running;
    double waiting;
    double usage_sum;
    uint32_t usage_count;
    double cache_tokens;      /* by gauge */
    double info_cache_tokens; /* by labels */
    double block_tokens;
    double prompt_tokens;
};

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

static struct slice skip_blanks(struct slice text)
{
    while (text.len > 0 && is_blank(*text.ptr))
        text = slice_skip(text, 1);
    return text;
}

/* Cuts the first line off text. */
static struct slice next_line(struct slice *text)
{
    const char *end = memchr(text->ptr, '\n', text->len);
    size_t len = end != NULL ? (size_t)(end - text->ptr) : text->len;
    struct slice line = {text->ptr, len};

    *text = slice_skip(*text, end != NULL ? len + 1 : len);
    return line;
}

/* Length of a quoted value up to its closing quote; text.len when there is none. */
static size_t quoted_len(struct slice text)
{
    size_t at = 0;

    while (at < text.len && text.ptr[at] != '"')
        at += text.ptr[at] == '\\' ? 2 : 1;
    return at < text.len ? at : text.len;
}

/* Length of the labels up to the closing brace, which may also stand inside a quoted value. */
static size_t labels_len(struct slice text)
{
    size_t at = 0;

    while (at < text.len && text.ptr[at] != '}') {
        if (text.ptr[at++] == '"')
            at += quoted_len(slice_skip(text, at)) + 1;
    }
    return at < text.len ? at : text.len;
}

static bool read_number(struct slice text, double *value)
{
    char number[NUMBER_BYTES_MAX + 1];
    size_t len = 0;
    char *end;

    text = skip_blanks(text);
    while (len < text.len && !is_blank(text.ptr[len]))
        len++;
    if (len == 0 || len > NUMBER_BYTES_MAX)
        return false;
    memcpy(number, text.ptr, len);
    number[len] = '\0';
    *value = strtod(number, &end);
    return end == number + len && isfinite(*value) && *value >= 0;
}

static bool read_sample(struct slice line, struct sample *sample)
{
    size_t name_len = 0;

    line = skip_blanks(line);
    while (name_len < line.len && line.ptr[name_len] != '{' && !is_blank(line.ptr[name_len]))
        name_len++;
    *sample = (struct sample){.name = {line.ptr, name_len}};
    line = skip_blanks(slice_skip(line, name_len));
    if (line.len > 0 && *line.ptr == '{') {
        line = slice_skip(line, 1);
        sample->labels = slice_of(line.ptr, labels_len(line));
        if (sample->labels.len == line.len)
            return false; /* the brace is not closed: a cut text */
        line = slice_skip(line, sample->labels.len + 1);
    }
    return read_number(line, &sample->value);
}

/* The raw text of a label's value; empty when it is absent. */
static struct slice find_label(struct slice labels, const char *name)
{
    const struct slice wanted = slice_of_string(name);

    while (labels.len > 0) {
        const char *equals = memchr(labels.ptr, '=', labels.len);
        struct slice key, value;

        if (equals == NULL)
            break;
        key = skip_blanks(slice_of(labels.ptr, (size_t)(equals - labels.ptr)));
        labels = skip_blanks(slice_skip(labels, (size_t)(equals - labels.ptr) + 1));
        if (labels.len == 0 || *labels.ptr != '"')
            break;
        labels = slice_skip(labels, 1);
        value = slice_of(labels.ptr, quoted_len(labels));
        if (slice_eq(key, wanted))
            return value;
        labels = slice_skip(labels, value.len);
        while (labels.len > 0 && (*labels.ptr == '"' || *labels.ptr == ',' || *labels.ptr == ' '))
            labels = slice_skip(labels, 1);
    }
    return (struct slice){NULL, 0};
}

/* A label as a count; 0 for "None" and whatever else is none. */
static double label_count(struct slice labels, const char *name)
{
    struct slice text = find_label(labels, name);
    uint64_t count = 0;

    if (text.len > COUNT_DIGITS_MAX)
        return 0;
    for (size_t i = 0; i < text.len; i++) {
        if (text.ptr[i] < '0' || text.ptr[i] > '9')
            return 0;
        count = count * 10 + (uint64_t)(text.ptr[i] - '0');
    }
    return (double)count;
}

static bool is_shadow_rank(struct slice labels)
{
    return find_label(labels, "dp_rank").len == 0 &&
           (label_count(labels, "tp_rank") > 0 || label_count(labels, "pp_rank") > 0);
}

static void add_cache_info(struct totals *totals, enum engine_kind engine, struct slice labels)
{
    const bool is_vllm = engine == ENGINE_VLLM;
    double block = label_count(labels, is_vllm ? "block_size" : "page_size");
    double tokens = label_count(labels, "kv_cache_size_tokens");

    if (tokens == 0)
        tokens = block * label_count(labels, is_vllm ? "num_gpu_blocks" : "num_pages");
    totals->info_cache_tokens += tokens;
    if (block > 0)
        totals->block_tokens = block;
}

static void add_sample(struct totals *totals, const struct metric_name *metric,
                       const struct sample *sample)
{
    switch (metric->meaning) {
    case MEANS_RUNNING:
        totals->running += sample->value;
        totals->has_running = true;
        break;
    case MEANS_WAITING:
        totals->waiting += sample->value;
        totals->has_waiting = true;
        break;
    case MEANS_USAGE:
        totals->usage_sum += sample->value < 1 ? sample->value : 1;
        totals->usage_count++;
        break;
    case MEANS_CACHE:
        add_cache_info(totals, metric->engine, sample->labels);
        break;
    case MEANS_TOKENS:
        totals->cache_tokens += sample->value;
        break;
    case MEANS_BLOCK:
        totals->block_tokens = sample->value;
        break;
    case MEANS_PROMPTS:
        totals->prompt_tokens += sample->value;
        break;
    }
}

static const struct metric_name *find_metric(struct slice name)
{
    for (size_t i = 0; i < array_count(metric_names); i++) {
        if (slice_eq(name, slice_of_string(metric_names[i].name)))
            return &metric_names[i];
    }
    return NULL;
}

/* Where the samples go: into the totals of one rank each, or all into one. */
struct parse {
    struct totals *totals;
    uint32_t rank_count; /* 0: one for all */
    enum engine_kind engine;
};

/* The totals that a sample counts for; NULL: none. */
static struct totals *totals_of(const struct parse *parse, struct slice labels)
{
    const char *label = parse->engine == ENGINE_VLLM ? "engine" : "dp_rank";
    double rank;

    if (parse->rank_count == 0)
        return parse->totals;
    rank = label_count(labels, label);
    if (find_label(labels, label).len == 0 || rank >= parse->rank_count)
        return NULL;
    return &parse->totals[(size_t)rank];
}

static void add_line(struct parse *parse, struct slice line)
{
    const struct metric_name *metric;
    struct sample sample;
    struct totals *totals;

    if (!slice_starts_with(line, SLICE("vllm:")) && !slice_starts_with(line, SLICE("sglang:")))
        return;
    if (!read_sample(line, &sample))
        return;
    metric = find_metric(sample.name);
    if (metric == NULL || is_shadow_rank(sample.labels))
        return;
    if (parse->engine == ENGINE_UNKNOWN)
        parse->engine = metric->engine;
    if (parse->engine != metric->engine)
        return;
    totals = totals_of(parse, sample.labels);
    if (totals != NULL)
        add_sample(totals, metric, &sample);
}

static uint32_t to_u32(double value)
{
    return value < UINT32_MAX ? (uint32_t)value : UINT32_MAX;
}

static uint64_t to_u64(double value)
{
    return value < 1e18 ? (uint64_t)value : (uint64_t)1e18;
}

static struct worker_report report_of(const struct totals *totals, uint64_t now_ms)
{
    return (struct worker_report){
        .is_known = totals->has_running && totals->has_waiting,
        .at_ms = now_ms,
        .running = to_u32(totals->running),
        .waiting = to_u32(totals->waiting),
        .cache_usage = totals->usage_count > 0 ? totals->usage_sum / totals->usage_count : 0,
        .cache_tokens =
            to_u64(totals->cache_tokens > 0 ? totals->cache_tokens : totals->info_cache_tokens),
        .block_tokens = to_u32(totals->block_tokens),
        .prompt_tokens = to_u64(totals->prompt_tokens),
    };
}

static enum engine_kind parse_text(struct slice text, struct totals *totals, uint32_t rank_count)
{
    struct parse parse = {totals, rank_count, ENGINE_UNKNOWN};

    while (text.len > 0)
        add_line(&parse, next_line(&text));
    return parse.engine;
}

enum engine_kind load_report_parse(struct slice text, uint64_t now_ms, struct worker_report *report)
{
    struct totals totals = {0};
    enum engine_kind engine = parse_text(text, &totals, 0);

    *report = report_of(&totals, now_ms);
    return engine;
}

enum engine_kind load_report_parse_ranks(struct slice text, uint64_t now_ms,
                                         struct worker_report *reports, uint32_t rank_count)
{
    struct totals totals[LOAD_REPORT_RANK_COUNT_MAX] = {{0}};
    enum engine_kind engine;

    assert(rank_count > 0 && rank_count <= LOAD_REPORT_RANK_COUNT_MAX);

    engine = parse_text(text, totals, rank_count);
    for (uint32_t rank = 0; rank < rank_count; rank++)
        reports[rank] = report_of(&totals[rank], now_ms);
    return engine;
}
