/* SPDX-License-Identifier: Apache-2.0 */

/*
 * ipc_socket: the file through which engines of this node reach the agent: a listening Unix socket
 * (SOCK_SEQPACKET) that only those can open whom the operator meant, and who it is that has opened
 * it. Blocking system calls: start and end of a process, and accepting.
 */
#ifndef KVTIER_CONNECTOR_IPC_SOCKET_H
#define KVTIER_CONNECTOR_IPC_SOCKET_H

#include <stdbool.h>
#include <sys/types.h>

#include "backends/runtime/must_check.h"

enum {
    IPC_SOCKET_PATH_BYTES_MAX = 108, /* of sockaddr_un, with the NUL */
    IPC_SOCKET_WHY_BYTES = 384,
};

#define IPC_SOCKET_NO_GROUP ((gid_t)-1)

struct ipc_socket {
    int fd;      /* listens, does not block; -1: not open */
    int lock_fd; /* whoever has the lock on "<path>.lock" serves path */
    char path[IPC_SOCKET_PATH_BYTES_MAX];
};

/*
 * Listens at path. Its directory is made where it is missing (0700, or 0770 with a group), and
 * must belong to this user or root and be writable by nobody else, but for that group. The socket
 * gets 0600, or 0660 and the group. What a dead agent left is replaced; -EADDRINUSE: somebody
 * serves it. -errno with a sentence in why: what is wrong, and what to do.
 */
MUST_CHECK int ipc_socket_open(struct ipc_socket *socket, const char *path, gid_t group,
                               char why[IPC_SOCKET_WHY_BYTES]);

/* Removes the socket. May be called twice; not on zeroed memory. */
void ipc_socket_close(struct ipc_socket *socket);

/* A group as an operator writes it, by name or number. -EINVAL: there is none. */
MUST_CHECK int ipc_socket_find_group(const char *text, gid_t *group);

/*
 * Whether the process at the other end of fd may come: one of our own user, of root (who could not
 * be kept out), or one that is in group. *pid: of it; 0: it cannot be seen from here.
 */
bool ipc_socket_admits(int fd, gid_t group, pid_t *pid);

#endif
