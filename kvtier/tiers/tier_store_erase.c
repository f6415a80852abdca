/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/tier_store_parts.h"

#include "backends/runtime/fault_point.h"
#include "backends/runtime/log.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

/*
 * DESIGN
 *
 * Erasing a slot: the block is withdrawn, and counted as read by us, so that it stays LEAVING and
 * its slot nobody else's until a thread has taken it off its list. Else each restart would publish
 * it anew until a load fails. When more go bad at once than are kept here, that is what happens to
 * the rest.
 *
 * Clearing: the thread that writes to the SSD does it, behind the one batch that it may be writing,
 * whose slots the tier then does not list; nothing is written until it is done. It is one change of
 * a directory. If that fails nobody is told that it was done: an engine that is not told asks again
 * whoever serves it next.
 *
 * Both pass what waits to be written, as a scan does.
 */
enum { RETRY_MS = 30000 };

static void submit_erase(struct tier_store *store);
static void submit_clear(struct tier_store *store);

/* ---- a slot that went bad ---- */

static bool on_start(struct mover_task *task)
{
    (void)task;
    return true;
}

static void run_erase(struct mover_task *task, void *staging)
{
    struct tier_store *store = container_of(task, struct tier_store, eraser.task);
    struct tier *ssd = store->tiers[BLOCK_TIER_SSD];

    (void)staging;
    ssd->ops->erase(ssd, store->eraser.slots, store->eraser.running);
}

static void on_erased(struct mover_task *task, bool has_run)
{
    struct tier_store *store = container_of(task, struct tier_store, eraser.task);
    struct tier_eraser *eraser = &store->eraser;
    const uint32_t done = eraser->running;

    (void)has_run; /* closing: found again by the next life */
    for (uint32_t i = 0; i < done; i++)
        tier_index_end_read(store, eraser->blocks[i], BLOCK_TIER_SSD);
    eraser->running = 0;
    eraser->count -= done;
    memmove(eraser->blocks, eraser->blocks + done, eraser->count * sizeof eraser->blocks[0]);
    memmove(eraser->slots, eraser->slots + done, eraser->count * sizeof eraser->slots[0]);
    if (eraser->count > 0 && !store->is_closing)
        submit_erase(store);
}

static const struct mover_task_ops erase_task = {
    .class = MOVER_SCAN, .on_start = on_start, .run = run_erase, .on_done = on_erased};

static void submit_erase(struct tier_store *store)
{
    store->eraser.running = store->eraser.count;
    mover_submit(store->mover, &store->eraser.task, &erase_task);
}

void tier_erase(struct tier_store *store, uint32_t block)
{
    struct tier_eraser *eraser = &store->eraser;
    const bool has_room = eraser->count < TIER_ERASE_MAX && !store->is_closing;

    if (has_room) {
        eraser->blocks[eraser->count] = block;
        eraser->slots[eraser->count++] = tier_index_at(store, block)->slot[BLOCK_TIER_SSD];
        block_table_begin_read(store->table, block, BLOCK_TIER_SSD);
    }
    tier_index_withdraw(store, block, BLOCK_TIER_SSD);
    if (has_room && eraser->running == 0)
        submit_erase(store);
}

/* ---- all of them ---- */

static void on_retry(uv_timer_t *timer)
{
    submit_clear(timer->data);
}

static void tell_all(struct tier_store *store)
{
    struct list *clears = &store->eraser.clears;

    while (clears->count > 0) {
        struct tier_clear *clear = container_of(clears->head.next, struct tier_clear, in_clears);

        list_remove(clears, &clear->in_clears);
        clear->on_cleared(clear);
    }
}

static void run_clear(struct mover_task *task, void *staging)
{
    struct tier_store *store = container_of(task, struct tier_store, eraser.clear_task);
    struct tier *ssd = store->tiers[BLOCK_TIER_SSD];

    (void)staging;
    store->eraser.run_status = ssd->ops->clear(ssd);
    if (store->eraser.run_status == 0)
        fault_point_pass(FAULT_CLEAR_DURABLE);
}

static void on_clear_run(struct mover_task *task, bool has_run)
{
    struct tier_store *store = container_of(task, struct tier_store, eraser.clear_task);
    struct tier_eraser *eraser = &store->eraser;
    int status;

    eraser->is_clear_running = false;
    if (!has_run)
        return;
    eraser->clear_status = eraser->run_status;
    if (eraser->clear_status == 0) {
        LOG(LOG_INFO, "ssd_cleared");
        eraser->is_clear_owed = false;
        tell_all(store);
        return;
    }
    LOG(LOG_WARN, "ssd_clear_failed", log_text("reason", strerror(-eraser->clear_status)),
        log_text("effect", "a restart could find what was cleared: the engine is not told that it "
                           "is gone and goes on without tiers, and nothing is written"),
        log_text("advice",
                 "mend the disk of --ssd-dir, or stop the agent and remove that directory"),
        log_u64("retry_ms", eraser->retry_ms));
    if (store->is_closing)
        return;
    status = uv_timer_start(&eraser->retry, on_retry, eraser->retry_ms, 0);
    assert(status == 0);
}

static const struct mover_task_ops clear_task = {
    .class = MOVER_SCAN, .on_start = on_start, .run = run_clear, .on_done = on_clear_run};

static void submit_clear(struct tier_store *store)
{
    store->eraser.is_clear_running = true;
    mover_submit(store->mover, &store->eraser.clear_task, &clear_task);
}

/* One that is under way does for who comes meanwhile: nothing was written since it began. */
void tier_erase_all(struct tier_store *store, struct tier_clear *clear)
{
    struct tier_eraser *eraser = &store->eraser;
    const struct tier *ssd = store->tiers[BLOCK_TIER_SSD];

    if (clear != NULL)
        list_append(&eraser->clears, &clear->in_clears);
    if (ssd == NULL || ssd->ops->clear == NULL) {
        tell_all(store);
        return;
    }
    eraser->is_clear_owed = true;
    (void)uv_timer_stop(&eraser->retry);
    if (!eraser->is_clear_running)
        submit_clear(store);
}

bool tier_erase_is_owed(const struct tier_store *store)
{
    return store->eraser.is_clear_owed;
}

void tier_clear_init(struct tier_clear *clear, void (*on_cleared)(struct tier_clear *clear))
{
    list_node_init(&clear->in_clears);
    clear->on_cleared = on_cleared;
}

void tier_clear_cancel(struct tier_store *store, struct tier_clear *clear)
{
    if (list_node_is_linked(&clear->in_clears))
        list_remove(&store->eraser.clears, &clear->in_clears);
}

/* ---- life ---- */

bool tier_erase_is_busy(const struct tier_store *store)
{
    return store->eraser.count > 0 || store->eraser.is_clear_running;
}

void tier_erase_init(struct tier_store *store)
{
    struct tier_eraser *eraser = &store->eraser;
    int status = uv_timer_init(&store->config.io->loop, &eraser->retry);

    assert(status == 0);
    eraser->retry.data = store;
    eraser->retry_ms = RETRY_MS;
    list_init(&eraser->clears);
}

void tier_erase_stop(struct tier_store *store)
{
    struct list *clears = &store->eraser.clears;

    (void)uv_timer_stop(&store->eraser.retry);
    while (clears->count > 0)
        list_remove(clears, clears->head.next);
}

void tier_erase_close(struct tier_store *store, uv_close_cb on_closed)
{
    uv_close((uv_handle_t *)&store->eraser.retry, on_closed);
}
