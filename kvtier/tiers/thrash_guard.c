/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/thrash_guard.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kvtier/tiers/eviction_ghosts.h"

/*
 * DESIGN
 *
 *   OPEN --> CLOSED   lost > 4 hits + evidence     in the window: refaults outweigh hits
 *   CLOSED --> OPEN   fitting > lost               what is turned away now would fit
 *                     lost + fitting < evidence/4  nothing comes again: the load is gone
 *                     closed for TRIAL_WINDOWS     to see whether it would still have to be
 *
 * lost: a block comes again that was evicted, or that was turned away and has not come for more
 * accesses than there are slots: to keep it until now was beyond us. fitting: it was turned away
 * and comes again within that. Hits do not open it: that what has been kept is useful is why it
 * closed. (A loop of 1.4 x the slots has 0 hits while open, 0.7 while closed.)
 *
 * One hit outweighs four refaults: it spares a computation, they cost a copy each. Real prompts
 * over a tier that is too small come back late as often as in time, and are better off let in: at
 * even weights, with no trials, the guard lost up to 3 points of hits on public traces; so, 0.3.
 *
 * A change begins a new window and is not taken back before that is over. The evidence that is
 * asked for is a quarter of the slots: where fewer come again, nothing thrashes.
 *
 * A preemption makes refaults worse (a whole request is computed again) but is none by itself:
 * small engine memory over a tier that holds everything is what tiers are for. So it can double
 * them.
 *
 * Who has left is remembered in eviction_ghosts: by name, when it was (in accesses) and how.
 */

enum {
    STEP_COUNT = 8, /* the window moves on in steps */
    TRIAL_WINDOWS = 8,
    GHOSTS_PER_SLOT = 4,
    SHORT_ACCESSES_PER_SLOT = 8, /* who comes later is no refault */
    EVIDENCE_PER_SLOTS = 4,
    EVIDENCE_MIN = 8,
    HIT_WEIGHT = 4,
    PREEMPTION_BLOCKS = 16,
    PROBE_EVERY = 16,
};

/* Of the window, or one of its steps. */
struct events {
    uint64_t lost;
    uint64_t fitting;
    uint64_t hits;
    uint64_t preemptions;
};

struct thrash_guard {
    struct thrash_guard_config config;
    struct eviction_ghosts ghosts;
    struct events steps[STEP_COUNT];
    uint64_t step; /* number of the newest: now_ms / step_ms */
    uint64_t changed_ms;
    uint32_t accesses; /* may wrap: only differences count */
    uint32_t probe;    /* requests since one was let in while closed */
    bool is_closed;
    struct thrash_guard_stats stats;
};

int thrash_guard_create(struct thrash_guard_config config, struct thrash_guard **guard)
{
    struct thrash_guard *made;

    *guard = NULL;
    if (config.slot_count == 0 || config.window_ms < STEP_COUNT)
        return -EINVAL;
    made = calloc(1, sizeof *made);
    if (made == NULL)
        return -ENOMEM;
    made->config = config;
    if (eviction_ghosts_init(&made->ghosts, (size_t)config.slot_count * GHOSTS_PER_SLOT) < 0) {
        free(made);
        return -ENOMEM;
    }
    *guard = made;
    return 0;
}

void thrash_guard_destroy(struct thrash_guard *guard)
{
    if (guard == NULL)
        return;
    eviction_ghosts_release(&guard->ghosts);
    free(guard);
}

/* The step of now; those that the window has left behind are emptied. */
static struct events *current(struct thrash_guard *guard, uint64_t now_ms)
{
    const uint64_t step = now_ms / (guard->config.window_ms / STEP_COUNT);

    if (step > guard->step + STEP_COUNT)
        guard->step = step - STEP_COUNT;
    while (guard->step < step)
        guard->steps[++guard->step % STEP_COUNT] = (struct events){0};
    return &guard->steps[guard->step % STEP_COUNT];
}

static struct events sum(const struct thrash_guard *guard)
{
    struct events all = {0};

    for (int i = 0; i < STEP_COUNT; i++) {
        all.lost += guard->steps[i].lost;
        all.fitting += guard->steps[i].fitting;
        all.hits += guard->steps[i].hits;
        all.preemptions += guard->steps[i].preemptions;
    }
    return all;
}

static uint64_t weighed(struct events all)
{
    const uint64_t extra = all.preemptions * PREEMPTION_BLOCKS;

    return all.lost + (extra < all.lost ? extra : all.lost);
}

static uint64_t evidence(const struct thrash_guard *guard)
{
    const uint64_t blocks = guard->config.slot_count / EVIDENCE_PER_SLOTS;

    return blocks > EVIDENCE_MIN ? blocks : EVIDENCE_MIN;
}

static void change(struct thrash_guard *guard, bool is_closed, uint64_t now_ms)
{
    guard->is_closed = is_closed;
    guard->changed_ms = now_ms;
    guard->probe = 0;
    guard->stats.closed += is_closed;
    memset(guard->steps, 0, sizeof guard->steps);
}

static void judge(struct thrash_guard *guard, uint64_t now_ms)
{
    const struct events all = sum(guard);

    if (!guard->is_closed) {
        if (weighed(all) > all.hits * HIT_WEIGHT + evidence(guard))
            change(guard, true, now_ms);
    } else if (now_ms - guard->changed_ms >= guard->config.window_ms) {
        if (all.fitting > all.lost || all.lost + all.fitting < evidence(guard) / 4 ||
            now_ms - guard->changed_ms >= guard->config.window_ms * TRIAL_WINDOWS)
            change(guard, false, now_ms);
    }
}

/* Ghosts hold the access of the leaving, and in the lowest bit how it was. 0 is no ghost: that one
 * access is taken for the one before. */
static void remember(struct thrash_guard *guard, uint64_t name, bool was_turned_away)
{
    const uint32_t when = guard->accesses << 1 | was_turned_away;

    eviction_ghosts_put(&guard->ghosts, name, when != 0 ? when : (uint32_t)-2);
}

static void count_return(struct thrash_guard *guard, uint64_t name, struct events *step)
{
    const uint32_t left = eviction_ghosts_take(&guard->ghosts, name);
    const uint32_t away = ((guard->accesses << 1) - (left & ~1u)) >> 1;

    if (left == 0 || away / SHORT_ACCESSES_PER_SLOT >= guard->config.slot_count)
        return;
    guard->stats.refaults++;
    if ((left & 1) != 0 && away < guard->config.slot_count)
        step->fitting++;
    else
        step->lost++;
}

bool thrash_guard_admits(struct thrash_guard *guard, const uint64_t *names, size_t count,
                         uint64_t now_ms)
{
    struct events *step = current(guard, now_ms);
    bool is_admitted;

    for (size_t i = 0; i < count; i++, guard->accesses++)
        count_return(guard, names[i], step);
    judge(guard, now_ms);
    is_admitted = !guard->is_closed || ++guard->probe % PROBE_EVERY == 0;
    if (is_admitted)
        return true;
    for (size_t i = 0; i < count; i++)
        remember(guard, names[i], true);
    guard->stats.turned_away += count;
    return false;
}

void thrash_guard_evicted(struct thrash_guard *guard, uint64_t name)
{
    remember(guard, name, false);
}

void thrash_guard_hit(struct thrash_guard *guard, size_t count, uint64_t now_ms)
{
    current(guard, now_ms)->hits += count;
    guard->accesses += (uint32_t)count;
}

void thrash_guard_preempted(struct thrash_guard *guard, size_t count, uint64_t now_ms)
{
    current(guard, now_ms)->preemptions += count;
}

bool thrash_guard_is_closed(const struct thrash_guard *guard)
{
    return guard->is_closed;
}

/* The evidence is added so that a handful of refaults in a quiet window is no pressure. */
double thrash_guard_pressure(struct thrash_guard *guard, uint64_t now_ms)
{
    struct events all;

    (void)current(guard, now_ms);
    all = sum(guard);
    return (double)weighed(all) / (double)(weighed(all) + all.hits + evidence(guard));
}

const struct thrash_guard_stats *thrash_guard_stats(const struct thrash_guard *guard)
{
    return &guard->stats;
}
