/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/thread_pool.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <dirent.h>
#include <errno.h>
#include <sys/resource.h>

#include "tests/support/loop_fixture.h"

enum { JOB_COUNT = 4, WAIT_MS = 5000 };

/* A job that begins when it runs and ends when the test opens its gate. */
struct gated_job {
    struct thread_job job;
    uv_sem_t begun;
    uv_sem_t gate;
    void *context; /* it ran with */
    int number;
    struct world *world;
};

struct world {
    struct thread_pool *pool;
    struct gated_job jobs[JOB_COUNT];
    int done[JOB_COUNT]; /* numbers, in the order of on_done */
    int done_count;
    int wanted_count;
    uv_thread_t loop_thread;
    bool was_elsewhere; /* an on_done that was not on the loop's thread */
};

static void run(struct thread_job *thread_job, void *context)
{
    struct gated_job *job = container_of(thread_job, struct gated_job, job);

    job->context = context;
    uv_sem_post(&job->begun);
    uv_sem_wait(&job->gate);
}

static void on_done(struct thread_job *thread_job)
{
    struct gated_job *job = container_of(thread_job, struct gated_job, job);
    uv_thread_t self = uv_thread_self();

    job->world->was_elsewhere |= uv_thread_equal(&self, &job->world->loop_thread) == 0;
    job->world->done[job->world->done_count++] = job->number;
}

static void world_init(struct world *world, uint32_t thread_count, uint32_t job_count_max)
{
    static char contexts[2][8] = {"first", "second"};
    void *each[] = {contexts[0], contexts[1]};

    *world = (struct world){.loop_thread = uv_thread_self()};
    world->pool = thread_pool_create(
        loop_fixture_loop(), (struct thread_pool_config){thread_count, job_count_max, each});
    cr_assert(world->pool != NULL);
    for (int i = 0; i < JOB_COUNT; i++) {
        struct gated_job *job = &world->jobs[i];

        thread_job_init(&job->job, run, on_done);
        uv_sem_init(&job->begun, 0);
        uv_sem_init(&job->gate, 0);
        job->number = i;
        job->world = world;
    }
}

/* Nothing may wait any more. */
static void world_release(struct world *world)
{
    thread_pool_close(world->pool);
    for (int i = 0; i < JOB_COUNT; i++) {
        uv_sem_destroy(&world->jobs[i].begun);
        uv_sem_destroy(&world->jobs[i].gate);
    }
}

static int submit(struct world *world, int number)
{
    return thread_pool_submit(world->pool, &world->jobs[number].job);
}

static void wait_begun(struct world *world, int number)
{
    uv_sem_wait(&world->jobs[number].begun);
}

static void open_gate(struct world *world, int number)
{
    uv_sem_post(&world->jobs[number].gate);
}

static bool has_all(void *ctx)
{
    struct world *world = ctx;

    return world->done_count == world->wanted_count;
}

static void wait_done(struct world *world, int count)
{
    world->wanted_count = count;
    cr_assert(loop_run_until(has_all, world, WAIT_MS), "%d of %d done", world->done_count, count);
}

static size_t count_threads(void)
{
    DIR *tasks = opendir("/proc/self/task");
    size_t count = 0;

    cr_assert(tasks != NULL);
    while (readdir(tasks) != NULL)
        count++;
    closedir(tasks);
    return count;
}

TestSuite(thread_pool, .init = loop_fixture_init, .fini = loop_fixture_fini);

/* The sanitizers' own part of starting a thread does not survive where it gets no memory. */
#ifndef __SANITIZE_ADDRESS__
Test(thread_pool, where_no_thread_can_be_had_the_job_stays_with_its_maker)
{
    struct rlimit before, none = {0};
    struct world world;
    world_init(&world, 2, JOB_COUNT);
    cr_assert(eq(int, getrlimit(RLIMIT_AS, &before), 0));
    none.rlim_max = before.rlim_max;

    cr_assert(eq(int, setrlimit(RLIMIT_AS, &none), 0));
    int status = submit(&world, 0);
    cr_assert(eq(int, setrlimit(RLIMIT_AS, &before), 0));

    cr_assert(eq(int, status, -EAGAIN));
    cr_assert(eq(int, submit(&world, 0), 0));
    open_gate(&world, 0);
    wait_done(&world, 1);
    world_release(&world);
}
#endif

Test(thread_pool, a_thread_starts_with_each_of_the_first_jobs_and_none_before)
{
    size_t before = count_threads();
    struct world world;
    world_init(&world, 2, JOB_COUNT);
    cr_assert(eq(sz, count_threads(), before));

    for (int i = 0; i < 3; i++) {
        cr_assert(eq(int, submit(&world, i), 0));
        cr_assert(eq(sz, count_threads(), before + (i < 2 ? (size_t)i + 1 : 2)));
    }

    for (int i = 0; i < 3; i++)
        open_gate(&world, i);
    wait_done(&world, 3);
    world_release(&world);
}

Test(thread_pool, a_job_runs_with_its_threads_context_and_comes_back_on_the_loop)
{
    struct world world;
    world_init(&world, 1, 4);

    cr_assert(eq(int, submit(&world, 0), 0));
    open_gate(&world, 0);
    wait_done(&world, 1);

    cr_assert(eq(str, (char *)world.jobs[0].context, "first"));
    cr_assert(not(world.was_elsewhere));
    world_release(&world);
}

Test(thread_pool, jobs_of_one_thread_come_back_in_the_order_they_went_in)
{
    struct world world;
    world_init(&world, 1, 4);

    for (int i = 0; i < JOB_COUNT; i++) {
        cr_assert(eq(int, submit(&world, i), 0));
        open_gate(&world, i);
    }
    wait_done(&world, JOB_COUNT);

    for (int i = 0; i < JOB_COUNT; i++)
        cr_assert(eq(int, world.done[i], i));
    world_release(&world);
}

Test(thread_pool, threads_run_side_by_side)
{
    struct world world;
    world_init(&world, 2, 4);

    cr_assert(eq(int, submit(&world, 0), 0));
    cr_assert(eq(int, submit(&world, 1), 0));
    wait_begun(&world, 0);
    wait_begun(&world, 1); /* neither has ended */
    open_gate(&world, 1);
    wait_done(&world, 1);
    open_gate(&world, 0);
    wait_done(&world, 2);

    cr_assert(eq(int, world.done[0], 1));
    cr_assert(world.jobs[0].context != world.jobs[1].context);
    world_release(&world);
}

Test(thread_pool, a_full_queue_takes_no_more_until_a_thread_has_taken_one)
{
    struct world world;
    world_init(&world, 1, 1);

    cr_assert(eq(int, submit(&world, 0), 0));
    wait_begun(&world, 0); /* it runs, and waits no more */
    cr_assert(eq(int, submit(&world, 1), 0));
    cr_assert(eq(int, submit(&world, 2), -EBUSY));
    open_gate(&world, 0);
    wait_begun(&world, 1);
    cr_assert(eq(int, submit(&world, 2), 0));
    open_gate(&world, 1);
    open_gate(&world, 2);
    wait_done(&world, 3);

    world_release(&world);
}

Test(thread_pool, a_job_that_waits_can_be_cancelled_and_never_comes_back)
{
    struct world world;
    world_init(&world, 1, 4);

    cr_assert(eq(int, submit(&world, 0), 0));
    wait_begun(&world, 0);
    cr_assert(eq(int, submit(&world, 1), 0));
    cr_assert(eq(int, submit(&world, 2), 0));
    cr_assert(thread_pool_cancel(world.pool, &world.jobs[1].job));
    open_gate(&world, 0);
    open_gate(&world, 2);
    wait_done(&world, 2);

    cr_assert(eq(int, world.done[1], 2));
    cr_assert(world.jobs[1].context == NULL);
    world_release(&world);
}

Test(thread_pool, a_cancelled_job_can_be_submitted_again)
{
    struct world world;
    world_init(&world, 1, 4);

    cr_assert(eq(int, submit(&world, 0), 0));
    wait_begun(&world, 0);
    cr_assert(eq(int, submit(&world, 1), 0));
    cr_assert(thread_pool_cancel(world.pool, &world.jobs[1].job));
    cr_assert(eq(int, submit(&world, 1), 0));
    open_gate(&world, 0);
    open_gate(&world, 1);
    wait_done(&world, 2);

    world_release(&world);
}

Test(thread_pool, a_job_that_runs_or_ran_cannot_be_cancelled_and_comes_back)
{
    struct world world;
    world_init(&world, 1, 4);

    cr_assert(eq(int, submit(&world, 0), 0));
    wait_begun(&world, 0);
    cr_assert(not(thread_pool_cancel(world.pool, &world.jobs[0].job)));
    open_gate(&world, 0);
    cr_assert(eq(int, submit(&world, 1), 0));
    wait_begun(&world, 1); /* so the first is done; the loop has not run since */
    cr_assert(not(thread_pool_cancel(world.pool, &world.jobs[0].job)));
    open_gate(&world, 1);
    wait_done(&world, 2);

    cr_assert(eq(int, world.done[0], 0));
    world_release(&world);
}

Test(thread_pool, closing_waits_for_what_runs_and_hands_it_back)
{
    struct world world;
    world_init(&world, 1, 4);

    cr_assert(eq(int, submit(&world, 0), 0));
    wait_begun(&world, 0);
    open_gate(&world, 0);
    thread_pool_close(world.pool);
    world.pool = NULL;

    cr_assert(eq(int, world.done_count, 1));
    world_release(&world);
}
