/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/tier_store.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>

#include "backends/runtime/random.h"
#include "tests/support/leak_check.h"
#include "tests/support/loop_fixture.h"
#include "tests/support/store_world.h"
#include "tests/unit/tier_model/scripted_pool.h"

/*
 * DESIGN
 *
 * Engines save, load, hold, let go and prefetch prompts that share beginnings; memory and disk are
 * small, so that everything is evicted, demoted and promoted all the time; devices fail, pages go
 * bad, the store is cleared, closed and opened. Which job runs when is chosen by the seed as well.
 * The model is short: a block's bytes are known by its number and by how often all was cleared.
 *
 * After every step: those who watch believe exactly what the index holds, and what they believe
 * could be read at that moment. After every load: each page that is said to be there is right.
 */
TestSuite(tier_model, .init = loop_fixture_init, .fini = loop_fixture_fini, .timeout = 300);

enum { BLOCK_COUNT = 48, DEPTH_MAX = 8, OP_MAX = 8, STEP_COUNT = 120, EPOCH_STEP = 64 };

/* Each maps and unmaps an arena, which costs a sanitizer ten times as much. */
#ifdef LEAK_CHECK_IS_ON
enum { SCHEDULE_COUNT = 1000 };
#else
enum { SCHEDULE_COUNT = 10000 };
#endif

struct op {
    bool is_used, is_save, is_done;
    bool may_commit;
    uint32_t engine_first; /* engine blocks */
    uint32_t path[DEPTH_MAX];
    size_t first, count; /* of path */
    uint32_t epoch;
    struct tier_hold *hold;
};

struct model {
    struct world *world;
    uint64_t seed;
    uint32_t parent[BLOCK_COUNT + 1]; /* 0: first */
    uint32_t depth[BLOCK_COUNT + 1];
    uint32_t epoch;
    bool has_faults;
    struct op ops[OP_MAX];
    unsigned loaded_blocks, saved_blocks, done_count;
};

static uint64_t dice(struct model *model, uint64_t sides)
{
    return random_next(&model->seed) % sides;
}

static uint32_t content(const struct model *model, uint32_t number, uint32_t epoch)
{
    (void)model;
    return number + epoch * EPOCH_STEP;
}

static void make_tree(struct model *model)
{
    for (uint32_t number = 1; number <= BLOCK_COUNT; number++) {
        uint32_t parent = number > 4 ? (uint32_t)dice(model, number) : 0;

        if (parent != 0 && model->depth[parent] + 1 >= DEPTH_MAX)
            parent = 0;
        model->parent[number] = parent;
        model->depth[number] = parent != 0 ? model->depth[parent] + 1 : 0;
    }
}

static size_t make_path(const struct model *model, uint32_t number, uint32_t *path)
{
    const size_t count = model->depth[number] + 1;

    for (size_t i = count; i > 0; i--, number = model->parent[number])
        path[i - 1] = number;
    return count;
}

/* ---- what must hold at every moment ---- */

static void check_readable(const struct model *model, uint32_t number, const struct tier_block *at)
{
    const struct world *world = model->world;
    struct tier *cpu = world->store->tiers[BLOCK_TIER_CPU];

    if (model->has_faults)
        return; /* a page may have gone bad since: the load will see it */
    if (at->place[BLOCK_TIER_CPU] == BLOCK_HELD)
        cr_assert(world_is_page(cpu->ops->payload(cpu, at->slot[BLOCK_TIER_CPU]),
                                content(model, number, model->epoch)));
    if (at->place[BLOCK_TIER_SSD] == BLOCK_HELD) {
        const struct fake_slot *slot = &world->disk[at->slot[BLOCK_TIER_SSD]];

        cr_assert(slot->is_written && block_key_equal(slot->found.key, at->key));
        cr_assert(world_is_page(slot->payload, content(model, number, model->epoch)));
    }
}

static void check_view(const struct model *model, bool with_bytes)
{
    const struct world *world = model->world;

    for (uint32_t number = 1; number <= BLOCK_COUNT; number++) {
        const uint32_t block = block_table_find_key(world->store->table, world_key(number));
        const uint8_t bits = block != 0 ? tier_block_bits(tier_index_at(world->store, block)) : 0;

        cr_assert(eq(u8, world->told[number], bits), "block %u", number);
        if (bits != 0 && with_bytes)
            check_readable(model, number, tier_index_at(world->store, block));
    }
}

/* ---- operations ---- */

static struct op *new_op(struct model *model, bool is_save)
{
    for (uint32_t i = 0; i < OP_MAX; i++) {
        struct op *op = &model->ops[i];

        if (op->is_used)
            continue;
        *op = (struct op){.is_used = true,
                          .is_save = is_save,
                          .engine_first = i * DEPTH_MAX,
                          .epoch = model->epoch};
        op->count = make_path(model, 1 + (uint32_t)dice(model, BLOCK_COUNT), op->path);
        return op;
    }
    return NULL;
}

static bool may_commit(void *ctx)
{
    const struct op *op = ctx;

    return op->may_commit;
}

static void on_saved(void *ctx, struct tier_saved saved)
{
    struct op *op = ctx;

    cr_assert(op->is_used && op->is_save && !op->is_done);
    cr_assert(saved.saved + saved.known + saved.refused <= op->count);
    cr_assert(op->may_commit || saved.saved == 0);
    op->is_done = true;
}

static void begin_save(struct model *model)
{
    struct op *op = new_op(model, true);
    struct tier_save saves[DEPTH_MAX];
    struct world *world = model->world;

    if (op == NULL)
        return;
    op->first = dice(model, 3) == 0 ? dice(model, op->count) : 0;
    op->may_commit = dice(model, 6) != 0;
    for (size_t i = op->first; i < op->count; i++) {
        const uint32_t number = op->path[i];
        const uint32_t engine_block = op->engine_first + (uint32_t)i;

        world_fill(world->engine->pages[engine_block], content(model, number, model->epoch));
        if (!op->may_commit)
            world->engine->pages[engine_block][dice(model, WORLD_PAGE_BYTES)] ^= 1;
        saves[i] = (struct tier_save){.key = world_key(number),
                                      .parent = world_name(model->parent[number]),
                                      .depth = model->depth[number],
                                      .engine_block = engine_block};
    }
    if (tier_store_save(world->store, saves + op->first, op->count - op->first,
                        &world->engine->memory, may_commit, on_saved, op) < 0)
        op->is_used = false;
}

static void on_loaded(void *ctx, uint32_t loaded)
{
    struct op *op = ctx;

    cr_assert(op->is_used && !op->is_save && !op->is_done);
    cr_assert(loaded <= op->count - op->first);
    op->is_done = true;
    op->count = op->first + loaded;
}

static void begin_load(struct model *model)
{
    struct op *op = new_op(model, false);
    struct block_key keys[DEPTH_MAX];
    uint32_t engine_blocks[DEPTH_MAX];
    size_t held;

    if (op == NULL)
        return;
    for (size_t i = 0; i < op->count; i++)
        keys[i] = world_key(op->path[i]);
    op->hold =
        tier_store_hold(model->world->store, keys, op->count, dice(model, 20) == 0 ? 0 : 100000);
    held = op->hold != NULL ? tier_hold_count(op->hold) : 0;
    op->is_used = held > 0;
    if (held == 0)
        return;
    tier_hold_use(op->hold, 0, held);
    op->first = dice(model, held);
    op->count = op->first + 1 + dice(model, held - op->first);
    if (dice(model, 2) == 0)
        tier_hold_trim(op->hold, op->first, op->count - op->first);
    for (size_t i = op->first; i < op->count; i++) {
        engine_blocks[i] = op->engine_first + (uint32_t)i;
        memset(model->world->engine->pages[engine_blocks[i]], 0, WORLD_PAGE_BYTES);
    }
    int status =
        tier_store_load(model->world->store, op->hold, op->first, op->count - op->first,
                        &model->world->engine->memory, engine_blocks + op->first, on_loaded, op);
    if (status < 0) {
        cr_assert(status == -EBUSY || status == -ESTALE);
        tier_hold_release(&op->hold);
        op->is_used = false;
    }
}

/* Looks at what has ended. A load's pages are its epoch's, also where all was cleared meanwhile. */
static void take_ended(struct model *model)
{
    for (size_t i = 0; i < OP_MAX; i++) {
        struct op *op = &model->ops[i];

        if (!op->is_used || !op->is_done)
            continue;
        for (size_t at = op->first; !op->is_save && at < op->count; at++) {
            cr_assert(world_is_page(model->world->engine->pages[op->engine_first + at],
                                    content(model, op->path[at], op->epoch)));
            model->loaded_blocks++;
        }
        if (op->hold != NULL)
            tier_hold_release(&op->hold);
        model->done_count++;
        op->is_used = false;
    }
}

static void let_go_early(struct model *model)
{
    struct op *op = &model->ops[dice(model, OP_MAX)];

    if (op->is_used && op->hold != NULL)
        tier_hold_release(&op->hold);
}

static void prefetch(struct model *model)
{
    uint32_t path[DEPTH_MAX];
    struct digest_128 names[DEPTH_MAX];
    const size_t count = make_path(model, 1 + (uint32_t)dice(model, BLOCK_COUNT), path);
    const uint64_t now_ms = io_loop_now_ms(model->world->io);

    for (size_t i = 0; i < count; i++)
        names[i] = world_name(path[i]);
    (void)tier_store_prefetch(model->world->store, names, count,
                              dice(model, 8) == 0 ? now_ms - 1 : now_ms + 100000);
}

/* ---- faults ---- */

static void spoil(struct model *model)
{
    struct world *world = model->world;
    const uint32_t number = 1 + (uint32_t)dice(model, BLOCK_COUNT);
    const uint32_t block = block_table_find_key(world->store->table, world_key(number));
    const struct tier_block *at = block != 0 ? tier_index_at(world->store, block) : NULL;
    struct tier *cpu = world->store->tiers[BLOCK_TIER_CPU];

    if (at != NULL && at->place[BLOCK_TIER_CPU] == BLOCK_HELD) {
        uint8_t *page = cpu->ops->payload(cpu, at->slot[BLOCK_TIER_CPU]);

        page[dice(model, WORLD_PAGE_BYTES)] ^= 16;
    }
    if (at != NULL && at->place[BLOCK_TIER_SSD] == BLOCK_HELD)
        world->disk[at->slot[BLOCK_TIER_SSD]].is_spoilt = true;
}

static void break_or_mend(struct model *model)
{
    static const int write_ends[] = {0, -ENOSPC, -EIO};
    struct world *world = model->world;

    if (!model->has_faults)
        return;
    switch (dice(model, 4)) {
    case 0:
        spoil(model);
        break;
    case 1:
        atomic_store(&world->device.status, dice(model, 2) == 0 ? -EIO : 0);
        break;
    case 2:
        if (world->ssd != NULL)
            atomic_store(&world->ssd->write_status, write_ends[dice(model, 3)]);
        break;
    case 3:
        if (world->ssd != NULL)
            atomic_store(&world->ssd->read_status, dice(model, 3) == 0 ? -EIO : 0);
        world->store->ssd_retry_ms = 0;
        break;
    }
}

static void run_some(struct model *model)
{
    for (uint64_t i = dice(model, 6); i > 0; i--) {
        if (!scripted_pool_step(&model->seed))
            break;
    }
    uv_run(&model->world->io->loop, UV_RUN_NOWAIT);
}

static void run_all(struct model *model)
{
    while (scripted_pool_step(&model->seed))
        ;
    uv_run(&model->world->io->loop, UV_RUN_NOWAIT);
}

static void close_store(struct model *model)
{
    struct world *world = model->world;

    while (tier_erase_is_owed(world->store)) { /* else the next life may find what is not true */
        (void)scripted_pool_step(&model->seed);
        uv_run(&world->io->loop, UV_RUN_NOWAIT);
    }
    for (size_t i = 0; i < OP_MAX; i++)
        model->ops[i].hold = NULL; /* closing ends them */
    tier_store_close(&world->store, world_on_closed, world);
    while (!world->is_closed) {
        (void)scripted_pool_step(&model->seed);
        uv_run(&world->io->loop, UV_RUN_NOWAIT);
    }
    for (size_t i = 0; i < OP_MAX; i++)
        cr_assert(model->ops[i].is_done || !model->ops[i].is_used);
    take_ended(model);
    memset(world->told, 0, sizeof world->told);
}

static void clear(struct model *model)
{
    tier_store_clear(model->world->store, NULL);
    model->epoch++;
}

static void take_step(struct model *model)
{
    const uint64_t choice = dice(model, 100);

    if (choice < 30)
        begin_save(model);
    else if (choice < 60)
        begin_load(model);
    else if (choice < 66)
        prefetch(model);
    else if (choice < 70)
        let_go_early(model);
    else if (choice < 78)
        break_or_mend(model);
    else if (choice == 78)
        clear(model);
    else if (choice == 79) {
        close_store(model);
        world_open(model->world);
    } else {
        run_some(model);
    }
    take_ended(model);
}

static void expect_nothing_left(struct model *model)
{
    const struct world *world = model->world;
    const struct block_table_stats *stats;

    run_all(model);
    take_ended(model);
    stats = block_table_stats(world->store->table);
    cr_assert(block_table_is_sound(world->store->table));
    cr_assert(eq(u64, stats->holds, 0));
    cr_assert(eq(sz, world->store->jobs.count, 0));
    cr_assert(eq(sz, world->store->holds.count, 0));
    cr_assert(eq(u32, world->store->demoting, 0));
    for (int tier = 0; tier < BLOCK_TIER_COUNT; tier++) {
        cr_assert(eq(u64, world->store->load_bytes[tier], 0));
        cr_assert(eq(u64, stats->held[tier] + stats->free_slots[tier],
                     world->store->stats.slot_count[tier]));
    }
}

static void run_schedule(uint64_t seed, struct model *totals)
{
    struct model model = {.seed = seed};

    model.has_faults = dice(&model, 2) == 0;
    make_tree(&model);
    model.world =
        world_create(loop_fixture_io(),
                     (struct world_config){
                         .cpu_slots = 4 + (uint32_t)dice(&model, 20),
                         .ssd_slots = dice(&model, 5) == 0 ? 0 : 2 + (uint32_t)dice(&model, 30),
                         .threads = 1 + (uint32_t)dice(&model, 3),
                         .job_count_max = 1 + (uint32_t)dice(&model, OP_MAX)});
    model.world->checks_order = !model.has_faults;
    for (int step = 0; step < STEP_COUNT; step++) {
        take_step(&model);
        check_view(&model, step % 8 == 0);
    }
    expect_nothing_left(&model);
    check_view(&model, true);
    close_store(&model);
    world_destroy(model.world);
    totals->loaded_blocks += model.loaded_blocks;
    totals->done_count += model.done_count;
}

Test(tier_model, ten_thousand_schedules_keep_what_a_store_promises)
{
    struct model totals = {0};
    const char *only = getenv("TIER_MODEL_SEED"); /* to see one again */

    for (uint64_t seed = 1; seed <= SCHEDULE_COUNT; seed++) {
        if (only != NULL)
            seed = strtoull(only, NULL, 10);
        run_schedule(seed, &totals);
        if (only != NULL)
            break;
    }
    cr_assert(only != NULL || totals.loaded_blocks > SCHEDULE_COUNT);
}
