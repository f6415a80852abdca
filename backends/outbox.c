/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/outbox.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "backends/io_loop.h"

/*
 * DESIGN
 *
 * A router that sends each event the moment it has read it wakes its client once for each: it has
 * handled one before the next comes. Reading everything first and then sending everything finds
 * the client still awake; and a copy of a few hundred bytes costs less than a gathered system call.
 * No time is lost: a turn of the loop ends when nothing is left to read.
 *
 *   gathered (this turn) --> kernel, or --> uv_write() queue --> kernel
 *
 * Bytes are gathered only while nothing is queued, so that the order is kept.
 */
struct outbox_write { /* bytes that the kernel did not take at once */
    uv_write_t write;
    struct outbox *outbox;
    size_t len;
    char bytes[];
};

static char *take_buffer(struct outbox_hub *hub)
{
    return hub->spare_count > 0 ? hub->spares[--hub->spare_count] : malloc(OUTBOX_GATHERED_BYTES);
}

static void give_buffer(struct outbox_hub *hub, char *buffer)
{
    if (hub->spare_count < OUTBOX_SPARE_COUNT_MAX)
        hub->spares[hub->spare_count++] = buffer;
    else
        free(buffer);
}

static void forget_gathered(struct outbox *outbox)
{
    if (outbox->gathered == NULL)
        return;
    list_remove(&outbox->hub->unsent, &outbox->in_unsent);
    give_buffer(outbox->hub, outbox->gathered);
    outbox->gathered = NULL;
    outbox->gathered_len = 0;
}

static void on_written(uv_write_t *write, int status)
{
    struct outbox_write *written = container_of(write, struct outbox_write, write);
    struct outbox *outbox = written->outbox;

    outbox->queued_bytes -= written->len;
    free(written);
    if (outbox->callbacks == NULL)
        return; /* closed meanwhile */
    if (status < 0)
        outbox->callbacks->on_failed(outbox->ctx, status);
    else
        outbox->callbacks->on_progress(outbox->ctx);
}

/* Copies what is left, since its memory is somebody else's, and queues it. */
static int queue_rest(struct outbox *outbox, const uv_buf_t *left, unsigned count)
{
    struct outbox_write *rest;
    size_t len = 0;
    uv_buf_t buffer;

    for (unsigned i = 0; i < count; i++)
        len += left[i].len;
    rest = malloc(sizeof *rest + len);
    if (rest == NULL)
        return -ENOMEM;
    rest->outbox = outbox;
    rest->len = len;
    len = 0;
    for (unsigned i = 0; i < count; i++) {
        memcpy(rest->bytes + len, left[i].base, left[i].len);
        len += left[i].len;
    }
    buffer = uv_buf_init(rest->bytes, (unsigned)len);
    if (uv_write(&rest->write, outbox->stream, &buffer, 1, on_written) < 0) {
        free(rest);
        return -EPIPE;
    }
    outbox->queued_bytes += len;
    return 0;
}

/* Hands pieces to the kernel, and queues what it does not take. */
static int send_pieces(struct outbox *outbox, uv_buf_t *pieces, unsigned count)
{
    if (outbox->queued_bytes == 0) {
        ssize_t sent = io_try_write(outbox->stream, &pieces, &count);

        if (sent < 0)
            return (int)sent;
    }
    return count > 0 ? queue_rest(outbox, pieces, count) : 0;
}

static int gather(struct outbox *outbox, const struct slice *slices, unsigned count)
{
    if (outbox->gathered == NULL) {
        outbox->gathered = take_buffer(outbox->hub);
        if (outbox->gathered == NULL)
            return -ENOMEM;
        list_append(&outbox->hub->unsent, &outbox->in_unsent);
    }
    for (unsigned i = 0; i < count; i++) {
        memcpy(outbox->gathered + outbox->gathered_len, slices[i].ptr, slices[i].len);
        outbox->gathered_len += slices[i].len;
    }
    return 0;
}

int outbox_write(struct outbox *outbox, const struct slice *slices, unsigned count)
{
    uv_buf_t pieces[IO_WRITE_SLICE_COUNT_MAX]; /* what was gathered is one of them */
    unsigned piece_count = 0;
    size_t len = 0;
    int status;

    assert(outbox->callbacks != NULL);
    assert(count < IO_WRITE_SLICE_COUNT_MAX);

    for (unsigned i = 0; i < count; i++)
        len += slices[i].len;
    if (len == 0)
        return 0;
    if (outbox->queued_bytes == 0 && outbox->gathered_len + len <= OUTBOX_GATHERED_BYTES)
        return gather(outbox, slices, count);

    if (outbox->gathered_len > 0)
        pieces[piece_count++] = uv_buf_init(outbox->gathered, (unsigned)outbox->gathered_len);
    for (unsigned i = 0; i < count; i++)
        pieces[piece_count++] = io_buf(slices[i]);
    status = send_pieces(outbox, pieces, piece_count);
    forget_gathered(outbox);
    return status;
}

static void flush(struct outbox *outbox)
{
    uv_buf_t piece = uv_buf_init(outbox->gathered, (unsigned)outbox->gathered_len);
    int status = send_pieces(outbox, &piece, 1);

    forget_gathered(outbox);
    if (status < 0)
        outbox->callbacks->on_failed(outbox->ctx, status);
    else
        outbox->callbacks->on_progress(outbox->ctx);
}

void outbox_hub_init(struct outbox_hub *hub)
{
    list_init(&hub->unsent);
    hub->spare_count = 0;
}

void outbox_hub_flush(struct outbox_hub *hub)
{
    /* A callback may write again: that goes out in this same flush. */
    while (hub->unsent.count > 0)
        flush(container_of(hub->unsent.head.next, struct outbox, in_unsent));
}

void outbox_hub_release(struct outbox_hub *hub)
{
    assert(hub->unsent.count == 0);

    while (hub->spare_count > 0)
        free(hub->spares[--hub->spare_count]);
}

void outbox_init(struct outbox *outbox, struct outbox_hub *hub, uv_stream_t *stream,
                 const struct outbox_callbacks *callbacks, void *ctx)
{
    *outbox = (struct outbox){
        .stream = stream,
        .hub = hub,
        .callbacks = callbacks,
        .ctx = ctx,
    };
    list_node_init(&outbox->in_unsent);
}

void outbox_close(struct outbox *outbox)
{
    if (outbox->gathered_len > 0) {
        uv_buf_t piece = uv_buf_init(outbox->gathered, (unsigned)outbox->gathered_len);
        uv_buf_t *left = &piece;
        unsigned count = 1;

        if (io_try_write(outbox->stream, &left, &count) < 0)
            count = 0; /* nobody is there to read it */
    }
    forget_gathered(outbox);
    outbox->callbacks = NULL;
}
