/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/io_loop.h"

#include "tests/support/loop_fixture.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <assert.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <sys/socket.h>

/* A wait that notes its end; it may arm itself or another one again. */
struct waiter {
    struct deadline deadline;
    struct io_deadlines *again; /* armed there at its end, once */
    bool has_expired;
    bool was_armed; /* when it was told */
    uint32_t count;
};

static void on_expired(struct deadline *deadline)
{
    struct waiter *waiter = container_of(deadline, struct waiter, deadline);
    struct io_deadlines *again = waiter->again;

    waiter->was_armed = list_node_is_linked(&deadline->node);
    waiter->count++;
    waiter->has_expired = again == NULL;
    waiter->again = NULL;
    if (again != NULL)
        deadline_arm(deadline, &again->list, io_loop_now_ms(loop_fixture_io()));
}

static void arm(struct waiter *waiter, struct io_deadlines *deadlines)
{
    deadline_arm(&waiter->deadline, &deadlines->list, io_loop_now_ms(loop_fixture_io()));
}

static void waiter_init(struct waiter *waiter)
{
    *waiter = (struct waiter){.again = NULL};
    deadline_init(&waiter->deadline);
}

TestSuite(io_loop, .init = loop_fixture_init, .fini = loop_fixture_fini);

Test(io_loop, a_wait_ends_once_disarmed_and_not_before_its_time)
{
    struct io_deadlines deadlines;
    struct waiter waiter;
    uint64_t begun_ms = io_loop_now_ms(loop_fixture_io());
    waiter_init(&waiter);
    io_deadlines_init(&deadlines, loop_fixture_io(), 30, on_expired);
    arm(&waiter, &deadlines);

    cr_assert(loop_run_until_flag(&waiter.has_expired, 5000));

    cr_assert(ge(u64, io_loop_now_ms(loop_fixture_io()), begun_ms + 30));
    cr_assert(not(waiter.was_armed));
    loop_run_for(3 * IO_TICK_MS);
    cr_assert(eq(u32, waiter.count, 1));
}

Test(io_loop, waits_of_several_lengths_end_in_the_order_of_their_time)
{
    struct io_deadlines longer, shorter;
    struct waiter slow, fast, disarmed;
    waiter_init(&slow);
    waiter_init(&fast);
    waiter_init(&disarmed);
    io_deadlines_init(&longer, loop_fixture_io(), 10 * IO_TICK_MS, on_expired);
    io_deadlines_init(&shorter, loop_fixture_io(), 1, on_expired);
    arm(&slow, &longer);
    arm(&disarmed, &shorter);
    arm(&fast, &shorter);
    deadline_disarm(&disarmed.deadline);

    cr_assert(loop_run_until_flag(&fast.has_expired, 5000));

    cr_assert(not(slow.has_expired));
    cr_assert(loop_run_until_flag(&slow.has_expired, 5000));
    cr_assert(eq(u32, disarmed.count, 0));
}

Test(io_loop, a_wait_may_begin_again_when_it_ends)
{
    struct io_deadlines deadlines;
    struct waiter waiter;
    waiter_init(&waiter);
    io_deadlines_init(&deadlines, loop_fixture_io(), 1, on_expired);
    waiter.again = &deadlines;
    arm(&waiter, &deadlines);

    cr_assert(loop_run_until_flag(&waiter.has_expired, 5000));

    cr_assert(eq(u32, waiter.count, 2));
}

Test(io_loop, a_wait_of_no_length_never_ends)
{
    struct io_deadlines never;
    struct waiter waiter;
    waiter_init(&waiter);
    io_deadlines_init(&never, loop_fixture_io(), 0, on_expired);
    arm(&waiter, &never);

    loop_run_for(3 * IO_TICK_MS);

    cr_assert(eq(u32, waiter.count, 0));
    cr_assert(not(list_node_is_linked(&waiter.deadline.node)));
}

/* ---- reading and writing ---- */

/* Two ends of a stream: ours in the loop, the other one plain. */
struct pair_world {
    uv_pipe_t ours;
    int theirs;
};

static void pair_world_init(struct pair_world *world)
{
    int fds[2];

    cr_assert(eq(int, socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0));
    cr_assert(eq(int, uv_pipe_init(loop_fixture_loop(), &world->ours, 0), 0));
    cr_assert(eq(int, uv_pipe_open(&world->ours, fds[0]), 0));
    world->theirs = fds[1];
}

static void pair_world_release(struct pair_world *world)
{
    uv_close((uv_handle_t *)&world->ours, NULL);
    if (world->theirs >= 0)
        close(world->theirs);
    uv_run(loop_fixture_loop(), UV_RUN_NOWAIT);
}

/* A read renews the wait, as that of a worker's answer does. */
struct renewal {
    struct pair_world pair;
    struct io_deadlines deadlines;
    struct waiter waiter;
    bool has_read;
};

static void on_renewing_read(uv_stream_t *stream, ssize_t len, const uv_buf_t *buffer)
{
    struct renewal *renewal = container_of(stream, struct renewal, pair.ours);

    (void)buffer;
    renewal->has_read = len > 0;
    arm(&renewal->waiter, &renewal->deadlines);
}

Test(io_loop, what_came_during_a_pause_of_the_process_is_read_before_anybody_is_late)
{
    enum { WAIT_MS = 10 * IO_TICK_MS };
    struct renewal renewal = {.has_read = false};
    pair_world_init(&renewal.pair);
    waiter_init(&renewal.waiter);
    io_deadlines_init(&renewal.deadlines, loop_fixture_io(), WAIT_MS, on_expired);
    uv_read_start((uv_stream_t *)&renewal.pair.ours, io_lend_read_buffer, on_renewing_read);
    arm(&renewal.waiter, &renewal.deadlines);

    cr_assert(eq(i64, write(renewal.pair.theirs, "x", 1), 1));
    uv_sleep(WAIT_MS + IO_TICK_MS); /* the pause: no turn of the loop */

    cr_assert(loop_run_until_flag(&renewal.has_read, 5000));
    cr_assert(eq(u32, renewal.waiter.count, 0));
    cr_assert(loop_run_until_flag(&renewal.waiter.has_expired, 5000)); /* silent from here on */
    pair_world_release(&renewal.pair);
}

Test(io_loop, the_read_buffer_is_shared_and_padded_with_zeros)
{
    struct pair_world world;
    uv_buf_t buffer;
    pair_world_init(&world);

    io_lend_read_buffer((uv_handle_t *)&world.ours, 1, &buffer);

    cr_assert(eq(sz, buffer.len, IO_READ_BYTES));
    for (size_t i = 0; i < BUF_PADDING; i++)
        cr_assert(eq(chr, buffer.base[IO_READ_BYTES + i], '\0'));
    pair_world_release(&world);
}

static bool is_lent(struct pair_world *world)
{
    uv_buf_t buffer;

    io_lend_read_buffer((uv_handle_t *)&world->ours, 1, &buffer);
    return buffer.len > 0;
}

static void take_share(struct pair_world *world)
{
    for (int i = 0; i < IO_READ_COUNT_MAX; i++)
        cr_assert(is_lent(world), "%d", i);
}

Test(io_loop, who_has_read_its_share_is_put_off_once)
{
    struct pair_world world;
    pair_world_init(&world);

    take_share(&world);
    cr_assert(not(is_lent(&world)));
    take_share(&world);

    pair_world_release(&world);
}

Test(io_loop, a_new_turn_or_another_reader_begins_a_new_share)
{
    struct pair_world world, other;
    pair_world_init(&world);
    pair_world_init(&other);

    take_share(&world);
    io_loop_end_turn(loop_fixture_io());
    take_share(&world);
    cr_assert(is_lent(&other));
    take_share(&world);
    cr_assert(not(is_lent(&world)));

    pair_world_release(&world);
    pair_world_release(&other);
}

/* Reads what was sent, and counts it. */
struct long_read {
    struct pair_world pair;
    size_t bytes;
    bool has_all;
};

enum { LONG_READ_BYTES = 8 << 20 };

static void on_long_read(uv_stream_t *stream, ssize_t len, const uv_buf_t *buffer)
{
    struct long_read *read = container_of(stream, struct long_read, pair.ours);

    (void)buffer;
    if (io_read_is_nothing(len))
        return;
    cr_assert(gt(i64, len, 0));
    read->bytes += (size_t)len;
    read->has_all = read->bytes == LONG_READ_BYTES;
}

static void send_long(void *arg)
{
    static const char bytes[64 * 1024];
    const struct long_read *read = arg;

    for (size_t sent = 0; sent < LONG_READ_BYTES;) {
        ssize_t len = write(read->pair.theirs, bytes, sizeof bytes);

        assert(len > 0); /* Criterion's do not work in a thread */
        sent += (size_t)len;
    }
}

Test(io_loop, who_is_put_off_loses_nothing)
{
    struct long_read read = {.bytes = 0};
    uv_thread_t sender;
    pair_world_init(&read.pair);
    cr_assert(eq(int, fcntl(read.pair.theirs, F_SETFL, 0), 0)); /* it waits until it has written */
    uv_read_start((uv_stream_t *)&read.pair.ours, io_lend_read_buffer, on_long_read);

    uv_thread_create(&sender, send_long, &read);
    cr_assert(loop_run_until_flag(&read.has_all, 5000));

    uv_thread_join(&sender);
    pair_world_release(&read.pair);
}

Test(io_loop, what_a_socket_takes_at_once_is_off_the_list)
{
    struct pair_world world;
    uv_buf_t pieces[] = {io_buf(SLICE("ab")), io_buf(SLICE("")), io_buf(SLICE("cd"))};
    uv_buf_t *left = pieces;
    unsigned count = 3;
    char seen[8];
    pair_world_init(&world);

    cr_assert(eq(i64, io_try_write((uv_stream_t *)&world.ours, &left, &count), 4));

    cr_assert(eq(u32, count, 0));
    cr_assert(eq(i64, read(world.theirs, seen, sizeof seen), 4));
    cr_assert(eq(int, memcmp(seen, "abcd", 4), 0));
    pair_world_release(&world);
}

/* What there is to read now. */
static size_t read_all(int fd, char *bytes, size_t size)
{
    size_t len = 0;
    ssize_t count;

    while (len < size && (count = read(fd, bytes + len, size - len)) > 0)
        len += (size_t)count;
    return len;
}

Test(io_loop, what_a_full_socket_does_not_take_is_left_in_order)
{
    enum { PIECE_BYTES = 700001, PIECE_COUNT = 3 };
    struct pair_world world;
    char *bytes = malloc(PIECE_BYTES * PIECE_COUNT);
    char *seen = malloc(PIECE_BYTES * PIECE_COUNT);
    uv_buf_t pieces[PIECE_COUNT], *left = pieces;
    unsigned count = PIECE_COUNT;
    size_t sent = 0, seen_len = 0;
    pair_world_init(&world);
    for (size_t i = 0; i < PIECE_BYTES * PIECE_COUNT; i++)
        bytes[i] = (char)(i * 31 + i / 251);
    for (size_t i = 0; i < PIECE_COUNT; i++)
        pieces[i] = io_buf(slice_of(bytes + i * PIECE_BYTES, PIECE_BYTES));

    while (count > 0) { /* each time as much as fits, then all of it is read */
        ssize_t now = io_try_write((uv_stream_t *)&world.ours, &left, &count);

        cr_assert(gt(i64, now, 0));
        sent += (size_t)now;
        if (count > 0)
            cr_assert(eq(ptr, left->base, bytes + sent));
        if (count > 0)
            cr_assert(eq(i64, io_try_write((uv_stream_t *)&world.ours, &left, &count), 0));
        seen_len += read_all(world.theirs, seen + seen_len, PIECE_BYTES * PIECE_COUNT - seen_len);
        cr_assert(eq(sz, seen_len, sent));
    }

    cr_assert(eq(sz, seen_len, PIECE_BYTES * PIECE_COUNT));
    cr_assert(eq(int, memcmp(seen, bytes, seen_len), 0));
    free(bytes);
    free(seen);
    pair_world_release(&world);
}

Test(io_loop, a_reader_that_is_gone_is_an_error)
{
    struct pair_world world;
    uv_buf_t piece = io_buf(SLICE("ab")), *left = &piece;
    unsigned count = 1;
    pair_world_init(&world);
    close(world.theirs);
    world.theirs = -1;

    cr_assert(eq(i64, io_try_write((uv_stream_t *)&world.ours, &left, &count), UV_EPIPE));

    pair_world_release(&world);
}
