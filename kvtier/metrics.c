/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/metrics.h"

#include <assert.h>

#include "backends/runtime/metric.h"
#include "backends/runtime/process_usage.h"

/*
 * DESIGN
 *
 * metrics.def is included once per block of rows, each time with the macro of that block set and
 * all others empty. Each row becomes a small function that reads it.
 */

#define PREFIX "samovar_agent_"

#define AGENT(kind, name, expression, help)                                                        \
    static uint64_t read_##name(const struct agent_metrics_sources *sources)                       \
    {                                                                                              \
        return expression;                                                                         \
    }
#define WORKER(kind, name, expression, help)                                                       \
    static uint64_t read_##name(const struct reporter_stats *worker)                               \
    {                                                                                              \
        return expression;                                                                         \
    }
#define ARRAY(kind, name, array, help)                                                             \
    static const uint64_t *read_##name(const struct reporter_stats *worker)                        \
    {                                                                                              \
        return array;                                                                              \
    }
#define TIERS ARRAY
#define NOTES ARRAY
#define BENEATH(kind, name, field, help)                                                           \
    static uint64_t read_##name(const struct node_tiers_stats *tiers, size_t tier)                 \
    {                                                                                              \
        return tiers->tier[tier].field;                                                            \
    }
#define LOOKUPS(kind, name, array, help)                                                           \
    static uint64_t read_##name(const struct node_tiers_stats *tiers, size_t i)                    \
    {                                                                                              \
        return array[i];                                                                           \
    }
#define COPIES   LOOKUPS
#define REFUSALS LOOKUPS
#include "kvtier/metrics.def"

static const struct agent_row {
    enum metric_kind kind;
    const char *name;
    const char *help;
    uint64_t (*read)(const struct agent_metrics_sources *sources);
} agent_rows[] = {
#define AGENT(kind, name, expression, help) {METRIC_##kind, PREFIX #name, help, read_##name},
#include "kvtier/metrics.def"
};

static const char *const tier_names[TOKEN_TIER_COUNT] = {"hbm", "cpu", "ssd"};

static const char *tier_name(size_t tier)
{
    return tier_names[tier];
}

static const char *result_name(size_t result)
{
    return note_result_name((enum note_result)result);
}

static const char *beneath_name(size_t tier)
{
    return tier_names[TOKEN_TIER_CPU + tier];
}
static_assert(TOKEN_TIER_CPU + BLOCK_TIER_SSD == TOKEN_TIER_SSD, "in the same order");

static const char *found_name(size_t why)
{
    return ipc_found_why_name((enum ipc_found_why)why);
}

static const char *way_name(size_t way)
{
    static const char *const names[COPY_WAY_COUNT] = {
        [COPY_BATCH] = "batch", [COPY_GATHER] = "gather"};

    return names[way];
}

static const char *refusal_name(size_t code)
{
    return ipc_refusal_name((enum ipc_refusal)code);
}

/* An array over one label, of what lies beneath the engines. */
static const struct tier_row {
    enum metric_kind kind;
    const char *name;
    const char *help;
    uint64_t (*read)(const struct node_tiers_stats *tiers, size_t i);
    const char *label;
    const char *(*value_name)(size_t i);
    size_t first;
    size_t count;
} tier_rows[] = {
#define TIER_ROW(kind_, name_, help_)                                                              \
    .kind = METRIC_##kind_, .name = PREFIX #name_, .help = help_, .read = read_##name_
#define BENEATH(kind_, name_, field_, help_)                                                       \
    {TIER_ROW(kind_, name_, help_), .label = "tier", .value_name = beneath_name,                   \
     .count = BLOCK_TIER_COUNT},
#define COPIES(kind_, name_, array_, help_)                                                        \
    {TIER_ROW(kind_, name_, help_), .label = "way", .value_name = way_name,                        \
     .count = COPY_WAY_COUNT},
#define LOOKUPS(kind_, name_, array_, help_)                                                       \
    {TIER_ROW(kind_, name_, help_), .label = "result", .value_name = found_name,                   \
     .count = IPC_FOUND_WHY_COUNT},
#define REFUSALS(kind_, name_, array_, help_)                                                      \
    {TIER_ROW(kind_, name_, help_), .label = "reason", .value_name = refusal_name, .first = 1,     \
     .count = IPC_REFUSAL_COUNT},
#include "kvtier/metrics.def"
};

/* A value for each worker, or an array of them over one more label. */
static const struct worker_row {
    enum metric_kind kind;
    const char *name;
    const char *help;
    uint64_t (*read)(const struct reporter_stats *worker);
    const uint64_t *(*read_array)(const struct reporter_stats *worker);
    const char *label;
    const char *(*value_name)(size_t i);
    size_t count;
} worker_rows[] = {
#define ROW(kind_, name_, help_)                .kind = METRIC_##kind_, .name = PREFIX #name_, .help = help_
#define WORKER(kind_, name_, expression, help_) {ROW(kind_, name_, help_), .read = read_##name_},
#define TIERS(kind_, name_, array, help_)                                                          \
    {ROW(kind_, name_, help_), .read_array = read_##name_, .label = "tier",                        \
     .value_name = tier_name, .count = TOKEN_TIER_COUNT},
#define NOTES(kind_, name_, array, help_)                                                          \
    {ROW(kind_, name_, help_), .read_array = read_##name_, .label = "result",                      \
     .value_name = result_name, .count = NOTE_RESULT_COUNT},
#include "kvtier/metrics.def"
};

static void write_row(struct metric_writer *writer, const struct worker_row *row, const char *name,
                      const struct reporter_stats *worker)
{
    struct metric_label labels[2] = {{"worker", name}};

    if (row->read != NULL)
        metric_u64(writer, (struct metric_labels){labels, 1}, row->read(worker));
    for (size_t i = 0; i < row->count; i++) {
        labels[1] = (struct metric_label){row->label, row->value_name(i)};
        metric_u64(writer, (struct metric_labels){labels, 2}, row->read_array(worker)[i]);
    }
}

static void write_workers(struct metric_writer *writer, const struct agent_metrics_sources *sources)
{
    struct reporter_stats stats[ENGINE_WORKER_COUNT_MAX];

    for (size_t i = 0; i < sources->reporter_count; i++)
        stats[i] = reporter_stats(sources->reporters[i]);
    for (size_t row = 0; row < array_count(worker_rows); row++) {
        metric_family(writer, worker_rows[row].kind, worker_rows[row].name, worker_rows[row].help);
        for (size_t i = 0; i < sources->reporter_count; i++)
            write_row(writer, &worker_rows[row], reporter_name(sources->reporters[i]), &stats[i]);
    }
}

static void write_tiers(struct metric_writer *writer, const struct node_tiers_stats *tiers)
{
    for (const struct tier_row *row = tier_rows; row < tier_rows + array_count(tier_rows); row++) {
        metric_family(writer, row->kind, row->name, row->help);
        for (size_t i = row->first; i < row->count; i++) {
            const struct metric_label label = {row->label, row->value_name(i)};

            metric_u64(writer, (struct metric_labels){&label, 1}, row->read(tiers, i));
        }
    }
}

int agent_metrics_write(struct buf *out, const struct agent_metrics_sources *sources)
{
    struct metric_writer writer;

    metric_writer_init(&writer, out);
    metric_build_info(&writer, PREFIX "build_info");
    for (size_t i = 0; i < array_count(agent_rows); i++) {
        metric_family(&writer, agent_rows[i].kind, agent_rows[i].name, agent_rows[i].help);
        metric_u64(&writer, METRIC_NO_LABELS, agent_rows[i].read(sources));
    }
    write_tiers(&writer, &sources->tiers);
    write_workers(&writer, sources);
    process_usage_write(&writer);
    return writer.status;
}
