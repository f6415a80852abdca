/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/eviction.h"

#include <assert.h>
#include <stdlib.h>

#include "backends/runtime/huge_array.h"
#include "kvtier/tiers/eviction_ghosts.h"

/*
 * DESIGN
 *
 *   priority = uses + age at the last use        age = the priority of the last that was evicted
 *
 * Least frequently used with dynamic aging (LFU-DA; Arlitt et al. 2000). A count alone would keep
 * for ever what was popular once; here everybody who comes or is used starts from where the evicted
 * ended, so that an old count fades as others pass it. Of equal priorities the one used longest ago
 * goes. A parent is used whenever its child is and leaves later, so it has the higher priority.
 *
 * Counts outlive a block: one that comes back goes on from where it was. Without that, on chats,
 * the policy loses most of what it has before recency: popular blocks are those that came back
 * often.
 */

enum { GHOSTS_PER_SLOT = 4 };

/* The priority, then the number of its last touch, over both parts of a rank: 40 and 56 bits. */
enum { TOUCH_HIGH_BITS = 24 };

struct used {
    uint64_t major;
    uint32_t minor;
    uint32_t count; /* of all uses that are known; saturating */
};
static_assert(sizeof(struct used) == 16, "four to a cache line");

struct eviction_state {
    struct eviction_order order; /* candidates, by priority, then by the last touch */
    struct eviction_ghosts ghosts;
    const struct tier_block *blocks;
    struct used *used; /* by index */
    uint64_t touch_count;
    uint64_t age;
};

static void destroy(struct eviction_state *state)
{
    if (state == NULL)
        return;
    eviction_order_release(&state->order);
    eviction_ghosts_release(&state->ghosts);
    free(state->used);
    free(state);
}

static struct eviction_state *create(struct eviction_config config)
{
    struct eviction_state *state = calloc(1, sizeof *state);

    if (state == NULL)
        return NULL;
    state->blocks = config.blocks;
    state->used = huge_array_alloc(config.block_count, sizeof *state->used);
    if (state->used == NULL ||
        eviction_order_init(&state->order, config.slot_count, config.block_count) < 0 ||
        eviction_ghosts_init(&state->ghosts, (size_t)config.slot_count * GHOSTS_PER_SLOT) < 0) {
        destroy(state);
        return NULL;
    }
    return state;
}

static struct eviction_rank rank(const struct eviction_state *state, uint32_t index)
{
    return (struct eviction_rank){state->used[index].major, state->used[index].minor};
}

static void on_used(struct eviction_state *state, uint32_t index)
{
    struct used *used = &state->used[index];

    state->touch_count++;
    used->count += used->count < UINT32_MAX;
    used->major = (used->count + state->age) << TOUCH_HIGH_BITS | state->touch_count >> 32;
    used->minor = (uint32_t)state->touch_count;
}

static void on_held(struct eviction_state *state, uint32_t index)
{
    state->used[index].count =
        eviction_ghosts_take(&state->ghosts, state->blocks[index].key.name.low);
    on_used(state, index);
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
    const uint64_t priority = state->used[index].major >> TOUCH_HIGH_BITS;

    eviction_ghosts_put(&state->ghosts, state->blocks[index].key.name.low,
                        state->used[index].count);
    if (was_evicted && priority > state->age)
        state->age = priority;
}

static size_t pick(struct eviction_state *state, uint32_t *victims, size_t count)
{
    return eviction_order_first(&state->order, victims, count);
}

const struct eviction_ops eviction_lfu_aged = {
    .name = "lfu_aged",
    .help = "the end of a chain that was used least, where old uses fade as others go",
    .create = create,
    .destroy = destroy,
    .on_held = on_held,
    .on_used = on_used,
    .on_candidate = on_candidate,
    .on_needed = on_needed,
    .on_left = on_left,
    .pick = pick,
    .rank = rank,
};
