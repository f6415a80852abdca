/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/http/worker_pool.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "backends/worker.h"

/*
 * DESIGN
 *
 * Idle connections form a stack: the newest is lent first, so that the surplus of a quiet hour
 * grows old at the bottom and meets its idle deadline. Waiting for a connection is not done here:
 * a worker that has no room is one that a policy should not have chosen.
 */
struct worker_pool {
    struct worker *worker;
    struct worker_pool_config config;
    struct list idle;    /* oldest first */
    uint32_t open_count; /* sockets not fully closed */
    struct worker_pool_stats stats;
    bool is_closing;
};

struct worker_pool *worker_pool_create(struct worker *worker, struct worker_pool_config config)
{
    struct worker_pool *pool = calloc(1, sizeof *pool);

    assert(config.conn_count_max > 0);

    if (pool == NULL)
        return NULL;
    pool->worker = worker;
    pool->config = config;
    list_init(&pool->idle);
    return pool;
}

static void unlink_idle(struct worker_pool *pool, struct worker_conn *conn)
{
    assert(conn->state == WORKER_CONN_IDLE);

    list_remove(&pool->idle, &conn->in_pool);
    deadline_disarm(&conn->idle);
    pool->stats.idle_count--;
}

static void close_idle(struct worker_pool *pool, struct worker_conn *conn)
{
    unlink_idle(pool, conn);
    pool->stats.idle_closed_total++;
    worker_conn_close(conn);
}

static struct worker_conn *oldest_idle(const struct worker_pool *pool)
{
    return container_of(pool->idle.head.next, struct worker_conn, in_pool);
}

static void free_when_closed(struct worker_pool *pool)
{
    if (pool->is_closing && pool->open_count == 0)
        free(pool);
}

static void on_idle_lost(void *ctx, struct worker_conn *conn)
{
    close_idle(ctx, conn);
}

static void on_closed(void *ctx)
{
    struct worker_pool *pool = ctx;

    assert(pool->open_count > 0);

    pool->open_count--;
    free_when_closed(pool);
}

static const struct worker_conn_owner owner = {on_idle_lost, on_closed};

int worker_pool_acquire(struct worker_pool *pool, bool fresh,
                        const struct worker_conn_callbacks *callbacks, void *ctx,
                        struct worker_conn **conn)
{
    const struct worker_conn_config config = {
        .loop = &pool->config.io->loop,
        .address = &pool->worker->address,
        .answer_head_bytes_max = pool->config.answer_head_bytes_max,
        .owner = &owner,
        .owner_ctx = pool,
    };
    bool has_socket;
    int status;

    assert(!pool->is_closing);

    if (!fresh && pool->idle.count > 0) {
        *conn = container_of(pool->idle.head.prev, struct worker_conn, in_pool);
        unlink_idle(pool, *conn);
        worker_conn_lend(*conn, callbacks, ctx);
        pool->stats.reused_total++;
        pool->stats.lent_count++;
        return 1;
    }
    if (pool->stats.lent_count >= pool->config.conn_count_max)
        return -EBUSY;
    if (pool->stats.lent_count + pool->stats.idle_count >= pool->config.conn_count_max)
        close_idle(pool, oldest_idle(pool)); /* a fresh one was asked for: it takes its place */
    *conn = worker_conn_open(&config, &has_socket, &status);
    pool->open_count += has_socket;
    if (*conn == NULL)
        return status;
    worker_conn_lend(*conn, callbacks, ctx);
    pool->stats.opened_total++;
    pool->stats.lent_count++;
    return 0;
}

void worker_pool_return(struct worker_conn **conn_ptr)
{
    struct worker_conn *conn = *conn_ptr;
    struct worker_pool *pool = conn->owner_ctx;
    bool is_clean = worker_conn_take_back(conn);

    *conn_ptr = NULL;
    assert(pool->stats.lent_count > 0);
    pool->stats.lent_count--;
    /* The limit may have come down while it was lent. */
    if (!is_clean ||
        pool->stats.lent_count + pool->stats.idle_count >= pool->config.conn_count_max) {
        worker_conn_close(conn);
        return;
    }
    list_append(&pool->idle, &conn->in_pool);
    pool->stats.idle_count++;
    deadline_arm(&conn->idle, &pool->config.idle->list, io_loop_now_ms(pool->config.io));
}

void worker_pool_idle_expired(struct deadline *deadline)
{
    struct worker_conn *conn = container_of(deadline, struct worker_conn, idle);

    close_idle(conn->owner_ctx, conn);
}

void worker_pool_drop_idle(struct worker_pool *pool)
{
    while (pool->idle.count > 0)
        close_idle(pool, oldest_idle(pool));
}

void worker_pool_set_conn_count_max(struct worker_pool *pool, uint32_t conn_count_max)
{
    assert(conn_count_max > 0);

    pool->config.conn_count_max = conn_count_max;
    while (pool->idle.count > 0 && pool->stats.lent_count + pool->stats.idle_count > conn_count_max)
        close_idle(pool, oldest_idle(pool));
}

void worker_pool_close(struct worker_pool *pool)
{
    assert(pool->stats.lent_count == 0);

    worker_pool_drop_idle(pool);
    pool->is_closing = true;
    free_when_closed(pool);
}

struct worker_pool_stats worker_pool_stats(const struct worker_pool *pool)
{
    return pool->stats;
}
