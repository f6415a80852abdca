/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/thread_pool.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/resource.h>

/*
 * DESIGN
 *
 *   submit --> queued --> a thread runs it --> done --> uv_async --> on_done, on the loop
 *                 |
 *                 +-- cancel: back to its maker
 *
 * Threads of our own, not libuv's: those resolve names too, and a name server that does not answer
 * would hold up every large prompt, or the other way about.
 *
 * One lock guards both lists and every job's state; it is held for a few pointer writes. Done jobs
 * are taken one by one, so that on_done may cancel any other job whatever its state.
 *
 * A thread yields to the loop where cores are short: a large prompt may come a little later, a
 * token of somebody else's stream may not.
 *
 * Threads start with the first jobs, one with each: a process of one thread pays for no lock in
 * malloc() and no counting of descriptors in the kernel (some 3 % of a small request).
 */
enum { THREAD_NICENESS = 5 }; /* more than the loop's */

struct thread {
    struct thread_pool *pool;
    void *context;
    uv_thread_t id;
};

struct thread_pool {
    uv_async_t done_signal;
    uv_mutex_t lock;
    uv_cond_t has_work;
    struct list queued; /* state QUEUED */
    struct list done;   /* state DONE */
    bool is_closing;
    uint32_t job_count_max;
    uint32_t thread_count; /* that run */
    uint32_t thread_count_max;
    struct thread threads[THREAD_POOL_THREAD_COUNT_MAX];
};

static struct thread_job *first_of(struct list *list)
{
    return list->count > 0 ? container_of(list->head.next, struct thread_job, in_list) : NULL;
}

static void move_to(struct thread_job *job, struct list *from, struct list *to,
                    enum thread_job_state state)
{
    if (from != NULL)
        list_remove(from, &job->in_list);
    if (to != NULL)
        list_append(to, &job->in_list);
    job->state = state;
}

/* ---- the threads ---- */

/* The next job, waited for. NULL: the pool closes. */
static struct thread_job *take_work(struct thread_pool *pool)
{
    struct thread_job *job = NULL;

    uv_mutex_lock(&pool->lock);
    while (!pool->is_closing && pool->queued.count == 0)
        uv_cond_wait(&pool->has_work, &pool->lock);
    if (!pool->is_closing) {
        job = first_of(&pool->queued);
        move_to(job, &pool->queued, NULL, THREAD_JOB_RUNNING);
    }
    uv_mutex_unlock(&pool->lock);
    return job;
}

static void give_back(struct thread_pool *pool, struct thread_job *job)
{
    uv_mutex_lock(&pool->lock);
    move_to(job, NULL, &pool->done, THREAD_JOB_DONE);
    uv_mutex_unlock(&pool->lock);
    uv_async_send(&pool->done_signal);
}

static void run_thread(void *arg)
{
    struct thread *thread = arg;
    struct thread_job *job;

    /* Of this thread alone, as Linux has it. Refused: then it is as urgent as the loop. */
    (void)setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + THREAD_NICENESS);
    while ((job = take_work(thread->pool)) != NULL) {
        job->run(job, thread->context);
        give_back(thread->pool, job);
    }
}

/* ---- the loop ---- */

static struct thread_job *take_done(struct thread_pool *pool)
{
    struct thread_job *job;

    uv_mutex_lock(&pool->lock);
    job = first_of(&pool->done);
    if (job != NULL)
        move_to(job, &pool->done, NULL, THREAD_JOB_IDLE);
    uv_mutex_unlock(&pool->lock);
    return job;
}

static void deliver(struct thread_pool *pool)
{
    struct thread_job *job;

    while ((job = take_done(pool)) != NULL)
        job->on_done(job);
}

static void on_done_signal(uv_async_t *done_signal)
{
    deliver(done_signal->data);
}

static int start_thread(struct thread_pool *pool)
{
    struct thread *thread = &pool->threads[pool->thread_count];
    int status = uv_thread_create(&thread->id, run_thread, thread);

    if (status == 0)
        pool->thread_count++;
    return status;
}

int thread_pool_submit(struct thread_pool *pool, struct thread_job *job)
{
    bool has_room;

    assert(job->state == THREAD_JOB_IDLE);
    assert(!pool->is_closing);

    if (pool->thread_count < pool->thread_count_max && start_thread(pool) < 0 &&
        pool->thread_count == 0)
        return -EAGAIN;

    uv_mutex_lock(&pool->lock);
    has_room = pool->queued.count < pool->job_count_max;
    if (has_room) {
        move_to(job, NULL, &pool->queued, THREAD_JOB_QUEUED);
        uv_cond_signal(&pool->has_work);
    }
    uv_mutex_unlock(&pool->lock);
    return has_room ? 0 : -EBUSY;
}

bool thread_pool_cancel(struct thread_pool *pool, struct thread_job *job)
{
    bool was_queued;

    uv_mutex_lock(&pool->lock);
    assert(job->state != THREAD_JOB_IDLE);
    was_queued = job->state == THREAD_JOB_QUEUED;
    if (was_queued)
        move_to(job, &pool->queued, NULL, THREAD_JOB_IDLE);
    uv_mutex_unlock(&pool->lock);
    return was_queued;
}

/* ---- life ---- */

static void stop_threads(struct thread_pool *pool)
{
    uv_mutex_lock(&pool->lock);
    pool->is_closing = true;
    uv_cond_broadcast(&pool->has_work);
    uv_mutex_unlock(&pool->lock);
    for (uint32_t i = 0; i < pool->thread_count; i++)
        uv_thread_join(&pool->threads[i].id);
}

static void on_closed(uv_handle_t *handle)
{
    struct thread_pool *pool = handle->data;

    uv_cond_destroy(&pool->has_work);
    uv_mutex_destroy(&pool->lock);
    free(pool);
}

void thread_pool_close(struct thread_pool *pool)
{
    if (pool == NULL)
        return;
    stop_threads(pool);
    assert(pool->queued.count == 0);
    deliver(pool);
    uv_close((uv_handle_t *)&pool->done_signal, on_closed);
}

struct thread_pool *thread_pool_create(uv_loop_t *loop, struct thread_pool_config config)
{
    struct thread_pool *pool = calloc(1, sizeof *pool);
    int status;

    assert(config.thread_count > 0 && config.thread_count <= THREAD_POOL_THREAD_COUNT_MAX);

    if (pool == NULL)
        return NULL;
    status = uv_async_init(loop, &pool->done_signal, on_done_signal);
    if (status < 0) {
        free(pool);
        return NULL;
    }
    pool->done_signal.data = pool;
    list_init(&pool->queued);
    list_init(&pool->done);
    pool->job_count_max = config.job_count_max;
    status = uv_mutex_init(&pool->lock);
    assert(status == 0);
    status = uv_cond_init(&pool->has_work);
    assert(status == 0);
    pool->thread_count_max = config.thread_count;
    for (uint32_t i = 0; i < config.thread_count; i++)
        pool->threads[i] = (struct thread){.pool = pool, .context = config.contexts[i]};
    return pool;
}
