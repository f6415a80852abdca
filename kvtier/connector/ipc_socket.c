/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/connector/ipc_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/*
 * DESIGN
 *
 * A socket file outlives its process, and nothing on it says whether somebody listens. Two agents
 * that start at once could each find the same dead one and replace it, the second taking the file
 * from under the first. So who serves a path is who holds the lock beside it, which the kernel
 * drops when he dies. The lock file stays: removing it would open the same race again.
 *
 * Someone who is no agent holds no lock: what answers at that path is left alone all the same.
 */

enum { BACKLOG = 128, GROUP_COUNT_MAX = 1024 };

static int refuse(char why[IPC_SOCKET_WHY_BYTES], int error, const char *path, const char *what)
{
    snprintf(why, IPC_SOCKET_WHY_BYTES, "ipc-socket %s: %s", path, what);
    return error;
}

/* What the system says, and what to do about it. */
static int refuse_errno(char why[IPC_SOCKET_WHY_BYTES], int error, const char *path,
                        const char *advice)
{
    snprintf(why, IPC_SOCKET_WHY_BYTES, "ipc-socket %s: %s: %s", path, strerror(-error), advice);
    return error;
}

static struct sockaddr_un address_of(const struct ipc_socket *socket)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    memcpy(address.sun_path, socket->path, sizeof address.sun_path);
    return address;
}

/* ---- its directory ---- */

static bool is_safe_directory(int fd, gid_t group)
{
    struct stat stat;

    if (fstat(fd, &stat) < 0 || (stat.st_uid != geteuid() && stat.st_uid != 0))
        return false;
    if ((stat.st_mode & S_IWOTH) != 0)
        return false;
    return (stat.st_mode & S_IWGRP) == 0 || stat.st_gid == group || stat.st_gid == 0;
}

/* For who may go through it: made here, it is the group's as well. */
static int make_directory(const char *directory, gid_t group)
{
    if (mkdir(directory, S_IRWXU) < 0)
        return errno == EEXIST ? 0 : -errno;
    if (group == IPC_SOCKET_NO_GROUP)
        return 0;
    if (chown(directory, (uid_t)-1, group) < 0 || chmod(directory, S_IRWXU | S_IRWXG) < 0)
        return -errno;
    return 0;
}

static int check_directory(const struct ipc_socket *socket, gid_t group,
                           char why[IPC_SOCKET_WHY_BYTES])
{
    char directory[IPC_SOCKET_PATH_BYTES_MAX];
    char *slash;
    bool is_safe;
    int fd, status;

    memcpy(directory, socket->path, sizeof directory);
    slash = strrchr(directory, '/');
    if (slash == NULL || slash == directory)
        return refuse(why, -EINVAL, socket->path,
                      "write an absolute path in a directory of its own");
    *slash = '\0';
    status = make_directory(directory, group);
    if (status < 0)
        return refuse_errno(why, status, directory,
                            "it cannot be made: make it for the agent's user, mode 700, or choose "
                            "another path (with --ipc-group that user must be in the group)");
    fd = open(directory, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return refuse_errno(why, -errno, directory,
                            "name a directory, and no link to one, that the agent's user may read");
    is_safe = is_safe_directory(fd, group);
    close(fd);
    return is_safe ? 0
                   : refuse(why, -EPERM, directory,
                            "others than this user may put a socket of theirs in the place of "
                            "ours: chown and chmod 700 it (770 with --ipc-group)");
}

/* ---- who else serves it ---- */

static int take_lock(struct ipc_socket *socket, char why[IPC_SOCKET_WHY_BYTES])
{
    char path[IPC_SOCKET_PATH_BYTES_MAX + sizeof ".lock"];

    snprintf(path, sizeof path, "%s.lock", socket->path);
    socket->lock_fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR);
    if (socket->lock_fd < 0)
        return refuse_errno(why, -errno, path,
                            "the agent's user must be able to write this file and its directory");
    if (flock(socket->lock_fd, LOCK_EX | LOCK_NB) == 0)
        return 0;
    return refuse(why, -EADDRINUSE, socket->path,
                  "another agent serves it: stop that one, or choose another path");
}

static bool is_served(const struct ipc_socket *socket_)
{
    struct sockaddr_un address = address_of(socket_);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int status;

    if (fd < 0)
        return true; /* not to be known: then it stays */
    status = connect(fd, (const struct sockaddr *)&address, sizeof address) < 0 ? errno : 0;
    close(fd);
    return status != ECONNREFUSED;
}

static int remove_dead(const struct ipc_socket *socket, char why[IPC_SOCKET_WHY_BYTES])
{
    struct stat stat;

    if (lstat(socket->path, &stat) < 0)
        return errno == ENOENT ? 0 : refuse_errno(why, -errno, socket->path, "choose another path");
    if (!S_ISSOCK(stat.st_mode))
        return refuse(why, -EEXIST, socket->path,
                      "there is a file that is no socket: remove it, or choose another path");
    if (is_served(socket))
        return refuse(why, -EADDRINUSE, socket->path,
                      "somebody else serves it: choose another path");
    return unlink(socket->path) < 0
               ? refuse_errno(why, -errno, socket->path, "remove it, or choose another path")
               : 0;
}

/* ---- life ---- */

/* Nobody may come between bind() and chmod(): the file is made without anybody's rights. */
static int bind_privately(const struct ipc_socket *socket, gid_t group)
{
    struct sockaddr_un address = address_of(socket);
    const bool has_group = group != IPC_SOCKET_NO_GROUP;
    mode_t mode = S_IRUSR | S_IWUSR | (has_group ? S_IRGRP | S_IWGRP : 0);
    mode_t before = umask(S_IRWXU | S_IRWXG | S_IRWXO);
    int status =
        bind(socket->fd, (const struct sockaddr *)&address, sizeof address) < 0 ? -errno : 0;

    (void)umask(before);
    if (status == 0 && has_group && chown(socket->path, (uid_t)-1, group) < 0)
        status = -errno;
    if (status == 0 && chmod(socket->path, mode) < 0)
        status = -errno;
    if (status == 0 && listen(socket->fd, BACKLOG) < 0)
        status = -errno;
    return status;
}

int ipc_socket_open(struct ipc_socket *opened, const char *path, gid_t group,
                    char why[IPC_SOCKET_WHY_BYTES])
{
    int status;

    *opened = (struct ipc_socket){.fd = -1, .lock_fd = -1};
    if (strlen(path) >= sizeof opened->path)
        return refuse(why, -ENAMETOOLONG, path, "longer than the 107 bytes of a Unix socket");
    snprintf(opened->path, sizeof opened->path, "%s", path);
    status = check_directory(opened, group, why);
    if (status == 0)
        status = take_lock(opened, why);
    if (status == 0)
        status = remove_dead(opened, why);
    if (status == 0) {
        opened->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        status = opened->fd < 0 ? -errno : bind_privately(opened, group);
        if (status < 0)
            (void)refuse_errno(why, status, path,
                               "the agent's user must own the directory, and with --ipc-group be "
                               "in that group");
    }
    if (status < 0)
        ipc_socket_close(opened);
    return status;
}

void ipc_socket_close(struct ipc_socket *socket)
{
    if (socket->fd >= 0) {
        (void)unlink(socket->path);
        close(socket->fd);
    }
    if (socket->lock_fd >= 0)
        close(socket->lock_fd);
    socket->fd = socket->lock_fd = -1;
}

/* ---- who comes ---- */

int ipc_socket_find_group(const char *text, gid_t *group)
{
    const struct group *found = getgrnam(text);
    unsigned long number;
    char *end;

    if (found != NULL) {
        *group = found->gr_gid;
        return 0;
    }
    errno = 0;
    number = strtoul(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0 ||
        number >= IPC_SOCKET_NO_GROUP)
        return -EINVAL;
    *group = (gid_t)number;
    return 0;
}

static bool is_in_group(int fd, gid_t group)
{
    gid_t groups[GROUP_COUNT_MAX];
    socklen_t len = sizeof groups;

    if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups, &len) < 0)
        return false;
    for (size_t i = 0; i < len / sizeof groups[0]; i++)
        if (groups[i] == group)
            return true;
    return false;
}

bool ipc_socket_admits(int fd, gid_t group, pid_t *pid)
{
    struct ucred peer;
    socklen_t len = sizeof peer;

    *pid = 0;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0)
        return false;
    *pid = peer.pid;
    if (peer.uid == geteuid() || peer.uid == 0)
        return true;
    return group != IPC_SOCKET_NO_GROUP && (peer.gid == group || is_in_group(fd, group));
}
