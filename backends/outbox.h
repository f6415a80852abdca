/* SPDX-License-Identifier: Apache-2.0 */

/*
 * outbox: writes to one stream, gathered. Small writes of one turn of the loop are copied together
 * and leave at its end (outbox_hub_flush), those of all streams back to back; what the kernel does
 * not take is queued. Loop thread only.
 */
#ifndef BACKENDS_OUTBOX_H
#define BACKENDS_OUTBOX_H

#include <stddef.h>
#include <uv.h>

#include "backends/runtime/list.h"
#include "backends/runtime/must_check.h"
#include "backends/runtime/slice.h"

enum { OUTBOX_GATHERED_BYTES = 2048, OUTBOX_SPARE_COUNT_MAX = 256 };

/* What all outboxes of a loop share. */
struct outbox_hub {
    struct list unsent;                   /* outboxes with gathered bytes */
    char *spares[OUTBOX_SPARE_COUNT_MAX]; /* buffers of OUTBOX_GATHERED_BYTES, unused */
    size_t spare_count;
};

/* Never called from within outbox_write(). */
struct outbox_callbacks {
    /* The kernel took something: outbox_bytes() is less than before. */
    void (*on_progress)(void *ctx);
    /* The peer is gone. */
    void (*on_failed)(void *ctx, int status);
};

struct outbox {
    uv_stream_t *stream;
    struct outbox_hub *hub;
    struct list_node in_unsent; /* hub->unsent while gathered_len > 0 */
    char *gathered;             /* NULL while gathered_len == 0 */
    size_t gathered_len;
    size_t queued_bytes; /* handed to uv_write(), not yet taken by the kernel */
    const struct outbox_callbacks *callbacks;
    void *ctx;
};

void outbox_hub_init(struct outbox_hub *hub);

/* At the end of each turn of the loop, before it waits: sends what was gathered. */
void outbox_hub_flush(struct outbox_hub *hub);

/* Every outbox must be closed. */
void outbox_hub_release(struct outbox_hub *hub);

/* Borrows all; stream must be open before the first write and outlive outbox_close(). */
void outbox_init(struct outbox *outbox, struct outbox_hub *hub, uv_stream_t *stream,
                 const struct outbox_callbacks *callbacks, void *ctx);

/* Takes fewer than IO_WRITE_SLICE_COUNT_MAX slices, in order behind what was written before; they
 * may go when this returns. -EPIPE and the like: the peer is gone; -ENOMEM. */
MUST_CHECK int outbox_write(struct outbox *outbox, const struct slice *slices, unsigned count);

/* Written, and not yet taken by the kernel. */
static inline size_t outbox_bytes(const struct outbox *outbox)
{
    return outbox->gathered_len + outbox->queued_bytes;
}

/* Just before uv_close() of the stream: tries once to send what was gathered. No callback comes any
 * more. */
void outbox_close(struct outbox *outbox);

#endif
