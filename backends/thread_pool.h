/* SPDX-License-Identifier: Apache-2.0 */

/*
 * thread_pool: threads that work for an event loop. Jobs go in by a bounded queue and come back,
 * done, on the loop. The one place where something passes between threads. All functions: loop
 * thread only; a job's run() is what the threads call.
 */
#ifndef BACKENDS_THREAD_POOL_H
#define BACKENDS_THREAD_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "backends/runtime/list.h"
#include "backends/runtime/must_check.h"

struct thread_pool;

enum thread_job_state {
    THREAD_JOB_IDLE, /* its maker's: before submit, from on_done on, once cancelled */
    THREAD_JOB_QUEUED,
    THREAD_JOB_RUNNING,
    THREAD_JOB_DONE, /* waits for the loop to take it */
};

/*
 * A piece of work, embedded in whatever it works on. From submit to on_done it and all that run()
 * touches belong to the pool: nobody frees or changes them.
 */
struct thread_job {
    void (*run)(struct thread_job *job,
                void *context);              /* on a thread, with that thread's context */
    void (*on_done)(struct thread_job *job); /* on the loop; may submit, cancel, free */
    /* private */
    struct list_node in_list;
    enum thread_job_state state;
};

enum { THREAD_POOL_THREAD_COUNT_MAX = 64 };

struct thread_pool_config {
    uint32_t thread_count;  /* 1 to THREAD_POOL_THREAD_COUNT_MAX */
    uint32_t job_count_max; /* that may wait for a thread */
    void *const *contexts;  /* one for each thread, borrowed until the pool is closed */
};

/* NULL: no memory. Threads start with the first jobs. */
struct thread_pool *thread_pool_create(uv_loop_t *loop, struct thread_pool_config config);

static inline void thread_job_init(struct thread_job *job,
                                   void (*run)(struct thread_job *job, void *context),
                                   void (*on_done)(struct thread_job *job))
{
    *job = (struct thread_job){.run = run, .on_done = on_done, .state = THREAD_JOB_IDLE};
    list_node_init(&job->in_list);
}

/* Hands job to the threads, oldest first. -EBUSY: too many wait already; -EAGAIN: the system gives
 * not one thread. Then the job stays yours. */
MUST_CHECK int thread_pool_submit(struct thread_pool *pool, struct thread_job *job);

/* True: no thread had begun with it, and the job is yours again without on_done. False: on_done
 * will come. */
MUST_CHECK bool thread_pool_cancel(struct thread_pool *pool, struct thread_job *job);

/*
 * Waits for the threads to finish what they run, whose on_done comes before this returns. No job
 * may wait any more: cancel them first. The memory goes once the loop has closed the handle. NULL
 * is fine.
 */
void thread_pool_close(struct thread_pool *pool);

#endif
