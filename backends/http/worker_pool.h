/* SPDX-License-Identifier: Apache-2.0 */

/*
 * worker_pool: keeps open connections to ONE worker and lends them out. It neither chooses a
 * worker nor reads the answers. Loop thread only.
 */
#ifndef BACKENDS_HTTP_WORKER_POOL_H
#define BACKENDS_HTTP_WORKER_POOL_H

#include <stdint.h>

#include "backends/http/worker_conn.h"
#include "backends/io_loop.h"
#include "backends/runtime/must_check.h"

struct worker;
struct worker_pool;

struct worker_pool_stats {
    uint64_t opened_total;
    uint64_t reused_total;
    uint64_t idle_closed_total; /* by the idle deadline, the worker, or for want of room */
    uint32_t idle_count;
    uint32_t lent_count;
};

struct worker_pool_config {
    struct io_loop *io;
    struct io_deadlines *idle; /* how long a connection may wait in the pool; shared */
    uint32_t conn_count_max;   /* open connections, idle and lent together */
    size_t answer_head_bytes_max;
};

/* For io_deadlines_init(): closes the idle connection whose wait is over. */
void worker_pool_idle_expired(struct deadline *deadline);

/* Borrows worker. Opens nothing yet. NULL: no memory. */
struct worker_pool *worker_pool_create(struct worker *worker, struct worker_pool_config config);

/*
 * Lends a connection to callbacks/ctx: 1: it is open already (an earlier exchange used it);
 * 0: it is being opened and on_connected will be called, never from here. -EBUSY: conn_count_max
 * is reached; other -errno: no socket could be made. fresh: never lend a used one.
 */
MUST_CHECK int worker_pool_acquire(struct worker_pool *pool, bool fresh,
                                   const struct worker_conn_callbacks *callbacks, void *ctx,
                                   struct worker_conn **conn);

/*
 * Ends the lease and NULLs *conn; no callback comes from it any more. The connection is kept only
 * if its last exchange ended cleanly; else it is closed at once, which stops the engine.
 */
void worker_pool_return(struct worker_conn **conn);

/* Closes the idle connections: the worker went down, what is open to it is stale. */
void worker_pool_drop_idle(struct worker_pool *pool);

/* Another limit from now on; connections beyond it are lent to nobody once they come back. */
void worker_pool_set_conn_count_max(struct worker_pool *pool, uint32_t conn_count_max);

struct worker_pool_stats worker_pool_stats(const struct worker_pool *pool);

/* No connection may be lent. Frees the pool once the last socket is closed. */
void worker_pool_close(struct worker_pool *pool);

#endif
