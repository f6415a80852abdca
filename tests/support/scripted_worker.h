/* SPDX-License-Identifier: Apache-2.0 */

/* scripted_worker: a worker of a set, behind whose address a scripted_server stands. */
#ifndef TESTS_SUPPORT_SCRIPTED_WORKER_H
#define TESTS_SUPPORT_SCRIPTED_WORKER_H

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include "backends/http/worker_pool.h"
#include "backends/worker_set.h"
#include "tests/support/loop_fixture.h"
#include "tests/support/scripted_server.h"

/* http://worker.test, with a pool of connections to server. idle is the caller's, and stays until
 * the loop has ended. */
static inline struct worker *scripted_worker_add(struct worker_set *workers,
                                                 const struct scripted_server *server,
                                                 struct io_deadlines *idle)
{
    const struct worker_place place = {.name = "http://worker.test",
                                       .authority = "worker.test",
                                       .address = scripted_server_address(server)};
    struct worker *worker;

    cr_assert(eq(int, worker_set_add(workers, &place, 0, &worker), 0));
    io_deadlines_init(idle, loop_fixture_io(), 60000, worker_pool_idle_expired);
    worker->pool =
        worker_pool_create(worker, (struct worker_pool_config){loop_fixture_io(), idle, 64, 4096});
    return worker;
}

/* It stays in its set, and is asked nothing any more. */
static inline void scripted_worker_close(struct worker *worker)
{
    worker_pool_close(worker->pool);
    worker->pool = NULL;
}

#endif
