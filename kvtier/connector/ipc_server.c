/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/connector/ipc_server.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "backends/runtime/buf.h"
#include "backends/runtime/log.h"
#include "kvtier/connector/ipc_wire.h"

/*
 * DESIGN
 *
 * libuv knows no SOCK_SEQPACKET, so sockets are ours, and it only says when they are ready.
 *
 * A process is gone when its sockets are closed, but a child that it forked may hold them open: so
 * each conn watches a pidfd too, where the kernel gives one (not across pid namespaces: then the
 * socket has to do).
 *
 * While one conn's packet is given out, another conn may be read (the scheduler of the same engine
 * before its worker): there are two buffers, and no more, because that one reads nobody else.
 *
 * A conn that does not read what it is sent is not closed, as its pages may be in use: it is shut
 * for reading, which the loop reports as its end, and whoever owns it closes it in his time.
 */

enum {
    READ_DEPTH_MAX = 2,
    PACKETS_A_TURN = 16,    /* of one conn; then the others have theirs */
    PACKETS_A_READ = 65536, /* of ipc_conn_read(): more than any socket holds */
    ACCEPTS_A_TURN = 16,
    ACCEPT_PAUSE_MS = 100, /* while the system has no descriptor to spare */
    FD_COUNT_MAX = PAGE_REGION_COUNT_MAX,
    QUEUED_LENGTH_BYTES = 4,
};

struct ipc_server {
    struct io_loop *io;
    struct ipc_server_config config;
    const struct ipc_server_callbacks *callbacks;
    void *ctx;
    struct ipc_socket socket;
    uv_poll_t listener;
    uv_timer_t pause;
    uint32_t handle_count; /* of the two above that are not closed yet */
    uint32_t memory_count; /* conns whose memory is not free yet */
    struct ipc_server_stats stats;
    void (*on_closed)(void *ctx);
    void *closed_ctx;
    bool is_closing;
    bool is_starved; /* it was said that one could not be accepted, and others may wait */
    uint32_t read_depth;
    char bytes[READ_DEPTH_MAX][IPC_MESSAGE_BYTES_MAX];
};

struct ipc_conn {
    struct ipc_server *server;
    void *data;
    int fd;
    int pid_fd; /* -1: none */
    uv_poll_t poll;
    uv_poll_t pid_poll;
    uint32_t handle_count;
    struct buf queue; /* each with its length before it */
    bool is_muted;
    bool is_ended;  /* on_end was called */
    bool is_unread; /* it did not take what it was sent: nothing more is sent */
    bool is_closed;
};

static void on_poll(uv_poll_t *poll, int status, int events);

/* ---- sending ---- */

static void watch(struct ipc_conn *conn)
{
    int events = 0;

    if (!conn->is_muted)
        events |= UV_READABLE | UV_DISCONNECT;
    if (buf_len(&conn->queue) > 0)
        events |= UV_WRITABLE;
    if (events == 0)
        uv_poll_stop(&conn->poll);
    else
        uv_poll_start(&conn->poll, events, on_poll);
}

/* 0, or -errno. */
static int send_now(const struct ipc_conn *conn, struct slice message)
{
    ssize_t sent;

    do {
        sent = send(conn->fd, message.ptr, message.len, MSG_DONTWAIT | MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    return sent < 0 ? -errno : 0;
}

static bool is_for_later(int status)
{
    return status == -EAGAIN || status == -EWOULDBLOCK || status == -ENOBUFS;
}

static void give_up_sending(struct ipc_conn *conn)
{
    if (conn->is_unread)
        return;
    conn->is_unread = true;
    buf_release(&conn->queue);
    (void)shutdown(conn->fd, SHUT_RD); /* which the loop reports */
    watch(conn);
}

static void flush(struct ipc_conn *conn)
{
    while (buf_len(&conn->queue) > 0) {
        struct slice queued = buf_slice(&conn->queue);
        uint32_t len;
        int status;

        memcpy(&len, queued.ptr, sizeof len);
        status = send_now(conn, (struct slice){queued.ptr + QUEUED_LENGTH_BYTES, len});
        if (is_for_later(status))
            return;
        if (status < 0) {
            give_up_sending(conn);
            return;
        }
        buf_consume(&conn->queue, QUEUED_LENGTH_BYTES + len);
    }
    watch(conn);
}

void ipc_conn_send(struct ipc_conn *conn, struct slice message)
{
    const uint32_t len = (uint32_t)message.len;
    int status = -EAGAIN;

    assert(!conn->is_closed);
    assert(message.len <= IPC_MESSAGE_BYTES_MAX);

    if (conn->is_unread)
        return;
    if (buf_len(&conn->queue) == 0)
        status = send_now(conn, message);
    if (status == 0)
        return;
    if (is_for_later(status)) {
        status = buf_reserve(&conn->queue, QUEUED_LENGTH_BYTES + message.len);
        if (status == 0)
            status = buf_append(&conn->queue, slice_of(&len, sizeof len));
        if (status == 0)
            status = buf_append(&conn->queue, message);
        if (status == 0) {
            watch(conn);
            return;
        }
        conn->server->stats.unread_total++;
    }
    give_up_sending(conn);
}

/* ---- reading ---- */

static void end(struct ipc_conn *conn)
{
    struct ipc_server *server = conn->server;

    if (conn->is_ended || conn->is_closed)
        return;
    conn->is_ended = true;
    ipc_conn_mute(conn);
    server->callbacks->on_end(server->ctx, conn);
}

union control {
    char bytes[CMSG_SPACE(sizeof(int) * FD_COUNT_MAX)];
    struct cmsghdr align;
};

/* The descriptors that came: ours now, to be closed. */
static size_t take_fds(struct msghdr *message, int fds[FD_COUNT_MAX])
{
    size_t count = 0;

    for (struct cmsghdr *part = CMSG_FIRSTHDR(message); part != NULL;
         part = CMSG_NXTHDR(message, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS)
            continue;
        const size_t fds_bytes = part->cmsg_len - CMSG_LEN(0);

        assert(count + fds_bytes / sizeof(int) <= FD_COUNT_MAX); /* there was room for no more */
        memcpy(fds + count, CMSG_DATA(part), fds_bytes);
        count += fds_bytes / sizeof(int);
    }
    return count;
}

/* One packet, given out. False: there is none now, or none will come; *is_over says which. */
static bool read_packet(struct ipc_conn *conn, bool *is_over)
{
    struct ipc_server *server = conn->server;
    char *bytes = server->bytes[server->read_depth];
    union control control;
    struct iovec piece = {bytes, IPC_MESSAGE_BYTES_MAX};
    struct msghdr message = {.msg_iov = &piece,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    int fds[FD_COUNT_MAX];
    size_t fd_count;
    ssize_t len;

    do {
        len = recvmsg(conn->fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    } while (len < 0 && errno == EINTR);
    *is_over = len == 0 || (len < 0 && errno != EAGAIN && errno != EWOULDBLOCK);
    fd_count = len >= 0 ? take_fds(&message, fds) : 0;
    if (len > 0) {
        const struct ipc_packet packet = {
            .bytes = {bytes, (size_t)len},
            .fds = fds,
            .fd_count = fd_count,
            .is_cut = (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0,
        };

        server->stats.packet_total++;
        server->read_depth++;
        server->callbacks->on_packet(server->ctx, conn, &packet);
        server->read_depth--;
    }
    for (size_t i = 0; i < fd_count; i++)
        close(fds[i]);
    return len > 0;
}

/* Whether that was all that will ever come. */
static bool read_packets(struct ipc_conn *conn, size_t count)
{
    bool is_over = false;

    assert(conn->server->read_depth < READ_DEPTH_MAX);

    while (!conn->is_closed && !conn->is_muted && count-- > 0)
        if (!read_packet(conn, &is_over))
            break;
    return is_over;
}

void ipc_conn_read(struct ipc_conn *conn)
{
    if (!conn->is_unread)
        (void)read_packets(conn, PACKETS_A_READ); /* its end comes by the loop */
}

static void on_poll(uv_poll_t *poll, int status, int events)
{
    struct ipc_conn *conn = poll->data;

    if (!conn->is_unread && (events & UV_WRITABLE) != 0)
        flush(conn);
    if (conn->is_muted || conn->is_closed)
        return;
    if (conn->is_unread || read_packets(conn, PACKETS_A_TURN) || status < 0)
        end(conn);
}

void ipc_conn_mute(struct ipc_conn *conn)
{
    conn->is_muted = true;
    if (!conn->is_closed)
        watch(conn);
}

static void on_process_end(uv_poll_t *poll, int status, int events)
{
    struct ipc_conn *conn = poll->data;

    (void)status;
    (void)events;
    uv_poll_stop(poll);
    end(conn);
}

bool ipc_conn_is_open(const struct ipc_conn *conn)
{
    struct pollfd fds[2] = {{.fd = conn->fd, .events = POLLRDHUP},
                            {.fd = conn->pid_fd, .events = POLLIN}}; /* -1: passed over */

    assert(!conn->is_closed);

    return !conn->is_ended && !conn->is_unread && poll(fds, 2, 0) == 0;
}

/* ---- life of a conn ---- */

static void free_server_if_done(struct ipc_server *server)
{
    void (*on_closed)(void *ctx) = server->on_closed;
    void *ctx = server->closed_ctx;

    if (!server->is_closing || server->handle_count > 0 || server->memory_count > 0)
        return;
    free(server);
    if (on_closed != NULL)
        on_closed(ctx);
}

static void on_conn_handle_closed(uv_handle_t *handle)
{
    struct ipc_conn *conn = handle->data;
    struct ipc_server *server = conn->server;

    if (--conn->handle_count > 0)
        return;
    free(conn);
    server->memory_count--;
    free_server_if_done(server);
}

void ipc_conn_close(struct ipc_conn **closed)
{
    struct ipc_conn *conn = *closed;

    assert(!conn->is_closed);

    *closed = NULL;
    conn->is_closed = true;
    conn->server->stats.conn_count--;
    buf_release(&conn->queue);
    uv_close((uv_handle_t *)&conn->poll, on_conn_handle_closed); /* stops watching at once */
    if (conn->pid_fd >= 0) {
        uv_close((uv_handle_t *)&conn->pid_poll, on_conn_handle_closed);
        close(conn->pid_fd);
    }
    close(conn->fd);
}

void ipc_conn_set_data(struct ipc_conn *conn, void *data)
{
    conn->data = data;
}

void *ipc_conn_data(const struct ipc_conn *conn)
{
    return conn->data;
}

/* Without it (an old kernel, another pid namespace) the end of the socket has to do. */
static void watch_process(struct ipc_conn *conn, pid_t pid)
{
    conn->pid_fd = pid > 0 ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
    if (conn->pid_fd < 0)
        return;
    if (uv_poll_init(&conn->server->io->loop, &conn->pid_poll, conn->pid_fd) < 0) {
        close(conn->pid_fd);
        conn->pid_fd = -1;
        return;
    }
    conn->handle_count++;
    conn->pid_poll.data = conn;
    uv_poll_start(&conn->pid_poll, UV_READABLE, on_process_end);
}

/* NULL: no memory; then fd is still the caller's. */
static struct ipc_conn *create_conn(struct ipc_server *server, int fd, pid_t pid)
{
    struct ipc_conn *conn = calloc(1, sizeof *conn);

    if (conn == NULL)
        return NULL;
    conn->server = server;
    conn->fd = fd;
    buf_init(&conn->queue, server->config.queue_bytes_max);
    if (uv_poll_init(&server->io->loop, &conn->poll, fd) < 0) {
        free(conn);
        return NULL;
    }
    conn->handle_count = 1;
    conn->poll.data = conn;
    watch_process(conn, pid);
    server->memory_count++;
    server->stats.conn_count++;
    server->stats.accepted_total++;
    watch(conn);
    return conn;
}

/* ---- listening ---- */

static void admit(struct ipc_server *server, int fd)
{
    struct ipc_conn *conn = NULL;
    pid_t pid;

    if (!ipc_socket_admits(fd, server->config.group, &pid)) {
        server->stats.stranger_total++;
    } else if (server->stats.conn_count >= server->config.conn_count_max) {
        server->stats.crowded_total++;
        (void)!send(fd, server->config.busy.ptr, server->config.busy.len,
                    MSG_DONTWAIT | MSG_NOSIGNAL);
    } else {
        conn = create_conn(server, fd, pid);
    }
    if (conn != NULL)
        server->callbacks->on_open(server->ctx, conn);
    else
        close(fd);
}

static void on_connection(uv_poll_t *listener, int status, int events);

static void on_pause_over(uv_timer_t *timer)
{
    struct ipc_server *server = timer->data;

    uv_poll_start(&server->listener, UV_READABLE, on_connection);
}

/* Whoever waits to be accepted keeps the listener ready: without a pause that is an endless loop
 * while no descriptor is to be had. */
static void pause_accepting(struct ipc_server *server, int error)
{
    server->stats.starved_total++;
    uv_poll_stop(&server->listener);
    uv_timer_start(&server->pause, on_pause_over, ACCEPT_PAUSE_MS, 0);
    if (server->is_starved)
        return;
    server->is_starved = true;
    LOG(LOG_WARN, "engines_wait", log_text("why", strerror(error)),
        log_text("socket", server->socket.path),
        log_text("effect", "engines that come now have no tiers until there is room again"),
        log_text("advice", "raise the limit of open files (ulimit -n, LimitNOFILE=), or the "
                           "machine's memory"));
}

static void on_connection(uv_poll_t *listener, int status, int events)
{
    struct ipc_server *server = listener->data;

    (void)status;
    (void)events;
    for (size_t i = 0; i < ACCEPTS_A_TURN && !server->is_closing; i++) {
        int fd = accept4(server->socket.fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

        if (fd >= 0) {
            admit(server, fd);
            continue;
        }
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            pause_accepting(server, errno);
            return;
        }
        if (errno == EAGAIN || errno == EWOULDBLOCK)
            server->is_starved = false; /* nobody waits, and there would be a descriptor */
        if (errno != EINTR && errno != ECONNABORTED)
            return;
    }
}

int ipc_server_open(struct io_loop *io, struct ipc_server_config config,
                    const struct ipc_server_callbacks *callbacks, void *ctx,
                    struct ipc_server **opened, char why[IPC_SOCKET_WHY_BYTES])
{
    struct ipc_server *server = calloc(1, sizeof *server);
    int status;

    *opened = NULL;
    if (server == NULL) {
        snprintf(why, IPC_SOCKET_WHY_BYTES, "%s", strerror(ENOMEM));
        return -ENOMEM;
    }
    server->io = io;
    server->config = config;
    server->callbacks = callbacks;
    server->ctx = ctx;
    status = ipc_socket_open(&server->socket, config.path, config.group, why);
    if (status == 0 && uv_poll_init(&io->loop, &server->listener, server->socket.fd) < 0) {
        ipc_socket_close(&server->socket);
        status = -ENOMEM;
        snprintf(why, IPC_SOCKET_WHY_BYTES, "%s", strerror(ENOMEM));
    }
    if (status < 0) {
        free(server);
        return status;
    }
    uv_timer_init(&io->loop, &server->pause);
    server->handle_count = 2;
    server->listener.data = server;
    server->pause.data = server;
    uv_poll_start(&server->listener, UV_READABLE, on_connection);
    *opened = server;
    return 0;
}

struct ipc_server_stats ipc_server_stats(const struct ipc_server *server)
{
    return server->stats;
}

static void on_server_handle_closed(uv_handle_t *handle)
{
    struct ipc_server *server = handle->data;

    server->handle_count--;
    free_server_if_done(server);
}

void ipc_server_close(struct ipc_server **closed, void (*on_closed)(void *ctx), void *ctx)
{
    struct ipc_server *server = *closed;

    if (server == NULL)
        return;
    *closed = NULL;
    server->on_closed = on_closed;
    server->closed_ctx = ctx;
    server->is_closing = true;
    uv_close((uv_handle_t *)&server->listener, on_server_handle_closed);
    uv_close((uv_handle_t *)&server->pause, on_server_handle_closed);
    ipc_socket_close(&server->socket);
}
