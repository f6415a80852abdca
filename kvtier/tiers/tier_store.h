/* SPDX-License-Identifier: Apache-2.0 */

/*
 * tier_store: the CPU and SSD tiers of one layout (a model's pages): saves pages of engines, gives
 * them back, moves them down when room is needed and up when they are asked for, and says what is
 * where, after it is true. Engines with the same layout share it. Loop thread only; the copying is
 * done by threads of its own, and every function returns at once.
 *
 * Order of truth. Appearing: payload, header, index, then the observer. Leaving: the observer,
 * index, wait for readers, then the slot is used again. A block that moves from tier to tier is in
 * both before it is in one. Nobody is told of a block that cannot be loaded.
 */
#ifndef KVTIER_TIERS_TIER_STORE_H
#define KVTIER_TIERS_TIER_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/io_loop.h"
#include "backends/runtime/cost_line.h"
#include "backends/runtime/list.h"
#include "backends/runtime/must_check.h"
#include "kvtier/device/device.h"
#include "kvtier/tiers/block_table.h"
#include "kvtier/tiers/tier.h"

struct tier_store;
struct tier_hold;

/* What became of a block: tiers, bits 1 << enum block_tier, absolute. depth: blocks before it in
 * its chain. A parent is told before its children, and a child leaves before its parent. May not
 * call the store. */
typedef void tier_changed_fn(void *ctx, struct block_key key, struct digest_128 parent,
                             uint32_t depth, uint8_t tiers);

struct tier_store_config {
    struct io_loop *io;
    struct device *devices[2]; /* by enum device_kind; NULL: there is none. Borrowed until close */
    uint32_t page_bytes;
    uint64_t layout;
    uint64_t cpu_bytes;  /* at least a few pages */
    uint64_t ssd_bytes;  /* 0: no SSD tier */
    const char *ssd_dir; /* borrowed for the call */
    uint64_t ssd_reserve_bytes;
    const struct eviction_ops *eviction;
    uint32_t load_threads; /* that serve engines: reads never wait behind writes */
    uint32_t save_threads;
    uint32_t job_count_max;     /* that may wait; more are refused and counted */
    uint64_t write_bytes_per_s; /* budget for SSD writes; 0: none */
    bool has_checksum;          /* of pages in CPU memory; on SSD always */
    bool may_use_uring;
    bool may_use_direct;
    tier_changed_fn *on_changed;
    void *ctx;
};

/* What loads to engines take, from one tier: from tier_store_load() until its on_done, by bytes.
 * Measured are those that read that tier alone, whole, while no other load was under way. */
struct tier_load_stats {
    struct cost cost; /* as measured, or assumed while nothing is */
    bool is_measured;
    double queue_ms;      /* what a load begun now would wait before that */
    uint64_t timed_count; /* measured, and how long they took together */
    uint64_t timed_us;
};

/* row(field, help): counters, from the start on. */
#define TIER_STORE_COUNTERS(row)                                                                   \
    row(saved_blocks) row(saved_known_blocks) row(save_refused_blocks) row(save_failed_blocks)     \
        row(loaded_cpu_blocks) row(loaded_ssd_blocks) row(load_failed_blocks) row(corrupt_blocks)  \
            row(demoted_blocks) row(demote_skipped_blocks) row(promoted_blocks) row(prefetch_late) \
                row(scanned_blocks) row(evicted_cpu_blocks) row(evicted_ssd_blocks)                \
                    row(ssd_write_errors) row(holds_expired)

#define TIER_STORE_COUNTER(field) uint64_t field;
struct tier_store_stats {
    TIER_STORE_COUNTERS(TIER_STORE_COUNTER)
    const struct block_table_stats *blocks;
    uint32_t slot_count[BLOCK_TIER_COUNT];
    bool is_ssd_writable; /* false: full or failing, a clear too, or there is none; reads go on */
    int ssd_status;       /* why it does not take writes: -errno; 0 where it does */
    bool is_scanning;     /* a restart scan of the SSD is under way */
    struct tier_load_stats load[BLOCK_TIER_COUNT];
    uint64_t hold_oldest_ms; /* age of the oldest hold; 0: none */
};
#undef TIER_STORE_COUNTER

/* Begins a restart scan of the SSD in the background. -EINVAL, -ENOMEM, -EPERM, -EIO with a
 * sentence in why. */
MUST_CHECK int tier_store_create(struct tier_store_config config, struct tier_store **store,
                                 char why[TIER_WHY_BYTES]);

/* How many of keys, from the first on, can be loaded; tiers as block_table_match(). No side effect.
 */
size_t tier_store_match(const struct tier_store *store, const struct block_key *keys, size_t count,
                        uint8_t *tiers);

/* How long it will take until those of keys that are on their way up from the SSD are in CPU
 * memory, in milliseconds; 0: none is. */
double tier_store_rising_ms(const struct tier_store *store, const struct block_key *keys,
                            size_t count);

/*
 * A lease on the first blocks of keys that can be loaded: they stay until tier_hold_release() or
 * until ms have passed. NULL: none can be loaded, or no memory. The hold's owner is whoever calls;
 * expired holds hold nothing, and loads by them fail.
 */
struct tier_hold *tier_store_hold(struct tier_store *store, const struct block_key *keys,
                                  size_t count, uint64_t ms);
size_t tier_hold_count(const struct tier_hold *hold); /* that it holds now; 0: it has expired */
/* A request uses the blocks [first, first + count) of those it holds. Once for each of its blocks:
 * whoever asks again, or saves what it has loaded, is still the same request. */
void tier_hold_use(struct tier_hold *hold, size_t first, size_t count);
void tier_hold_extend(struct tier_hold *hold, uint64_t ms); /* from now on; not an expired one */
/* Gives up the blocks from [0, first) and [first + count, ...): the engine took fewer. Those that
 * stay keep their numbers. */
void tier_hold_trim(struct tier_hold *hold, size_t first, size_t count);
/* May be called while a load of it runs: what that reads stays until it is done. NULLs *hold, which
 * may be NULL. */
void tier_hold_release(struct tier_hold **hold);

/*
 * Blocks [first, first + count) of hold into the engine's blocks, verified. on_done once, on the
 * loop, never before this returns: loaded is how many from the first on are there; what is behind
 * them may be anything. A block that fails its check is withdrawn, alone: what follows it stays,
 * out of reach until it is saved again. -EBUSY: too many jobs wait; -ESTALE: the hold has expired;
 * -EINVAL: not all of them are held; -ENOMEM.
 */
typedef void tier_loaded_fn(void *ctx, uint32_t loaded);
MUST_CHECK int tier_store_load(struct tier_store *store, struct tier_hold *hold, size_t first,
                               size_t count, struct engine_memory *memory,
                               const uint32_t *engine_blocks, tier_loaded_fn *on_done, void *ctx);

/* One block to save; parent.low 0: first of its chain. */
struct tier_save {
    struct block_key key;
    struct digest_128 parent;
    uint32_t depth;
    uint32_t engine_block;
    bool is_used; /* by the same request, and counted already */
};

/*
 * Copies what is not held yet out of the engine's memory into the CPU tier. When the copying is
 * done, may_commit is asked on the loop whether the engine had left the pages alone until then (it
 * waits for us, or closes its connection before it goes on): false means that the bytes may be
 * anything, and they are thrown away. Then on_done, once, on the loop. -EBUSY: too many jobs wait.
 */
struct tier_saved {
    uint32_t saved;
    uint32_t known;   /* held already */
    uint32_t refused; /* no room: everything is in use */
};
typedef bool tier_may_commit_fn(void *ctx);
typedef void tier_saved_fn(void *ctx, struct tier_saved saved);
MUST_CHECK int tier_store_save(struct tier_store *store, const struct tier_save *blocks,
                               size_t count, struct engine_memory *memory,
                               tier_may_commit_fn *may_commit, tier_saved_fn *on_done, void *ctx);

/*
 * Brings those of names that are on the SSD alone into CPU memory before anybody asks, in their
 * order, as long as each is held somewhere: behind all loads, once however often it is asked for,
 * given up at deadline_ms (io_loop_now_ms()). Returns how many moves it began.
 */
size_t tier_store_prefetch(struct tier_store *store, const struct digest_128 *names, size_t count,
                           uint64_t deadline_ms);

/*
 * Nothing of this layout is true any more (the weights were changed): all of it is withdrawn at
 * once. clear, which may be NULL, is its owner's until on_cleared, tier_clear_cancel() or the
 * store's close: on_cleared once, perhaps before this returns, when no later life of the agent can
 * find any of it either, whatever ends this one. While the disk does not take that, it is tried
 * again and nothing is written there.
 */
struct tier_clear {
    struct list_node in_clears;
    void (*on_cleared)(struct tier_clear *clear);
};
void tier_clear_init(struct tier_clear *clear, void (*on_cleared)(struct tier_clear *clear));
void tier_store_clear(struct tier_store *store, struct tier_clear *clear);
/* It is told nothing; may be called at any time. */
void tier_clear_cancel(struct tier_store *store, struct tier_clear *clear);

/* Tells on_changed of all that is held, parents first: to someone who has just come. */
void tier_store_tell(const struct tier_store *store, tier_changed_fn *on_changed, void *ctx);

struct tier_store_stats tier_store_stats(const struct tier_store *store);

/* Ends what runs (whose on_done comes before on_closed), holds and handles; NULLs *store, which may
 * be NULL; on_closed, once, by the loop. Nothing is told to the observer: what is on the SSD stays
 * there. */
void tier_store_close(struct tier_store **store, void (*on_closed)(void *ctx), void *ctx);

#endif
