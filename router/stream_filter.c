/* SPDX-License-Identifier: Apache-2.0 */

#include "router/stream_filter.h"

#include <assert.h>
#include <errno.h>

/*
 * DESIGN
 *
 *   stream    |--- events that left ---|--- held ---|--- piece being fed ---|
 *                                      passed       piece_start
 *
 * Whether an event goes out is known only at its end. So a piece is walked event by event; whole
 * runs of kept events leave in one slice, straight from the caller's buffer. What is left of the
 * piece, an unfinished event, is copied into held and waits for its end. An event too large to be
 * understood (SSE_DATA_BYTES_MAX) cannot be one to take out, so then held bytes are let go. One
 * that is understood but too long to hold (comments in it) stays whole: half an event is never
 * taken out.
 */
void stream_filter_init(struct stream_filter *filter, bool may_cut,
                        stream_filter_event_fn *on_event, stream_filter_out_fn *on_out, void *ctx)
{
    *filter = (struct stream_filter){
        .may_cut = may_cut,
        .on_event = on_event,
        .on_out = on_out,
        .ctx = ctx,
    };
    sse_reader_init(&filter->sse);
    buf_init(&filter->held, (size_t)SSE_DATA_BYTES_MAX);
}

static int pass(struct stream_filter *filter, struct slice bytes)
{
    return bytes.len > 0 ? filter->on_out(filter->ctx, bytes) : 0;
}

/* Lets bytes up to stream offset end go. */
static int pass_up_to(struct stream_filter *filter, uint64_t end)
{
    int status = 0;

    if (buf_len(&filter->held) > 0 && end > filter->passed) {
        size_t len = (size_t)(end - filter->passed);

        len = len < buf_len(&filter->held) ? len : buf_len(&filter->held);
        status = pass(filter, slice_of(buf_slice(&filter->held).ptr, len));
        buf_consume(&filter->held, len);
        filter->passed += len;
    }
    if (status == 0 && end > filter->passed) {
        size_t from = (size_t)(filter->passed - filter->piece_start);

        assert(filter->passed >= filter->piece_start);
        status = pass(filter, slice_of(filter->piece.ptr + from, (size_t)(end - filter->passed)));
        filter->passed = end;
    }
    return status;
}

/* Takes bytes up to stream offset end out. */
static void skip_up_to(struct stream_filter *filter, uint64_t end)
{
    size_t len = (size_t)(end - filter->passed);

    buf_consume(&filter->held, len < buf_len(&filter->held) ? len : buf_len(&filter->held));
    filter->passed = end;
}

static void on_sse_event(void *ctx, const struct sse_event *event)
{
    struct stream_filter *filter = ctx;
    bool is_cut = filter->on_event(filter->ctx, event);
    bool has_begun_to_leave = filter->passed > event->start;

    if (!is_cut || !filter->may_cut || has_begun_to_leave || filter->status < 0)
        return;
    filter->status = pass_up_to(filter, event->start);
    skip_up_to(filter, event->end);
    filter->drops_lf = event->end == filter->piece_start + filter->piece.len &&
                       filter->piece.ptr[filter->piece.len - 1] == '\r';
}

/* An empty line of its own would make some clients give out an empty event. */
static void drop_lf(struct stream_filter *filter)
{
    if (filter->piece.len == 0)
        return;
    filter->passed += filter->piece.ptr[0] == '\n';
    filter->drops_lf = false;
}

int stream_filter_feed(struct stream_filter *filter, struct slice piece)
{
    uint64_t piece_end = filter->sse.offset + piece.len;

    filter->piece = piece;
    filter->piece_start = filter->sse.offset;
    filter->status = 0;
    if (filter->drops_lf)
        drop_lf(filter);
    sse_reader_feed(&filter->sse, piece, on_sse_event, filter);
    if (filter->status < 0)
        return filter->status;

    if (!filter->may_cut || sse_reader_is_at_boundary(&filter->sse))
        return pass_up_to(filter, piece_end);
    filter->status = pass_up_to(filter, filter->sse.event_start);
    if (filter->status == 0) {
        size_t from = (size_t)(filter->passed + buf_len(&filter->held) - filter->piece_start);
        int status = buf_append(&filter->held, slice_skip(piece, from));

        filter->status = status == -ENOBUFS ? pass_up_to(filter, piece_end) : status;
    }
    return filter->status;
}

int stream_filter_finish(struct stream_filter *filter)
{
    filter->piece = slice_of(NULL, 0);
    filter->piece_start = filter->sse.offset;
    return pass_up_to(filter, filter->sse.offset);
}

bool stream_filter_is_at_boundary(const struct stream_filter *filter)
{
    /* With may_cut an unfinished event is still held, unless it was too large for that. */
    return sse_reader_is_at_boundary(&filter->sse) || filter->passed <= filter->sse.event_start;
}

void stream_filter_release(struct stream_filter *filter)
{
    sse_reader_release(&filter->sse);
    buf_release(&filter->held);
}
