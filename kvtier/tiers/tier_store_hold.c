/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/tier_store_parts.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

/*
 * DESIGN
 *
 * A hold counts itself in each of its blocks, and stands in one list, oldest first. One timer
 * waits for whichever expires next; when it fires, all are looked at: there is one hold for each
 * request that an engine is about to load, so they are few, and they differ in length.
 *
 * A hold that has expired is still its owner's, and holds nothing. A load that runs reads its
 * blocks on its own account; that it is ended by its hold's end only saves work that nobody waits
 * for.
 */
struct tier_hold {
    struct tier_store *store;
    struct list_node in_holds;
    uint64_t taken_ms;
    uint64_t expires_ms;
    bool has_expired;
    size_t first; /* blocks [first, end) are held */
    size_t end;
    uint32_t blocks[]; /* indices */
};

static void unhold(struct tier_hold *hold, size_t first, size_t end)
{
    for (size_t i = end; i > first; i--)
        block_table_unhold(hold->store->table, hold->blocks[i - 1]);
}

/* Loads of it begin nothing more. */
static void leave_jobs(struct tier_hold *hold)
{
    struct list *jobs = &hold->store->jobs;

    for (struct list_node *node = jobs->head.next; node != &jobs->head; node = node->next) {
        struct tier_job *job = container_of(node, struct tier_job, in_jobs);

        if (job->hold == hold) {
            job->hold = NULL;
            job->is_cancelled = true;
        }
    }
}

/* ---- time ---- */

static void expire(struct tier_hold *hold)
{
    hold->has_expired = true;
    hold->store->stats.holds_expired++;
    leave_jobs(hold);
    unhold(hold, hold->first, hold->end);
    hold->end = hold->first;
}

static void on_hold_timer(uv_timer_t *timer);

static void watch(struct tier_store *store, uint64_t expires_ms)
{
    const uint64_t now_ms = io_loop_now_ms(store->config.io);
    const uint64_t wait_ms = expires_ms > now_ms ? expires_ms - now_ms : 0;
    int status;

    if (uv_is_active((uv_handle_t *)&store->hold_timer) &&
        uv_timer_get_due_in(&store->hold_timer) <= wait_ms)
        return;
    status = uv_timer_start(&store->hold_timer, on_hold_timer, wait_ms, 0);
    assert(status == 0);
}

static void on_hold_timer(uv_timer_t *timer)
{
    struct tier_store *store = timer->data;
    const uint64_t now_ms = io_loop_now_ms(store->config.io);
    struct list *holds = &store->holds;

    for (struct list_node *node = holds->head.next; node != &holds->head; node = node->next) {
        struct tier_hold *hold = container_of(node, struct tier_hold, in_holds);

        if (hold->has_expired)
            continue;
        if (hold->expires_ms <= now_ms)
            expire(hold);
        else
            watch(store, hold->expires_ms);
    }
}

void tier_hold_extend(struct tier_hold *hold, uint64_t ms)
{
    if (hold->has_expired)
        return;
    hold->expires_ms = io_loop_now_ms(hold->store->config.io) + ms;
    watch(hold->store, hold->expires_ms);
}

uint64_t tier_hold_oldest_ms(const struct tier_store *store)
{
    const struct tier_hold *oldest;

    if (store->holds.count == 0)
        return 0;
    oldest = container_of(store->holds.head.next, struct tier_hold, in_holds);
    return io_loop_now_ms(store->config.io) - oldest->taken_ms;
}

/* ---- taking and giving back ---- */

struct tier_hold *tier_store_hold(struct tier_store *store, const struct block_key *keys,
                                  size_t count, uint64_t ms)
{
    struct tier_hold *hold =
        count > 0 ? malloc(sizeof *hold + count * sizeof hold->blocks[0]) : NULL;

    if (hold == NULL)
        return NULL;
    *hold = (struct tier_hold){.store = store, .taken_ms = io_loop_now_ms(store->config.io)};
    hold->end = block_table_hold_chain(store->table, keys, count, hold->blocks);
    if (hold->end == 0) {
        free(hold);
        return NULL;
    }
    list_node_init(&hold->in_holds);
    list_append(&store->holds, &hold->in_holds);
    tier_hold_extend(hold, ms);
    return hold;
}

void tier_hold_use(struct tier_hold *hold, size_t first, size_t count)
{
    assert(first >= hold->first && first + count <= hold->end);

    block_table_use(hold->store->table, hold->blocks + first, count);
}

size_t tier_hold_count(const struct tier_hold *hold)
{
    return hold->end - hold->first;
}

void tier_hold_trim(struct tier_hold *hold, size_t first, size_t count)
{
    const size_t end = first + count;

    if (hold->has_expired)
        return;
    assert(first <= end);

    if (end < hold->end) {
        const size_t kept = end > hold->first ? end : hold->first;

        unhold(hold, kept, hold->end);
        hold->end = kept;
    }
    if (first > hold->first) {
        const size_t kept = first < hold->end ? first : hold->end;

        unhold(hold, hold->first, kept);
        hold->first = kept;
    }
}

int tier_hold_range(const struct tier_hold *hold, size_t first, size_t count,
                    const uint32_t **blocks)
{
    if (hold->has_expired)
        return -ESTALE;
    if (first < hold->first || first > hold->end || count > hold->end - first)
        return -EINVAL;
    *blocks = hold->blocks + first;
    return 0;
}

void tier_hold_release(struct tier_hold **hold)
{
    struct tier_hold *released = *hold;

    if (released == NULL)
        return;
    *hold = NULL;
    leave_jobs(released);
    unhold(released, released->first, released->end);
    list_remove(&released->store->holds, &released->in_holds);
    free(released);
}

/* ---- of the store ---- */

void tier_hold_init(struct tier_store *store)
{
    int status = uv_timer_init(&store->config.io->loop, &store->hold_timer);

    assert(status == 0);
    store->hold_timer.data = store;
    list_init(&store->holds);
}

void tier_hold_release_all(struct tier_store *store)
{
    while (store->holds.count > 0) {
        struct tier_hold *hold = container_of(store->holds.head.next, struct tier_hold, in_holds);

        tier_hold_release(&hold);
    }
}
