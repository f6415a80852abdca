/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/eviction.h"

#include <stdlib.h>

#include "kvtier/tiers/eviction_shadow.h"

/*
 * DESIGN
 *
 *   every block asked for --> both parts (their orders of the real blocks) --> the leader picks
 *         \--> a sample --> shadow of each part: would it have had the block? --> lead
 *
 * Chats are better off with counts, agents with recency, and a tier is never told whose it is. So
 * two shadows replay what is asked for under one part each, and the part that would have had more
 * of it lately picks. The real tier follows within the time in which it turns over.
 *
 * Shadows see one block in `rate`, chosen by name, and have that share of the slots: hit ratios
 * stay (SHARDS; Waldspurger et al. 2015) and both see the same blocks, so that chance takes
 * nobody's side. They cost little and no more for a larger tier.
 *
 * The lead is a sum that fades: (hits of counts - hits of recency) over about `window` of the last
 * asked for. Recency leads at first; the other one must be better by a margin to take over, or a
 * tie would have them change all the time, and every change costs some hits.
 */

enum {
    SHADOW_SLOTS_MAX = 512,
    WINDOW_SHADOWS = 8,     /* as many times the slots of a shadow */
    MARGIN_PER_WINDOW = 400 /* a lead of a 400th of what was asked for */
};

struct eviction_state {
    struct eviction_state *recency;
    struct eviction_state *counts;
    struct eviction_shadow recency_shadow;
    struct eviction_shadow counts_shadow;
    const struct tier_block *blocks;
    uint64_t rate;
    int64_t window;
    int64_t lead; /* of counts, times window */
    bool do_counts_lead;
};

static const struct eviction_ops *const recency_ops = &eviction_lru_leaf;
static const struct eviction_ops *const counts_ops = &eviction_lfu_aged;

static void destroy(struct eviction_state *state)
{
    if (state == NULL)
        return;
    recency_ops->destroy(state->recency);
    counts_ops->destroy(state->counts);
    eviction_shadow_release(&state->recency_shadow);
    eviction_shadow_release(&state->counts_shadow);
    free(state);
}

static struct eviction_state *create(struct eviction_config config)
{
    struct eviction_state *state = calloc(1, sizeof *state);
    uint32_t shadow_slots;

    if (state == NULL)
        return NULL;
    state->rate = (config.slot_count + SHADOW_SLOTS_MAX - 1) / SHADOW_SLOTS_MAX;
    shadow_slots = (uint32_t)(config.slot_count / state->rate);
    state->window = (int64_t)shadow_slots * WINDOW_SHADOWS;
    state->blocks = config.blocks;
    state->recency = recency_ops->create(config);
    state->counts = counts_ops->create(config);
    if (state->recency == NULL || state->counts == NULL ||
        eviction_shadow_init(&state->recency_shadow, recency_ops, shadow_slots) < 0 ||
        eviction_shadow_init(&state->counts_shadow, counts_ops, shadow_slots) < 0) {
        destroy(state);
        return NULL;
    }
    return state;
}

/* Another mix than those that find places of names in tables. */
static bool is_sampled(const struct eviction_state *state, struct block_key key)
{
    return state->rate == 1 ||
           ((key.name.high ^ key.name.low) * 0xd6e8feb86659fd93u >> 32) % state->rate == 0;
}

/* A request asked for the block, whether or not the tier had it. */
static void compare(struct eviction_state *state, uint32_t index)
{
    const struct block_key key = state->blocks[index].key;
    const int64_t margin = state->window * state->window / MARGIN_PER_WINDOW;
    int64_t difference;

    if (!is_sampled(state, key))
        return;
    difference = (int64_t)eviction_shadow_ask(&state->counts_shadow, key) -
                 (int64_t)eviction_shadow_ask(&state->recency_shadow, key);
    state->lead += difference * state->window - state->lead / state->window;
    if (state->lead > margin)
        state->do_counts_lead = true;
    if (state->lead < 0)
        state->do_counts_lead = false;
}

static void on_held(struct eviction_state *state, uint32_t index)
{
    compare(state, index);
    recency_ops->on_held(state->recency, index);
    counts_ops->on_held(state->counts, index);
}

static void on_used(struct eviction_state *state, uint32_t index)
{
    compare(state, index);
    recency_ops->on_used(state->recency, index);
    counts_ops->on_used(state->counts, index);
}

static void on_candidate(struct eviction_state *state, uint32_t index)
{
    recency_ops->on_candidate(state->recency, index);
    counts_ops->on_candidate(state->counts, index);
}

static void on_needed(struct eviction_state *state, uint32_t index)
{
    recency_ops->on_needed(state->recency, index);
    counts_ops->on_needed(state->counts, index);
}

static void on_left(struct eviction_state *state, uint32_t index, bool was_evicted)
{
    recency_ops->on_left(state->recency, index, was_evicted);
    counts_ops->on_left(state->counts, index, was_evicted);
}

static size_t pick(struct eviction_state *state, uint32_t *victims, size_t count)
{
    return state->do_counts_lead ? counts_ops->pick(state->counts, victims, count)
                                 : recency_ops->pick(state->recency, victims, count);
}

static struct eviction_rank rank(const struct eviction_state *state, uint32_t index)
{
    return state->do_counts_lead ? counts_ops->rank(state->counts, index)
                                 : recency_ops->rank(state->recency, index);
}

const struct eviction_ops eviction_adaptive = {
    .name = "adaptive",
    .help = "whichever of lru_leaf and lfu_aged would have kept more of what was asked for lately",
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
