/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/tier_store_parts.h"

#include "backends/runtime/log.h"

#include <stdio.h>

/*
 * DESIGN
 * Makes the real tiers for a store and lets devices know the CPU tier's memory. Tests give a store
 * tiers of their own instead.
 */

/* Memory that a device cannot pin is copied more slowly: that is no reason not to start. */
static void register_arena(const struct tier_store *store)
{
    void *arena;
    size_t arena_bytes;

    tier_cpu_arena(store->tiers[BLOCK_TIER_CPU], &arena, &arena_bytes);
    for (size_t kind = 0; kind < array_count(store->config.devices); kind++) {
        struct device *device = store->config.devices[kind];
        int status = device != NULL ? device->ops->register_host(device, arena, arena_bytes) : 0;

        if (status < 0)
            LOG(LOG_WARN, "arena_not_registered", log_text("device", device->ops->name),
                log_i64("status", status));
    }
}

void tier_store_unregister(const struct tier_store *store)
{
    void *arena;
    size_t arena_bytes;

    if (!store->is_registered)
        return;
    tier_cpu_arena(store->tiers[BLOCK_TIER_CPU], &arena, &arena_bytes);
    for (size_t kind = 0; kind < array_count(store->config.devices); kind++) {
        struct device *device = store->config.devices[kind];

        if (device != NULL)
            device->ops->unregister_host(device, arena);
    }
}

int tier_store_create(struct tier_store_config config, struct tier_store **store,
                      char why[TIER_WHY_BYTES])
{
    struct tier *tiers[BLOCK_TIER_COUNT] = {NULL, NULL};
    int status = tier_cpu_create((struct tier_cpu_config){.bytes = config.cpu_bytes,
                                                          .page_bytes = config.page_bytes,
                                                          .layout = config.layout,
                                                          .has_checksum = config.has_checksum},
                                 &tiers[BLOCK_TIER_CPU]);

    *store = NULL;
    why[0] = '\0';
    if (status < 0) {
        (void)snprintf(
            why, TIER_WHY_BYTES,
            "the agent gets no %llu bytes of memory for pages of %u bytes: lower its --cpu-bytes, "
            "or raise its limit (ulimit -v, vm.overcommit_memory); less than a page is "
            "of no use",
            (unsigned long long)config.cpu_bytes, config.page_bytes);
        return status;
    }
    if (config.ssd_bytes > 0)
        status = tier_ssd_create((struct tier_ssd_config){.dir = config.ssd_dir,
                                                          .bytes = config.ssd_bytes,
                                                          .reserve_bytes = config.ssd_reserve_bytes,
                                                          .page_bytes = config.page_bytes,
                                                          .layout = config.layout,
                                                          .may_use_uring = config.may_use_uring,
                                                          .may_use_direct = config.may_use_direct},
                                 &tiers[BLOCK_TIER_SSD], why);
    if (status < 0) {
        tier_store_destroy_tiers(tiers);
        return status;
    }
    status = tier_store_assemble(config, tiers, store);
    if (status < 0) {
        (void)snprintf(why, TIER_WHY_BYTES, "no memory for an index of the pages");
        return status;
    }
    register_arena(*store);
    (*store)->is_registered = true;
    return 0;
}
