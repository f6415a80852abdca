/* SPDX-License-Identifier: Apache-2.0 */

#include "hashing/ring.h"

#include "hashing/xxh3.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

/*
 * DESIGN
 *
 * Mirrokni, Thorup, Zadimoghaddam, "Consistent hashing with bounded loads" (2016): with a capacity
 * of ceil(c * (load + 1) / nodes) for every node, a key walks clockwise past the full ones. Since
 * c >= 1, not all can be full, so the walk ends. Which nodes are full changes only near the bound,
 * so keys keep their node under moderate load and spill to the same next node under more.
 */

static int compare_points(const void *left, const void *right)
{
    const struct ring_point *a = left;
    const struct ring_point *b = right;

    if (a->at != b->at)
        return a->at < b->at ? -1 : 1;
    return (a->node > b->node) - (a->node < b->node);
}

static uint64_t place(uint64_t id, uint64_t copy)
{
    uint8_t bytes[16];

    xxh3_put_u64(bytes, id);
    xxh3_put_u64(bytes + 8, copy);
    return XXH3_64bits(bytes, sizeof bytes);
}

/* The first point at or after `at`, clockwise. */
static size_t first_point(const struct ring *ring, uint64_t at)
{
    size_t low = 0;
    size_t high = ring->point_count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (ring->points[middle].at < at)
            low = middle + 1;
        else
            high = middle;
    }
    return low < ring->point_count ? low : 0;
}

static double capacity(const struct ring *ring, const uint32_t *loads, double load_factor_max)
{
    double total = 1; /* the one to be placed */

    if (isinf(load_factor_max))
        return HUGE_VAL;
    for (size_t i = 0; i < ring->node_count; i++)
        total += loads[i];
    return ceil(load_factor_max * total / (double)ring->node_count);
}

int ring_init(struct ring *ring, const uint64_t *ids, size_t count)
{
    assert(count > 0 && count <= UINT32_MAX);

    *ring = (struct ring){.point_count = count * RING_POINTS_PER_NODE, .node_count = count};
    ring->points = calloc(ring->point_count, sizeof *ring->points);
    if (ring->points == NULL)
        return -ENOMEM;

    for (size_t i = 0; i < ring->point_count; i++) {
        size_t node = i / RING_POINTS_PER_NODE;

        ring->points[i].at = place(ids[node], i % RING_POINTS_PER_NODE);
        ring->points[i].node = (uint32_t)node;
    }
    qsort(ring->points, ring->point_count, sizeof *ring->points, compare_points);
    return 0;
}

uint32_t ring_pick(const struct ring *ring, uint64_t key, const uint32_t *loads,
                   double load_factor_max)
{
    double load_max;
    size_t at = first_point(ring, place(key, 0));

    assert(load_factor_max >= 1);
    assert(loads != NULL || isinf(load_factor_max));

    load_max = capacity(ring, loads, load_factor_max);

    /* One of them is below the mean, and the mean is below load_max. */
    while (loads != NULL && loads[ring->points[at].node] >= load_max)
        at = at + 1 < ring->point_count ? at + 1 : 0;
    return ring->points[at].node;
}

void ring_release(struct ring *ring)
{
    free(ring->points);
    *ring = (struct ring){NULL, 0, 0};
}
