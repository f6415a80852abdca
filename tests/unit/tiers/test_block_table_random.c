/* SPDX-License-Identifier: Apache-2.0 */

/* Random interleavings of everything that a block_table can be told, under every policy. Key k > 1
 * follows key k / 2: a binary tree, so that blocks have several children. */

#include "kvtier/tiers/block_table.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <string.h>

#include "backends/runtime/random.h"
#include "tests/support/leak_check.h"
#include "tests/unit/tiers/table_world.h"

TestSuite(block_table_random, .fini = leak_check);

enum { KEY_COUNT = 64, CPU_SLOTS = 23, SSD_SLOTS = 17, BLOCK_COUNT = 48, STEP_COUNT = 12000 };

/* What was asked of each key's block and is not ended yet. */
struct random_world {
    struct block_table *table;
    uint64_t random;
    unsigned holds[KEY_COUNT];
    unsigned reads[KEY_COUNT][BLOCK_TIER_COUNT];
    uint64_t evictions;
    uint64_t chains_picked; /* victims whose child was a victim of the same pick */
};

static uint64_t below(struct random_world *world, uint64_t limit)
{
    return random_next(&world->random) % limit;
}

static uint32_t depth_of(uint64_t key)
{
    return key > 1 ? depth_of(key / 2) + 1 : 0;
}

static const struct tier_block *block_of(struct random_world *world, uint64_t key, uint32_t *index)
{
    *index = block_table_find_key(world->table, key_of(key));
    return *index != 0 ? block_table_at(world->table, *index) : NULL;
}

/* Whether a block may leave, worked out from all blocks and not from any count; those in gone[] are
 * as good as gone. */
static bool may_leave(struct random_world *world, uint64_t key, enum block_tier tier,
                      const bool *gone)
{
    uint32_t index;
    const struct tier_block *block = block_of(world, key, &index);

    if (block == NULL || block->place[tier] != BLOCK_HELD || gone[key] || world->holds[key] > 0 ||
        world->reads[key][tier] > 0)
        return false;
    for (uint64_t child = key * 2; child <= key * 2 + 1 && child < KEY_COUNT; child++) {
        const struct tier_block *below_it = block_of(world, child, &index);

        if (below_it != NULL && !gone[child] &&
            (below_it->place[tier] == BLOCK_HELD || below_it->place[tier] == BLOCK_WRITING))
            return false;
    }
    return true;
}

/* How many could leave if each that may does, until none may. */
static size_t count_leavers(struct random_world *world, enum block_tier tier)
{
    bool gone[KEY_COUNT] = {false};
    size_t count = 0;

    for (uint64_t key = KEY_COUNT - 1; key > 0; key--) /* children have higher keys */
        if (may_leave(world, key, tier, gone)) {
            gone[key] = true;
            count++;
        }
    return count;
}

static void step_pick(struct random_world *world, enum block_tier tier)
{
    uint32_t victims[EVICTION_PICK_MAX];
    bool gone[KEY_COUNT] = {false};
    const size_t asked = 1 + below(world, 8) * below(world, 8);
    const size_t count = block_table_pick(world->table, tier, victims, asked);
    const size_t possible = count_leavers(world, tier);

    cr_assert(eq(sz, count, asked < possible ? asked : possible));
    for (size_t i = 0; i < count; i++) {
        const uint64_t key = block_table_at(world->table, victims[i])->key.name.low;

        cr_assert(may_leave(world, key, tier, gone));
        world->chains_picked += key * 2 < KEY_COUNT && (gone[key * 2] || gone[key * 2 + 1]);
        gone[key] = true;
    }
    for (size_t i = 0; i < count && below(world, 8) != 0; i++) { /* or it is given up */
        make_leave(world->table, victims[i], tier);
        world->evictions++;
    }
}

static void step_add(struct random_world *world, uint64_t key, enum block_tier tier)
{
    const uint32_t depth = depth_of(key);
    const uint32_t parent = block_table_claim_parent(world->table, key_of(key / 2).name, depth);
    const uint32_t index = block_table_add(world->table, key_of(key), parent, depth);
    uint32_t slot;

    if (index == 0 || block_table_at(world->table, index)->place[tier] != BLOCK_ABSENT)
        return;
    if (below(world, 2) == 0) {
        slot = (uint32_t)below(world, SSD_SLOTS);
        if (!block_table_claim_slot(world->table, tier, slot))
            return;
    } else {
        slot = block_table_take_slot(world->table, tier);
    }
    if (slot == BLOCK_SLOT_NONE)
        return;
    if (below(world, 10) == 0)
        block_table_give_slot(world->table, tier, slot);
    else
        block_table_set_place(world->table, index, tier, BLOCK_WRITING, slot);
}

/* Any legal step of a block's place. */
static void step_place(struct random_world *world, uint64_t key, enum block_tier tier)
{
    uint32_t index;
    const struct tier_block *block = block_of(world, key, &index);

    if (block == NULL)
        return;
    if (block->place[tier] == BLOCK_WRITING)
        block_table_set_place(world->table, index, tier,
                              below(world, 4) == 0 ? BLOCK_ABSENT : BLOCK_HELD, BLOCK_SLOT_NONE);
    else if (block->place[tier] == BLOCK_HELD && below(world, 8) == 0)
        block_table_set_place(world->table, index, tier, BLOCK_LEAVING, BLOCK_SLOT_NONE);
    else if (block->place[tier] == BLOCK_LEAVING)
        block_table_set_place(world->table, index, tier,
                              world->reads[key][tier] > 0 || below(world, 3) == 0 ? BLOCK_HELD
                                                                                  : BLOCK_ABSENT,
                              BLOCK_SLOT_NONE);
}

/* A prompt: what is in its way goes, and all of its blocks come. */
static void step_save(struct random_world *world, uint64_t key, enum block_tier tier)
{
    for (uint32_t depth = 0; depth <= depth_of(key); depth++) {
        const uint64_t at = key >> (depth_of(key) - depth);

        if (block_table_stats(world->table)->free_slots[tier] == 0)
            step_pick(world, tier);
        step_add(world, at, tier);
        step_place(world, at, tier);
    }
}

static void step_hold(struct random_world *world, uint64_t key)
{
    uint32_t index;

    if (block_of(world, key, &index) == NULL)
        return;
    if (world->holds[key] > 0 && below(world, 3) != 0) {
        block_table_unhold(world->table, index);
        world->holds[key]--;
    } else if (world->holds[key] < 3) {
        block_table_hold(world->table, index);
        world->holds[key]++;
    }
}

static void step_read(struct random_world *world, uint64_t key, enum block_tier tier)
{
    uint32_t index;
    const struct tier_block *block = block_of(world, key, &index);

    if (block == NULL)
        return;
    if (world->reads[key][tier] > 0 && below(world, 3) != 0) {
        block_table_end_read(world->table, index, tier);
        world->reads[key][tier]--;
    } else if (block->place[tier] == BLOCK_HELD) {
        block_table_begin_read(world->table, index, tier);
        world->reads[key][tier]++;
    }
}

static void step_use(struct random_world *world, uint64_t key)
{
    uint32_t indices[8], index;
    size_t count = 0;

    for (uint32_t depth = 0; depth <= depth_of(key); depth++) {
        if (block_of(world, key >> (depth_of(key) - depth), &index) == NULL)
            break;
        indices[count++] = index;
    }
    block_table_use(world->table, indices, count);
}

static void step(struct random_world *world)
{
    const uint64_t key = 1 + below(world, KEY_COUNT - 1);
    const enum block_tier tier = (enum block_tier)below(world, BLOCK_TIER_COUNT);

    switch (below(world, 12)) {
    case 0:
        step_pick(world, tier);
        break;
    case 1:
        step_hold(world, key);
        break;
    case 2:
        step_read(world, key, tier);
        break;
    case 3:
        step_use(world, key);
        break;
    case 4:
        step_add(world, key, tier);
        break;
    case 5:
    case 6:
        step_save(world, key, tier);
        break;
    default:
        step_place(world, key, tier);
    }
}

static void check_all_slots(const struct random_world *world)
{
    static const uint32_t slot_count[BLOCK_TIER_COUNT] = {CPU_SLOTS, SSD_SLOTS};
    const struct block_table_stats *stats = block_table_stats(world->table);
    uint32_t indices[BLOCK_COUNT];
    uint64_t used[BLOCK_TIER_COUNT] = {0};
    const size_t count = block_table_list(world->table, indices);

    for (size_t i = 0; i < count; i++)
        for (int tier = 0; tier < BLOCK_TIER_COUNT; tier++)
            used[tier] += block_table_at(world->table, indices[i])->place[tier] != BLOCK_ABSENT;
    for (int tier = 0; tier < BLOCK_TIER_COUNT; tier++)
        cr_assert(eq(u64, used[tier] + stats->free_slots[tier], slot_count[tier]));
}

static void run(const struct eviction_ops *eviction, uint64_t seed)
{
    struct random_world world = {.random = seed};
    cr_assert(eq(int,
                 block_table_create(
                     (struct block_table_config){
                         .block_count_max = BLOCK_COUNT,
                         .slot_count = {[BLOCK_TIER_CPU] = CPU_SLOTS, [BLOCK_TIER_SSD] = SSD_SLOTS},
                         .eviction = eviction,
                     },
                     &world.table),
                 0));

    for (int i = 0; i < STEP_COUNT; i++) {
        step(&world);

        cr_assert(block_table_is_sound(world.table), "%s, seed %d, step %d", eviction->name,
                  (int)seed, i);
        check_all_slots(&world);
    }

    /* It was no idle walk. */
    cr_assert(gt(u64, world.evictions, 100));
    cr_assert(gt(u64, world.chains_picked, 20));
    cr_assert(gt(u64, block_table_stats(world.table)->evicted[BLOCK_TIER_SSD], 20));
    block_table_destroy(world.table);
}

Test(block_table_random, any_interleaving_keeps_blocks_slots_and_order)
{
    for (size_t i = 0; eviction_registry[i] != NULL; i++)
        for (uint64_t seed = 1; seed <= 4; seed++)
            run(eviction_registry[i], seed);
}
