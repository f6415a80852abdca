/* SPDX-License-Identifier: Apache-2.0 */

/*
 * map_world: an agent's side of the map in memory, and a replica of it that is read step by step.
 * Pages are as small as they like to be: how many records one has is nothing to a reader.
 */
#ifndef TESTS_UNIT_RESIDENCY_MAP_WORLD_H
#define TESTS_UNIT_RESIDENCY_MAP_WORLD_H

#include "backends/redis/residency_wire.h"
#include "router/residency/residency_sync.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum {
    MAP_WORKER = 5,
    MAP_SLOT_COUNT = 64,
    MAP_PAGE_SLOTS = 8,
    MAP_CHANGE_COUNT = 512,
    MAP_CHANGE_RECORDS = 8,
    MAP_INDEX_BYTES = 1 << 20,
};
#define MAP_FINGERPRINT 0x1234u

struct map_change {
    uint64_t count;
    uint64_t digest;
    uint8_t records[MAP_CHANGE_RECORDS * RESIDENCY_RECORD_BYTES];
    size_t len;
};

struct map_world {
    struct residency_index *index;
    struct residency_sync *sync;
    uint64_t now_ms;
    /* The agent. */
    struct residency_life life;
    uint64_t after_epoch;
    uint64_t sequence;
    struct residency_record slots[MAP_SLOT_COUNT]; /* hash 0: free */
    struct map_change changes[MAP_CHANGE_COUNT];   /* by sequence - 1 */
    uint64_t trimmed;                              /* changes up to this one are gone */
};

static inline struct map_world map_world(void)
{
    struct map_world world = {.now_ms = 1000, .life = {7, 1}};

    world.index = residency_index_create(MAP_INDEX_BYTES);
    world.sync = residency_sync_create(
        world.index, (struct residency_sync_config){MAP_FINGERPRINT, MAP_INDEX_BYTES, 1});
    return world;
}

static inline void map_world_release(struct map_world *world)
{
    residency_sync_destroy(world->sync);
    residency_index_destroy(world->index);
}

/* ---- the agent ---- */

static inline void map_whole(const struct map_world *world, uint64_t *count, uint64_t *digest)
{
    *count = *digest = 0;
    for (size_t i = 0; i < MAP_SLOT_COUNT; i++) {
        *count += world->slots[i].hash != 0;
        if (world->slots[i].hash != 0)
            *digest += residency_record_digest(world->slots[i]);
    }
}

static inline void map_put(struct map_world *world, struct residency_record record)
{
    size_t at = MAP_SLOT_COUNT;

    for (size_t i = MAP_SLOT_COUNT; i-- > 0;) {
        if (world->slots[i].hash == record.hash)
            at = i;
    }
    for (size_t i = 0; at == MAP_SLOT_COUNT; i++) {
        if (world->slots[i].hash == 0)
            at = i;
    }
    world->slots[at] = record.tiers != 0 ? record : (struct residency_record){.hash = 0};
}

/* One flush. */
static inline void map_say(struct map_world *world, const struct residency_record *records,
                           size_t count)
{
    struct map_change *change = &world->changes[world->sequence++];

    change->len = count * RESIDENCY_RECORD_BYTES;
    for (size_t i = 0; i < count; i++) {
        map_put(world, records[i]);
        residency_record_write(change->records + i * RESIDENCY_RECORD_BYTES, records[i]);
    }
    map_whole(world, &change->count, &change->digest);
}

static inline void map_hold(struct map_world *world, uint64_t hash, uint32_t tokens, uint8_t tiers)
{
    map_say(world, &(struct residency_record){hash, tokens, tiers}, 1);
}

/* Another process, or another generation of the same, that holds nothing. */
static inline void map_begin_life(struct map_world *world, struct residency_life life)
{
    world->life = life;
    world->sequence = world->trimmed = 0;
    memset(world->slots, 0, sizeof world->slots);
}

static inline uint32_t map_page_count(const struct map_world *world)
{
    uint32_t count = MAP_SLOT_COUNT;

    while (count > 0 && world->slots[count - 1].hash == 0)
        count--;
    return (count + MAP_PAGE_SLOTS - 1) / MAP_PAGE_SLOTS;
}

/* ---- what the replica is told ---- */

static inline void map_lease(struct map_world *world)
{
    struct residency_lease lease = {
        .fingerprint = MAP_FINGERPRINT,
        .life = world->life,
        .after_epoch = world->after_epoch,
        .sequence = world->sequence,
        .page_count = map_page_count(world),
        .interval_ms = 1000,
        .is_whole = true,
    };

    residency_sync_polled(world->sync, world->now_ms);
    residency_sync_lease(world->sync, MAP_WORKER, &lease, world->now_ms);
}

static inline void map_no_lease(struct map_world *world)
{
    residency_sync_polled(world->sync, world->now_ms);
    residency_sync_lease(world->sync, MAP_WORKER, NULL, world->now_ms);
}

static inline void map_tick(struct map_world *world, uint64_t span_ms)
{
    world->now_ms += span_ms;
    residency_sync_tick(world->sync, world->now_ms);
}

static inline struct residency_change map_change(const struct map_world *world, uint64_t sequence)
{
    const struct map_change *change = &world->changes[sequence - 1];

    return (struct residency_change){change->count, change->digest,
                                     slice_of(change->records, change->len)};
}

static inline void map_tell_last(struct map_world *world)
{
    struct residency_change change;

    if (world->sequence > 0)
        change = map_change(world, world->sequence);
    residency_sync_last(world->sync, MAP_WORKER, world->sequence,
                        world->sequence > 0 ? &change : NULL, world->now_ms);
}

static inline void map_tell_page(struct map_world *world, uint32_t page)
{
    uint8_t bytes[MAP_PAGE_SLOTS * RESIDENCY_RECORD_BYTES];
    size_t len = page < map_page_count(world) ? sizeof bytes : 0;

    for (size_t i = 0; i < MAP_PAGE_SLOTS && len > 0; i++)
        residency_record_write(bytes + i * RESIDENCY_RECORD_BYTES,
                               world->slots[page * MAP_PAGE_SLOTS + i]);
    residency_sync_page(world->sync, MAP_WORKER, page, slice_of(bytes, len), world->now_ms);
}

/* Up to count of them, from sequence on; those that are left. */
static inline void map_tell_changes(struct map_world *world, uint64_t sequence, uint64_t count)
{
    if (sequence <= world->trimmed)
        sequence = world->trimmed + 1;
    for (; count > 0 && sequence <= world->sequence; count--, sequence++) {
        struct residency_change change = map_change(world, sequence);

        residency_sync_change(world->sync, MAP_WORKER, sequence, &change, world->now_ms);
    }
}

/* One answer to what the replica wishes. False: it wishes nothing. */
static inline bool map_step(struct map_world *world)
{
    struct residency_wish wish = residency_sync_wish(world->sync, MAP_WORKER);

    switch (wish.kind) {
    case RESIDENCY_WISH_NOTHING:
        return false;
    case RESIDENCY_WISH_LAST:
        map_tell_last(world);
        break;
    case RESIDENCY_WISH_PAGE:
        map_tell_page(world, wish.page);
        break;
    case RESIDENCY_WISH_CHANGES:
        map_tell_changes(world, wish.sequence, 3);
        residency_sync_no_more(world->sync, MAP_WORKER, world->now_ms);
        break;
    case RESIDENCY_WISH_FOLLOW:
        map_tell_changes(world, wish.sequence, 3);
        break;
    }
    return true;
}

static inline struct residency_sync_view map_view(const struct map_world *world)
{
    struct residency_sync_view view;

    (void)residency_sync_view(world->sync, MAP_WORKER, world->now_ms, &view);
    return view;
}

/* Until it is exact and has the last change; false: not within many steps. */
static inline bool map_read(struct map_world *world)
{
    map_lease(world);
    for (int i = 0; i < 1000; i++) {
        if (map_view(world).state == RESIDENCY_SYNC_FOLLOW &&
            map_view(world).sequence == world->sequence)
            return true;
        if (!map_step(world))
            map_tick(world, 50);
    }
    return false;
}

static inline struct residency_agent map_agent(const struct map_world *world)
{
    return residency_sync_agent(world->sync, MAP_WORKER, world->now_ms);
}

/* The tiers in which the replica that is looked at has hash. */
static inline uint8_t map_tiers(const struct map_world *world, uint64_t hash)
{
    struct residency_agent agent = map_agent(world);
    uint32_t tokens;

    return agent.has_claims ? residency_index_get(world->index, hash, agent.holder, &tokens) : 0;
}

/* It has what the agent has, and nothing else. */
static inline bool map_is_same(const struct map_world *world)
{
    uint64_t count = 0;

    for (size_t i = 0; i < MAP_SLOT_COUNT; i++) {
        count += world->slots[i].hash != 0;
        if (world->slots[i].hash != 0 &&
            map_tiers(world, world->slots[i].hash) != world->slots[i].tiers)
            return false;
    }
    return map_view(world).record_count == count;
}

#endif
