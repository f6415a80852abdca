/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/connector_socket.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "backends/runtime/clock.h"
#include "tests/support/leak_check.h"

enum { WAIT_US = 3000 };

static void make_pair(int ends[2])
{
    cr_assert(eq(int, socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0));
}

static void close_pair(const int ends[2])
{
    close(ends[0]);
    close(ends[1]);
}

TestSuite(connector_socket, .fini = leak_check);

Test(connector_socket, messages_stay_apart)
{
    int ends[2];
    char bytes[16];
    make_pair(ends);

    cr_assert(eq(int, connector_socket_send(ends[0], SLICE("one"), -1, 0), 0));
    cr_assert(eq(int, connector_socket_send(ends[0], SLICE("three"), -1, 0), 0));

    cr_assert(eq(int, connector_socket_receive(ends[1], bytes, sizeof bytes, 0), 3));
    cr_assert(eq(int, connector_socket_receive(ends[1], bytes, sizeof bytes, 0), 5));
    close_pair(ends);
}

Test(connector_socket, a_descriptor_goes_with_its_message)
{
    int ends[2], pipe_ends[2];
    char bytes[16] = "";
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec piece = {bytes, sizeof bytes};
    struct msghdr header = {
        .msg_iov = &piece,
        .msg_iovlen = 1,
        .msg_control = control,
        .msg_controllen = sizeof control,
    };
    int received;
    make_pair(ends);
    cr_assert(eq(int, pipe(pipe_ends), 0));

    cr_assert(eq(int, connector_socket_send(ends[0], SLICE("take it"), pipe_ends[1], 0), 0));

    cr_assert(eq(int, (int)recvmsg(ends[1], &header, 0), 7));
    cr_assert(ne(ptr, CMSG_FIRSTHDR(&header), NULL));
    memcpy(&received, CMSG_DATA(CMSG_FIRSTHDR(&header)), sizeof received);
    cr_assert(eq(int, (int)write(received, "x", 1), 1));
    cr_assert(eq(int, (int)read(pipe_ends[0], bytes, sizeof bytes), 1));
    close(received);
    close_pair(pipe_ends);
    close_pair(ends);
}

Test(connector_socket, waits_end)
{
    int ends[2];
    char bytes[16];
    uint64_t began_us = clock_now_us();
    make_pair(ends);

    cr_assert(eq(int, connector_socket_receive(ends[0], bytes, sizeof bytes, WAIT_US), -ETIMEDOUT));

    cr_assert(ge(u64, clock_now_us() - began_us, WAIT_US));
    close_pair(ends);
}

Test(connector_socket, who_reads_nothing_is_not_waited_for_longer_than_told)
{
    int ends[2];
    static char bytes[32 * 1024];
    int status = 0;
    make_pair(ends);

    for (size_t i = 0; i < 1000 && status == 0; i++)
        status = connector_socket_send(ends[0], slice_of(bytes, sizeof bytes), -1, WAIT_US);

    cr_assert(eq(int, status, -ETIMEDOUT));
    close_pair(ends);
}

Test(connector_socket, the_end_is_told_from_silence_and_from_what_is_too_long)
{
    int ends[2];
    char bytes[4];
    make_pair(ends);

    cr_assert(eq(int, connector_socket_send(ends[1], SLICE("too long"), -1, 0), 0));
    close(ends[1]);

    cr_assert(eq(int, connector_socket_receive(ends[0], bytes, sizeof bytes, 0), -EMSGSIZE));
    cr_assert(eq(int, connector_socket_receive(ends[0], bytes, sizeof bytes, 0), 0));
    cr_assert(eq(int, connector_socket_send(ends[0], SLICE("x"), -1, 0), -EPIPE));
    close(ends[0]);
}

Test(connector_socket, nobody_there_is_an_error)
{
    char path[64];
    snprintf(path, sizeof path, "/tmp/samovar-nobody-%d", (int)getpid());

    cr_assert(eq(int, connector_socket_open(path), -ENOENT));
}
