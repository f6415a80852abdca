/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/tier_store_parts.h"

#include <errno.h>
#include <stdlib.h>

/*
 * DESIGN
 *
 * A prefetch may push out what nobody has needed for longest, but nothing of the prompt that it is
 * for: all of that is held while room is made. A block that is on its way up already is WRITING in
 * CPU memory, so asking twice begins nothing twice. Moves go in the order of the chain, one batch
 * at a time; when the deadline has passed, the next batch does not begin.
 */
static void promote_on_batch(struct tier_job *job, struct tier_batch *batch);
static void promote_on_end(struct tier_job *job);

static const struct tier_job_kind promote_kind = {MOVER_PREFETCH, promote_on_batch, promote_on_end};

static void promote_on_batch(struct tier_job *job, struct tier_batch *batch)
{
    for (size_t i = 0; i < batch->copy.count; i++) {
        struct move *move = &job->moves[batch->first + i];

        if (move->state == MOVE_ARRIVED && tier_job_commit(job, move))
            job->store->stats.promoted_blocks++;
    }
}

static void promote_on_end(struct tier_job *job)
{
    for (size_t i = 0; i < job->count; i++) {
        /* No thread ever had it. */
        if (job->moves[i].state == MOVE_ABORTED && job->moves[i].status == 0 &&
            job->deadline_ms > 0 && !job->is_void && !job->store->is_closing)
            job->store->stats.prefetch_late++;
    }
}

/* False: there is no room. */
static bool plan(struct tier_job *job, uint32_t block)
{
    struct tier_store *store = job->store;
    const struct tier_block *at = tier_index_at(store, block);
    uint32_t slot;

    if (at->place[BLOCK_TIER_CPU] != BLOCK_ABSENT)
        return true; /* there, or on its way */
    slot = tier_index_take_slot(store, BLOCK_TIER_CPU);
    if (slot == BLOCK_SLOT_NONE)
        return false;
    tier_job_add(job, (struct move){.block = block, .source = MOVE_SSD, .target = MOVE_CPU}, slot);
    return true;
}

static void plan_all(struct tier_job *job, const uint32_t *blocks, size_t count)
{
    struct block_table *table = job->store->table;

    for (size_t i = 0; i < count; i++)
        block_table_hold(table, blocks[i]);
    for (size_t i = 0; i < count && plan(job, blocks[i]); i++)
        ;
    for (size_t i = count; i > 0; i--)
        block_table_unhold(table, blocks[i - 1]);
}

/* Those that can be read, up to the first that cannot; *cold: of them, not in CPU memory. */
static size_t find_all(const struct tier_store *store, const struct digest_128 *names, size_t count,
                       uint32_t *blocks, size_t *cold)
{
    size_t found = 0;

    *cold = 0;
    while (found < count) {
        const uint32_t block = block_table_find_name(store->table, names[found]);

        if (block == 0 || tier_block_bits(tier_index_at(store, block)) == 0)
            break;
        blocks[found++] = block;
        *cold += tier_index_at(store, block)->place[BLOCK_TIER_CPU] == BLOCK_ABSENT;
    }
    return found;
}

size_t tier_store_prefetch(struct tier_store *store, const struct digest_128 *names, size_t count,
                           uint64_t deadline_ms)
{
    struct tier_job *job = NULL;
    uint32_t *blocks = NULL;
    size_t begun = 0, cold, found;

    if (store->tiers[BLOCK_TIER_SSD] == NULL || count == 0)
        return 0;
    blocks = malloc(count * sizeof *blocks);
    if (blocks == NULL)
        return 0;
    found = find_all(store, names, count, blocks, &cold);
    if (cold > 0)
        job = tier_job_create(store, &promote_kind, cold, NULL);
    if (job != NULL) {
        job->deadline_ms = deadline_ms;
        plan_all(job, blocks, found);
        begun = job->count;
        tier_job_start(job);
    }
    free(blocks);
    return begun;
}
