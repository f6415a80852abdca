/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Any agent and any Redis: whatever they say, in whatever order, for whichever worker, a replica
 * is believed only while it follows, wishes what its state wishes, and claims no more than its
 * worker's cache can hold.
 */
#include "router/residency/residency_sync.h"

#include "tests/fuzz/fuzz_input.h"

#include <assert.h>

enum { WORKER_COUNT = 3, INDEX_BYTES = 1 << 14, RECORD_COUNT_MAX = 8, CACHE_TOKENS = 12 };

struct input {
    const uint8_t *data;
    size_t size;
};

struct world {
    struct residency_index *index;
    struct residency_sync *sync;
    uint64_t now_ms;
};

static uint64_t take(struct input *input, size_t width)
{
    uint64_t value = 0;

    for (size_t i = 0; i < width && input->size > 0; i++, input->data++, input->size--)
        value = value << 8 | *input->data;
    return value;
}

/* A few records of a few hashes, so that they meet. */
static struct slice take_records(struct input *input, uint8_t *bytes)
{
    size_t count = take(input, 1) % (RECORD_COUNT_MAX + 1);

    for (size_t i = 0; i < count; i++)
        residency_record_write(bytes + i * RESIDENCY_RECORD_BYTES,
                               (struct residency_record){take(input, 1) % 32,
                                                         (uint32_t)take(input, 1),
                                                         (uint8_t)(take(input, 1) & 7)});
    return slice_of(bytes, count * RESIDENCY_RECORD_BYTES);
}

/* Either what the input says, or what would be right if nothing was held before. */
static struct residency_change take_change(struct input *input, uint8_t *bytes)
{
    struct residency_change change = {.records = take_records(input, bytes)};
    bool is_right = take(input, 1) % 2 == 0;

    for (size_t i = 0; is_right && i < change.records.len / RESIDENCY_RECORD_BYTES; i++) {
        struct residency_record record = residency_record_read(bytes + i * RESIDENCY_RECORD_BYTES);

        change.count += record.hash != 0 && record.tiers != 0;
        change.digest += record.hash != 0 ? residency_record_digest(record) : 0;
    }
    if (!is_right) {
        change.count = take(input, 1);
        change.digest = take(input, 2);
    }
    return change;
}

static void say_lease(struct world *world, struct input *input, uint32_t worker)
{
    struct residency_lease lease = {
        .fingerprint = take(input, 1) % 8 == 0 ? 2 : 1,
        .life = {1 + take(input, 1) % 3, (uint32_t)take(input, 1) % 3},
        .sequence = take(input, 1) % 16,
        .page_count = (uint32_t)take(input, 1),
    };

    if (lease.page_count == 255)
        lease.page_count = UINT32_MAX;
    residency_sync_polled(world->sync, world->now_ms);
    residency_sync_lease(world->sync, worker, take(input, 1) % 8 == 0 ? NULL : &lease,
                         world->now_ms);
}

static void say(struct world *world, struct input *input, uint32_t worker)
{
    uint8_t bytes[RECORD_COUNT_MAX * RESIDENCY_RECORD_BYTES];
    struct residency_sync *sync = world->sync;
    struct residency_wish wish = residency_sync_wish(sync, worker);
    struct residency_change change;

    switch (take(input, 1) % 10) {
    case 0:
        say_lease(world, input, worker);
        break;
    case 1:
        world->now_ms += take(input, 1);
        break;
    case 2:
        world->now_ms += take(input, 2) * 16;
        break;
    case 3:
        residency_sync_tick(sync, world->now_ms);
        break;
    case 4:
        change = take_change(input, bytes);
        residency_sync_last(sync, worker, take(input, 1) % 16,
                            take(input, 1) % 4 == 0 ? NULL : &change, world->now_ms);
        break;
    case 5:
        residency_sync_page(sync, worker, wish.page, take_records(input, bytes), world->now_ms);
        break;
    case 6:
        change = take_change(input, bytes);
        residency_sync_change(sync, worker, wish.sequence + take(input, 1) % 2, &change,
                              world->now_ms);
        break;
    case 7:
        residency_sync_no_more(sync, worker, world->now_ms);
        break;
    case 8:
        if (take(input, 1) % 2 == 0)
            residency_sync_forget(sync, worker);
        else
            residency_sync_broken(sync, worker, RESIDENCY_BREAK_FAILED, world->now_ms);
        break;
    default:
        (void)residency_sync_answered(sync, worker, (double)take(input, 1), (double)take(input, 1),
                                      world->now_ms);
        break;
    }
}

static void check(const struct world *world, uint32_t worker)
{
    struct residency_agent agent = residency_sync_agent(world->sync, worker, world->now_ms);
    struct residency_wish wish = residency_sync_wish(world->sync, worker);
    struct residency_sync_view view;

    if (!residency_sync_view(world->sync, worker, world->now_ms, &view)) {
        assert(!agent.is_believed && !agent.has_claims && wish.kind == RESIDENCY_WISH_NOTHING);
        return;
    }
    assert(agent.doubt == view.doubt && agent.is_believed == (view.doubt == RESIDENCY_DOUBT_NONE));
    if (agent.is_believed)
        assert(view.state == RESIDENCY_SYNC_FOLLOW && agent.has_claims && agent.is_there);
    assert((wish.kind == RESIDENCY_WISH_FOLLOW) == (view.state == RESIDENCY_SYNC_FOLLOW));
    if (wish.kind == RESIDENCY_WISH_FOLLOW)
        assert(wish.sequence == view.sequence + 1);
    if (wish.kind == RESIDENCY_WISH_PAGE)
        assert(wish.page_count > 0);
    assert(view.tier_counts[0] <= view.record_count);
    if (view.meta != NULL && agent.is_believed)
        assert(view.tier_counts[0] <= view.meta->cache_tokens);
    assert(view.record_count <= residency_index_stats(world->index).holder_count);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct residency_meta meta = {.cache_tokens = CACHE_TOKENS};
    struct input input = {data, size};
    struct world world = {.index = residency_index_create(INDEX_BYTES), .now_ms = 1};

    world.sync =
        residency_sync_create(world.index, (struct residency_sync_config){1, INDEX_BYTES, 1});
    assert(world.sync != NULL);
    while (input.size > 0) {
        uint32_t worker = (uint32_t)take(&input, 1);

        if (worker == 255)
            residency_sync_meta(world.sync, 0, &meta, world.now_ms);
        say(&world, &input, worker % WORKER_COUNT);
        for (uint32_t i = 0; i < WORKER_COUNT; i++)
            check(&world, i);
    }
    residency_sync_destroy(world.sync);
    residency_index_destroy(world.index);
    return 0;
}
