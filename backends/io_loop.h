/* SPDX-License-Identifier: Apache-2.0 */

/*
 * io_loop: the event loop with what every connection on it shares: one read buffer, and deadlines
 * that are checked in one tick. Loop thread only.
 */
#ifndef BACKENDS_IO_LOOP_H
#define BACKENDS_IO_LOOP_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "backends/runtime/buf.h"
#include "backends/runtime/deadline_list.h"
#include "backends/runtime/must_check.h"

enum {
    IO_READ_BYTES = 64 * 1024,
    IO_TICK_MS = 20, /* deadlines fire up to this early or late; after a pause, one more */
    IO_DEADLINE_LIST_COUNT_MAX = 32,
    IO_WRITE_SLICE_COUNT_MAX = 64, /* pieces of one gathered write */
    IO_READ_COUNT_MAX = 4,         /* of one connection in one turn of the loop */
};

/* The wait is over; the deadline is disarmed already. */
typedef void io_expired_fn(struct deadline *deadline);

struct io_deadlines { /* all waits of one length */
    struct deadline_list list;
    io_expired_fn *on_expired;
};

struct io_loop {
    uv_loop_t loop;
    uv_timer_t tick;
    uint64_t tick_ms;     /* when the last one was */
    bool is_tick_put_off; /* the last one came too late to judge anybody */
    struct io_deadlines *deadlines[IO_DEADLINE_LIST_COUNT_MAX];
    uint32_t deadlines_count;
    const uv_handle_t *reader; /* that was lent the buffer last in this turn */
    uint32_t read_count;       /* how often in a row */
    char read_bytes[IO_READ_BYTES + BUF_PADDING];
};

/* -errno when the system has no loop to give. */
MUST_CHECK int io_loop_init(struct io_loop *io);

/* Stops the tick. The loop still runs until every handle is closed; then io_loop_release(). */
void io_loop_stop_tick(struct io_loop *io);

/* Every handle must be closed. */
void io_loop_release(struct io_loop *io);

/* From any handle of this loop. */
static inline struct io_loop *io_loop_of(const uv_loop_t *loop)
{
    return container_of(loop, struct io_loop, loop);
}

/* Milliseconds, monotonic, cached per turn of the loop. */
static inline uint64_t io_loop_now_ms(const struct io_loop *io)
{
    return uv_now(&io->loop);
}

/* Watches for a signal; signal->data is the caller's. At boot: a system that refuses ends it. */
void io_signal_start(struct io_loop *io, uv_signal_t *signal, int number, uv_signal_cb on_signal);

/* Closes a handle whose memory outlives the loop, if nobody has yet. */
void io_close(uv_handle_t *handle);

/* Registers waits of duration_ms (0: they never expire). Borrowed until io_loop_release(). */
void io_deadlines_init(struct io_deadlines *deadlines, struct io_loop *io, uint64_t duration_ms,
                       io_expired_fn *on_expired);

/* A uv_alloc_cb that lends the shared read buffer: what is read must be used up in the read
 * callback. BUF_PADDING bytes behind it are readable. Who sends much is put off to the next turn:
 * see io_read_is_nothing(). */
void io_lend_read_buffer(uv_handle_t *handle, size_t suggested, uv_buf_t *buffer);

/* Whether a uv_read_cb was called for nothing: neither bytes nor an end. */
static inline bool io_read_is_nothing(ssize_t count)
{
    return count == 0 || count == UV_ENOBUFS;
}

/* Call it once in each turn: until then a connection that has read its share gets no more. */
static inline void io_loop_end_turn(struct io_loop *io)
{
    io->reader = NULL;
}

static inline uv_buf_t io_buf(struct slice slice)
{
    return (uv_buf_t){.base = (char *)(uintptr_t)slice.ptr, .len = slice.len};
}

/*
 * Sends what the socket takes at once; nothing may be queued on stream by uv_write(). Returns how
 * many bytes that was (0 when it is full), or -errno. bufs is advanced: *bufs and *count are what
 * is left, the first piece shortened.
 */
MUST_CHECK ssize_t io_try_write(uv_stream_t *stream, uv_buf_t **bufs, unsigned *count);

#endif
