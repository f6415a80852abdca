/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/tier_store_parts.h"

#include "backends/runtime/log.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

/*
 * DESIGN
 *
 *   slots    | piece | piece | piece | ...        read by a thread, list by list
 *   found    -> WRITING on the SSD                known, nobody may read it
 *            -> HELD, told                        once what it follows is HELD there
 *
 * While a scan is under way nothing is demoted: a slot is either as the last process left it, or
 * known. Saves and loads go on.
 *
 * Slots were used in any order, so a child may be found long before its parent. It waits, WRITING:
 * when a piece has come, what is behind something HELD is published at once, and each time the
 * number of slots looked at has doubled (and at the end) all that waits is gone through, parents
 * before children. That is a few walks in all, however long the scan.
 *
 * What is still waiting at the end follows something that is gone: it was evicted behind it, and
 * its slot not used since. It is forgotten, and its slot is free; it stays listed until the slot is
 * written, so that a scan costs no writes.
 *
 * Of two slots with one key the newer counts as long as neither is published; then the published
 * one stays. Both hold the right bytes: what a slot holds is checked whenever it is loaded.
 */
enum { PIECE_SLOTS = 4096, PUBLISH_MAX = 4096 };

struct tier_scan {
    struct mover_task task;
    struct tier_store *store;
    bool is_running;   /* the task is the mover's */
    bool is_void;      /* cleared meanwhile: ends when its thread is done */
    uint32_t first;    /* slot of the piece that is looked at */
    uint32_t count;    /* 0: this turn only publishes */
    int found_count;   /* or -EIO */
    uint32_t sweep_at; /* slots looked at when all that waits is gone through next */
    uint32_t *waiting; /* of a sweep under way: parents first */
    size_t waiting_count;
    size_t waiting_next;
    uint32_t waits;      /* blocks that are WRITING for us */
    uint64_t *sequences; /* by slot: of those that wait */
    struct tier_slot_found found[PIECE_SLOTS];
};

/* ---- on a thread ---- */

static void run(struct mover_task *task, void *staging)
{
    struct tier_scan *scan = container_of(task, struct tier_scan, task);
    struct tier *ssd = scan->store->tiers[BLOCK_TIER_SSD];

    (void)staging;
    scan->found_count = 0;
    if (scan->count == 0)
        return;
    scan->found_count = ssd->ops->scan(ssd, scan->first, scan->count, scan->found);
}

/* ---- what was found ---- */

static bool waits(const struct tier_store *store, uint32_t block)
{
    return tier_index_at(store, block)->place[BLOCK_TIER_SSD] == BLOCK_WRITING;
}

static bool publish(struct tier_scan *scan, uint32_t block)
{
    struct tier_store *store = scan->store;

    if (!tier_index_may_join_ssd(store, tier_index_at(store, block)))
        return false;
    block_table_set_place(store->table, block, BLOCK_TIER_SSD, BLOCK_HELD, BLOCK_SLOT_NONE);
    store->stats.scanned_blocks++;
    scan->waits--;
    tier_index_tell(store, block);
    return true;
}

static void drop(struct tier_scan *scan, uint32_t block)
{
    block_table_set_place(scan->store->table, block, BLOCK_TIER_SSD, BLOCK_ABSENT, BLOCK_SLOT_NONE);
    scan->waits--;
}

/* False: another slot counts, or it fits nowhere. */
static bool take_in(struct tier_scan *scan, const struct tier_slot_found *found)
{
    struct tier_store *store = scan->store;
    uint32_t block = block_table_find_key(store->table, found->key);
    uint32_t parent;

    if (block != 0 && waits(store, block)) {
        if (scan->sequences[tier_index_at(store, block)->slot[BLOCK_TIER_SSD]] >= found->sequence)
            return false;
        drop(scan, block);
    } else if (block != 0 && tier_index_at(store, block)->place[BLOCK_TIER_SSD] != BLOCK_ABSENT) {
        return false;
    }
    if ((found->parent.low == 0) != (found->depth == 0))
        return false;
    parent = block_table_claim_parent(store->table, found->parent, found->depth);
    if (parent == 0 && found->depth > 0)
        return false;
    block = block_table_add(store->table, found->key, parent, found->depth);
    if (block == 0 || !block_table_claim_slot(store->table, BLOCK_TIER_SSD, found->slot))
        return false;
    block_table_set_place(store->table, block, BLOCK_TIER_SSD, BLOCK_WRITING, found->slot);
    scan->sequences[found->slot] = found->sequence;
    scan->waits++;
    (void)publish(scan, block);
    return true;
}

/* ---- those that wait ---- */

static void begin_sweep(struct tier_scan *scan)
{
    struct tier_store *store = scan->store;
    const size_t all = block_table_list(store->table, scan->waiting);

    scan->waiting_count = scan->waiting_next = 0;
    for (size_t i = 0; i < all; i++) {
        if (waits(store, scan->waiting[i]))
            scan->waiting[scan->waiting_count++] = scan->waiting[i];
    }
}

/* After twice as many slots as now, and at the end; then never again. */
static uint32_t next_sweep(const struct tier_scan *scan)
{
    const uint32_t all = scan->store->stats.slot_count[BLOCK_TIER_SSD];

    if (scan->first == all)
        return UINT32_MAX;
    return scan->first < all - scan->first ? scan->first * 2 : all;
}

/* Nobody but the scan changes those that wait, so their indices are good from turn to turn. */
static void go_on_sweeping(struct tier_scan *scan)
{
    for (int i = 0; i < PUBLISH_MAX && scan->waiting_next < scan->waiting_count; i++)
        (void)publish(scan, scan->waiting[scan->waiting_next++]);
}

/* Children before parents, as they would leave. */
static void drop_waiting(struct tier_scan *scan)
{
    if (scan->waits == 0)
        return;
    begin_sweep(scan);
    for (size_t i = scan->waiting_count; i > 0; i--)
        drop(scan, scan->waiting[i - 1]);
    scan->waiting_count = scan->waiting_next = 0;
    assert(scan->waits == 0);
}

/* ---- turns ---- */

static void go_on(struct tier_scan *scan);

static void end(struct tier_scan *scan)
{
    struct tier_store *store = scan->store;
    const uint32_t orphans = scan->waits;

    drop_waiting(scan);
    LOG(LOG_INFO, "ssd_scanned", log_u64("slots", store->stats.slot_count[BLOCK_TIER_SSD]),
        log_u64("blocks", store->stats.scanned_blocks), log_u64("orphans", orphans));
    tier_scan_release(store);
}

static bool on_start(struct mover_task *task)
{
    (void)task;
    return true;
}

static void on_done(struct mover_task *task, bool has_run)
{
    struct tier_scan *scan = container_of(task, struct tier_scan, task);
    struct tier_store *store = scan->store;

    scan->is_running = false;
    if (!has_run || store->is_closing)
        return;
    if (scan->is_void) {
        tier_scan_release(store);
        return;
    }
    if (scan->found_count < 0)
        LOG(LOG_WARN, "ssd_scan_failed", log_u64("first_slot", scan->first));
    for (int i = 0; i < scan->found_count; i++)
        (void)take_in(scan, &scan->found[i]);
    scan->first += scan->count;
    if (scan->waiting_next == scan->waiting_count && scan->waits > 0 &&
        scan->first >= scan->sweep_at) {
        scan->sweep_at = next_sweep(scan);
        begin_sweep(scan);
    }
    go_on_sweeping(scan);
    go_on(scan);
}

static const struct mover_task_ops scan_task = {
    .class = MOVER_SCAN, .on_start = on_start, .run = run, .on_done = on_done};

/* The next piece; while a sweep is under way, none: a turn of the loop for others instead. */
static void go_on(struct tier_scan *scan)
{
    struct tier_store *store = scan->store;
    const uint32_t left = store->stats.slot_count[BLOCK_TIER_SSD] - scan->first;
    const bool is_sweeping = scan->waiting_next < scan->waiting_count;

    if (left == 0 && !is_sweeping) {
        end(scan);
        return;
    }
    scan->count = is_sweeping ? 0 : left < PIECE_SLOTS ? left : PIECE_SLOTS;
    scan->is_running = true;
    mover_submit(store->mover, &scan->task, &scan_task);
}

static int create(struct tier_store *store)
{
    const uint32_t slot_count = store->stats.slot_count[BLOCK_TIER_SSD];
    struct tier_scan *scan = calloc(1, sizeof *scan);

    if (scan == NULL)
        return -ENOMEM;
    store->scan = scan;
    scan->store = store;
    scan->sweep_at = slot_count < PIECE_SLOTS ? slot_count : PIECE_SLOTS;
    scan->sequences = calloc(slot_count, sizeof *scan->sequences);
    scan->waiting = calloc(tier_store_block_count_max(store), sizeof *scan->waiting);
    if (scan->sequences != NULL && scan->waiting != NULL)
        return 0;
    tier_scan_release(store);
    return -ENOMEM;
}

int tier_scan_begin(struct tier_store *store)
{
    int status = create(store);

    if (status == 0)
        go_on(store->scan);
    return status;
}

void tier_scan_end(struct tier_store *store)
{
    struct tier_scan *scan = store->scan;

    if (scan == NULL || scan->is_void)
        return;
    drop_waiting(scan);
    scan->is_void = true;
    if (!scan->is_running)
        tier_scan_release(store);
}

void tier_scan_release(struct tier_store *store)
{
    struct tier_scan *scan = store->scan;

    if (scan == NULL)
        return;
    assert(!scan->is_running);
    store->scan = NULL;
    free(scan->sequences);
    free(scan->waiting);
    free(scan);
}
