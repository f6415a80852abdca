/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/io_loop.h"

#include <assert.h>
#include <errno.h>
#include <sys/socket.h>
#include <sys/uio.h>

/*
 * DESIGN
 *
 * libuv runs timers before it polls. After a pause of the whole process (a busy machine, a stopped
 * virtual one) the tick would find everybody silent whose bytes only lie unread in the sockets. So
 * a tick that comes late judges nobody: the loop reads first, and the next tick judges, late or
 * not.
 *
 * libuv reads a socket up to 32 times in a row while it fills the buffer: 2 MiB of a large body, or
 * 3 ms for everybody else. Lent no buffer, it gives up (UV_ENOBUFS) and comes back in the next
 * turn.
 */

static void fire_expired(struct io_deadlines *deadlines, uint64_t now_ms)
{
    struct deadline *deadline;

    while ((deadline = deadline_list_expired(&deadlines->list, now_ms)) != NULL) {
        deadline_disarm(deadline);
        deadlines->on_expired(deadline);
    }
}

static void on_tick(uv_timer_t *tick)
{
    struct io_loop *io = io_loop_of(tick->loop);
    uint64_t now_ms = io_loop_now_ms(io);
    bool was_paused = now_ms >= io->tick_ms + 2 * IO_TICK_MS;

    io->tick_ms = now_ms;
    io->is_tick_put_off = was_paused && !io->is_tick_put_off;
    if (io->is_tick_put_off)
        return;
    for (uint32_t i = 0; i < io->deadlines_count; i++)
        fire_expired(io->deadlines[i], now_ms);
}

int io_loop_init(struct io_loop *io)
{
    int status = uv_loop_init(&io->loop);

    if (status < 0)
        return status;
    io->deadlines_count = 0;
    io->reader = NULL;
    io->tick_ms = io_loop_now_ms(io);
    io->is_tick_put_off = false;
    memset(io->read_bytes + IO_READ_BYTES, 0, BUF_PADDING);
    status = uv_timer_init(&io->loop, &io->tick);
    if (status == 0)
        status = uv_timer_start(&io->tick, on_tick, IO_TICK_MS, IO_TICK_MS);
    return status;
}

void io_loop_stop_tick(struct io_loop *io)
{
    io_close((uv_handle_t *)&io->tick);
}

void io_loop_release(struct io_loop *io)
{
    int status = uv_loop_close(&io->loop);

    assert(status == 0);
}

void io_signal_start(struct io_loop *io, uv_signal_t *signal, int number, uv_signal_cb on_signal)
{
    int status = uv_signal_init(&io->loop, signal);

    if (status == 0)
        status = uv_signal_start(signal, on_signal, number);
    assert(status == 0);
}

void io_close(uv_handle_t *handle)
{
    if (!uv_is_closing(handle))
        uv_close(handle, NULL);
}

void io_deadlines_init(struct io_deadlines *deadlines, struct io_loop *io, uint64_t duration_ms,
                       io_expired_fn *on_expired)
{
    assert(io->deadlines_count < IO_DEADLINE_LIST_COUNT_MAX);

    deadline_list_init(&deadlines->list, duration_ms);
    deadlines->on_expired = on_expired;
    io->deadlines[io->deadlines_count++] = deadlines;
}

void io_lend_read_buffer(uv_handle_t *handle, size_t suggested, uv_buf_t *buffer)
{
    struct io_loop *io = io_loop_of(handle->loop);

    (void)suggested;
    if (io->reader != handle) {
        io->reader = handle;
        io->read_count = 0;
    }
    if (io->read_count++ == IO_READ_COUNT_MAX) {
        io->reader = NULL; /* it has given way once */
        *buffer = uv_buf_init(NULL, 0);
        return;
    }
    *buffer = uv_buf_init(io->read_bytes, IO_READ_BYTES);
}

/* send() takes a shorter way through the kernel than the write() of uv_try_write(). */
static ssize_t send_now(int fd, const uv_buf_t *bufs, unsigned count)
{
    struct iovec pieces[IO_WRITE_SLICE_COUNT_MAX];
    struct msghdr message = {.msg_iov = pieces, .msg_iovlen = count};
    ssize_t sent;

    for (unsigned i = 0; i < count; i++)
        pieces[i] = (struct iovec){bufs[i].base, bufs[i].len};
    do {
        sent = count == 1 ? send(fd, bufs[0].base, bufs[0].len, MSG_DONTWAIT | MSG_NOSIGNAL)
                          : sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    return sent;
}

ssize_t io_try_write(uv_stream_t *stream, uv_buf_t **bufs, unsigned *count)
{
    ssize_t sent;
    size_t left;
    uv_os_fd_t fd;

    assert(*count > 0 && *count <= IO_WRITE_SLICE_COUNT_MAX);
    assert(uv_stream_get_write_queue_size(stream) == 0);

    if (uv_fileno((const uv_handle_t *)stream, &fd) < 0)
        return -EBADF;
    sent = send_now(fd, *bufs, *count);
    if (sent < 0) /* the kernel's want of memory passes too: uv_write() waits for it */
        return errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS ? 0 : -errno;
    left = (size_t)sent;
    while (*count > 0 && left >= (*bufs)->len) {
        left -= (*bufs)->len;
        (*bufs)++;
        (*count)--;
    }
    if (*count > 0) {
        (*bufs)->base += left;
        (*bufs)->len -= left;
    }
    return sent;
}
