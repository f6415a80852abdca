/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/tier_store_parts.h"

#include "backends/runtime/log.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

/*
 * DESIGN
 *
 * Who gets onto the SSD: blocks that were wanted twice, because most prompts never come again and
 * writes wear a disk out. A copy is made when a block proves wanted, long before its place in CPU
 * memory is needed; so what is evicted is mostly on the SSD already, and nobody waits for a write.
 *
 * The SSD never holds a block without the one before it: a child is taken in behind its parent,
 * leaves before it, and a scan publishes it behind it.
 *
 * A block on its way down is read, so it cannot leave CPU memory. Hence not too many at once.
 *
 * A full or failing disk is no error of anybody's: writes stop, that is said once, and after a
 * while one is tried again.
 */
enum { RETRY_MS = 30000, CHAIN_MAX = 256 };

static void demote_on_batch(struct tier_job *job, struct tier_batch *batch);
static void demote_on_end(struct tier_job *job);

static const struct tier_job_kind demote_kind = {MOVER_DEMOTE, demote_on_batch, demote_on_end};

/* ---- on and off ---- */

bool tier_demote_may_write(const struct tier_store *store)
{
    return store->tiers[BLOCK_TIER_SSD] != NULL && store->scan == NULL &&
           !tier_erase_is_owed(store) && !store->is_closing &&
           (!store->is_ssd_off || io_loop_now_ms(store->config.io) >= store->ssd_retry_ms);
}

static void turn_off(struct tier_store *store, int status)
{
    store->stats.ssd_write_errors++;
    store->ssd_status = status;
    store->ssd_retry_ms = io_loop_now_ms(store->config.io) + RETRY_MS;
    if (store->is_ssd_off)
        return;
    store->is_ssd_off = true;
    LOG(LOG_WARN, "ssd_writes_stopped", log_text("reason", strerror(-status)),
        log_text("advice", tier_ssd_advice(status)), log_u64("retry_ms", RETRY_MS));
}

static void turn_on(struct tier_store *store)
{
    if (!store->is_ssd_off)
        return;
    store->is_ssd_off = false;
    LOG(LOG_INFO, "ssd_writes_resumed", log_u64("demoted_blocks", store->stats.demoted_blocks));
}

/* ---- what comes back ---- */

static bool is_disk_failure(int status)
{
    return status == -EIO || status == -ENOSPC || status == -EMFILE || status == -EROFS;
}

static void demote_on_batch(struct tier_job *job, struct tier_batch *batch)
{
    struct tier_store *store = job->store;
    int failure = 0;

    for (size_t i = 0; i < batch->copy.count; i++) {
        struct move *move = &job->moves[batch->first + i];

        if (move->state == MOVE_ABORTED && is_disk_failure(move->status))
            failure = move->status;
        if (move->state != MOVE_ARRIVED)
            continue;
        if (!tier_index_may_join_ssd(store, tier_index_at(store, move->block)))
            tier_job_cancel(job, move);
        else if (tier_job_commit(job, move))
            store->stats.demoted_blocks++;
    }
    if (failure < 0) {
        turn_off(store, failure);
        job->is_cancelled = true;
    } else if (batch->copy.count > 0 && job->moves[batch->first].state == MOVE_DONE) {
        turn_on(store);
    }
}

static void demote_on_end(struct tier_job *job)
{
    job->store->demoting -= (uint32_t)job->count;
}

/* ---- what goes ---- */

static bool is_copyable(const struct tier_block *block)
{
    return block->place[BLOCK_TIER_CPU] == BLOCK_HELD &&
           block->place[BLOCK_TIER_SSD] == BLOCK_ABSENT;
}

bool tier_demote_is_wanted(const struct tier_store *store, uint32_t block)
{
    const struct tier_block *at = tier_index_at(store, block);

    return store->tiers[BLOCK_TIER_SSD] != NULL && is_copyable(at) && at->uses > 0;
}

bool tier_demote_is_due(const struct tier_store *store, uint32_t block)
{
    return tier_demote_is_wanted(store, block) && tier_demote_may_write(store);
}

/* Its parent is there, or goes before it. */
static bool has_parent(const struct tier_store *store, const struct tier_block *block)
{
    uint8_t place;

    if (block->depth == 0)
        return true;
    if (block->parent == 0)
        return false;
    place = tier_index_at(store, block->parent)->place[BLOCK_TIER_SSD];
    return place == BLOCK_HELD || place == BLOCK_WRITING;
}

/* Of what is on its way down at once: a part of CPU memory, that it may not leave meanwhile. */
static uint32_t demoting_max(const struct tier_store *store)
{
    const uint32_t quarter = store->stats.slot_count[BLOCK_TIER_CPU] / 4;

    return quarter > 0 ? quarter : 1;
}

/* Making room for it must not take away what it follows. */
static bool add(struct tier_job *job, uint32_t block)
{
    struct tier_store *store = job->store;
    const uint32_t parent = tier_index_at(store, block)->parent;
    uint32_t slot;

    if (store->demoting >= demoting_max(store) || !has_parent(store, tier_index_at(store, block)))
        return false;
    if (parent != 0)
        block_table_hold(store->table, parent);
    slot = tier_index_take_slot(store, BLOCK_TIER_SSD);
    if (slot != BLOCK_SLOT_NONE) {
        tier_job_add(job, (struct move){.block = block, .source = MOVE_CPU, .target = MOVE_SSD},
                     slot);
        store->demoting++;
    }
    if (parent != 0)
        block_table_unhold(store->table, parent);
    return slot != BLOCK_SLOT_NONE;
}

/* blocks may be copied, and are in the order of their chains. What finds no place stays a candidate
 * for the next time that somebody comes by. */
static void demote(struct tier_store *store, const uint32_t *blocks, size_t count)
{
    struct tier_job *job = NULL;

    if (count > 0 && store->demoting < demoting_max(store))
        job = tier_job_create(store, &demote_kind, count, NULL);
    if (job == NULL)
        return;
    for (size_t i = 0; i < count; i++) {
        if (is_copyable(tier_index_at(store, blocks[i])))
            (void)add(job, blocks[i]);
    }
    tier_job_start(job);
}

void tier_demote(struct tier_store *store, const uint32_t *blocks, size_t count)
{
    size_t first = 0, end = count;

    while (first < end && !tier_demote_is_due(store, blocks[first]))
        first++;
    while (end > first && !tier_demote_is_due(store, blocks[end - 1]))
        end--;
    demote(store, blocks + first, end - first);
}

/* The blocks from the one that is on the SSD, or on its way, down to leaf. 0: too many, or one of
 * them is nowhere. */
static size_t missing_chain(const struct tier_store *store, uint32_t leaf, uint32_t *blocks)
{
    size_t count = 0;

    for (uint32_t block = leaf; count < CHAIN_MAX; block = tier_index_at(store, block)->parent) {
        const struct tier_block *at = tier_index_at(store, block);

        if (!is_copyable(at))
            return 0;
        blocks[CHAIN_MAX - ++count] = block;
        if (has_parent(store, at))
            return count;
        if (at->parent == 0)
            return 0;
    }
    return 0;
}

void tier_demote_chains(struct tier_store *store, const uint32_t *blocks, size_t count)
{
    uint32_t chain[CHAIN_MAX];

    for (size_t i = 0; i < count; i++) {
        size_t length;

        if (!tier_demote_is_due(store, blocks[i]))
            continue; /* an earlier one has taken it along */
        length = missing_chain(store, blocks[i], chain);
        demote(store, chain + CHAIN_MAX - length, length);
    }
}
