/* SPDX-License-Identifier: Apache-2.0 */

/*
 * ipc_server: connections of engines over a Unix socket that keeps messages apart: whole messages
 * in, with the descriptors that came along, and out, and when the other end is no longer there. It
 * does not know what they mean. Loop thread only.
 */
#ifndef KVTIER_CONNECTOR_IPC_SERVER_H
#define KVTIER_CONNECTOR_IPC_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "backends/io_loop.h"
#include "backends/runtime/must_check.h"
#include "backends/runtime/slice.h"
#include "kvtier/connector/ipc_socket.h"

struct ipc_server;
struct ipc_conn;

/* One message as it came. Descriptors are borrowed for the call: who needs one copies it. */
struct ipc_packet {
    struct slice bytes;
    const int *fds;
    size_t fd_count;
    bool
        is_cut; /* longer than a message may be, or with more descriptors: what is here is a part */
};

/* None is called by a function of this header but ipc_conn_read(), which calls on_packet. */
struct ipc_server_callbacks {
    /* Somebody who may has come. The conn is the callee's, who closes it. */
    void (*on_open)(void *ctx, struct ipc_conn *conn);
    void (*on_packet)(void *ctx, struct ipc_conn *conn, const struct ipc_packet *packet);
    /* Nothing more comes from there: it ended its sending side, closed, died, or did not read what
     * it was sent. Once, unless the conn was closed before; what is sent may still arrive. */
    void (*on_end)(void *ctx, struct ipc_conn *conn);
};

struct ipc_server_config {
    const char *path; /* borrowed for the call */
    gid_t group;      /* whose processes may come too, or IPC_SOCKET_NO_GROUP */
    uint32_t conn_count_max;
    uint32_t queue_bytes_max; /* of one conn, that it has not read yet: beyond, it ends */
    struct slice busy; /* what those hear who come beyond conn_count_max; borrowed until close */
};

struct ipc_server_stats {
    uint32_t conn_count;     /* now */
    uint64_t accepted_total; /* that were opened */
    uint64_t stranger_total; /* who may not come: closed at once */
    uint64_t crowded_total;  /* beyond conn_count_max: likewise */
    uint64_t starved_total;  /* times that no descriptor, or no memory, was to be had for one */
    uint64_t unread_total;   /* conns that ended because they did not read */
    uint64_t packet_total;   /* received */
};

/* Listens. -errno with a sentence in why. */
MUST_CHECK int ipc_server_open(struct io_loop *io, struct ipc_server_config config,
                               const struct ipc_server_callbacks *callbacks, void *ctx,
                               struct ipc_server **server, char why[IPC_SOCKET_WHY_BYTES]);

struct ipc_server_stats ipc_server_stats(const struct ipc_server *server);

/* Listens no more; the conns stay until each is closed. Then the memory goes; on_closed, once, by
 * the loop. NULLs *server, which may be NULL: then on_closed is not called. */
void ipc_server_close(struct ipc_server **server, void (*on_closed)(void *ctx), void *ctx);

/* ---- one connection ---- */

/* For its owner. */
void ipc_conn_set_data(struct ipc_conn *conn, void *data);
void *ipc_conn_data(const struct ipc_conn *conn);

/* One whole message: at once, or when there is room for it. What cannot be sent any more, to a conn
 * that has gone or does not read, is dropped: on_end says so. */
void ipc_conn_send(struct ipc_conn *conn, struct slice message);

/* Reads now what lies in the socket, and gives it out, instead of when the loop comes to it. */
void ipc_conn_read(struct ipc_conn *conn);

/* Reads nothing more; what comes is left unread, and on_end is not called. */
void ipc_conn_mute(struct ipc_conn *conn);

/* Asks the system, not what was last heard: whether the other end lives and has its sending side
 * open. */
bool ipc_conn_is_open(const struct ipc_conn *conn);

/* The other end reads end of file from now on, behind what it was sent. NULLs *conn. */
void ipc_conn_close(struct ipc_conn **conn);

#endif
