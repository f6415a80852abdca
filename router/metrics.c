/* SPDX-License-Identifier: Apache-2.0 */

#include "router/metrics.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>

#include "backends/runtime/metric.h"
#include "backends/runtime/process_usage.h"
#include "backends/worker_set.h"

/*
 * DESIGN
 *
 * metrics.def is included once per block of rows, each time with the macro of that block set and
 * all others empty. Fields become rows {name, offset, dimensions}; what is read at a scrape becomes
 * one small function per row.
 */

#define PREFIX "samovar_router_"

enum { DIMENSION_COUNT_MAX = 3 };

/* A label and its values. */
struct dimension {
    const char *label;
    const char *const *names;
    size_t count;
};

#define DIMENSION_NAME(constant, name)         [constant] = name,
#define API_NAME(constant, name, family, work) name,
static const char *const anchor_names[] = {ANCHOR_OUTCOME_ROWS(DIMENSION_NAME)};
static const char *const api_names[] = {API_ROWS(API_NAME)};
#undef API_NAME
static const char *const status_names[] = {STATUS_CLASS_ROWS(DIMENSION_NAME)};
static const char *const retry_names[] = {RETRY_REASON_ROWS(DIMENSION_NAME)};
static const char *const result_names[] = {RELOAD_RESULT_ROWS(DIMENSION_NAME)};
static const char *const phase_names[] = {ABORT_PHASE_ROWS(DIMENSION_NAME)};
static const char *const side_names[] = {FAULT_SIDE_ROWS(DIMENSION_NAME)};
static const char *const hint_names[] = {PREFETCH_HINT_ROWS(DIMENSION_NAME)};
static const char *const tier_names[] = {MATCH_TIER_ROWS(DIMENSION_NAME)};
static const char *const reject_names[] = {REJECT_REASON_ROWS(DIMENSION_NAME)};
#define END_NAME(constant, name, meaning) [constant] = name,
static const char *const end_names[] = {END_REASON_ROWS(END_NAME)};
static const char *const rung_names[] = {ROUTE_RUNG_ROWS(DIMENSION_NAME)};
static const char *const doubt_names[] = {RESIDENCY_DOUBT_ROWS(DIMENSION_NAME)};

#define DIMENSION(label_)                                                                          \
    {                                                                                              \
#label_, label_##_names, array_count(label_##_names)                                       \
    }
static const struct dimension dimension_anchor = {"outcome", anchor_names,
                                                  array_count(anchor_names)};
static const struct dimension dimension_api = DIMENSION(api);
static const struct dimension dimension_doubt = {"reason", doubt_names, array_count(doubt_names)};
static const struct dimension dimension_end = {"reason", end_names, array_count(end_names)};
static const struct dimension dimension_hint = {"outcome", hint_names, array_count(hint_names)};
static const struct dimension dimension_phase = DIMENSION(phase);
static const struct dimension dimension_reject = {"reason", reject_names,
                                                  array_count(reject_names)};
static const struct dimension dimension_result = DIMENSION(result);
static const struct dimension dimension_retry = {"reason", retry_names, array_count(retry_names)};
static const struct dimension dimension_rung = DIMENSION(rung);
static const struct dimension dimension_side = DIMENSION(side);
static const struct dimension dimension_status = DIMENSION(status);
static const struct dimension dimension_tier = DIMENSION(tier);

/* One row that is a field of struct router_stats. */
struct stats_row {
    enum metric_kind kind;
    const char *name;
    const char *help;
    size_t offset;
    const struct dimension *dimensions[DIMENSION_COUNT_MAX]; /* NULL behind the last */
    const struct histogram_bounds *bounds;                   /* of a histogram */
};

#define ROW(kind_, name_, help_)                                                                   \
    .kind = METRIC_##kind_, .name = PREFIX #name_, .help = help_,                                  \
    .offset = offsetof(struct router_stats, name_)
static const struct stats_row stats_rows[] = {
#define COUNTER(name, help)     {ROW(COUNTER, name, help)},
#define COUNTER1(name, a, help) {ROW(COUNTER, name, help), .dimensions = {&dimension_##a}},
#define COUNTER3(name, a, b, c, help)                                                              \
    {ROW(COUNTER, name, help), .dimensions = {&dimension_##a, &dimension_##b, &dimension_##c}},
#define GAUGE(name, help)              {ROW(GAUGE, name, help)},
#define HISTOGRAM(name, bounds_, help) {ROW(HISTOGRAM, name, help), .bounds = &histogram_##bounds_},
#include "router/metrics.def"
};

/* The rows that are read at a scrape: one function each. MAP: a field of the map's, if there is
 * one.
 */
#define MAP(field) (sources->map != NULL ? (double)sources->map->field : NAN)
#define ROUTER(kind, name, expression, help)                                                       \
    static double read_##name(const struct metrics_sources *sources)                               \
    {                                                                                              \
        return expression;                                                                         \
    }
#define WORKER(kind, name, expression, help)                                                       \
    static double read_##name(const struct worker *worker)                                         \
    {                                                                                              \
        return expression;                                                                         \
    }
#include "router/metrics.def"

static const struct source_row {
    enum metric_kind kind;
    const char *name;
    const char *help;
    double (*read)(const struct metrics_sources *sources);
} source_rows[] = {
#define ROUTER(kind, name, expression, help) {METRIC_##kind, PREFIX #name, help, read_##name},
#include "router/metrics.def"
};

static const struct worker_row {
    enum metric_kind kind;
    const char *name;
    const char *help;
    double (*read)(const struct worker *worker);
} worker_rows[] = {
#define WORKER(kind, name, expression, help) {METRIC_##kind, PREFIX #name, help, read_##name},
#include "router/metrics.def"
};

static void *field_at(const struct router_stats *stats, size_t offset)
{
    return (char *)(uintptr_t)stats + offset;
}

void router_stats_init(struct router_stats *stats)
{
    memset(stats, 0, sizeof *stats);
    for (size_t i = 0; i < array_count(stats_rows); i++)
        if (stats_rows[i].bounds != NULL)
            histogram_init(field_at(stats, stats_rows[i].offset), stats_rows[i].bounds);
}

/* The values of an array over up to three dimensions, last one fastest. */
static void write_array(struct metric_writer *writer, const struct stats_row *row,
                        const uint64_t *values)
{
    struct metric_label labels[DIMENSION_COUNT_MAX];
    size_t dimension_count = 0, value_count = 1;

    while (dimension_count < DIMENSION_COUNT_MAX && row->dimensions[dimension_count] != NULL)
        value_count *= row->dimensions[dimension_count++]->count;
    for (size_t i = 0; i < value_count; i++) {
        size_t rest = i;

        /* A product of dimensions has mostly series that never move. */
        if (values[i] == 0 && dimension_count > 1)
            continue;
        for (size_t d = dimension_count; d-- > 0;) {
            const struct dimension *dimension = row->dimensions[d];

            labels[d] =
                (struct metric_label){dimension->label, dimension->names[rest % dimension->count]};
            rest /= dimension->count;
        }
        metric_u64(writer, (struct metric_labels){labels, dimension_count}, values[i]);
    }
}

static void write_stats(struct metric_writer *writer, const struct router_stats *stats)
{
    for (size_t i = 0; i < array_count(stats_rows); i++) {
        const struct stats_row *row = &stats_rows[i];

        metric_family(writer, row->kind, row->name, row->help);
        if (row->kind == METRIC_HISTOGRAM)
            metric_histogram(writer, METRIC_NO_LABELS, field_at(stats, row->offset));
        else
            write_array(writer, row, field_at(stats, row->offset));
    }
}

static void write_known(struct metric_writer *writer, struct metric_labels labels, double value)
{
    if (!isnan(value))
        metric_double(writer, labels, value);
}

static void write_sources(struct metric_writer *writer, const struct metrics_sources *sources)
{
    for (size_t i = 0; i < array_count(source_rows); i++) {
        metric_family(writer, source_rows[i].kind, source_rows[i].name, source_rows[i].help);
        write_known(writer, METRIC_NO_LABELS, source_rows[i].read(sources));
    }
    process_usage_write(writer);
}

static void write_worker_states(struct metric_writer *writer, const struct worker_set *workers)
{
    metric_family(writer, METRIC_GAUGE, PREFIX "worker_state",
                  "1 for the state that a worker is in, 0 for the others.");
    for (uint32_t w = 0; w < worker_set_count(workers); w++) {
        const struct worker *worker = worker_set_at(workers, w);

        for (int state = 0; worker != NULL && state < WORKER_GONE; state++) {
            const struct metric_label labels[] = {
                {"worker", worker->name}, {"state", worker_state_name((enum worker_state)state)}};

            metric_u64(writer, (struct metric_labels){labels, array_count(labels)},
                       worker->state == (enum worker_state)state);
        }
    }
}

static void write_workers(struct metric_writer *writer, const struct worker_set *workers)
{
    write_worker_states(writer, workers);
    for (size_t i = 0; i < array_count(worker_rows); i++) {
        const struct worker_row *row = &worker_rows[i];

        metric_family(writer, row->kind, row->name, row->help);
        for (uint32_t w = 0; w < worker_set_count(workers); w++) {
            const struct worker *worker = worker_set_at(workers, w);

            if (worker == NULL)
                continue;
            write_known(writer,
                        (struct metric_labels){&(struct metric_label){"worker", worker->name}, 1},
                        row->read(worker));
        }
    }
}

static void write_map_breaks(struct metric_writer *writer, const struct metrics_map *map)
{
    metric_family(writer, METRIC_COUNTER, PREFIX "map_breaks_total",
                  "Times that what an agent says had to be read anew, by reason.");
    for (int reason = 0; map != NULL && reason < RESIDENCY_BREAK_COUNT; reason++) {
        const struct metric_label label = {"reason",
                                           residency_break_name((enum residency_break)reason)};

        metric_u64(writer, (struct metric_labels){&label, 1}, map->sync.breaks_total[reason]);
    }
}

int metrics_write(struct buf *out, const struct metrics_sources *sources)
{
    struct metric_writer writer;

    metric_writer_init(&writer, out);
    metric_build_info(&writer, PREFIX "build_info");
    write_stats(&writer, sources->stats);
    write_sources(&writer, sources);
    write_map_breaks(&writer, sources->map);
    write_workers(&writer, sources->workers);
    return writer.status;
}

enum status_class status_class_of(int status)
{
    if (status < 200 || status > 599)
        return STATUS_CLASS_NONE;
    return (enum status_class)(STATUS_CLASS_2XX + status / 100 - 2);
}

const char *retry_reason_name(enum retry_reason reason)
{
    assert((size_t)reason < RETRY_REASON_COUNT);

    return retry_names[reason];
}

const char *abort_phase_name(enum abort_phase phase)
{
    assert((size_t)phase < ABORT_PHASE_COUNT);

    return phase_names[phase];
}

const char *reject_reason_name(enum reject_reason reason)
{
    assert((size_t)reason < REJECT_REASON_COUNT);

    return reject_names[reason];
}
