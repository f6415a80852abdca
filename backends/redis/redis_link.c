/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/redis/redis_link.h"

#include "backends/redis/redis_link_parts.h"
#include "backends/runtime/random.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * DESIGN
 *
 *              DUE                 CONNECTED               GREETED
 *    AWAY ----------> CONNECTING ------------> GREETING ------------> READY
 *     ^                    |                       |                    |
 *     '----- FAILED -------+-----------------------+--------------------'
 *
 *    any state -- CLOSE --> CLOSED
 *
 *   redis_link_send() -> unsent --(end of the turn)--> kernel, or sending -> kernel
 *                     -> pending: a ring, oldest first <--- one for each reply
 *
 * All waits of a link last equally long, so the oldest expires first and one timer serves them all;
 * it is not set anew for each command but looks, when it fires, who is the oldest now. When our own
 * process was stopped for a while, the answer may lie in the socket unread: whoever is overdue gets
 * one more turn of the loop before the server is blamed.
 *
 * A connection that fails is never used again, not even to finish reading: after a timeout nobody
 * could tell which reply belongs to which command.
 */

enum { BACK_OFF_LEVEL_MAX = 16 };

/* clang-format off */
static const signed char moves[REDIS_LINK_STATE_COUNT][REDIS_LINK_EVENT_COUNT] = {
    /* state \ event            DUE                    CONNECTED            GREETED           FAILED           CLOSE */
    [REDIS_LINK_AWAY]       = { REDIS_LINK_CONNECTING, -1,                  -1,               -1,              REDIS_LINK_CLOSED },
    [REDIS_LINK_CONNECTING] = { -1,                    REDIS_LINK_GREETING, -1,               REDIS_LINK_AWAY, REDIS_LINK_CLOSED },
    [REDIS_LINK_GREETING]   = { -1,                    -1,                  REDIS_LINK_READY, REDIS_LINK_AWAY, REDIS_LINK_CLOSED },
    [REDIS_LINK_READY]      = { -1,                    -1,                  -1,               REDIS_LINK_AWAY, REDIS_LINK_CLOSED },
    [REDIS_LINK_CLOSED]     = { -1,                    -1,                  -1,               -1,              -1 },
};
/* clang-format on */

int redis_link_state_after(enum redis_link_state state, enum redis_link_event event)
{
    assert(state < REDIS_LINK_STATE_COUNT);
    assert(event < REDIS_LINK_EVENT_COUNT);

    return moves[state][event];
}

void link_set_state(struct redis_link *link, enum redis_link_event event)
{
    int state = redis_link_state_after(link->state, event);

    assert(state >= 0);

    link->state = (enum redis_link_state)state;
}

static void on_timer(uv_timer_t *timer);

void link_start_timer(struct redis_link *link, uint64_t ms)
{
    (void)uv_timer_start(&link->timer, on_timer, ms, 0);
}

/* ---- who waits for a reply ---- */

static void push_pending(struct redis_link *link, redis_done_fn *on_done, void *ctx)
{
    const uint32_t at = (link->pending_first + link->pending_count) % link->pending_size;

    assert(link->pending_count < link->pending_size);

    link->pending[at] = (struct link_pending){on_done, ctx, uv_now(link->loop)};
    link->pending_count++;
}

static struct link_pending pop_pending(struct redis_link *link)
{
    const struct link_pending first = link->pending[link->pending_first];

    assert(link->pending_count > 0);

    link->pending_first = (link->pending_first + 1) % link->pending_size;
    link->pending_count--;
    return first;
}

/* Nothing is added meanwhile: the link is not READY. */
static void fail_pending(struct redis_link *link, int error)
{
    assert(link->state != REDIS_LINK_READY);

    while (link->pending_count > 0) {
        const struct link_pending pending = pop_pending(link);

        if (pending.on_done != NULL)
            pending.on_done(pending.ctx, error, NULL);
    }
}

/* ---- the end of a connection, and of a link ---- */

void link_drop_handle(struct redis_link *link)
{
    void (*on_closed)(void *ctx) = link->on_closed;
    void *ctx = link->closed_ctx;

    if (--link->handle_count > 0)
        return;
    assert(link->state == REDIS_LINK_CLOSED);
    if (link->password != NULL)
        explicit_bzero(link->password, strlen(link->password));
    free(link->password);
    free(link->pending);
    free(link);
    if (on_closed != NULL)
        on_closed(ctx);
}

static void on_handle_closed(uv_handle_t *handle)
{
    link_drop_handle(handle->data);
}

/* Half of it is certain, half by chance: those who lost the same server come back one by one. */
static uint64_t next_back_off_ms(struct redis_link *link)
{
    uint64_t ms = (uint64_t)link->config.back_off_ms << link->back_off_level;

    if (link->back_off_level < BACK_OFF_LEVEL_MAX)
        link->back_off_level++;
    if (ms > link->config.back_off_ms_max)
        ms = link->config.back_off_ms_max;
    return ms / 2 + random_next(&link->random) % (ms / 2 + 1);
}

void link_fail(struct redis_link *link, int error, const char *why)
{
    char line[LINK_WHY_BYTES];

    assert(error < 0);

    snprintf(line, sizeof line, "%s", why);
    line[strcspn(line, "\r\n")] = '\0';
    link_set_state(link, REDIS_LINK_EVENT_FAILED);
    link->stats.failure_count++;
    link_disconnect(link);
    link_start_timer(link, next_back_off_ms(link));
    fail_pending(link, error == -ETIMEDOUT ? -ETIMEDOUT : -ECONNRESET);
    if (link->state != REDIS_LINK_CLOSED && link->callbacks.on_away != NULL)
        link->callbacks.on_away(link->ctx, error, line);
}

void link_fail_with(struct redis_link *link, int error, const char *what)
{
    char why[LINK_WHY_BYTES];

    snprintf(why, sizeof why, "%s: %s", what, uv_strerror(error));
    link_fail(link, error, why);
}

/* ---- commands ---- */

static void on_end_of_turn(uv_prepare_t *end)
{
    struct redis_link *link = end->data;
    int status = link_send_unsent(link->conn);

    (void)uv_prepare_stop(end);
    if (status < 0)
        link_fail_with(link, status, "send");
}

int link_put_command(struct redis_link *link, const struct slice *words, size_t count,
                     redis_done_fn *on_done, void *ctx)
{
    int status = link_append_command(&link->conn->unsent, words, count);

    if (status < 0)
        return status;
    push_pending(link, on_done, ctx);
    link->stats.command_count++;
    (void)uv_prepare_start(&link->end, on_end_of_turn);
    return 0;
}

void link_take_reply(struct redis_link *link, const struct redis_reply *reply)
{
    const struct link_pending pending = pop_pending(link);
    const int error = redis_reply_error(reply);

    link->is_overdue = false;
    if (error < 0)
        link->stats.error_count++;
    if (pending.on_done != NULL)
        pending.on_done(pending.ctx, error, reply);
}

/* ---- time ---- */

/* READY: the timer was set for whoever was the oldest then, who may be answered. */
static void judge_oldest(struct redis_link *link)
{
    uint64_t waited_ms;
    char why[LINK_WHY_BYTES];

    if (link->pending_count == 0)
        return; /* the next command sets it */
    waited_ms = uv_now(link->loop) - link->pending[link->pending_first].sent_ms;
    if (waited_ms < link->config.command_ms) {
        link_start_timer(link, link->config.command_ms - waited_ms);
    } else if (!link->is_overdue) {
        link->is_overdue = true;
        link_start_timer(link, 1);
    } else {
        link->stats.timeout_count++;
        snprintf(why, sizeof why, "no answer within %" PRIu32 " ms", link->config.command_ms);
        link_fail(link, -ETIMEDOUT, why);
    }
}

static void on_timer(uv_timer_t *timer)
{
    struct redis_link *link = timer->data;
    char why[LINK_WHY_BYTES];

    switch (link->state) {
    case REDIS_LINK_AWAY:
        link_set_state(link, REDIS_LINK_EVENT_DUE);
        link->is_overdue = false;
        link_start_timer(link, link->config.connect_ms);
        link_connect(link);
        break;
    case REDIS_LINK_CONNECTING:
    case REDIS_LINK_GREETING:
        snprintf(why, sizeof why, "%s within %" PRIu32 " ms",
                 link->state == REDIS_LINK_CONNECTING ? "not connected" : "no greeting",
                 link->config.connect_ms);
        link_fail(link, -ETIMEDOUT, why);
        break;
    case REDIS_LINK_READY:
        judge_oldest(link);
        break;
    default:
        assert(!"a closed link's timer does not fire");
    }
}

/* ---- the link ---- */

int redis_link_open(uv_loop_t *loop, struct redis_link_config config,
                    struct redis_link_callbacks callbacks, void *ctx, struct redis_link **opened)
{
    struct redis_link *link;

    assert(config.pending_max > 0 && config.name != NULL);

    *opened = NULL;
    if (config.url.path[0] == '\0' && config.url.host[0] == '\0')
        return -EINVAL;
    link = calloc(1, sizeof *link);
    if (link == NULL)
        return -ENOMEM;
    link->config = config;
    link->config.password = NULL;
    link->callbacks = callbacks;
    link->ctx = ctx;
    link->loop = loop;
    link->state = REDIS_LINK_AWAY;
    link->random = uv_hrtime() ^ (uintptr_t)link;
    link->pending_size = config.pending_max + LINK_GREETING_COUNT_MAX;
    link->pending = calloc(link->pending_size, sizeof *link->pending);
    link->password = config.password != NULL ? strdup(config.password) : NULL;
    if (link->pending == NULL || (config.password != NULL && link->password == NULL)) {
        free(link->pending);
        free(link->password);
        free(link);
        return -ENOMEM;
    }
    (void)uv_timer_init(loop, &link->timer); /* neither can link_fail */
    (void)uv_prepare_init(loop, &link->end);
    link->timer.data = link->end.data = link;
    link->handle_count = 2;
    link_start_timer(link, 0);
    *opened = link;
    return 0;
}

int redis_link_send(struct redis_link *link, const struct slice *words, size_t count,
                    redis_done_fn *on_done, void *ctx)
{
    int status = 0;

    assert(count > 0);

    if (link->state != REDIS_LINK_READY)
        status = -ENOTCONN;
    else if (link->pending_count >= link->config.pending_max)
        status = -ENOBUFS;
    else
        status = link_put_command(link, words, count, on_done, ctx);
    if (status < 0)
        link->stats.refused_count++;
    else if (!uv_is_active((const uv_handle_t *)&link->timer))
        link_start_timer(link, link->config.command_ms);
    return status;
}

uint32_t redis_link_room(const struct redis_link *link)
{
    const bool is_ready = link->state == REDIS_LINK_READY;

    return is_ready && link->pending_count < link->config.pending_max
               ? link->config.pending_max - link->pending_count
               : 0;
}

struct redis_link_mark redis_link_mark(const struct redis_link *link)
{
    const size_t byte_count = link->conn != NULL ? buf_len(&link->conn->unsent) : 0;

    return (struct redis_link_mark){byte_count, link->pending_count};
}

void redis_link_take_back(struct redis_link *link, struct redis_link_mark mark)
{
    struct buf *unsent;

    assert(mark.pending_count <= link->pending_count);

    if (link->pending_count == mark.pending_count)
        return;
    unsent = &link->conn->unsent;
    assert(mark.byte_count <= buf_len(unsent));
    unsent->end = unsent->start + mark.byte_count;
    link->stats.command_count -= link->pending_count - mark.pending_count;
    link->pending_count = mark.pending_count;
}

enum redis_link_state redis_link_state(const struct redis_link *link)
{
    return link->state;
}

struct redis_link_stats redis_link_stats(const struct redis_link *link)
{
    struct redis_link_stats stats = link->stats;

    stats.pending_count = link->pending_count;
    return stats;
}

void redis_link_close(struct redis_link **closed, void (*on_closed)(void *ctx), void *ctx)
{
    struct redis_link *link = *closed;

    *closed = NULL;
    link->on_closed = on_closed;
    link->closed_ctx = ctx;
    link_set_state(link, REDIS_LINK_EVENT_CLOSE);
    link_disconnect(link);
    uv_close((uv_handle_t *)&link->timer, on_handle_closed);
    uv_close((uv_handle_t *)&link->end, on_handle_closed);
    fail_pending(link, -ECANCELED);
}
