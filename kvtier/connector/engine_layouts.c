/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/connector/engine_layouts.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/runtime/log.h"

/*
 * DESIGN
 *
 * The fingerprint is made of what the engine says of its model and of how its pages are cut:
 * where in the engine's memory they lie may differ, as pages are copied segment by segment. Which
 * rank has which part is in it too: the same bytes cut for two ranks and for four are other pages.
 *
 * A model that is no longer served would keep its share of the tiers for good, and one that took
 * its place on the node would get none. So the place of a layout without engines is taken when
 * another wants it; closing a store takes a moment, and the engine comes again. What engines are
 * promised is freed with the store: so a request that has a promise has the layout in use too, and
 * an engine whose ranks went and come again finds it as it was.
 */

/* New blocks of one question to the guard; a request of more asks for its first. */
enum { ASKED_COUNT_MAX = 1024, GUARD_WINDOW_MS = 60000 };

enum { FIELD_MODEL = 1, FIELD_BLOCK_TOKENS, FIELD_PAGE_BYTES, FIELD_SEGMENT_BYTES, FIELD_RANKS };

void engine_layouts_init(struct engine_layouts *layouts, struct engine_layouts_config config)
{
    assert(config.layout_count_max > 0);

    *layouts = (struct engine_layouts){.config = config};
    list_init(&layouts->all);
}

static void add_part(struct digest *digest, const struct page_layout *part)
{
    for (size_t i = 0; i < part->segment_count; i++)
        digest_field_u64(digest, FIELD_SEGMENT_BYTES, part->segments[i].bytes);
}

static uint64_t fingerprint_of(const uint8_t *secret, const struct engine_layout_spec *spec)
{
    struct digest digest;

    digest_begin(&digest, secret, DIGEST_LAYOUT);
    digest_field(&digest, FIELD_MODEL, spec->model.ptr, spec->model.len);
    digest_field_u64(&digest, FIELD_BLOCK_TOKENS, spec->block_tokens);
    digest_field_u64(&digest, FIELD_PAGE_BYTES, spec->page_bytes);
    if (spec->rank_count > 1) /* else as ever: what lies on an SSD is found again */
        digest_field_u64(&digest, FIELD_RANKS, spec->rank_count);
    for (size_t rank = 0; rank < spec->rank_count; rank++) {
        if (spec->rank_count > 1)
            digest_field_u64(&digest, FIELD_PAGE_BYTES, spec->ranks[rank]->layout->page_bytes);
        add_part(&digest, spec->ranks[rank]->layout);
    }
    return digest_end(&digest);
}

static struct engine_layout *layout_at(struct list_node *node)
{
    return container_of(node, struct engine_layout, in_all);
}

static struct engine_layout *find(struct engine_layouts *layouts, uint64_t fingerprint)
{
    for (struct list_node *node = layouts->all.head.next; node != &layouts->all.head;
         node = node->next)
        if (layout_at(node)->fingerprint == fingerprint && layout_at(node)->store != NULL)
            return layout_at(node);
    return NULL;
}

/* ---- closing ---- */

static void tell_closed(struct engine_layouts *layouts)
{
    void (*on_closed)(void *ctx) = layouts->on_closed;

    if (on_closed == NULL || layouts->all.count > 0)
        return;
    layouts->on_closed = NULL;
    on_closed(layouts->closed_ctx);
}

static void on_store_closed(void *ctx)
{
    struct engine_layout *layout = ctx;
    struct engine_layouts *layouts = layout->layouts;

    list_remove(&layouts->all, &layout->in_all);
    thrash_guard_destroy(layout->guard);
    free(layout);
    tell_closed(layouts);
}

/* Gives up the first layout that no engine has. */
static int make_place(struct engine_layouts *layouts, char why[TIER_WHY_BYTES])
{
    if (layouts->all.count < layouts->config.layout_count_max)
        return 0;
    for (struct list_node *node = layouts->all.head.next; node != &layouts->all.head;
         node = node->next) {
        struct engine_layout *layout = layout_at(node);

        if (layout->user_count > 0)
            continue;
        if (layout->store != NULL)
            tier_store_close(&layout->store, on_store_closed, layout);
        snprintf(why, TIER_WHY_BYTES,
                 "the tiers of a model that is no longer served are being given up for this one: "
                 "come again");
        return -EBUSY;
    }
    snprintf(why, TIER_WHY_BYTES,
             "engines with %u other models or page layouts have the tiers: raise --layouts-max",
             layouts->config.layout_count_max);
    return -EUSERS;
}

/* ---- life ---- */

static void on_changed(void *ctx, struct block_key key, struct digest_128 parent, uint32_t depth,
                       uint8_t tiers)
{
    struct engine_layout *layout = ctx;
    const struct engine_layouts_config *config = &layout->layouts->config;

    if (tiers == 0 && layout->guard != NULL && !layout->is_clearing)
        thrash_guard_evicted(layout->guard, key.name.low);
    config->on_changed(config->ctx, layout, key, parent, depth, tiers);
}

static struct tier_store_config share_of(const struct engine_layout *layout)
{
    const uint32_t parts = layout->layouts->config.layout_count_max;
    struct tier_store_config config = layout->layouts->config.tiers;

    config.page_bytes = layout->page_bytes;
    config.layout = layout->fingerprint;
    config.cpu_bytes /= parts;
    config.ssd_bytes /= parts;
    config.write_bytes_per_s /= parts;
    config.on_changed = on_changed;
    return config;
}

/* What leaves the last tier is lost. */
static int create_guard(struct engine_layout *layout)
{
    const struct tier_store_stats stats = tier_store_stats(layout->store);
    const uint32_t ssd = stats.slot_count[BLOCK_TIER_SSD];

    if (!layout->layouts->config.has_guard)
        return 0;
    return thrash_guard_create(
        (struct thrash_guard_config){.slot_count = ssd > 0 ? ssd : stats.slot_count[BLOCK_TIER_CPU],
                                     .window_ms = GUARD_WINDOW_MS},
        &layout->guard);
}

static int create(struct engine_layouts *layouts, const struct engine_layout_spec *spec,
                  struct engine_layout **created, char why[TIER_WHY_BYTES])
{
    struct engine_layout *layout = calloc(1, sizeof *layout);
    struct tier_store_config config;
    int status;

    *created = NULL;
    if (layout == NULL)
        return -ENOMEM;
    layout->layouts = layouts;
    layout->fingerprint = fingerprint_of(layouts->config.secret, spec);
    layout->block_tokens = spec->block_tokens;
    layout->page_bytes = spec->page_bytes;
    config = share_of(layout);
    config.ctx = layout;
    status = tier_store_create(config, &layout->store, why);
    if (status < 0) {
        free(layout);
        return status;
    }
    list_node_init(&layout->in_all);
    list_append(&layouts->all, &layout->in_all);
    status = create_guard(layout);
    if (status < 0) {
        snprintf(why, TIER_WHY_BYTES, "%s", strerror(-status));
        tier_store_close(&layout->store, on_store_closed, layout);
        return status;
    }
    *created = layout;
    return 0;
}

int engine_layouts_acquire(struct engine_layouts *layouts, const struct engine_layout_spec *spec,
                           struct engine_layout **acquired, char why[TIER_WHY_BYTES])
{
    int status = 0;

    snprintf(why, TIER_WHY_BYTES, "no memory");
    *acquired = find(layouts, fingerprint_of(layouts->config.secret, spec));
    if (*acquired == NULL)
        status = make_place(layouts, why);
    if (*acquired == NULL && status == 0)
        status = create(layouts, spec, acquired, why);
    if (status == 0)
        (*acquired)->user_count++;
    return status;
}

struct engine_layout *engine_layout_ref(struct engine_layout *layout)
{
    assert(layout->user_count > 0);

    layout->user_count++;
    return layout;
}

void engine_layout_return(struct engine_layout **layout)
{
    assert((*layout)->user_count > 0);

    (*layout)->user_count--;
    *layout = NULL;
}

/* ---- against thrashing ---- */

static uint64_t now_ms_of(const struct engine_layout *layout)
{
    return io_loop_now_ms(layout->layouts->config.tiers.io);
}

static void log_change(const struct engine_layout *layout, bool was_closed)
{
    const bool is_closed = thrash_guard_is_closed(layout->guard);

    if (is_closed && !was_closed)
        LOG(LOG_WARN, "tiers_thrash",
            log_text("why", "blocks go before they are wanted again: there is not enough room"),
            log_text("effect", "next to nothing new is saved, so that some of them stay"),
            log_text("advice", "raise --cpu-bytes or --ssd-bytes, or spread the load"));
    else if (!is_closed && was_closed)
        LOG(LOG_INFO, "tiers_calm");
}

size_t engine_layout_admit(struct engine_layout *layout, const struct block_key *keys, size_t count)
{
    uint64_t names[ASKED_COUNT_MAX];
    size_t held, asked = 0;
    bool was_closed, is_admitted;

    if (layout->guard == NULL)
        return count;
    held = tier_store_match(layout->store, keys, count, NULL);
    for (size_t i = held; i < count && asked < ASKED_COUNT_MAX; i++)
        names[asked++] = keys[i].name.low;
    if (asked == 0)
        return count;
    was_closed = thrash_guard_is_closed(layout->guard);
    is_admitted = thrash_guard_admits(layout->guard, names, asked, now_ms_of(layout));
    log_change(layout, was_closed);
    return is_admitted ? count : held;
}

void engine_layout_hit(struct engine_layout *layout, size_t count)
{
    if (layout->guard != NULL && count > 0)
        thrash_guard_hit(layout->guard, count, now_ms_of(layout));
}

void engine_layout_preempted(struct engine_layout *layout)
{
    if (layout->guard != NULL)
        thrash_guard_preempted(layout->guard, 1, now_ms_of(layout));
}

void engine_layout_clear(struct engine_layout *layout, struct tier_clear *clear)
{
    layout->is_clearing = true;
    tier_store_clear(layout->store, clear);
    layout->is_clearing = false;
}

void engine_layouts_close(struct engine_layouts *layouts, void (*on_closed)(void *ctx), void *ctx)
{
    layouts->on_closed = on_closed;
    layouts->closed_ctx = ctx;
    for (struct list_node *node = layouts->all.head.next, *next; node != &layouts->all.head;
         node = next) {
        struct engine_layout *layout = layout_at(node);

        assert(layout->user_count == 0);
        next = node->next;
        if (layout->store != NULL)
            tier_store_close(&layout->store, on_store_closed, layout);
    }
    tell_closed(layouts);
}
