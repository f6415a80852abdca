/* SPDX-License-Identifier: Apache-2.0 */

/*
 * engine_layouts: the layouts of this node's engines, with the tiers of each. Engines whose model
 * and pages are alike share theirs; a layout that no engine has any more keeps what it holds until
 * its place is needed. Loop thread only.
 */
#ifndef KVTIER_CONNECTOR_ENGINE_LAYOUTS_H
#define KVTIER_CONNECTOR_ENGINE_LAYOUTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/list.h"
#include "backends/runtime/must_check.h"
#include "backends/runtime/slice.h"
#include "kvtier/device/device.h"
#include "kvtier/tiers/thrash_guard.h"
#include "kvtier/tiers/tier_store.h"

struct engine_layouts;

struct engine_layout {
    struct list_node in_all;
    struct engine_layouts *layouts;
    uint64_t fingerprint;
    uint32_t block_tokens;
    uint32_t page_bytes;
    uint32_t user_count;
    struct tier_store *store;   /* NULL: it is being closed */
    struct thrash_guard *guard; /* NULL: all that is saved is let in */
    bool is_clearing;           /* what leaves now is no sign of want of room */
};

/* What became of a block of layout, as tier_changed_fn says it. */
typedef void engine_block_fn(void *ctx, const struct engine_layout *layout, struct block_key key,
                             struct digest_128 parent, uint32_t depth, uint8_t tiers);

struct engine_layouts_config {
    const uint8_t *secret; /* DIGEST_SECRET_BYTES; borrowed */
    uint32_t layout_count_max;
    bool has_guard; /* against thrashing */
    /* Of each store; its sizes and budgets are of all layouts together, each gets an equal share.
     * Page, layout and observer are filled in here. ssd_dir is borrowed until close. */
    struct tier_store_config tiers;
    engine_block_fn *on_changed;
    void *ctx;
};

struct engine_layouts {
    struct engine_layouts_config config;
    struct list all; /* of struct engine_layout, those being closed too */
    void (*on_closed)(void *ctx);
    void *closed_ctx;
};

/* What makes two engines' pages exchangeable. */
struct engine_layout_spec {
    struct slice model; /* as the engine says it */
    uint32_t block_tokens;
    uint32_t page_bytes; /* of all ranks together */
    size_t rank_count;
    struct engine_memory *const *ranks; /* their parts of a page, in their order */
};

void engine_layouts_init(struct engine_layouts *layouts, struct engine_layouts_config config);

/* The layout of that spec, once more in use. -EUSERS: one too many; -EBUSY: its place becomes free
 * in a moment; else as tier_store_create(). With a sentence in why. */
MUST_CHECK int engine_layouts_acquire(struct engine_layouts *layouts,
                                      const struct engine_layout_spec *spec,
                                      struct engine_layout **layout, char why[TIER_WHY_BYTES]);

/* The same once more in use: for whoever holds blocks of it. */
struct engine_layout *engine_layout_ref(struct engine_layout *layout);

/* NULLs *layout. */
void engine_layout_return(struct engine_layout **layout);

/*
 * How many of keys may be saved now, from the first on: of one request, behind each other. All of
 * them; or, when blocks go before they are wanted again, those that are held already: next to
 * nothing new is let in then, so that some of them stay.
 */
size_t engine_layout_admit(struct engine_layout *layout, const struct block_key *keys,
                           size_t count);

/* That many blocks were loaded; an engine had to give up a request that was under way. */
void engine_layout_hit(struct engine_layout *layout, size_t count);
void engine_layout_preempted(struct engine_layout *layout);

/* Nothing that its engines have saved is true any more; see tier_store_clear(). */
void engine_layout_clear(struct engine_layout *layout, struct tier_clear *clear);

/* No layout may be in use. on_closed once, perhaps before this returns. */
void engine_layouts_close(struct engine_layouts *layouts, void (*on_closed)(void *ctx), void *ctx);

#endif
