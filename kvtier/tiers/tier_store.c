/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/tier_store_parts.h"

#include "backends/runtime/fault_point.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

/*
 * DESIGN
 *
 *   save     engine ------------> CPU
 *   load     engine <-- CPU, or <-- SSD (through a free CPU slot, or staging)
 *   demote   CPU ---> SSD         when a block was wanted twice
 *   promote  SSD ---> CPU         before anybody asks
 *
 * Everything that decides is on the loop, over one block_table; threads get slots and bytes, never
 * blocks. What an engine waits for is bounded in number (job_count_max); what goes on behind its
 * back is bounded by what it may keep from leaving (tier_store_demote) or is one at a time
 * (tier_store_scan).
 *
 * Closing: what waits comes back at once, what runs when its thread is done, each with its on_done;
 * then the mover's handles, then ours. Nothing is told to those who watch.
 */

/* ---- sizes ---- */

uint64_t tier_store_staging_bytes(const struct tier_store *store)
{
    const uint64_t stride = tier_stride_bytes(store->config.page_bytes);
    const uint64_t pages = TIER_STAGING_BYTES / stride;

    if (store->tiers[BLOCK_TIER_SSD] == NULL)
        return 0;
    return (pages > 0 ? pages : 1) * stride;
}

uint32_t tier_store_block_count_max(const struct tier_store *store)
{
    enum { SPARE = 1024 };
    const uint32_t slots =
        store->stats.slot_count[BLOCK_TIER_CPU] + store->stats.slot_count[BLOCK_TIER_SSD];

    return slots + slots / 8 + SPARE;
}

/* ---- making ---- */

void tier_store_destroy_tiers(struct tier *tiers[BLOCK_TIER_COUNT])
{
    for (int tier = 0; tier < BLOCK_TIER_COUNT; tier++) {
        if (tiers[tier] != NULL)
            tiers[tier]->ops->destroy(tiers[tier]);
        tiers[tier] = NULL;
    }
}

static void free_store(struct tier_store *store)
{
    tier_scan_release(store);
    block_table_destroy(store->table);
    seen_filter_release(&store->seen);
    tier_store_destroy_tiers(store->tiers);
    free(store);
}

static int create_parts(struct tier_store *store)
{
    const struct tier_store_config *config = &store->config;
    int status;

    for (int tier = 0; tier < BLOCK_TIER_COUNT; tier++) {
        if (store->tiers[tier] != NULL)
            store->stats.slot_count[tier] = store->tiers[tier]->slot_count;
    }
    status = seen_filter_init(&store->seen, (size_t)4 * store->stats.slot_count[BLOCK_TIER_CPU]);
    if (status < 0)
        return status;
    status = block_table_create(
        (struct block_table_config){
            .block_count_max = tier_store_block_count_max(store),
            .slot_count = {store->stats.slot_count[BLOCK_TIER_CPU],
                           store->stats.slot_count[BLOCK_TIER_SSD]},
            .eviction = config->eviction,
        },
        &store->table);
    if (status < 0)
        return status;
    return mover_create(
        (struct mover_config){.io = config->io,
                              .thread_counts = {config->load_threads, config->save_threads, 1},
                              .staging_bytes = tier_store_staging_bytes(store),
                              .write_bytes_per_s = config->write_bytes_per_s},
        &store->mover);
}

int tier_store_assemble(struct tier_store_config config, struct tier *tiers[BLOCK_TIER_COUNT],
                        struct tier_store **store)
{
    struct tier_store *made = calloc(1, sizeof *made);
    int status;

    *store = NULL;
    if (made == NULL) {
        tier_store_destroy_tiers(tiers);
        return -ENOMEM;
    }
    made->config = config;
    made->tiers[BLOCK_TIER_CPU] = tiers[BLOCK_TIER_CPU];
    made->tiers[BLOCK_TIER_SSD] = tiers[BLOCK_TIER_SSD];
    list_init(&made->jobs);
    tier_load_init(made);
    status = create_parts(made);
    if (status < 0) {
        free_store(made);
        return status;
    }
    tier_hold_init(made);
    tier_erase_init(made);
    if (made->tiers[BLOCK_TIER_SSD] != NULL && made->tiers[BLOCK_TIER_SSD]->ops->scan != NULL)
        status = tier_scan_begin(made);
    if (status < 0) {
        tier_store_close(&made, NULL, NULL);
        return status;
    }
    *store = made;
    return 0;
}

/* ---- asking ---- */

size_t tier_store_match(const struct tier_store *store, const struct block_key *keys, size_t count,
                        uint8_t *tiers)
{
    return block_table_match(store->table, keys, count, tiers);
}

struct tier_store_stats tier_store_stats(const struct tier_store *store)
{
    struct tier_store_stats stats = store->stats;

    stats.blocks = block_table_stats(store->table);
    stats.evicted_cpu_blocks = stats.blocks->evicted[BLOCK_TIER_CPU];
    stats.evicted_ssd_blocks = stats.blocks->evicted[BLOCK_TIER_SSD];
    stats.ssd_status = store->is_ssd_off ? store->ssd_status : store->eraser.clear_status;
    stats.is_ssd_writable = store->tiers[BLOCK_TIER_SSD] != NULL && stats.ssd_status == 0;
    stats.is_scanning = store->scan != NULL;
    for (int tier = 0; tier < BLOCK_TIER_COUNT; tier++)
        stats.load[tier] = tier_load_stats(store, (enum block_tier)tier);
    stats.hold_oldest_ms = tier_hold_oldest_ms(store);
    return stats;
}

void tier_store_tell(const struct tier_store *store, tier_changed_fn *on_changed, void *ctx)
{
    uint32_t *blocks = malloc(tier_store_block_count_max(store) * sizeof *blocks);
    size_t count;

    assert(blocks != NULL);
    count = block_table_list(store->table, blocks);
    for (size_t i = 0; i < count; i++) {
        const struct tier_block *block = tier_index_at(store, blocks[i]);
        const uint8_t bits = tier_block_bits(block);

        if (bits != 0)
            on_changed(ctx, block->key, tier_index_parent_name(store, block), block->depth, bits);
    }
    free(blocks);
}

/* ---- clearing ---- */

static void void_jobs(struct tier_store *store)
{
    for (struct list_node *node = store->jobs.head.next; node != &store->jobs.head;
         node = node->next) {
        struct tier_job *job = container_of(node, struct tier_job, in_jobs);

        job->is_void = job->is_cancelled = true;
    }
}

void tier_store_clear(struct tier_store *store, struct tier_clear *clear)
{
    uint32_t *blocks = malloc(tier_store_block_count_max(store) * sizeof *blocks);

    assert(blocks != NULL);
    void_jobs(store);
    tier_scan_end(store);
    for (size_t i = block_table_list(store->table, blocks); i > 0; i--) { /* children first */
        const uint8_t bits = tier_block_bits(tier_index_at(store, blocks[i - 1]));

        for (int tier = BLOCK_TIER_COUNT - 1; tier >= 0; tier--) {
            if ((bits & 1 << tier) != 0)
                tier_index_withdraw(store, blocks[i - 1], (enum block_tier)tier);
        }
    }
    free(blocks);
    fault_point_pass(FAULT_CLEAR_TOLD);
    tier_erase_all(store, clear);
}

/* ---- closing ---- */

static void on_eraser_closed(uv_handle_t *handle)
{
    struct tier_store *store = handle->data;
    void (*on_closed)(void *) = store->on_closed;
    void *ctx = store->ctx;

    tier_store_unregister(store);
    free_store(store);
    if (on_closed != NULL)
        on_closed(ctx);
}

static void on_timer_closed(uv_handle_t *handle)
{
    tier_erase_close(handle->data, on_eraser_closed);
}

static void on_mover_closed(void *ctx)
{
    struct tier_store *store = ctx;

    assert(store->jobs.count == 0);
    uv_close((uv_handle_t *)&store->hold_timer, on_timer_closed);
}

void tier_store_close(struct tier_store **store, void (*on_closed)(void *ctx), void *ctx)
{
    struct tier_store *closing = *store;

    *store = NULL;
    if (closing == NULL)
        return;
    closing->is_closing = true;
    closing->on_closed = on_closed;
    closing->ctx = ctx;
    tier_hold_release_all(closing);
    tier_erase_stop(closing);
    mover_close(closing->mover, on_mover_closed, closing);
}
