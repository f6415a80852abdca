/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/redis/redis_link.h"

#include "backends/resolver.h"
#include "backends/runtime/buf.h"
#include "backends/runtime/random.h"

#include <hiredis/hiredis.h>

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/*
 * DESIGN
 *
 *              DUE                 CONNECTED               GREETED
 *    AWAY ----------> CONNECTING ------------> GREETING ------------> READY
 *     ^                    |                       |                    |
 *     '----- FAILED -------+-----------------------+--------------------'     any -- CLOSE -->
 * CLOSED
 *
 * Of hiredis we take the reader of replies, which has seen every Redis there is, and not its
 * asynchronous connections: a reply that nobody asked for, from a server that is none, aborts the
 * process there (an assert in redisProcessCallbacks(), seen with 0.14.1); they resolve names while
 * the loop waits, know no deadline for a command, and free themselves by rules that differ from one
 * version to the next. A socket of libuv and a queue of who waits for an answer is all that is left
 * to do, and it is the same with every hiredis.
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
 *
 * Each socket has memory of its own, which goes in its close callback; what is called for it after
 * it failed sees that it is no longer the link's.
 */

enum {
    READ_BYTES = 32 << 10,       /* libuv reads some dozen times a turn: so long others wait */
    UNSENT_BYTES_MAX = 64 << 20, /* of commands that the kernel has not taken */
    UNSENT_BYTES_KEPT = 1 << 20, /* of memory, when all was sent */
    REPLY_BYTES_MAX = 64 << 20,  /* unread: no reply of ours is nearly so long */
    ADDRESS_COUNT_MAX = 8,
    GREETING_COUNT_MAX = 4, /* AUTH, SELECT, PING, CLIENT SETNAME */
    WORD_COUNT_MAX = 4,     /* of one of those */
    WHY_BYTES = 256,
    LINE_BYTES_MAX = 24, /* a mark, a number, the end of the line */
    BACK_OFF_LEVEL_MAX = 16,
};

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

static const struct {
    const char *word; /* that an error begins with */
    int error;
} refusals[] = {
    {"ASK", -EXDEV},      {"BUSY", -EBUSY},       {"CLUSTERDOWN", -EXDEV}, {"CROSSSLOT", -EXDEV},
    {"DENIED", -EACCES},  {"LOADING", -EBUSY},    {"MASTERDOWN", -EBUSY},  {"MOVED", -EXDEV},
    {"NOAUTH", -EACCES},  {"NOPERM", -EACCES},    {"OOM", -ENOSPC},        {"READONLY", -EROFS},
    {"TRYAGAIN", -EBUSY}, {"WRONGPASS", -EACCES},
};

/* hiredis's reply is the only thing in it, so that a pointer to one is a pointer to the other. */
struct redis_reply {
    redisReply reply;
};

static_assert(REDIS_REPLY_STRING == REDIS_REPLY_TEXT && REDIS_REPLY_ARRAY == REDIS_REPLY_LIST,
              "the numbers of those that hiredis names otherwise");

struct pending { /* a command without a reply */
    redis_done_fn *on_done;
    void *ctx;
    uint64_t sent_ms;
};

struct connection {
    union {
        uv_handle_t handle;
        uv_stream_t stream;
        uv_tcp_t tcp;
        uv_pipe_t pipe;
    } socket;
    uv_connect_t connect;
    uv_write_t write;
    struct redis_link *link; /* whose it is, or was */
    redisReader *reader;
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
    uv_timer_t timer;        /* the back-off, the time to connect, or the oldest command's */
    uv_prepare_t end;        /* of a turn of the loop, with something to send */
    uint32_t handle_count;   /* not closed yet: the two above, and sockets */
    struct connection *conn; /* from CONNECTING on; NULL while a name is looked up */
    struct resolver_lookup *lookup;
    struct sockaddr_storage addresses[ADDRESS_COUNT_MAX];
    size_t address_count;
    size_t address_next; /* to try */
    uint32_t back_off_level;
    uint64_t random;
    struct pending *pending; /* a ring */
    uint32_t pending_first;
    uint32_t pending_count;
    uint32_t pending_size;
    bool is_overdue; /* the oldest command has had its time, and this turn more */
    struct redis_link_stats stats;
    void (*on_closed)(void *ctx);
    void *closed_ctx;
    char read_bytes[READ_BYTES];
};

int redis_link_state_after(enum redis_link_state state, enum redis_link_event event)
{
    assert(state < REDIS_LINK_STATE_COUNT);
    assert(event < REDIS_LINK_EVENT_COUNT);

    return moves[state][event];
}

static void set_state(struct redis_link *link, enum redis_link_event event)
{
    int state = redis_link_state_after(link->state, event);

    assert(state >= 0);

    link->state = (enum redis_link_state)state;
}

/* ---- who waits for a reply ---- */

static void push_pending(struct redis_link *link, redis_done_fn *on_done, void *ctx)
{
    const uint32_t at = (link->pending_first + link->pending_count) % link->pending_size;

    assert(link->pending_count < link->pending_size);

    link->pending[at] = (struct pending){on_done, ctx, uv_now(link->loop)};
    link->pending_count++;
}

static struct pending pop_pending(struct redis_link *link)
{
    const struct pending first = link->pending[link->pending_first];

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
        const struct pending pending = pop_pending(link);

        if (pending.on_done != NULL)
            pending.on_done(pending.ctx, error, NULL);
    }
}

/* ---- the end of a connection, and of a link ---- */

static void drop_handle(struct redis_link *link)
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
    drop_handle(handle->data);
}

static void on_socket_closed(uv_handle_t *handle)
{
    struct connection *conn = handle->data;
    struct redis_link *link = conn->link;

    redisReaderFree(conn->reader);
    buf_release(&conn->unsent);
    buf_release(&conn->sending);
    free(conn);
    drop_handle(link);
}

static void close_connection(struct redis_link *link)
{
    if (link->lookup != NULL)
        resolver_system.cancel(link->lookup);
    link->lookup = NULL;
    if (link->conn != NULL)
        uv_close(&link->conn->socket.handle, on_socket_closed);
    link->conn = NULL;
    (void)uv_prepare_stop(&link->end);
}

static void on_timer(uv_timer_t *timer);

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

/* why may point into what goes with the connection. */
static void fail(struct redis_link *link, int error, const char *why)
{
    char line[WHY_BYTES];

    assert(error < 0);

    snprintf(line, sizeof line, "%s", why);
    line[strcspn(line, "\r\n")] = '\0';
    set_state(link, REDIS_LINK_EVENT_FAILED);
    link->stats.failure_count++;
    close_connection(link);
    (void)uv_timer_start(&link->timer, on_timer, next_back_off_ms(link), 0);
    fail_pending(link, error == -ETIMEDOUT ? -ETIMEDOUT : -ECONNRESET);
    if (link->state != REDIS_LINK_CLOSED && link->callbacks.on_away != NULL)
        link->callbacks.on_away(link->ctx, error, line);
}

/* what: an action, as "connect". */
static void fail_with(struct redis_link *link, int error, const char *what)
{
    char why[WHY_BYTES];

    snprintf(why, sizeof why, "%s: %s", what, uv_strerror(error));
    fail(link, error, why);
}

/* ---- sending ---- */

/* mark and number in decimal and the end of a line; returns what is behind it. */
static char *write_line(char *at, char mark, size_t number)
{
    char digits[LINE_BYTES_MAX];
    size_t count = 0;

    *at++ = mark;
    do
        digits[count++] = (char)('0' + number % 10);
    while ((number /= 10) > 0);
    while (count > 0)
        *at++ = digits[--count];
    *at++ = '\r';
    *at++ = '\n';
    return at;
}

/* All or nothing. Thousands of these make a flush: by hand, it takes a third of the time that
 * printing takes. */
static int append_command(struct buf *out, const struct slice *words, size_t count)
{
    size_t bytes_max = LINE_BYTES_MAX;
    char *at;
    int status;

    for (size_t i = 0; i < count; i++)
        bytes_max += LINE_BYTES_MAX + words[i].len + 2;
    status = buf_reserve(out, bytes_max);
    if (status < 0)
        return status;
    at = write_line(out->bytes + out->end, '*', count);
    for (size_t i = 0; i < count; i++) {
        at = write_line(at, '$', words[i].len);
        if (words[i].len > 0)
            memcpy(at, words[i].ptr, words[i].len);
        at += words[i].len;
        *at++ = '\r';
        *at++ = '\n';
    }
    out->end = (size_t)(at - out->bytes);
    return 0;
}

static void on_written(uv_write_t *write, int status);

/* A server that has closed may have said why: that is still to be read, and ends the connection
 * with its own words. */
static int sent_in_vain(int status)
{
    return status == UV_EPIPE ? 0 : status;
}

/* What the kernel takes at once, and the rest by libuv. */
static int send_unsent(struct connection *conn)
{
    uv_buf_t bytes;
    int sent;

    if (conn->is_sending || buf_len(&conn->unsent) == 0)
        return 0; /* on_written() comes back here */
    bytes = uv_buf_init(conn->unsent.bytes + conn->unsent.start, (unsigned)buf_len(&conn->unsent));
    sent = uv_try_write(&conn->socket.stream, &bytes, 1);
    if (sent < 0 && sent != UV_EAGAIN)
        return sent_in_vain(sent);
    if (sent > 0)
        buf_consume(&conn->unsent, (size_t)sent);
    if (buf_len(&conn->unsent) == 0) {
        if (conn->unsent.capacity > UNSENT_BYTES_KEPT)
            buf_release(&conn->unsent);
        return 0;
    }
    buf_release(&conn->sending);
    conn->sending = conn->unsent;
    buf_init(&conn->unsent, UNSENT_BYTES_MAX);
    bytes =
        uv_buf_init(conn->sending.bytes + conn->sending.start, (unsigned)buf_len(&conn->sending));
    conn->is_sending = true;
    return uv_write(&conn->write, &conn->socket.stream, &bytes, 1, on_written);
}

static void on_written(uv_write_t *write, int status)
{
    struct connection *conn = container_of(write, struct connection, write);
    struct redis_link *link = conn->link;

    conn->is_sending = false;
    if (conn != link->conn)
        return;
    status = status < 0 ? sent_in_vain(status) : send_unsent(conn);
    if (status < 0)
        fail_with(link, status, "send");
}

static void on_end_of_turn(uv_prepare_t *end)
{
    struct redis_link *link = end->data;
    int status = send_unsent(link->conn);

    (void)uv_prepare_stop(end);
    if (status < 0)
        fail_with(link, status, "send");
}

static int put_command(struct redis_link *link, const struct slice *words, size_t count,
                       redis_done_fn *on_done, void *ctx)
{
    int status = append_command(&link->conn->unsent, words, count);

    if (status < 0)
        return status;
    push_pending(link, on_done, ctx);
    link->stats.command_count++;
    (void)uv_prepare_start(&link->end, on_end_of_turn);
    return 0;
}

/* ---- greeting ---- */

static void on_greeted(void *ctx, int error, const struct redis_reply *reply)
{
    struct redis_link *link = ctx;

    if (link->state == REDIS_LINK_GREETING && error < 0)
        fail(link, error, redis_reply_text(reply).ptr);
}

/* The last one, and only for people who look at the server: a user that may not do it does
 * without. */
static void on_named(void *ctx, int error, const struct redis_reply *reply)
{
    struct redis_link *link = ctx;

    (void)error;
    (void)reply;
    if (link->state != REDIS_LINK_GREETING)
        return; /* failed, closed */
    set_state(link, REDIS_LINK_EVENT_GREETED);
    link->back_off_level = 0;
    link->stats.connect_count++;
    (void)uv_timer_stop(&link->timer);
    if (link->callbacks.on_ready != NULL)
        link->callbacks.on_ready(link->ctx);
}

static int greet_with(struct redis_link *link, const char *const words[WORD_COUNT_MAX],
                      redis_done_fn *on_done)
{
    struct slice slices[WORD_COUNT_MAX];
    size_t count = 0;

    for (size_t i = 0; i < WORD_COUNT_MAX && words[i] != NULL; i++)
        slices[count++] = slice_of_string(words[i]);
    return put_command(link, slices, count, on_done, link);
}

static int send_greeting(struct redis_link *link)
{
    const struct redis_url *url = &link->config.url;
    const char *password = link->password != NULL ? link->password : "";
    char database[16];
    int status = 0;

    if (url->user[0] != '\0')
        status = greet_with(link, (const char *[WORD_COUNT_MAX]){"AUTH", url->user, password},
                            on_greeted);
    else if (link->password != NULL)
        status = greet_with(link, (const char *[WORD_COUNT_MAX]){"AUTH", password}, on_greeted);
    snprintf(database, sizeof database, "%" PRIu32, url->database);
    if (status == 0 && url->database != 0)
        status = greet_with(link, (const char *[WORD_COUNT_MAX]){"SELECT", database}, on_greeted);
    if (status == 0)
        status = greet_with(link, (const char *[WORD_COUNT_MAX]){"PING"}, on_greeted);
    if (status == 0)
        status = greet_with(
            link, (const char *[WORD_COUNT_MAX]){"CLIENT", "SETNAME", link->config.name}, on_named);
    return status;
}

/* ---- receiving ---- */

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buffer)
{
    struct connection *conn = handle->data;

    (void)suggested;
    *buffer = uv_buf_init(conn->link->read_bytes, READ_BYTES);
}

static void take_reply(struct redis_link *link, const struct redis_reply *reply)
{
    const struct pending pending = pop_pending(link);
    const int error = redis_reply_error(reply);

    link->is_overdue = false;
    if (error < 0)
        link->stats.error_count++;
    if (pending.on_done != NULL)
        pending.on_done(pending.ctx, error, reply);
}

/* Until there is no whole reply any more, or the link is done with this connection. */
static void take_replies(struct redis_link *link, struct connection *conn)
{
    while (conn == link->conn) {
        void *raw = NULL;
        redisReply *reply;

        if (redisReaderGetReply(conn->reader, &raw) != REDIS_OK) {
            fail(link, -EPROTO, conn->reader->errstr);
            return;
        }
        reply = raw;
        if (reply == NULL)
            return;
        if (link->pending_count > 0)
            take_reply(link, (const struct redis_reply *)reply);
        else
            fail(link, -EPROTO, "the server says what nobody asked for");
        freeReplyObject(reply);
    }
}

static void on_read(uv_stream_t *stream, ssize_t count, const uv_buf_t *buffer)
{
    struct connection *conn = stream->data;
    struct redis_link *link = conn->link;

    if (count == 0 || conn != link->conn)
        return;
    if (count == UV_EOF) {
        fail(link, -ECONNRESET, "the server closed the connection");
    } else if (count < 0) {
        fail_with(link, (int)count, "receive");
    } else if (redisReaderFeed(conn->reader, buffer->base, (size_t)count) != REDIS_OK) {
        fail(link, -ENOMEM, conn->reader->errstr);
    } else {
        take_replies(link, conn);
        if (conn == link->conn && conn->reader->len > REPLY_BYTES_MAX)
            fail(link, -EPROTO, "a reply is far longer than any that was asked for");
    }
}

/* ---- connecting ---- */

static void connect_next(struct redis_link *link, int error);

static void on_connected(uv_connect_t *connect, int status)
{
    struct connection *conn = container_of(connect, struct connection, connect);
    struct redis_link *link = conn->link;

    if (conn != link->conn)
        return;
    if (status < 0) {
        uv_close(&conn->socket.handle, on_socket_closed);
        link->conn = NULL;
        connect_next(link, status);
        return;
    }
    set_state(link, REDIS_LINK_EVENT_CONNECTED);
    status = uv_read_start(&conn->socket.stream, on_alloc, on_read);
    if (status == 0)
        status = send_greeting(link);
    if (status < 0)
        fail_with(link, status, "greet");
}

static struct connection *create_connection(struct redis_link *link)
{
    struct connection *conn = calloc(1, sizeof *conn);

    if (conn == NULL)
        return NULL;
    conn->reader = redisReaderCreate();
    if (conn->reader == NULL) {
        free(conn);
        return NULL;
    }
    conn->link = link;
    buf_init(&conn->unsent, UNSENT_BYTES_MAX);
    buf_init(&conn->sending, UNSENT_BYTES_MAX);
    return conn;
}

/* The next address, or the path. -errno: not even begun. */
static int start_connect(struct redis_link *link)
{
    const struct sockaddr_storage *address = &link->addresses[link->address_next++];
    struct connection *conn = create_connection(link);
    int status;

    if (conn == NULL)
        return -ENOMEM;
    status = link->config.url.path[0] != '\0' ? uv_pipe_init(link->loop, &conn->socket.pipe, 0)
                                              : uv_tcp_init(link->loop, &conn->socket.tcp);
    if (status < 0) {
        redisReaderFree(conn->reader);
        free(conn);
        return status;
    }
    conn->socket.handle.data = conn;
    link->handle_count++;
    link->conn = conn;
    if (link->config.url.path[0] != '\0') {
        uv_pipe_connect(&conn->connect, &conn->socket.pipe, link->config.url.path, on_connected);
        return 0;
    }
    (void)uv_tcp_nodelay(&conn->socket.tcp, 1);
    status = uv_tcp_connect(&conn->connect, &conn->socket.tcp, (const struct sockaddr *)address,
                            on_connected);
    if (status < 0) {
        uv_close(&conn->socket.handle, on_socket_closed);
        link->conn = NULL;
    }
    return status;
}

/* error: of the address before. */
static void connect_next(struct redis_link *link, int error)
{
    while (link->address_next < link->address_count) {
        error = start_connect(link);
        if (error == 0)
            return;
    }
    fail_with(link, error, "connect");
}

static void on_resolved(void *ctx, int error, const struct sockaddr_storage *addresses,
                        size_t count)
{
    struct redis_link *link = ctx;

    link->lookup = NULL;
    if (error < 0) {
        char why[WHY_BYTES];

        snprintf(why, sizeof why, "host %.100s: %s", link->config.url.host, uv_strerror(error));
        fail(link, -EHOSTUNREACH, why);
        return;
    }
    link->address_count = count < ADDRESS_COUNT_MAX ? count : ADDRESS_COUNT_MAX;
    memcpy(link->addresses, addresses, link->address_count * sizeof *addresses);
    connect_next(link, -EHOSTUNREACH);
}

static void begin(struct redis_link *link)
{
    const struct redis_url *url = &link->config.url;
    char port[8];

    set_state(link, REDIS_LINK_EVENT_DUE);
    link->is_overdue = false;
    (void)uv_timer_start(&link->timer, on_timer, link->config.connect_ms, 0);
    link->address_next = 0;
    if (url->path[0] != '\0') {
        link->address_count = 1; /* the path */
        connect_next(link, 0);
        return;
    }
    snprintf(port, sizeof port, "%u", url->port);
    link->lookup = resolver_system.start(link->loop, url->host, port, on_resolved, link);
    if (link->lookup == NULL)
        fail(link, -ENOMEM, "the name of the host cannot be looked up");
}

/* ---- time ---- */

/* READY: the timer was set for whoever was the oldest then. */
static void judge_oldest(struct redis_link *link)
{
    const struct pending *oldest = &link->pending[link->pending_first];
    const uint64_t waited_ms = uv_now(link->loop) - oldest->sent_ms;
    char why[WHY_BYTES];

    if (link->pending_count == 0)
        return; /* the next command sets it */
    if (waited_ms < link->config.command_ms) {
        (void)uv_timer_start(&link->timer, on_timer, link->config.command_ms - waited_ms, 0);
    } else if (!link->is_overdue) {
        link->is_overdue = true;
        (void)uv_timer_start(&link->timer, on_timer, 1, 0);
    } else {
        link->stats.timeout_count++;
        snprintf(why, sizeof why, "no answer within %" PRIu32 " ms", link->config.command_ms);
        fail(link, -ETIMEDOUT, why);
    }
}

static void on_timer(uv_timer_t *timer)
{
    struct redis_link *link = timer->data;
    char why[WHY_BYTES];

    switch (link->state) {
    case REDIS_LINK_AWAY:
        begin(link);
        break;
    case REDIS_LINK_CONNECTING:
    case REDIS_LINK_GREETING:
        snprintf(why, sizeof why, "%s within %" PRIu32 " ms",
                 link->state == REDIS_LINK_CONNECTING ? "not connected" : "no greeting",
                 link->config.connect_ms);
        fail(link, -ETIMEDOUT, why);
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
    link->pending_size = config.pending_max + GREETING_COUNT_MAX;
    link->pending = calloc(link->pending_size, sizeof *link->pending);
    link->password = config.password != NULL ? strdup(config.password) : NULL;
    if (link->pending == NULL || (config.password != NULL && link->password == NULL)) {
        free(link->pending);
        free(link->password);
        free(link);
        return -ENOMEM;
    }
    (void)uv_timer_init(loop, &link->timer); /* neither can fail */
    (void)uv_prepare_init(loop, &link->end);
    link->timer.data = link->end.data = link;
    link->handle_count = 2;
    (void)uv_timer_start(&link->timer, on_timer, 0, 0);
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
        status = put_command(link, words, count, on_done, ctx);
    if (status < 0)
        link->stats.refused_count++;
    else if (!uv_is_active((const uv_handle_t *)&link->timer))
        (void)uv_timer_start(&link->timer, on_timer, link->config.command_ms, 0);
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
    set_state(link, REDIS_LINK_EVENT_CLOSE);
    close_connection(link);
    uv_close((uv_handle_t *)&link->timer, on_handle_closed);
    uv_close((uv_handle_t *)&link->end, on_handle_closed);
    fail_pending(link, -ECANCELED);
}

/* ---- replies ---- */

enum redis_reply_kind redis_reply_kind(const struct redis_reply *reply)
{
    const int type = reply->reply.type;

    return (enum redis_reply_kind)(type == REDIS_REPLY_STATUS ? REDIS_REPLY_TEXT : type);
}

struct slice redis_reply_text(const struct redis_reply *reply)
{
    switch (reply->reply.type) {
    case REDIS_REPLY_STRING:
    case REDIS_REPLY_STATUS:
    case REDIS_REPLY_ERROR:
        return slice_of(reply->reply.str, reply->reply.len);
    default:
        return slice_of(NULL, 0);
    }
}

int64_t redis_reply_integer(const struct redis_reply *reply)
{
    return reply->reply.type == REDIS_REPLY_INTEGER ? reply->reply.integer : 0;
}

size_t redis_reply_count(const struct redis_reply *reply)
{
    return reply->reply.type == REDIS_REPLY_ARRAY ? reply->reply.elements : 0;
}

const struct redis_reply *redis_reply_at(const struct redis_reply *reply, size_t index)
{
    assert(index < redis_reply_count(reply));

    return (const struct redis_reply *)reply->reply.element[index];
}

int redis_reply_error(const struct redis_reply *reply)
{
    const struct slice text = redis_reply_text(reply);
    const char *space = text.len > 0 ? memchr(text.ptr, ' ', text.len) : NULL;
    const struct slice word =
        slice_of(text.ptr, space != NULL ? (size_t)(space - text.ptr) : text.len);

    if (reply->reply.type != REDIS_REPLY_ERROR)
        return 0;
    for (size_t i = 0; i < array_count(refusals); i++) {
        if (slice_eq(word, slice_of_string(refusals[i].word)))
            return refusals[i].error;
    }
    return -EREMOTEIO;
}
