/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/runtime/histogram.h"

#include <assert.h>
#include <math.h>

/*
 * DESIGN
 *
 * The bucket of a value is the number of bounds below it: a binary search whose only branch is its
 * count of steps, which is the same for every value, so that nothing is mispredicted.
 */

const struct histogram_bounds histogram_duration_seconds = {
    19,
    {0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 163.84,
     327.68, 655.36, 1310.72, 2621.44}};

const struct histogram_bounds histogram_ttft_seconds = {
    22, {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
         1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  320, 640}};

const struct histogram_bounds histogram_overhead_seconds = {13,
                                                            {0.00001, 0.00002, 0.00005, 0.0001,
                                                             0.0002, 0.0005, 0.001, 0.002, 0.005,
                                                             0.01, 0.02, 0.05, 0.1}};

const struct histogram_bounds histogram_tokens = {
    11, {1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576}};

void histogram_init(struct histogram *histogram, const struct histogram_bounds *bounds)
{
    assert(bounds->count > 0 && bounds->count <= HISTOGRAM_BOUND_COUNT_MAX);
    for (uint32_t i = 1; i < bounds->count; i++)
        assert(bounds->bounds[i - 1] < bounds->bounds[i]);

    *histogram = (struct histogram){.bounds = bounds};
}

void histogram_observe(struct histogram *histogram, double value)
{
    const double *bounds = histogram->bounds->bounds;
    uint32_t bucket = 0;

    if (isnan(value))
        return;
    if (value < 0)
        value = 0;
    for (uint32_t left = histogram->bounds->count; left > 1; left -= left / 2)
        bucket += (value > bounds[bucket + left / 2 - 1]) * (left / 2);
    bucket += value > bounds[bucket];
    histogram->counts[bucket]++;
    histogram->sum += value;
}

uint64_t histogram_count(const struct histogram *histogram)
{
    uint64_t count = 0;

    for (uint32_t i = 0; i <= histogram->bounds->count; i++)
        count += histogram->counts[i];
    return count;
}
