/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/tier_store_parts.h"

#include "backends/runtime/fault_point.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

/*
 * DESIGN
 *
 *   moves   | batch | batch | in no batch yet ...          next: where the next batch begins
 *             on a    waits
 *             thread
 *
 * All slots of a job are taken when it starts: what it reads cannot leave, what it writes is
 * nobody else's. A batch that comes back takes the next moves and queues again behind what waits
 * then, so that a huge load passes in turns with small ones; between two batches a job can be
 * cancelled. As many batches are under way as there are threads for them.
 *
 * One allocation for a job with its moves, and four for its batches; nothing per block.
 */

static bool is_engine(const struct tier_job *job)
{
    return job->kind->class == MOVER_LOAD || job->kind->class == MOVER_SAVE;
}

static uint32_t thread_count(const struct tier_job *job)
{
    switch (job->kind->class) {
    case MOVER_LOAD:
        return job->store->config.load_threads;
    case MOVER_SAVE:
        return job->store->config.save_threads;
    default:
        return 1; /* in their order: a parent arrives before its child */
    }
}

/* ---- making ---- */

/* As large as may be, but no thread idle, unless that makes them too small to be worth it. */
static size_t batch_blocks_of(const struct tier_job *job, size_t count)
{
    enum { WORTH_BYTES = 4 << 20 };
    const size_t page_bytes = job->store->config.page_bytes;
    const size_t most_bytes = is_engine(job) ? TIER_BATCH_BYTES : TIER_STAGING_BYTES;
    const size_t share = (count + thread_count(job) - 1) / thread_count(job);
    size_t blocks = share;

    if (blocks > most_bytes / page_bytes)
        blocks = most_bytes / page_bytes;
    if (blocks > TIER_BATCH_BLOCKS)
        blocks = TIER_BATCH_BLOCKS;
    if (blocks < WORTH_BYTES / page_bytes)
        blocks = WORTH_BYTES / page_bytes;
    if (blocks > count)
        blocks = count;
    return blocks > 0 ? blocks : 1;
}

static void free_job(struct tier_job *job)
{
    free(job->batches);
    free(job->copy_blocks);
    free(job->transfers);
    free(job->pages);
    free(job);
}

/* The arrays of all batches lie side by side. */
static bool create_batches(struct tier_job *job, size_t count)
{
    const size_t blocks = batch_blocks_of(job, count);
    const size_t needed = (count + blocks - 1) / blocks;
    size_t rooms;

    job->batch_blocks = blocks;
    job->batch_count = needed > thread_count(job) ? thread_count(job) : (uint32_t)needed;
    if (job->batch_count == 0)
        job->batch_count = 1; /* to come back on the loop, later */
    rooms = job->batch_count * blocks;
    job->batches = calloc(job->batch_count, sizeof *job->batches);
    job->copy_blocks = calloc(rooms, sizeof *job->copy_blocks);
    job->transfers = calloc(rooms, sizeof *job->transfers);
    job->pages = calloc(rooms, sizeof *job->pages);
    return job->batches != NULL && job->copy_blocks != NULL && job->transfers != NULL &&
           job->pages != NULL;
}

static void init_batch(struct tier_job *job, uint32_t number)
{
    const struct tier_store *store = job->store;
    const size_t room = number * job->batch_blocks;

    job->batches[number] = (struct tier_batch){
        .job = job,
        .copy = {.tiers = store->tiers,
                 .memory = job->memory,
                 .is_by_processor = job->memory != NULL && job->memory->device->is_by_processor,
                 .blocks = job->copy_blocks + room,
                 .transfers = job->transfers + room,
                 .pages = job->pages + room,
                 .staging_bytes = tier_store_staging_bytes(store)},
    };
}

struct tier_job *tier_job_create(struct tier_store *store, const struct tier_job_kind *kind,
                                 size_t move_count_max, struct engine_memory *memory)
{
    struct tier_job *job = calloc(1, sizeof *job + move_count_max * sizeof job->moves[0]);

    if (job == NULL)
        return NULL;
    job->store = store;
    job->kind = kind;
    list_node_init(&job->in_jobs);
    if (!create_batches(job, move_count_max)) {
        free_job(job);
        return NULL;
    }
    job->memory = memory != NULL ? engine_memory_ref(memory) : NULL;
    for (uint32_t i = 0; i < job->batch_count; i++)
        init_batch(job, i);
    return job;
}

void tier_job_add(struct tier_job *job, struct move move, uint32_t slot)
{
    struct tier_store *store = job->store;
    const enum block_tier written = move_written_tier(&move);

    move.state = MOVE_RESERVED;
    if (move.source != MOVE_ENGINE) {
        block_table_begin_read(store->table, move.block, (enum block_tier)move.source);
        if (move.target == MOVE_ENGINE)
            store->load_bytes[move.source] += store->config.page_bytes;
    }
    if (written != BLOCK_TIER_COUNT)
        block_table_set_place(store->table, move.block, written, BLOCK_WRITING, slot);
    job->moves[job->count++] = move;
}

/* ---- settling ---- */

static void step(struct move *move, enum move_event event)
{
    int status = move_step(move, event);

    assert(status == 0);
}

static void leave_source(struct tier_job *job, const struct move *move)
{
    struct tier_store *store = job->store;

    if (move->source == MOVE_ENGINE)
        return;
    if (move->target == MOVE_ENGINE)
        store->load_bytes[move->source] -= store->config.page_bytes;
    tier_index_end_read(store, move->block, (enum block_tier)move->source);
}

/* What was written is nobody's. */
static void abandon(struct tier_job *job, const struct move *move)
{
    const enum block_tier written = move_written_tier(move);

    if (written != BLOCK_TIER_COUNT)
        block_table_set_place(job->store->table, move->block, written, BLOCK_ABSENT,
                              BLOCK_SLOT_NONE);
}

void tier_job_cancel(struct tier_job *job, struct move *move)
{
    step(move, MOVE_CANCEL);
    abandon(job, move);
    leave_source(job, move);
}

/* The source is let go last: a block that moves is in both places before it is in one. */
bool tier_job_commit(struct tier_job *job, struct move *move)
{
    struct tier_store *store = job->store;
    const enum block_tier written = move_written_tier(move);

    if (job->is_void) {
        tier_job_cancel(job, move);
        return false;
    }
    step(move, MOVE_COMMIT);
    if (written != BLOCK_TIER_COUNT) {
        block_table_set_place(store->table, move->block, written, BLOCK_HELD, BLOCK_SLOT_NONE);
        if (move->source == MOVE_ENGINE)
            fault_point_pass(FAULT_SAVE_INDEXED);
        if (move->target == MOVE_SSD)
            fault_point_pass(FAULT_DEMOTE_INDEXED);
        tier_index_tell(store, move->block);
    }
    leave_source(job, move);
    return true;
}

/* What cannot be read back is no copy: it leaves before anybody else trusts in it. */
static void fail(struct tier_job *job, struct move *move, int status)
{
    struct tier_store *store = job->store;
    const bool is_source_bad = status == -EBADMSG || (status == -EIO && move->source == MOVE_SSD);

    step(move, MOVE_FAIL);
    move->status = status;
    abandon(job, move);
    if (is_source_bad && move->source != MOVE_ENGINE) {
        const enum block_tier tier = (enum block_tier)move->source;

        if (tier_index_at(store, move->block)->place[tier] == BLOCK_HELD) {
            store->stats.corrupt_blocks++;
            if (tier == BLOCK_TIER_SSD)
                tier_erase(store, move->block);
            else
                tier_index_withdraw(store, move->block, tier);
        }
    }
    leave_source(job, move);
}

/* ---- running ---- */

/* The next moves, of one source, into batch. False: there are none. */
static bool fill(struct tier_job *job, struct tier_batch *batch)
{
    struct tier_copy *copy = &batch->copy;
    const struct move *first = &job->moves[job->next];
    size_t count = 0;

    while (job->next + count < job->count && count < job->batch_blocks &&
           first[count].source == first->source)
        count++;
    batch->first = job->next;
    copy->count = count;
    if (count > 0) {
        copy->source = (enum move_end)first->source;
        copy->target = (enum move_end)first->target;
    }
    job->next += count;
    batch->task.bytes = count * job->store->config.page_bytes;
    return count > 0;
}

static void describe(const struct tier_job *job, struct tier_batch *batch)
{
    const struct tier_store *store = job->store;
    struct tier_copy *copy = &batch->copy;

    for (size_t i = 0; i < copy->count; i++) {
        const struct move *move = &job->moves[batch->first + i];
        const struct tier_block *block = tier_index_at(store, move->block);
        struct tier_copy_block *to = &copy->blocks[i];

        *to = (struct tier_copy_block){{BLOCK_SLOT_NONE, BLOCK_SLOT_NONE}, move->engine_block};
        if (move->source != MOVE_ENGINE)
            to->slots[move->source] = block->slot[move->source];
        if (move_written_tier(move) != BLOCK_TIER_COUNT)
            to->slots[move_written_tier(move)] = block->slot[move_written_tier(move)];
        copy->transfers[i] = (struct tier_transfer){.key = block->key,
                                                    .parent = tier_index_parent_name(store, block),
                                                    .depth = block->depth};
    }
}

static bool on_start(struct mover_task *task)
{
    struct tier_batch *batch = container_of(task, struct tier_batch, task);
    struct tier_job *job = batch->job;

    if (job->deadline_ms > 0 && io_loop_now_ms(job->store->config.io) > job->deadline_ms)
        job->is_cancelled = true;
    if (job->is_cancelled)
        return false;
    for (size_t i = 0; i < batch->copy.count; i++)
        step(&job->moves[batch->first + i], MOVE_START);
    describe(job, batch);
    return true;
}

static void run(struct mover_task *task, void *staging)
{
    tier_copy_run(&container_of(task, struct tier_batch, task)->copy, staging);
}

static void arrive(struct tier_job *job, const struct tier_batch *batch, bool has_run)
{
    for (size_t i = 0; i < batch->copy.count; i++) {
        struct move *move = &job->moves[batch->first + i];
        const int status = has_run ? batch->copy.transfers[i].status : -ECANCELED;

        if (move->state == MOVE_RESERVED) /* no thread had it: cancelled at the job's end */
            continue;
        if (status == 0)
            step(move, MOVE_ARRIVE);
        else
            fail(job, move, status);
    }
}

/* on_end() tells whoever waits, who may begin other jobs: by then this one is in no list. */
static void end(struct tier_job *job)
{
    struct tier_store *store = job->store;

    if (job->memory != NULL)
        engine_memory_unref(&job->memory);
    if (is_engine(job))
        store->engine_jobs--;
    list_remove(&store->jobs, &job->in_jobs);
    for (size_t i = 0; i < job->count; i++) {
        if (job->moves[i].state == MOVE_RESERVED)
            tier_job_cancel(job, &job->moves[i]);
    }
    job->kind->on_end(job);
    free_job(job);
}

static void on_done(struct mover_task *task, bool has_run)
{
    struct tier_batch *batch = container_of(task, struct tier_batch, task);
    struct tier_job *job = batch->job;

    arrive(job, batch, has_run);
    job->kind->on_batch(job, batch);
    if (!job->is_cancelled && !job->store->is_closing && fill(job, batch)) {
        mover_submit(job->store->mover, task, task->ops);
        return;
    }
    if (--job->batches_out > 0)
        return;
    end(job);
}

/* Those of a job; a scan has a task of its own. */
static const struct mover_task_ops task_of_class[MOVER_CLASS_COUNT] = {
    [MOVER_LOAD] = {MOVER_LOAD, on_start, run, on_done},
    [MOVER_PREFETCH] = {MOVER_PREFETCH, on_start, run, on_done},
    [MOVER_SAVE] = {MOVER_SAVE, on_start, run, on_done},
    [MOVER_DEMOTE] = {MOVER_DEMOTE, on_start, run, on_done},
};

void tier_job_start(struct tier_job *job)
{
    struct tier_store *store = job->store;

    if (job->count == 0 && !is_engine(job)) { /* nobody waits to hear of it */
        free_job(job);
        return;
    }
    list_append(&store->jobs, &job->in_jobs);
    if (is_engine(job))
        store->engine_jobs++;
    job->batches_out = 1; /* none of those below ends it before all are submitted */
    for (uint32_t i = 0; i < job->batch_count; i++) {
        if (!fill(job, &job->batches[i]) && i > 0)
            break;
        job->batches_out++;
        mover_submit(store->mover, &job->batches[i].task, &task_of_class[job->kind->class]);
    }
    if (--job->batches_out == 0)
        end(job);
}
