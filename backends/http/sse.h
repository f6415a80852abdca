/* SPDX-License-Identifier: Apache-2.0 */

/*
 * sse: finds the events in a stream of server-sent events (WHATWG HTML, 9.2) as bytes pass by.
 * It only observes: the relay forwards the bytes whether or not this understands them. Lines end
 * with LF, CR or CRLF, may be split anywhere, and have no limit for the relay; an event with a line
 * or data longer than SSE_DATA_BYTES_MAX is reported without its data. Pure; one stream at a time.
 */
#ifndef BACKENDS_HTTP_SSE_H
#define BACKENDS_HTTP_SSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/buf.h"
#include "backends/runtime/slice.h"

enum { SSE_DATA_BYTES_MAX = 1 << 20, SSE_NAME_BYTES_MAX = 64 };

struct sse_event {
    struct slice name; /* of "event:", cut at SSE_NAME_BYTES_MAX; empty when absent */
    struct slice data; /* data lines joined by LF; BUF_PADDING bytes behind it are readable */
    bool is_oversize;  /* data was longer than the limit and is not given */
    uint64_t start;    /* stream offset of the event's first byte, comments before it excluded */
    uint64_t end;      /* stream offset just past the empty line that ends it. Where that line is a
                          CRLF split between two pieces, the LF stays outside: nobody waits for it */
};

struct sse_reader {
    struct buf carry;     /* data joined so far, then the bytes of an unfinished line */
    uint64_t offset;      /* stream offset of the next byte to be fed */
    uint64_t event_start; /* where no boundary is: stream offset of what is unfinished */
    bool has_comments;    /* a comment line was seen: the sender keeps its stream alive itself */
    /* the rest is private to sse.c */
    size_t data_len; /* of carry: data lines already joined */
    bool is_inside;  /* a line of an unfinished event has been seen */
    bool is_oversize;
    bool has_data;    /* the event has had a data line */
    bool last_was_cr; /* an LF now belongs to the line before */
    bool at_line_start;
    bool is_skipping; /* the unfinished line is a comment, or of an oversize event */
    uint8_t bom_len;  /* bytes of a byte order mark seen at the stream's start */
    uint8_t name_len;
    char name[SSE_NAME_BYTES_MAX];
};

/* The event is valid during the call. */
typedef void sse_event_fn(void *ctx, const struct sse_event *event);

void sse_reader_init(struct sse_reader *reader);

/*
 * Reads a piece and calls on_event for each event that ends in it. BUF_PADDING bytes behind the
 * piece are readable: a whole event inside one piece, with its data on one line, is given in place.
 */
void sse_reader_feed(struct sse_reader *reader, struct slice piece, sse_event_fn *on_event,
                     void *ctx);

/* The stream stands between two events and between two lines: what is written now begins an event
 * of its own. */
bool sse_reader_is_at_boundary(const struct sse_reader *reader);

/* The last byte was a CR: an LF that comes next belongs to it. */
bool sse_reader_is_after_cr(const struct sse_reader *reader);

void sse_reader_release(struct sse_reader *reader);

#endif
