/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/unit/tier_model/scripted_pool.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "backends/runtime/random.h"
#include "backends/thread_pool.h"

enum { POOL_COUNT_MAX = 8 };

/* As the real one: no more jobs run at once than there are threads. One that is begun takes effect
 * at any moment until it is delivered, so running it at the beginning or at the end are both. */
struct thread_pool {
    struct thread_pool_config config;
    struct list queued;
    struct list running; /* begun, effect yet to come */
    struct list done;
    void *contexts[THREAD_POOL_THREAD_COUNT_MAX];
};

static struct thread_pool *pools[POOL_COUNT_MAX];

static struct thread_job *nth(struct list *list, size_t n)
{
    struct list_node *node = list->head.next;

    for (; n > 0; n--)
        node = node->next;
    return container_of(node, struct thread_job, in_list);
}

static void move_to(struct thread_job *job, struct list *from, struct list *to,
                    enum thread_job_state state)
{
    list_remove(from, &job->in_list);
    if (to != NULL)
        list_append(to, &job->in_list);
    job->state = state;
}

static bool can_begin(const struct thread_pool *pool)
{
    return pool->queued.count > 0 &&
           pool->running.count + pool->done.count < pool->config.thread_count;
}

static void step(struct thread_pool *pool, uint64_t *seed)
{
    const uint64_t dice = random_next(seed) % 3;
    struct thread_job *job;

    if (pool->done.count > 0 && (dice == 0 || (pool->running.count == 0 && !can_begin(pool)))) {
        job = nth(&pool->done, random_next(seed) % pool->done.count);
        move_to(job, &pool->done, NULL, THREAD_JOB_IDLE);
        job->on_done(job);
    } else if (pool->running.count > 0 && (dice == 1 || !can_begin(pool))) {
        const size_t n = random_next(seed) % pool->running.count;

        job = nth(&pool->running, n);
        job->run(job, pool->contexts[0]);
        move_to(job, &pool->running, &pool->done, THREAD_JOB_DONE);
    } else {
        assert(can_begin(pool));
        job = nth(&pool->queued, 0);
        move_to(job, &pool->queued, &pool->running, THREAD_JOB_RUNNING);
    }
}

bool scripted_pool_step(uint64_t *seed)
{
    struct thread_pool *busy[POOL_COUNT_MAX];
    size_t count = 0;

    for (size_t i = 0; i < POOL_COUNT_MAX; i++) {
        struct thread_pool *pool = pools[i];

        if (pool != NULL && (pool->running.count + pool->done.count > 0 || can_begin(pool)))
            busy[count++] = pool;
    }
    if (count == 0)
        return false;
    step(busy[random_next(seed) % count], seed);
    return true;
}

struct thread_pool *thread_pool_create(uv_loop_t *loop, struct thread_pool_config config)
{
    struct thread_pool *pool = calloc(1, sizeof *pool);

    (void)loop;
    assert(pool != NULL);
    pool->config = config;
    for (uint32_t i = 0; i < config.thread_count; i++)
        pool->contexts[i] = config.contexts[i];
    list_init(&pool->queued);
    list_init(&pool->running);
    list_init(&pool->done);
    for (size_t i = 0; i < POOL_COUNT_MAX; i++) {
        if (pools[i] == NULL) {
            pools[i] = pool;
            return pool;
        }
    }
    assert(!"more pools than a store has");
    return NULL;
}

int thread_pool_submit(struct thread_pool *pool, struct thread_job *job)
{
    assert(job->state == THREAD_JOB_IDLE);

    if (pool->queued.count == pool->config.job_count_max)
        return -EBUSY;
    list_append(&pool->queued, &job->in_list);
    job->state = THREAD_JOB_QUEUED;
    return 0;
}

bool thread_pool_cancel(struct thread_pool *pool, struct thread_job *job)
{
    if (job->state != THREAD_JOB_QUEUED)
        return false;
    move_to(job, &pool->queued, NULL, THREAD_JOB_IDLE);
    return true;
}

/* Whoever closes it has seen to it that nothing runs. */
void thread_pool_close(struct thread_pool *pool)
{
    if (pool == NULL)
        return;
    assert(pool->queued.count + pool->running.count + pool->done.count == 0);
    for (size_t i = 0; i < POOL_COUNT_MAX; i++) {
        if (pools[i] == pool)
            pools[i] = NULL;
    }
    free(pool);
}
