/* SPDX-License-Identifier: Apache-2.0 */

/*
 * metric: writes the Prometheus text format 0.0.4 into a buf: a family's HELP and TYPE once, then
 * its samples. Knows no program's metrics. One thread at a time.
 */
#ifndef BACKENDS_RUNTIME_METRIC_H
#define BACKENDS_RUNTIME_METRIC_H

#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/buf.h"
#include "backends/runtime/histogram.h"

enum metric_kind { METRIC_COUNTER, METRIC_GAUGE, METRIC_HISTOGRAM };

enum { METRIC_NAME_BYTES_MAX = 128 };

/* The Content-Type that goes with it. */
#define METRIC_CONTENT_TYPE "text/plain; version=0.0.4; charset=utf-8"

struct metric_label {
    const char *name;  /* literal */
    const char *value; /* any bytes; escaped */
};

struct metric_labels {
    const struct metric_label *labels;
    size_t count;
};

#define METRIC_NO_LABELS ((struct metric_labels){NULL, 0})

struct metric_writer {
    struct buf *out;
    int status; /* of the first append that failed: nothing is written after it */
    char name[METRIC_NAME_BYTES_MAX]; /* of the family begun last */
};

void metric_writer_init(struct metric_writer *writer, struct buf *out);

/* Begins the family called name; help is one sentence. All samples of it follow at once. */
void metric_family(struct metric_writer *writer, enum metric_kind kind, const char *name,
                   const char *help);

/* One sample of the family. A double that is a whole number is written without a point. */
void metric_u64(struct metric_writer *writer, struct metric_labels labels, uint64_t value);
void metric_double(struct metric_writer *writer, struct metric_labels labels, double value);

/* A whole family: 1, with the version and the compiler of what was built as labels. */
void metric_build_info(struct metric_writer *writer, const char *name);

/* All series of one histogram: cumulative buckets up to +Inf, sum, count. */
void metric_histogram(struct metric_writer *writer, struct metric_labels labels,
                      const struct histogram *histogram);

#endif
