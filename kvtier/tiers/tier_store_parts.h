/* SPDX-License-Identifier: Apache-2.0 */

/*
 * tier_store_parts: what the files of a tier_store share. Nobody else includes it but tests, which
 * give it tiers of their own. Loop thread only.
 *
 *   tier_store           life, match, stats, clear, tell
 *   tier_store_create    makes the tiers for it
 *   tier_store_index     the order of truth: where blocks come and go, and are told of
 *   tier_store_job       moves in batches: begin, settle, end once
 *   tier_store_save, _load, _demote, _promote    what each kind of job plans and concludes
 *   tier_store_hold      leases
 *   tier_store_scan      a walk over the SSD's slots: found again
 *   tier_store_erase     what no later life may find: a slot that went bad, all that was cleared
 */
#ifndef KVTIER_TIERS_TIER_STORE_PARTS_H
#define KVTIER_TIERS_TIER_STORE_PARTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "backends/runtime/list.h"
#include "backends/runtime/must_check.h"
#include "kvtier/tiers/block_table.h"
#include "kvtier/tiers/move.h"
#include "kvtier/tiers/mover.h"
#include "kvtier/tiers/seen_filter.h"
#include "kvtier/tiers/tier_copy.h"
#include "kvtier/tiers/tier_store.h"

struct tier_scan;
struct tier_job;

/* tier_store_erase's own. */
enum { TIER_ERASE_MAX = 64 };
struct tier_eraser {
    struct mover_task task;          /* of slots that went bad */
    uint32_t blocks[TIER_ERASE_MAX]; /* LEAVING the SSD, and read by us until that is done */
    uint32_t slots[TIER_ERASE_MAX];  /* theirs */
    uint32_t count;                  /* the first of them, running, are a thread's */
    uint32_t running;
    struct mover_task clear_task;
    struct list clears; /* of struct tier_clear: who waits */
    uv_timer_t retry;   /* of a clear that failed */
    uint64_t retry_ms;
    int run_status;   /* a thread's */
    int clear_status; /* of the last try */
    bool is_clear_owed;
    bool is_clear_running;
};

/* Of loads from one tier. */
struct tier_load_timing {
    struct cost_line cost; /* by bytes */
    uint64_t count;        /* that were noted in it */
    uint64_t us;           /* and what they took together */
};

struct tier_store {
    struct tier_store_config config;
    struct block_table *table;
    struct tier *tiers[BLOCK_TIER_COUNT]; /* [BLOCK_TIER_SSD] NULL: there is none */
    struct mover *mover;
    struct seen_filter seen; /* evicted before they were used */
    struct list jobs;        /* of struct tier_job */
    struct list holds;       /* of struct tier_hold, oldest first */
    uv_timer_t hold_timer;   /* for the next that expires */
    uint32_t engine_jobs;    /* saves and loads that engines wait for */
    uint32_t demoting;       /* blocks on their way to the SSD */
    bool is_ssd_off;         /* for writes: it was full, or failed */
    int ssd_status;          /* how the last write failed */
    uint64_t ssd_retry_ms;   /* when a write may be tried again */
    struct tier_scan *scan;  /* NULL: none is under way */
    struct tier_eraser eraser;
    uint64_t load_bytes[BLOCK_TIER_COUNT];     /* of loads that are not done */
    double load_bytes_per_s[BLOCK_TIER_COUNT]; /* of one thread; 0: none measured */
    struct tier_load_timing load_timings[BLOCK_TIER_COUNT];
    uint64_t load_count;           /* begun, from the start on */
    struct tier_store_stats stats; /* its counters; the rest is made when asked for */
    bool is_registered;            /* the CPU tier's memory, with the devices */
    bool is_closing;
    void (*on_closed)(void *ctx);
    void *ctx;
};

/* As tier_store_create(), with tiers that are there already (taken over, in case of failure too).
 * tiers[BLOCK_TIER_SSD] NULL: none. */
MUST_CHECK int tier_store_assemble(struct tier_store_config config,
                                   struct tier *tiers[BLOCK_TIER_COUNT], struct tier_store **store);

void tier_store_destroy_tiers(struct tier *tiers[BLOCK_TIER_COUNT]);

/* The devices forget the CPU tier's memory, where they were told of it. */
void tier_store_unregister(const struct tier_store *store);

/* Of each thread that reads; 0 where there is no SSD. */
uint64_t tier_store_staging_bytes(const struct tier_store *store);

/* Of the block_table: room for what has a place, and for some that are only held or followed. */
uint32_t tier_store_block_count_max(const struct tier_store *store);

/* ---- tier_store_index ---- */

static inline const struct tier_block *tier_index_at(const struct tier_store *store, uint32_t block)
{
    return block_table_at(store->table, block);
}

/* .low 0: it is the first of its chain, or its parent could not be had. */
struct digest_128 tier_index_parent_name(const struct tier_store *store,
                                         const struct tier_block *block);

/* Whether what comes before it can be read, or nothing does. */
bool tier_index_is_reachable(const struct tier_store *store, const struct tier_block *block);

/* Whether what comes before it is HELD on the SSD, which holds no block without, or nothing does.
 */
bool tier_index_may_join_ssd(const struct tier_store *store, const struct tier_block *block);

/* Those who watch are told where it is now. */
void tier_index_tell(const struct tier_store *store, uint32_t block);

/* It leaves tier: told, out of the index, and its slot free when the last reader has gone. */
void tier_index_withdraw(struct tier_store *store, uint32_t block, enum block_tier tier);

/* As block_table_end_read(); the last reader of one that leaves frees its slot. */
void tier_index_end_read(struct tier_store *store, uint32_t block, enum block_tier tier);

/* A free slot, for which others may have had to leave; BLOCK_SLOT_NONE: all are needed. */
uint32_t tier_index_take_slot(struct tier_store *store, enum block_tier tier);

/* ---- tier_store_job ---- */

/* How many blocks and bytes one thread is given at once at most: enough that handing over costs
 * nothing, few enough that what is more urgent waits no longer than that (some 10 ms). */
enum { TIER_BATCH_BLOCKS = 256, TIER_BATCH_BYTES = 64 << 20, TIER_STAGING_BYTES = 16 << 20 };

struct tier_batch {
    struct mover_task task;
    struct tier_job *job;
    size_t first; /* of the job's moves; copy.count of them */
    struct tier_copy copy;
};

struct tier_job_kind {
    enum mover_class class;
    /* What arrived or failed is settled; may set job->is_cancelled. */
    void (*on_batch)(struct tier_job *job, struct tier_batch *batch);
    /* Nothing of it waits or runs any more, and it is in no list. Settles what arrived and is not
     * settled yet; tells whoever waits, who may do anything. */
    void (*on_end)(struct tier_job *job);
};

/* Moves of one kind that somebody asked for together, in their order. */
struct tier_job {
    struct tier_store *store;
    const struct tier_job_kind *kind;
    struct list_node in_jobs;
    struct engine_memory *memory; /* referenced; NULL: no engine has to do with it */
    struct tier_hold *hold;       /* of a load, until it is released or expires */
    bool is_cancelled;            /* no further batch begins */
    bool is_void;                 /* cleared meanwhile: nothing that arrives may be believed */
    uint64_t deadline_ms;         /* of a prefetch: no batch begins after it; 0: none */
    tier_may_commit_fn *may_commit;
    tier_saved_fn *on_saved;
    tier_loaded_fn *on_loaded;
    void *ctx;
    struct tier_saved saved;
    uint32_t asked;       /* blocks that the engine asked for: moves, and what could not be moved */
    uint64_t begun_us;    /* of a load */
    uint64_t load_number; /* likewise; 0: others were under way when it began, it is not timed */
    /* tier_store_job's own */
    struct tier_batch *batches;
    struct tier_copy_block *copy_blocks;
    struct tier_transfer *transfers;
    struct page_copy *pages;
    uint32_t batch_count;
    uint32_t batches_out; /* that wait or run */
    size_t batch_blocks;  /* the room in each */
    size_t next;          /* the first move that is in no batch yet */
    size_t count;
    struct move moves[]; /* [count] */
};

/* Room for move_count_max moves. memory may be NULL. NULL: no memory. */
struct tier_job *tier_job_create(struct tier_store *store, const struct tier_job_kind *kind,
                                 size_t move_count_max, struct engine_memory *memory);

/* One move more: what it reads is counted as read, what it writes is WRITING in slot. */
void tier_job_add(struct tier_job *job, struct move move, uint32_t slot);

/* From here on it lives by itself; without a move and an engine that waits it is gone at once. What
 * is told to an engine is told later. */
void tier_job_start(struct tier_job *job);

/* What arrived is believed: in the index, told of. False: it is void, and cancelled. */
bool tier_job_commit(struct tier_job *job, struct move *move);
/* What arrived or waits is not wanted. */
void tier_job_cancel(struct tier_job *job, struct move *move);

/* ---- tier_store_demote ---- */

/* Whether its next loss from CPU memory should leave a copy on the SSD that is not there yet. */
bool tier_demote_is_wanted(const struct tier_store *store, uint32_t block);
/* The same, and the SSD takes writes now. */
bool tier_demote_is_due(const struct tier_store *store, uint32_t block);

/* Copies to the SSD those of blocks that are due, which come in the order of their chains; as many
 * as there is room for. */
void tier_demote(struct tier_store *store, const uint32_t *blocks, size_t count);

/* The same for blocks and what comes before each in its chain. */
void tier_demote_chains(struct tier_store *store, const uint32_t *blocks, size_t count);

/* Whether the SSD takes writes now. */
bool tier_demote_may_write(const struct tier_store *store);

/* ---- tier_store_hold ---- */

void tier_hold_init(struct tier_store *store);
/* Frees all: nobody may use one any more. */
void tier_hold_release_all(struct tier_store *store);
uint64_t tier_hold_oldest_ms(const struct tier_store *store);
/* The blocks [first, first + count) of hold. -ESTALE: it has expired; -EINVAL: it does not hold all
 * of them. */
MUST_CHECK int tier_hold_range(const struct tier_hold *hold, size_t first, size_t count,
                               const uint32_t **blocks);

/* ---- tier_store_load ---- */

void tier_load_init(struct tier_store *store);

struct tier_load_stats tier_load_stats(const struct tier_store *store, enum block_tier tier);

/* ---- tier_store_scan ---- */

/* -ENOMEM. */
MUST_CHECK int tier_scan_begin(struct tier_store *store);
/* Where one is under way: what it has not published is forgotten, and it ends. */
void tier_scan_end(struct tier_store *store);
void tier_scan_release(struct tier_store *store);

/* ---- tier_store_erase ---- */

void tier_erase_init(struct tier_store *store);

/* Block is HELD on the SSD and cannot be read: withdraws it, and erases its slot before that is
 * free. */
void tier_erase(struct tier_store *store, uint32_t block);

/* All was withdrawn: makes that last. clear may be NULL; else it is told. */
void tier_erase_all(struct tier_store *store, struct tier_clear *clear);

/* Whether the SSD may still hold what a clear has withdrawn: nothing may be written there. */
bool tier_erase_is_owed(const struct tier_store *store);

/* Whether a thread is at it, or will be at once. */
bool tier_erase_is_busy(const struct tier_store *store);

/* Who waits for a clear is told nothing any more, and none that failed is tried again. */
void tier_erase_stop(struct tier_store *store);
void tier_erase_close(struct tier_store *store, uv_close_cb on_closed);

#endif
