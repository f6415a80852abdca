/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/eviction.h"

#include <assert.h>
#include <stdlib.h>

#include "kvtier/tiers/eviction_ghosts.h"
#include "kvtier/tiers/eviction_heap.h"

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

struct used {
    uint64_t priority;
    uint64_t touched; /* the number of its last touch */
    uint32_t count;   /* of all uses that are known; saturating */
};

struct eviction_state {
    struct eviction_heap order;   /* candidates, by priority, then by the last touch */
    struct eviction_heap scratch; /* of pick */
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
    eviction_heap_release(&state->order);
    eviction_heap_release(&state->scratch);
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
    state->used = calloc(config.block_count, sizeof *state->used);
    if (state->used == NULL ||
        eviction_heap_init(&state->order, config.slot_count, config.block_count) < 0 ||
        eviction_heap_init(&state->scratch, EVICTION_PICK_MAX * EVICTION_HEAP_FAN, 0) < 0 ||
        eviction_ghosts_init(&state->ghosts, (size_t)config.slot_count * GHOSTS_PER_SLOT) < 0) {
        destroy(state);
        return NULL;
    }
    return state;
}

static struct eviction_rank rank(const struct eviction_state *state, uint32_t index)
{
    return (struct eviction_rank){state->used[index].priority, state->used[index].touched};
}

static void on_used(struct eviction_state *state, uint32_t index)
{
    struct used *used = &state->used[index];

    used->count += used->count < UINT32_MAX;
    used->priority = used->count + state->age;
    used->touched = ++state->touch_count;
    if (eviction_heap_has(&state->order, index))
        eviction_heap_move(&state->order, index, rank(state, index));
}

static void on_held(struct eviction_state *state, uint32_t index)
{
    state->used[index].count =
        eviction_ghosts_take(&state->ghosts, state->blocks[index].key.name.low);
    on_used(state, index);
}

static void on_candidate(struct eviction_state *state, uint32_t index)
{
    eviction_heap_push(&state->order, index, rank(state, index));
}

static void on_needed(struct eviction_state *state, uint32_t index)
{
    eviction_heap_remove(&state->order, index);
}

static void on_left(struct eviction_state *state, uint32_t index, bool was_evicted)
{
    assert(!eviction_heap_has(&state->order, index));

    eviction_ghosts_put(&state->ghosts, state->blocks[index].key.name.low,
                        state->used[index].count);
    if (was_evicted && state->used[index].priority > state->age)
        state->age = state->used[index].priority;
}

static size_t pick(struct eviction_state *state, uint32_t *victims, size_t count)
{
    return eviction_heap_first(&state->order, &state->scratch, victims, count);
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
