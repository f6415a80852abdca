/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tiers/mover.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <stdatomic.h>
#include <unistd.h>

#include "backends/runtime/clock.h"
#include "tests/support/loop_fixture.h"

TestSuite(mover, .init = loop_fixture_init, .fini = loop_fixture_fini);

enum { TASK_MAX = 16 };

struct world;

struct work {
    struct mover_task task;
    struct world *world;
    char name;
    bool is_unwanted;
    atomic_bool may_end; /* run() waits for it */
    bool is_done, has_run;
};

struct world {
    struct mover *mover;
    struct work works[TASK_MAX];
    char started[TASK_MAX + 1]; /* names, in the order of on_start() */
    char done[TASK_MAX + 1];
    bool is_closed;
};

static struct work *work_of(struct mover_task *task)
{
    return container_of(task, struct work, task);
}

static void append(char *names, char name)
{
    while (*names != '\0')
        names++;
    *names = name;
}

static bool on_start(struct mover_task *task)
{
    struct work *work = work_of(task);

    append(work->world->started, work->name);
    return !work->is_unwanted;
}

static void run(struct mover_task *task, void *staging)
{
    (void)staging;
    while (!atomic_load(&work_of(task)->may_end))
        usleep(100);
}

static void on_done(struct mover_task *task, bool has_run)
{
    struct work *work = work_of(task);

    cr_assert(not(work->is_done));
    work->is_done = true;
    work->has_run = has_run;
    append(work->world->done, work->name);
}

#define OPS(class_)                                                                                \
    {                                                                                              \
        .class = class_, .on_start = on_start, .run = run, .on_done = on_done                      \
    }
static const struct mover_task_ops ops[MOVER_CLASS_COUNT] = {
    [MOVER_LOAD] = OPS(MOVER_LOAD),     [MOVER_PREFETCH] = OPS(MOVER_PREFETCH),
    [MOVER_SAVE] = OPS(MOVER_SAVE),     [MOVER_SCAN] = OPS(MOVER_SCAN),
    [MOVER_DEMOTE] = OPS(MOVER_DEMOTE),
};

static void open_world(struct world *world, uint32_t read_threads, uint64_t write_bytes_per_s)
{
    int status;

    *world = (struct world){0};
    status = mover_create((struct mover_config){.io = loop_fixture_io(),
                                                .thread_counts = {read_threads, 1, 1},
                                                .staging_bytes = 4096,
                                                .write_bytes_per_s = write_bytes_per_s},
                          &world->mover);
    cr_assert(eq(int, status, 0));
}

static struct work *submit(struct world *world, enum mover_class class, char name, bool may_end)
{
    struct work *work = &world->works[0];

    while (work->world != NULL)
        work++;
    work->world = world;
    work->name = name;
    atomic_store(&work->may_end, may_end);
    work->task.bytes = 1000;
    mover_submit(world->mover, &work->task, &ops[class]);
    return work;
}

static void on_closed(void *ctx)
{
    bool *is_closed = ctx;

    *is_closed = true;
}

static void close_world(struct world *world)
{
    mover_close(world->mover, on_closed, &world->is_closed);
    cr_assert(loop_run_until_flag(&world->is_closed, 5000));
}

Test(mover, what_is_more_urgent_passes_what_waits)
{
    struct world world;
    open_world(&world, 1, 0);
    struct work *first = submit(&world, MOVER_LOAD, 'a', false);

    submit(&world, MOVER_PREFETCH, 'p', true);
    struct work *last = submit(&world, MOVER_LOAD, 'b', true);
    atomic_store(&first->may_end, true);
    cr_assert(loop_run_until_flag(&last->is_done, 5000));
    while (world.done[2] == '\0')
        uv_run(loop_fixture_loop(), UV_RUN_ONCE);

    cr_assert(eq(str, world.started, "abp"));
    close_world(&world);
}

Test(mover, reads_never_wait_behind_writes_or_saves)
{
    struct world world;
    open_world(&world, 1, 0);
    struct work *save = submit(&world, MOVER_SAVE, 's', false);
    struct work *demote = submit(&world, MOVER_DEMOTE, 'd', false);

    struct work *load = submit(&world, MOVER_LOAD, 'l', true);

    cr_assert(loop_run_until_flag(&load->is_done, 5000));
    cr_assert(not(save->is_done));
    cr_assert(not(demote->is_done));
    atomic_store(&save->may_end, true);
    atomic_store(&demote->may_end, true);
    close_world(&world);
}

Test(mover, a_prefetch_leaves_a_thread_for_whoever_waits)
{
    struct world world;
    open_world(&world, 2, 0);
    struct work *one = submit(&world, MOVER_PREFETCH, 'p', false);
    struct work *two = submit(&world, MOVER_PREFETCH, 'q', true);

    struct work *load = submit(&world, MOVER_LOAD, 'l', true);

    cr_assert(loop_run_until_flag(&load->is_done, 5000));
    cr_assert(not(two->is_done));
    cr_assert(eq(str, world.started, "pl"));
    atomic_store(&one->may_end, true);
    cr_assert(loop_run_until_flag(&two->is_done, 5000));
    close_world(&world);
}

Test(mover, a_scan_passes_demotions)
{
    struct world world;
    open_world(&world, 1, 0);
    struct work *first = submit(&world, MOVER_DEMOTE, 'd', false);
    struct work *second = submit(&world, MOVER_DEMOTE, 'e', true);
    submit(&world, MOVER_SCAN, 's', true);

    atomic_store(&first->may_end, true);

    cr_assert(loop_run_until_flag(&second->is_done, 5000));
    cr_assert(eq(str, world.done, "dse"));
    close_world(&world);
}

Test(mover, writes_keep_to_their_budget)
{
    struct world world;
    open_world(&world, 1, 50000); /* 1000 bytes take 20 ms */
    const uint64_t begun_us = clock_now_us();
    struct work *last = NULL;

    for (char name = 'a'; name <= 'd'; name++)
        last = submit(&world, MOVER_DEMOTE, name, true);
    struct work *scan = submit(&world, MOVER_SCAN, 's', true);
    cr_assert(loop_run_until_flag(&scan->is_done, 5000)); /* has no budget to wait for */
    cr_assert(loop_run_until_flag(&last->is_done, 5000));

    cr_assert(ge(u64, clock_now_us() - begun_us, 60000));
    cr_assert(eq(str, world.done, "asbcd"));
    close_world(&world);
}

Test(mover, what_is_not_wanted_when_its_turn_comes_does_not_run)
{
    struct world world;
    open_world(&world, 1, 0);
    struct work *first = submit(&world, MOVER_LOAD, 'a', false);
    struct work *second = submit(&world, MOVER_LOAD, 'b', true);

    second->is_unwanted = true;
    cr_assert(eq(u64, mover_pending_bytes(world.mover, MOVER_LOAD), 2000));
    atomic_store(&first->may_end, true);
    cr_assert(loop_run_until_flag(&second->is_done, 5000));

    cr_assert(first->has_run);
    cr_assert(not(second->has_run));
    cr_assert(eq(u64, mover_pending_bytes(world.mover, MOVER_LOAD), 0));
    cr_assert(mover_is_idle(world.mover, MOVER_LOAD));
    close_world(&world);
}

Test(mover, closing_gives_back_what_waits_and_waits_for_what_runs)
{
    struct world world;
    open_world(&world, 1, 0);
    struct work *runs = submit(&world, MOVER_LOAD, 'a', false);
    struct work *waits = submit(&world, MOVER_LOAD, 'b', true);

    mover_close(world.mover, on_closed, &world.is_closed);

    cr_assert(waits->is_done && !waits->has_run);
    cr_assert(not(runs->is_done));
    cr_assert(not(world.is_closed));
    atomic_store(&runs->may_end, true);
    cr_assert(loop_run_until_flag(&world.is_closed, 5000));
    cr_assert(runs->is_done && runs->has_run);
}
