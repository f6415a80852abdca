/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/tier_store_parts.h"

#include "backends/runtime/fault_point.h"
#include "kvtier/tiers/eviction.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

/*
 * DESIGN
 *
 * Slots are taken before anything is copied: what there is no room for is refused at once, and with
 * it what comes after it in its chain. Pages are copied and sealed in batches, in any order; when
 * all have come back, may_commit is asked once, and they are put into the index in the order given,
 * each only behind the one before it in its chain. So whatever fails in the middle, what is there
 * is a beginning of what was asked for.
 *
 * Sealing a slot before may_commit is harmless: nobody looks at a slot that is not in the index.
 */
enum { KNOWN_MAX = 256 };

static void save_on_batch(struct tier_job *job, struct tier_batch *batch);
static void save_on_end(struct tier_job *job);

static const struct tier_job_kind save_kind = {MOVER_SAVE, save_on_batch, save_on_end};

static void save_on_batch(struct tier_job *job, struct tier_batch *batch)
{
    for (size_t i = 0; i < batch->copy.count; i++) {
        if (job->moves[batch->first + i].state == MOVE_ABORTED)
            job->store->stats.save_failed_blocks++;
    }
}

/* Those that were here before and had to go are wanted, it turns out: that was their second time.
 */
static void note_return(struct tier_store *store, uint32_t block)
{
    if (seen_filter_has(&store->seen, tier_index_at(store, block)->key.name))
        block_table_count_return(store->table, block);
}

static void commit(struct tier_job *job, struct move *move, bool may_commit)
{
    struct tier_store *store = job->store;

    if (!may_commit) {
        tier_job_cancel(job, move);
        store->stats.save_failed_blocks++;
    } else if (!tier_index_is_reachable(store, tier_index_at(store, move->block))) {
        tier_job_cancel(job, move);
        store->stats.save_refused_blocks++;
        job->saved.refused++;
    } else if (tier_job_commit(job, move)) {
        note_return(store, move->block);
        store->stats.saved_blocks++;
        job->saved.saved++;
    }
}

static void save_on_end(struct tier_job *job)
{
    struct tier_store *store = job->store;
    const bool may_commit = !job->is_void && !store->is_closing && job->may_commit(job->ctx);
    uint32_t due[EVICTION_PICK_MAX];
    size_t due_count = 0;

    for (size_t i = 0; i < job->count; i++) {
        struct move *move = &job->moves[i];

        if (move->state != MOVE_ARRIVED)
            continue;
        commit(job, move, may_commit);
        if (move->state == MOVE_DONE && due_count < EVICTION_PICK_MAX &&
            tier_demote_is_due(store, move->block))
            due[due_count++] = move->block;
    }
    tier_demote(store, due, due_count);
    fault_point_pass(FAULT_SAVE_REPORTED);
    job->on_saved(job->ctx, job->saved);
}

/* ---- planning ---- */

/* 0: it cannot be taken in. parent, unless 0, is held: making room does not take it away. */
static uint32_t add_block(struct tier_store *store, const struct tier_save *save, uint32_t parent,
                          uint32_t *slot)
{
    uint32_t block;

    *slot = tier_index_take_slot(store, BLOCK_TIER_CPU);
    if (*slot == BLOCK_SLOT_NONE)
        return 0;
    block = block_table_add(store->table, save->key, parent, save->depth);
    if (block != 0 && tier_index_at(store, block)->place[BLOCK_TIER_CPU] == BLOCK_ABSENT)
        return block;
    block_table_give_slot(store->table, BLOCK_TIER_CPU, *slot);
    return 0;
}

/* Whether what the block follows is held, or on its way in. */
static bool has_parent(const struct tier_store *store, const struct tier_save *save,
                       uint32_t *parent)
{
    const struct tier_block *at;

    *parent = 0;
    if (save->parent.low == 0)
        return save->depth == 0;
    *parent = block_table_claim_parent(store->table, save->parent, save->depth);
    if (*parent == 0)
        return false;
    at = tier_index_at(store, *parent);
    return tier_block_bits(at) != 0 || at->place[BLOCK_TIER_CPU] == BLOCK_WRITING;
}

static void plan_new(struct tier_job *job, const struct tier_save *save)
{
    struct tier_store *store = job->store;
    uint32_t parent, block = 0, slot;

    if (has_parent(store, save, &parent)) {
        if (parent != 0)
            block_table_hold(store->table, parent);
        block = add_block(store, save, parent, &slot);
        if (block != 0)
            tier_job_add(job,
                         (struct move){.block = block,
                                       .engine_block = save->engine_block,
                                       .source = MOVE_ENGINE,
                                       .target = MOVE_CPU},
                         slot);
        if (parent != 0)
            block_table_unhold(store->table, parent);
    }
    if (block == 0) {
        job->saved.refused++;
        store->stats.save_refused_blocks++;
    }
}

/* What is in CPU memory, or on its way there, is known. What is on the SSD alone is copied again:
 * it is at hand now, and wanted. Takes the run of those that are known, so that they are used (by a
 * request that has not used them yet) and go down together; returns its length, which is at most
 * KNOWN_MAX. */
static size_t plan_known(struct tier_job *job, const struct tier_save *saves, size_t count)
{
    struct tier_store *store = job->store;
    uint32_t held[KNOWN_MAX], used[KNOWN_MAX];
    size_t known = 0, held_count = 0, used_count = 0;

    for (; known < count && known < KNOWN_MAX; known++) {
        const uint32_t block = block_table_find_key(store->table, saves[known].key);
        const uint8_t place =
            block != 0 ? tier_index_at(store, block)->place[BLOCK_TIER_CPU] : BLOCK_ABSENT;

        if (place == BLOCK_HELD)
            held[held_count++] = block;
        else if (place != BLOCK_WRITING)
            break;
        if (place == BLOCK_HELD && !saves[known].is_used)
            used[used_count++] = block;
    }
    block_table_use(store->table, used, used_count);
    tier_demote(store, held, held_count);
    job->saved.known += (uint32_t)known;
    store->stats.saved_known_blocks += known;
    return known;
}

int tier_store_save(struct tier_store *store, const struct tier_save *blocks, size_t count,
                    struct engine_memory *memory, tier_may_commit_fn *may_commit,
                    tier_saved_fn *on_done, void *ctx)
{
    struct tier_job *job;

    if (store->engine_jobs >= store->config.job_count_max)
        return -EBUSY;
    job = tier_job_create(store, &save_kind, count, memory);
    if (job == NULL)
        return -ENOMEM;
    job->may_commit = may_commit;
    job->on_saved = on_done;
    job->ctx = ctx;
    for (size_t i = 0; i < count;) {
        const size_t known = plan_known(job, blocks + i, count - i);

        if (known == 0)
            plan_new(job, &blocks[i++]);
        i += known;
    }
    tier_job_start(job);
    return 0;
}
