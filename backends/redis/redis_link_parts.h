/* SPDX-License-Identifier: Apache-2.0 */

/*
 * redis_link_parts: what the files of redis_link share: redis_link.c knows states, who waits for a
 * reply, and the time; redis_link_connect.c makes a connection and greets; redis_link_stream.c
 * moves its bytes. Nobody else includes it.
 */
#ifndef BACKENDS_REDIS_REDIS_LINK_PARTS_H
#define BACKENDS_REDIS_REDIS_LINK_PARTS_H

#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "backends/redis/redis_link.h"
#include "backends/redis/redis_reply.h"
#include "backends/resolver.h"
#include "backends/runtime/buf.h"

enum {
    LINK_READ_BYTES = 32 << 10,       /* libuv reads some dozen times a turn: so long others wait */
    LINK_UNSENT_BYTES_MAX = 64 << 20, /* of commands that the kernel has not taken */
    LINK_ADDRESS_COUNT_MAX = 8,
    LINK_GREETING_COUNT_MAX = 4, /* AUTH, SELECT, PING, CLIENT SETNAME */
    LINK_WHY_BYTES = 256,
};

struct link_pending { /* a command without a reply */
    redis_done_fn *on_done;
    void *ctx;
    uint64_t sent_ms;
};

struct link_connection {
    union {
        uv_handle_t handle;
        uv_stream_t stream;
        uv_tcp_t tcp;
        uv_pipe_t pipe;
    } socket;
    uv_connect_t connect;
    uv_write_t write;
    struct redis_link *link; /* whose it is, or was */
    struct redis_reader *reader;
    struct buf unsent;  /* commands of this turn */
    struct buf sending; /* libuv's, until it calls back; else empty */
    bool is_sending;
};

struct redis_link {
    struct redis_link_config config; /* name is the caller's, password is not kept here */
    struct redis_link_callbacks callbacks;
    void *ctx;
    char *password; /* or NULL */
    uv_loop_t *loop;
    enum redis_link_state state;
    uv_timer_t timer;             /* the back-off, the time to connect, or the oldest command's */
    uv_prepare_t end;             /* of a turn of the loop, with something to send */
    uint32_t handle_count;        /* not closed yet: the two above, and sockets */
    struct link_connection *conn; /* from CONNECTING on; NULL while a name is looked up */
    struct resolver_lookup *lookup;
    struct sockaddr_storage addresses[LINK_ADDRESS_COUNT_MAX];
    size_t address_count;
    size_t address_next; /* to try */
    uint32_t back_off_level;
    uint64_t random;
    struct link_pending *pending; /* a ring */
    uint32_t pending_first;
    uint32_t pending_count;
    uint32_t pending_size;
    bool is_overdue; /* the oldest command has had its time, and this turn more */
    struct redis_link_stats stats;
    void (*on_closed)(void *ctx);
    void *closed_ctx;
    char read_bytes[LINK_READ_BYTES];
};

/* ---- redis_link.c ---- */

void link_set_state(struct redis_link *link, enum redis_link_event event);

/* The timer fires in ms from now, and not when it was to fire before. */
void link_start_timer(struct redis_link *link, uint64_t ms);

/* Ends the connection, or the attempt at one: whoever waits is told, and the back-off begins. why
 * may point into what goes with the connection. */
void link_fail(struct redis_link *link, int error, const char *why);

/* The same, where error says why. what: an action, as "connect". */
void link_fail_with(struct redis_link *link, int error, const char *what);

/* Sends a command at the end of the turn, while greeting too. -ENOBUFS, -ENOMEM: it is not. */
MUST_CHECK int link_put_command(struct redis_link *link, const struct slice *words, size_t count,
                                redis_done_fn *on_done, void *ctx);

/* The oldest command's, of which there is one. */
void link_take_reply(struct redis_link *link, const struct redis_reply *reply);

/* One of the link's handles is closed; with the last one it is freed. */
void link_drop_handle(struct redis_link *link);

/* ---- redis_link_connect.c ---- */

/* CONNECTING: looks the host up, tries its addresses, greets. READY in the end, or failed. */
void link_connect(struct redis_link *link);

/* Ends what link_connect() has begun, or made; what is not sent yet never is. */
void link_disconnect(struct redis_link *link);

/* ---- redis_link_stream.c ---- */

/* Replies go to link_take_reply() from now on. -errno as libuv has them. */
MUST_CHECK int link_start_reading(struct link_connection *conn);

/* Writes a command behind what is in out. All or nothing: -ENOBUFS, -ENOMEM. */
MUST_CHECK int link_append_command(struct buf *out, const struct slice *words, size_t count);

/* Gives the kernel what it takes at once, and libuv the rest. -errno: the connection is broken. */
MUST_CHECK int link_send_unsent(struct link_connection *conn);

#endif
