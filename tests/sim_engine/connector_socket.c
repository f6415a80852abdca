/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/connector_socket.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "backends/runtime/clock.h"

int connector_socket_open(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int socket_fd;

    if (strlen(path) >= sizeof address.sun_path)
        return -ENAMETOOLONG;
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    socket_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (socket_fd < 0)
        return -errno;
    if (connect(socket_fd, (const struct sockaddr *)&address, sizeof address) < 0) {
        int status = -errno;

        close(socket_fd);
        return status;
    }
    return socket_fd;
}

/* 0: events are there, or the peer's end; -ETIMEDOUT. */
static int wait_for(int socket_fd, short events, uint64_t deadline_us)
{
    struct pollfd poll_fd = {.fd = socket_fd, .events = events};

    for (;;) {
        uint64_t now_us = clock_now_us();
        uint64_t left_us = deadline_us > now_us ? deadline_us - now_us : 0;
        struct timespec left = {.tv_sec = (time_t)(left_us / 1000000),
                                .tv_nsec = (long)(left_us % 1000000 * 1000)};
        int count = ppoll(&poll_fd, 1, &left, NULL);

        if (count > 0)
            return 0;
        if (count == 0 && left_us == 0)
            return -ETIMEDOUT;
        if (count < 0 && errno != EINTR)
            return -errno;
    }
}

static void attach(struct msghdr *header, void *control, size_t control_bytes, int fd)
{
    struct cmsghdr *part;

    header->msg_control = control;
    header->msg_controllen = control_bytes;
    part = CMSG_FIRSTHDR(header);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(part), &fd, sizeof fd);
}

int connector_socket_send(int socket_fd, struct slice message, int fd, uint64_t wait_us)
{
    uint64_t deadline_us = clock_now_us() + wait_us;
    struct iovec piece = {.iov_base = (void *)(uintptr_t)message.ptr, .iov_len = message.len};
    struct msghdr header = {.msg_iov = &piece, .msg_iovlen = 1};
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof fd)] = {0};

    if (fd >= 0)
        attach(&header, control, sizeof control, fd);
    for (;;) {
        ssize_t sent = sendmsg(socket_fd, &header, MSG_DONTWAIT | MSG_NOSIGNAL);
        int status;

        if (sent >= 0) {
            assert((size_t)sent == message.len); /* messages are whole or not at all */
            return 0;
        }
        if (errno == EINTR)
            continue;
        if (errno != EAGAIN)
            return -errno;
        status = wait_for(socket_fd, POLLOUT, deadline_us);
        if (status < 0)
            return status;
    }
}

int connector_socket_receive(int socket_fd, void *bytes, size_t size, uint64_t wait_us)
{
    uint64_t deadline_us = clock_now_us() + wait_us;

    for (;;) {
        ssize_t len = recv(socket_fd, bytes, size, MSG_DONTWAIT | MSG_TRUNC);
        int status;

        if (len >= 0)
            return (size_t)len <= size ? (int)len : -EMSGSIZE;
        if (errno == EINTR)
            continue;
        if (errno != EAGAIN)
            return -errno;
        status = wait_for(socket_fd, POLLIN, deadline_us);
        if (status < 0)
            return status;
    }
}
