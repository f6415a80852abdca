/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/connector/ipc_server.h"

#include "kvtier/connector/ipc_wire.h"
#include "tests/support/loop_fixture.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CONN_COUNT_MAX = 2, QUEUE_BYTES_MAX = 1 << 20, WAIT_MS = 5000, QUIET_MS = 50 };

struct world {
    char dir[64];
    char path[96];
    struct ipc_server *server;
    struct ipc_conn *conn; /* the newest */
    size_t opened_count;
    size_t packet_count;
    size_t end_count;
    char last[64]; /* packet */
    size_t last_len;
    size_t last_fd_count;
    bool is_last_cut;
    bool is_served_one_by_one; /* the conn is closed by its first packet */
    bool is_closed;
};

static void on_open(void *ctx, struct ipc_conn *conn)
{
    struct world *world = ctx;

    world->conn = conn;
    world->opened_count++;
}

static void on_packet(void *ctx, struct ipc_conn *conn, const struct ipc_packet *packet)
{
    struct world *world = ctx;

    world->packet_count++;
    world->last_len = packet->bytes.len;
    world->last_fd_count = packet->fd_count;
    world->is_last_cut = packet->is_cut;
    memcpy(world->last, packet->bytes.ptr,
           packet->bytes.len < sizeof world->last ? packet->bytes.len : sizeof world->last);
    for (size_t i = 0; i < packet->fd_count; i++)
        cr_assert(ne(int, fcntl(packet->fds[i], F_GETFD) & FD_CLOEXEC, 0));
    if (world->is_served_one_by_one && conn == world->conn)
        ipc_conn_close(&world->conn);
}

static void on_end(void *ctx, struct ipc_conn *conn)
{
    struct world *world = ctx;

    world->end_count++;
    cr_assert(eq(ptr, conn, world->conn));
}

static const struct ipc_server_callbacks callbacks = {on_open, on_packet, on_end};

static int open_server(struct world *world, char why[IPC_SOCKET_WHY_BYTES])
{
    return ipc_server_open(loop_fixture_io(),
                           (struct ipc_server_config){.path = world->path,
                                                      .group = IPC_SOCKET_NO_GROUP,
                                                      .conn_count_max = CONN_COUNT_MAX,
                                                      .queue_bytes_max = QUEUE_BYTES_MAX,
                                                      .busy = SLICE("busy")},
                           &callbacks, world, &world->server, why);
}

static void world_init(struct world *world)
{
    char why[IPC_SOCKET_WHY_BYTES];

    *world = (struct world){.dir = "/tmp/samovar-ipc-XXXXXX"};
    cr_assert(ne(ptr, mkdtemp(world->dir), NULL));
    snprintf(world->path, sizeof world->path, "%s/agent.sock", world->dir);
    cr_assert(zero(int, open_server(world, why)), "%s", why);
}

static void on_closed(void *ctx)
{
    struct world *world = ctx;

    world->is_closed = true;
}

static void remove_directory(const struct world *world)
{
    char lock[128];

    snprintf(lock, sizeof lock, "%s.lock", world->path);
    unlink(lock);
    cr_assert(zero(int, rmdir(world->dir)), "%s", strerror(errno));
}

static void world_release(struct world *world)
{
    if (world->conn != NULL)
        ipc_conn_close(&world->conn);
    ipc_server_close(&world->server, on_closed, world);
    cr_assert(loop_run_until_flag(&world->is_closed, WAIT_MS));
    remove_directory(world);
}

static int connect_to(const struct world *world)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    memcpy(address.sun_path, world->path, strlen(world->path));
    cr_assert(zero(int, connect(fd, (struct sockaddr *)&address, sizeof address)));
    return fd;
}

/* ---- what is awaited ---- */

static bool is_opened(void *ctx)
{
    const struct world *world = ctx;

    return world->opened_count > 0;
}

static bool has_packet(void *ctx)
{
    const struct world *world = ctx;

    return world->packet_count > 0;
}

static bool has_end(void *ctx)
{
    const struct world *world = ctx;

    return world->end_count > 0;
}

static int opened_connection(struct world *world)
{
    int fd = connect_to(world);

    world->opened_count = 0;
    cr_assert(loop_run_until(is_opened, world, WAIT_MS));
    return fd;
}

static size_t count_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    size_t count = 0;

    while (readdir(dir) != NULL)
        count++;
    closedir(dir);
    return count;
}

/* len bytes of letters, with descriptors of /dev/null. */
static void send_with(int fd, size_t len, size_t fd_count)
{
    static char bytes[IPC_MESSAGE_BYTES_MAX + 1];
    char control[CMSG_SPACE(sizeof(int) * 128)] = {0};
    struct iovec piece = {bytes, len};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1};
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);

    memset(bytes, 'x', sizeof bytes);
    if (fd_count > 0) {
        struct cmsghdr *part = (struct cmsghdr *)(void *)control;

        message.msg_control = control;
        message.msg_controllen = CMSG_SPACE(sizeof(int) * fd_count);
        part->cmsg_level = SOL_SOCKET;
        part->cmsg_type = SCM_RIGHTS;
        part->cmsg_len = CMSG_LEN(sizeof(int) * fd_count);
        for (size_t i = 0; i < fd_count; i++)
            memcpy(CMSG_DATA(part) + i * sizeof null, &null, sizeof null);
    }
    cr_assert(eq(long, sendmsg(fd, &message, 0), (long)len), "%s", strerror(errno));
    close(null);
}

TestSuite(ipc_server, .init = loop_fixture_init, .fini = loop_fixture_fini);

/* ---- messages ---- */

Test(ipc_server, messages_stay_apart_both_ways)
{
    struct world world;
    world_init(&world);
    int fd = opened_connection(&world);
    char bytes[16];
    send_with(fd, 3, 0);
    send_with(fd, 5, 0);
    cr_assert(loop_run_until(has_packet, &world, WAIT_MS));
    loop_run_for(QUIET_MS);

    cr_expect(eq(sz, world.packet_count, 2));
    cr_expect(eq(sz, world.last_len, 5));
    ipc_conn_send(world.conn, SLICE("one"));
    ipc_conn_send(world.conn, SLICE("three"));
    cr_expect(eq(long, recv(fd, bytes, sizeof bytes, 0), 3));
    cr_expect(eq(long, recv(fd, bytes, sizeof bytes, 0), 5));
    close(fd);
    world_release(&world);
}

Test(ipc_server, descriptors_come_along_and_none_is_kept)
{
    struct world world;
    world_init(&world);
    int fd = opened_connection(&world);
    size_t before = count_fds();
    send_with(fd, 1, 64);

    cr_assert(loop_run_until(has_packet, &world, WAIT_MS));

    cr_expect(eq(sz, world.last_fd_count, 64));
    cr_expect(not(world.is_last_cut));
    cr_expect(eq(sz, count_fds(), before));
    close(fd);
    world_release(&world);
}

Test(ipc_server, too_many_descriptors_are_said_to_be_cut_and_none_is_kept)
{
    struct world world;
    world_init(&world);
    int fd = opened_connection(&world);
    size_t before = count_fds();
    send_with(fd, 1, 65);

    cr_assert(loop_run_until(has_packet, &world, WAIT_MS));

    cr_expect(world.is_last_cut);
    cr_expect(eq(sz, count_fds(), before));
    close(fd);
    world_release(&world);
}

Test(ipc_server, the_longest_message_is_whole_and_one_byte_more_is_cut)
{
    struct world world;
    world_init(&world);
    int fd = opened_connection(&world);
    send_with(fd, IPC_MESSAGE_BYTES_MAX, 0);
    cr_assert(loop_run_until(has_packet, &world, WAIT_MS));
    cr_expect(eq(sz, world.last_len, IPC_MESSAGE_BYTES_MAX));
    cr_expect(not(world.is_last_cut));
    world.packet_count = 0;
    send_with(fd, IPC_MESSAGE_BYTES_MAX + 1, 0);

    cr_assert(loop_run_until(has_packet, &world, WAIT_MS));

    cr_expect(world.is_last_cut);
    close(fd);
    world_release(&world);
}

Test(ipc_server, what_lies_in_a_socket_can_be_read_at_once)
{
    struct world world;
    world_init(&world);
    int fd = opened_connection(&world);
    for (size_t i = 0; i < 40; i++)
        send_with(fd, 100, 0);

    ipc_conn_read(world.conn);

    cr_expect(eq(sz, world.packet_count, 40));
    close(fd);
    world_release(&world);
}

Test(ipc_server, a_conn_may_be_closed_by_its_own_message)
{
    struct world world;
    world_init(&world);
    int fd = opened_connection(&world);
    char byte;
    world.is_served_one_by_one = true;
    send_with(fd, 1, 1);
    send_with(fd, 2, 1);

    cr_assert(loop_run_until(has_packet, &world, WAIT_MS));
    loop_run_for(QUIET_MS);

    cr_expect(eq(sz, world.packet_count, 1));
    cr_expect(le(long, recv(fd, &byte, 1, 0), 0));
    close(fd);
    world_release(&world);
}

/* ---- ends ---- */

Test(ipc_server, an_end_is_seen_at_once_and_told_by_the_loop)
{
    struct world world;
    world_init(&world);
    int fd = opened_connection(&world);
    cr_expect(ipc_conn_is_open(world.conn));

    close(fd);

    cr_expect(not(ipc_conn_is_open(world.conn)));
    cr_expect(eq(sz, world.end_count, 0));
    cr_assert(loop_run_until(has_end, &world, WAIT_MS));
    loop_run_for(QUIET_MS);
    cr_expect(eq(sz, world.end_count, 1));
    world_release(&world);
}

Test(ipc_server, who_has_only_ended_sending_still_gets_what_is_sent)
{
    struct world world;
    world_init(&world);
    int fd = opened_connection(&world);
    char bytes[16];
    shutdown(fd, SHUT_WR);
    cr_expect(not(ipc_conn_is_open(world.conn)));
    cr_assert(loop_run_until(has_end, &world, WAIT_MS));

    ipc_conn_send(world.conn, SLICE("loaded"));

    cr_expect(eq(long, recv(fd, bytes, sizeof bytes, 0), 6));
    close(fd);
    world_release(&world);
}

Test(ipc_server, a_dead_process_is_seen_though_its_child_has_the_socket)
{
    struct world world;
    int pipe_fds[2];
    pid_t child, grandchild;
    world_init(&world);
    cr_assert(zero(int, pipe(pipe_fds)));
    child = fork();
    if (child == 0) {
        int fd = connect_to(&world);
        pid_t holder = fork();

        if (holder == 0) {
            pause(); /* fd stays open here */
            _exit(fd);
        }
        if (write(pipe_fds[1], &holder, sizeof holder) != (ssize_t)sizeof holder)
            _exit(1);
        pause();
        _exit(0);
    }
    cr_assert(eq(long, read(pipe_fds[0], &grandchild, sizeof grandchild), sizeof grandchild));
    cr_assert(loop_run_until(is_opened, &world, WAIT_MS));
    cr_expect(ipc_conn_is_open(world.conn));

    kill(child, SIGKILL);
    waitpid(child, NULL, 0);

    cr_expect(not(ipc_conn_is_open(world.conn)));
    cr_assert(loop_run_until(has_end, &world, WAIT_MS));
    kill(grandchild, SIGKILL);
    close(pipe_fds[0]);
    close(pipe_fds[1]);
    world_release(&world);
}

Test(ipc_server, who_does_not_read_ends_and_costs_no_more_than_his_queue)
{
    static char bytes[1024];
    struct world world;
    world_init(&world);
    int fd = opened_connection(&world);

    for (size_t i = 0; i < 4096; i++)
        ipc_conn_send(world.conn, slice_of(bytes, sizeof bytes));

    cr_assert(loop_run_until(has_end, &world, WAIT_MS));
    cr_expect(eq(u64, ipc_server_stats(world.server).unread_total, 1));
    close(fd);
    world_release(&world);
}

Test(ipc_server, what_does_not_fit_at_once_comes_when_there_is_room)
{
    enum { COUNT = 500 }; /* a socket's buffer holds less than half of them */
    static char bytes[1000];
    struct world world;
    world_init(&world);
    int fd = opened_connection(&world);

    for (int i = 0; i < COUNT; i++) {
        memcpy(bytes, &i, sizeof i);
        ipc_conn_send(world.conn, slice_of(bytes, sizeof bytes));
    }

    cr_assert(zero(u64, ipc_server_stats(world.server).unread_total));
    for (int i = 0; i < COUNT; i++) {
        int number;

        loop_run_for(i % 50 == 0 ? 1 : 0);
        cr_assert(eq(long, recv(fd, bytes, sizeof bytes, MSG_DONTWAIT), sizeof bytes));
        memcpy(&number, bytes, sizeof number);
        cr_assert(eq(int, number, i));
    }
    close(fd);
    world_release(&world);
}

/* ---- who may come ---- */

Test(ipc_server, one_too_many_hears_that_it_is_busy_and_a_closed_one_makes_room)
{
    struct world world;
    struct ipc_conn *first;
    char bytes[16];
    world_init(&world);
    int fds[3] = {opened_connection(&world)};
    first = world.conn;
    fds[1] = opened_connection(&world);
    fds[2] = connect_to(&world);
    loop_run_for(QUIET_MS);

    cr_expect(eq(long, recv(fds[2], bytes, sizeof bytes, 0), 4));
    cr_expect(zero(long, recv(fds[2], bytes, sizeof bytes, 0)));
    cr_expect(eq(u64, ipc_server_stats(world.server).crowded_total, 1));
    ipc_conn_close(&first);
    close(fds[2]);
    first = world.conn;
    fds[2] = opened_connection(&world);
    cr_expect(eq(u32, ipc_server_stats(world.server).conn_count, 2));

    ipc_conn_close(&first);
    ipc_conn_close(&world.conn);
    for (size_t i = 0; i < 3; i++)
        close(fds[i]);
    world_release(&world);
}

Test(ipc_server, a_closed_server_waits_for_its_conns)
{
    struct world world;
    world_init(&world);
    int fd = opened_connection(&world);
    char byte;

    ipc_server_close(&world.server, on_closed, &world);
    loop_run_for(QUIET_MS);

    cr_expect(not(world.is_closed));
    cr_expect(lt(long, recv(fd, &byte, 1, MSG_DONTWAIT), 0)); /* nor has it ended */
    ipc_conn_close(&world.conn);
    cr_assert(loop_run_until_flag(&world.is_closed, WAIT_MS));
    cr_expect(zero(long, recv(fd, &byte, 1, 0)));
    close(fd);
    remove_directory(&world);
}

Test(ipc_server, the_socket_is_its_users_alone_and_goes_with_it)
{
    struct world world;
    struct stat stat;
    world_init(&world);

    cr_assert(zero(int, lstat(world.path, &stat)));
    cr_expect(eq(u32, stat.st_mode & 0777, 0600));
    ipc_server_close(&world.server, on_closed, &world);

    cr_assert(loop_run_until_flag(&world.is_closed, WAIT_MS));
    cr_expect(eq(int, lstat(world.path, &stat), -1));
    remove_directory(&world);
}

Test(ipc_server, a_served_path_is_refused_and_a_dead_ones_taken)
{
    char why[IPC_SOCKET_WHY_BYTES];
    struct world world, other;
    pid_t child;
    int status;
    world_init(&world);
    other = world;
    other.server = NULL;

    cr_expect(eq(int, open_server(&other, why), -EADDRINUSE));
    cr_expect(ne(ptr, strstr(why, "another agent serves it"), NULL), "%s", why);
    ipc_server_close(&world.server, on_closed, &world);
    cr_assert(loop_run_until_flag(&world.is_closed, WAIT_MS));
    child = fork();
    if (child == 0) { /* dies with it open */
        struct ipc_socket socket;

        _exit(ipc_socket_open(&socket, world.path, IPC_SOCKET_NO_GROUP, why) == 0 ? 0 : 1);
    }
    waitpid(child, &status, 0);
    cr_assert(zero(int, status));
    world.is_closed = false;

    cr_assert(zero(int, open_server(&world, why)), "%s", why);
    close(opened_connection(&world));
    world_release(&world);
}

Test(ipc_server, what_is_no_socket_or_no_agents_is_left_alone)
{
    char why[IPC_SOCKET_WHY_BYTES];
    struct world world;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct stat stat;
    int fd;
    world_init(&world);
    ipc_server_close(&world.server, on_closed, &world);
    cr_assert(loop_run_until_flag(&world.is_closed, WAIT_MS));
    close(open(world.path, O_CREAT | O_WRONLY, 0600));

    cr_expect(eq(int, open_server(&world, why), -EEXIST));
    unlink(world.path);
    memcpy(address.sun_path, world.path, strlen(world.path));
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert(zero(int, bind(fd, (struct sockaddr *)&address, sizeof address)));
    cr_assert(zero(int, listen(fd, 1)));
    cr_expect(eq(int, open_server(&world, why), -EADDRINUSE));

    cr_expect(zero(int, lstat(world.path, &stat)));
    close(fd);
    unlink(world.path);
    remove_directory(&world);
}

Test(ipc_server, a_directory_that_others_may_write_is_refused)
{
    char why[IPC_SOCKET_WHY_BYTES];
    struct world world;
    world_init(&world);
    ipc_server_close(&world.server, on_closed, &world);
    cr_assert(loop_run_until_flag(&world.is_closed, WAIT_MS));

    chmod(world.dir, 0707);
    cr_expect(eq(int, open_server(&world, why), -EPERM));
    snprintf(world.path, sizeof world.path, "relative.sock");
    cr_expect(eq(int, open_server(&world, why), -EINVAL));

    chmod(world.dir, 0700);
    snprintf(world.path, sizeof world.path, "%s/agent.sock", world.dir);
    remove_directory(&world);
}

Test(ipc_server, a_directory_that_cannot_be_made_or_is_a_link_is_refused_with_what_to_do)
{
    char why[IPC_SOCKET_WHY_BYTES], link[128], path[sizeof((struct world *)0)->path];
    struct world world;
    world_init(&world);
    ipc_server_close(&world.server, on_closed, &world);
    cr_assert(loop_run_until_flag(&world.is_closed, WAIT_MS));
    memcpy(path, world.path, sizeof path);
    snprintf(link, sizeof link, "%s/link", world.dir);
    cr_assert(zero(int, symlink("/tmp", link)));

    snprintf(world.path, sizeof world.path, "%s/missing/run/agent.sock", world.dir);
    cr_expect(eq(int, open_server(&world, why), -ENOENT));
    cr_expect(ne(ptr, strstr(why, "make it for the agent's user"), NULL), "%s", why);
    snprintf(world.path, sizeof world.path, "%s/link/agent.sock", world.dir);
    cr_expect(lt(int, open_server(&world, why), 0));
    cr_expect(ne(ptr, strstr(why, "no link to one"), NULL), "%s", why);

    unlink(link);
    memcpy(world.path, path, sizeof path);
    remove_directory(&world);
}

Test(ipc_server, a_missing_directory_is_made_for_its_user_alone)
{
    char why[IPC_SOCKET_WHY_BYTES], dir[64];
    struct world world;
    struct stat stat;
    world_init(&world);
    ipc_server_close(&world.server, on_closed, &world);
    cr_assert(loop_run_until_flag(&world.is_closed, WAIT_MS));
    remove_directory(&world);
    memcpy(dir, world.dir, sizeof dir);
    world.is_closed = false;

    cr_assert(zero(int, open_server(&world, why)), "%s", why);

    cr_assert(zero(int, lstat(dir, &stat)));
    cr_expect(eq(u32, stat.st_mode & 0777, 0700));
    world_release(&world);
}

Test(ipc_server, groups_are_found_by_name_and_number)
{
    gid_t group;

    cr_expect(zero(int, ipc_socket_find_group("root", &group)));
    cr_expect(eq(u32, group, 0));
    cr_expect(zero(int, ipc_socket_find_group("4711", &group)));
    cr_expect(eq(u32, group, 4711));
    cr_expect(eq(int, ipc_socket_find_group("no such group", &group), -EINVAL));
    cr_expect(eq(int, ipc_socket_find_group("-1", &group), -EINVAL));
    cr_expect(eq(int, ipc_socket_find_group("4294967295", &group), -EINVAL));
    cr_expect(eq(int, ipc_socket_find_group("", &group), -EINVAL));
}
