/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/eviction.h"

#include <stdlib.h>

#include "backends/runtime/huge_array.h"

/*
 * DESIGN
 *
 * A block's rank is the number of the touch that was its last, so ranks never tie. The table tells
 * of a chain's end first: within one use the prefix is the newer, and outlives its tail.
 */

struct eviction_state {
    struct eviction_order order; /* candidates, by the last touch */
    uint64_t *touched;           /* by index */
    uint64_t touch_count;
};

static void destroy(struct eviction_state *state)
{
    if (state == NULL)
        return;
    eviction_order_release(&state->order);
    free(state->touched);
    free(state);
}

static struct eviction_state *create(struct eviction_config config)
{
    struct eviction_state *state = calloc(1, sizeof *state);

    if (state == NULL)
        return NULL;
    state->touched = huge_array_alloc(config.block_count, sizeof *state->touched);
    if (state->touched == NULL ||
        eviction_order_init(&state->order, config.slot_count, config.block_count) < 0) {
        destroy(state);
        return NULL;
    }
    return state;
}

static struct eviction_rank rank(const struct eviction_state *state, uint32_t index)
{
    return (struct eviction_rank){.major = state->touched[index]};
}

static void touch(struct eviction_state *state, uint32_t index)
{
    state->touched[index] = ++state->touch_count;
}

static void on_candidate(struct eviction_state *state, uint32_t index)
{
    eviction_order_add(&state->order, index, rank(state, index));
}

static void on_needed(struct eviction_state *state, uint32_t index)
{
    eviction_order_remove(&state->order, index);
}

static void on_left(struct eviction_state *state, uint32_t index, bool was_evicted)
{
    (void)state;
    (void)index;
    (void)was_evicted;
}

static size_t pick(struct eviction_state *state, uint32_t *victims, size_t count)
{
    return eviction_order_first(&state->order, victims, count);
}

const struct eviction_ops eviction_lru_leaf = {
    .name = "lru_leaf",
    .help = "the end of a chain that was used longest ago",
    .create = create,
    .destroy = destroy,
    .on_held = touch,
    .on_used = touch,
    .on_candidate = on_candidate,
    .on_needed = on_needed,
    .on_left = on_left,
    .pick = pick,
    .rank = rank,
};
