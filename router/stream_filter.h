/* SPDX-License-Identifier: Apache-2.0 */

/*
 * stream_filter: takes single events out of a stream of server-sent events as it passes. Bytes
 * that are not taken out leave unchanged and in order; held back is at most one unfinished event.
 * Pure; one stream at a time.
 */
#ifndef ROUTER_STREAM_FILTER_H
#define ROUTER_STREAM_FILTER_H

#include <stdbool.h>
#include <stdint.h>

#include "backends/http/sse.h"
#include "backends/runtime/buf.h"
#include "backends/runtime/must_check.h"
#include "backends/runtime/slice.h"

/* True: the event is taken out. */
typedef bool stream_filter_event_fn(void *ctx, const struct sse_event *event);

/* Where bytes go, in order; valid only during the call. -errno stops the filter. */
typedef int stream_filter_out_fn(void *ctx, struct slice bytes);

struct stream_filter {
    struct sse_reader sse;
    bool may_cut;    /* false: bytes pass at once, events are only observed */
    struct buf held; /* an unfinished event, from its first byte */
    bool drops_lf;   /* an event was taken out up to its CR: an LF that comes next goes with it */
    uint64_t passed; /* stream offset up to which bytes left or were taken out */
    stream_filter_event_fn *on_event;
    stream_filter_out_fn *on_out;
    void *ctx;
    struct slice piece; /* during a feed: the bytes at piece_start */
    uint64_t piece_start;
    int status;
};

/* may_cut: on_event's answer counts. Takes no memory yet. */
void stream_filter_init(struct stream_filter *filter, bool may_cut,
                        stream_filter_event_fn *on_event, stream_filter_out_fn *on_out, void *ctx);

/* The next bytes of the stream, with BUF_PADDING readable bytes behind them. What on_out returned,
 * or -ENOMEM. */
MUST_CHECK int stream_filter_feed(struct stream_filter *filter, struct slice piece);

/* The stream is over: lets what is held back go. */
MUST_CHECK int stream_filter_finish(struct stream_filter *filter);

/* What has left so far ends between two events. */
bool stream_filter_is_at_boundary(const struct stream_filter *filter);

void stream_filter_release(struct stream_filter *filter);

#endif
