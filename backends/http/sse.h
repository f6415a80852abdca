/* SPDX-License-Identifier: Apache-2.0 */

/*
 * sse: finds the events in a stream of server-sent events (WHATWG HTML, 9.2) as bytes pass by.
 * It only observes: the relay forwards the bytes whether or not this understands them. Lines end
 * with LF, CR or CRLF, may be split anywhere, and have no limit for the relay; an event whose data
 * is longer than data_bytes_max is reported without its data. Pure; one stream at a time.
 */
#ifndef BACKENDS_HTTP_SSE_H
#define BACKENDS_HTTP_SSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/buf.h"
#include "backends/runtime/slice.h"

enum { SSE_DATA_BYTES_MAX = 1 << 20 };

struct sse_event {
    struct slice name; /* of "event:"; empty when absent */
    struct slice data; /* data lines joined by LF; BUF_PADDING bytes behind it are readable */
    bool is_oversize;  /* data was longer than the limit and is not given */
    uint64_t start;    /* stream offset of the event's first byte, comments before it excluded */
    uint64_t end;      /* stream offset just past the empty line that ends it */
};

struct sse_reader {
    struct buf carry; /* bytes of an unfinished event seen in earlier pieces */
    uint64_t offset;  /* stream offset of the next byte to be fed */
    /* the rest is private to sse.c; extend it there */
    uint64_t event_start;
    bool is_inside; /* bytes of an unfinished event have been seen */
    bool is_oversize;
    bool last_was_cr;
    bool at_line_start;
};

/* The event is valid during the call. */
typedef void sse_event_fn(void *ctx, const struct sse_event *event);

void sse_reader_init(struct sse_reader *reader);

/* Reads a piece and calls on_event for each event that ends in it. A whole event inside one piece
 * is given in place where its data is one line, without a copy. */
void sse_reader_feed(struct sse_reader *reader, struct slice piece, sse_event_fn *on_event,
                     void *ctx);

/* The stream stands between two events: nothing of an unfinished one has passed. */
bool sse_reader_is_at_boundary(const struct sse_reader *reader);

void sse_reader_release(struct sse_reader *reader);

#endif
