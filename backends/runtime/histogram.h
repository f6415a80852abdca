/* SPDX-License-Identifier: Apache-2.0 */

/*
 * histogram: counts observations in fixed buckets, as Prometheus reads them. The upper bounds are a
 * const table shared by all histograms of one kind. Plain memory; one thread at a time.
 */
#ifndef BACKENDS_RUNTIME_HISTOGRAM_H
#define BACKENDS_RUNTIME_HISTOGRAM_H

#include <stddef.h>
#include <stdint.h>

enum { HISTOGRAM_BOUND_COUNT_MAX = 24 };

/* Upper bounds, inclusive and rising, in the unit of what is observed (seconds, tokens). What is
 * above the last one falls into +Inf. */
struct histogram_bounds {
    uint32_t count;
    double bounds[HISTOGRAM_BOUND_COUNT_MAX];
};

/* For whole requests: the GenAI conventions' buckets, continued for long answers. */
extern const struct histogram_bounds histogram_duration_seconds;

/* For the time to a first token: the same conventions, continued for long prefill. */
extern const struct histogram_bounds histogram_ttft_seconds;

/* For what we add ourselves: 10 us to 100 ms. */
extern const struct histogram_bounds histogram_overhead_seconds;

/* For token counts: powers of four, 1 to 1 Mi. */
extern const struct histogram_bounds histogram_tokens;

struct histogram {
    const struct histogram_bounds *bounds;
    uint64_t counts[HISTOGRAM_BOUND_COUNT_MAX + 1]; /* not cumulative; [bounds->count]: +Inf */
    double sum;
};

/* Empties it. bounds is borrowed for its life. */
void histogram_init(struct histogram *histogram, const struct histogram_bounds *bounds);

/* A few nanoseconds. A NaN is not counted; below zero counts as zero (a clock that stepped). */
void histogram_observe(struct histogram *histogram, double value);

/* Observations so far. */
uint64_t histogram_count(const struct histogram *histogram);

#endif
