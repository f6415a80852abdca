/* SPDX-License-Identifier: Apache-2.0 */

/*
 * redis_link: one connection to Redis or Valkey that heals by itself: commands with a deadline
 * each, a back-off between attempts, bounded in what waits. While it is not READY every command is
 * refused at once, so that nothing piles up and nobody waits for a server that is away. Loop thread
 * only.
 */
#ifndef BACKENDS_REDIS_REDIS_LINK_H
#define BACKENDS_REDIS_REDIS_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "backends/redis/redis_reply.h"
#include "backends/redis/redis_url.h"
#include "backends/runtime/must_check.h"
#include "backends/runtime/slice.h"

struct redis_link;

enum redis_link_state {
    REDIS_LINK_AWAY,       /* not connected; tries again when its back-off is over */
    REDIS_LINK_CONNECTING, /* the socket is on its way */
    REDIS_LINK_GREETING,   /* AUTH, SELECT, PING: may it, and does it, serve? */
    REDIS_LINK_READY,      /* takes commands */
    REDIS_LINK_CLOSED,
    REDIS_LINK_STATE_COUNT
};

enum redis_link_event {
    REDIS_LINK_EVENT_DUE,       /* the back-off is over */
    REDIS_LINK_EVENT_CONNECTED, /* the socket stands */
    REDIS_LINK_EVENT_GREETED,   /* the server serves us */
    REDIS_LINK_EVENT_FAILED,    /* refused, lost, timed out, or not willing */
    REDIS_LINK_EVENT_CLOSE,
    REDIS_LINK_EVENT_COUNT
};

/* The table of moves: the state after event, or -1 where it cannot happen. Pure. */
int redis_link_state_after(enum redis_link_state state, enum redis_link_event event);

struct redis_link_config {
    struct redis_url url; /* where; a copy is kept */
    const char *password; /* of url's user; NULL: none. A copy is kept */
    const char *name;     /* as the server lists its clients: "samovar-agent-map"; a literal */
    uint32_t connect_ms;  /* until READY; 2000 */
    uint32_t command_ms;  /* from a command to its reply; 1000. Then the connection is closed */
    uint32_t back_off_ms; /* the first; doubles, jittered, up to the next one */
    uint32_t back_off_ms_max;
    uint32_t pending_max; /* commands without a reply yet; room is made for all at once */
};

/* Not from within redis_link_*(). */
struct redis_link_callbacks {
    void (*on_ready)(void *ctx); /* again, too: whatever was asked before may or may not be done */
    /* Was READY, or failed to become it. error as redis_done_fn's, or that of connecting; why: one
     * line, with what the server said, for logs. */
    void (*on_away)(void *ctx, int error, const char *why);
};

/*
 * Once for each command that was taken. error: 0, and reply is the server's; or reply is NULL and
 * it is not known whether it was done: -ETIMEDOUT, -ECONNRESET, -ECANCELED (link closed). What the
 * server refused, with its error text in reply:
 *   -EACCES   NOAUTH, WRONGPASS, NOPERM: the ACL user may not do this
 *   -EBUSY    LOADING, BUSY, MASTERDOWN, TRYAGAIN: not now
 *   -EROFS    READONLY: a replica
 *   -EXDEV    MOVED, ASK, CLUSTERDOWN, CROSSSLOT: a cluster, which is not supported yet
 *   -ENOSPC   OOM: above its maxmemory
 *   -EREMOTEIO  anything else
 * reply lives as long as the call.
 */
typedef void redis_done_fn(void *ctx, int error, const struct redis_reply *reply);

/* Starts to connect. -EINVAL: url; -ENOMEM. */
MUST_CHECK int redis_link_open(uv_loop_t *loop, struct redis_link_config config,
                               struct redis_link_callbacks callbacks, void *ctx,
                               struct redis_link **link);

/*
 * Sends one command, of words of any bytes, copied. Commands sent in one turn of the loop leave
 * together, and are answered in order: MULTI, ..., EXEC are commands like others. on_done may be
 * NULL. -ENOTCONN: not READY; -ENOBUFS: pending_max; -ENOMEM: then nothing was sent and on_done is
 * not called. A command that fails on the way (timeout, reset) ends the connection and all behind
 * it.
 */
MUST_CHECK int redis_link_send(struct redis_link *link, const struct slice *words, size_t count,
                               redis_done_fn *on_done, void *ctx);

/* How many more commands would be taken now, as far as their number goes. */
uint32_t redis_link_room(const struct redis_link *link);

/* For commands that go together or not at all: what was sent since the mark, within the same call
 * from the loop, is taken back as if it had never been sent. */
struct redis_link_mark {
    size_t byte_count;
    uint32_t pending_count;
};

struct redis_link_mark redis_link_mark(const struct redis_link *link);
void redis_link_take_back(struct redis_link *link, struct redis_link_mark mark);

enum redis_link_state redis_link_state(const struct redis_link *link);

struct redis_link_stats {
    uint64_t connect_count; /* times READY */
    uint64_t failure_count; /* times lost, or not reached */
    uint64_t command_count; /* sent */
    uint64_t refused_count; /* not taken: away, or too many pending */
    uint64_t timeout_count; /* commands */
    uint64_t error_count;   /* replies that are errors */
    uint32_t pending_count; /* now */
};

struct redis_link_stats redis_link_stats(const struct redis_link *link);

/* NULLs *link; commands without a reply get -ECANCELED before this returns. on_closed, which may be
 * NULL, is called once by the loop, when nothing of it is left. Not from within a redis_done_fn of
 * it. */
void redis_link_close(struct redis_link **link, void (*on_closed)(void *ctx), void *ctx);

#endif
