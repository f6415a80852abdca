/* SPDX-License-Identifier: Apache-2.0 */

/*
 * http_reader: turns the bytes of one HTTP/1 connection into heads, body pieces and ends: judged by
 * http_raw_head, taken apart by llhttp, held to http_guard. Owns no socket. Body pieces are slices
 * of what was fed, never copied. One connection at a time; loop thread of that connection only.
 */
#ifndef BACKENDS_HTTP_HTTP_READER_H
#define BACKENDS_HTTP_HTTP_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/http/http_message.h"
#include "backends/runtime/must_check.h"
#include "backends/runtime/slice.h"

enum http_reader_kind { HTTP_READER_REQUESTS, HTTP_READER_ANSWERS };

struct http_reader_limits {
    size_t head_bytes_max;   /* start line and headers as they came; trailers have as much again */
    size_t target_bytes_max; /* of a request */
    int64_t body_bytes_max;  /* of a request, refused behind on_head; answers have no limit */
};

/*
 * Called from http_reader_feed(). None of them may feed, reset or release the reader. A handler
 * returns 0 to go on; anything else stops the reader for good, and feed returns that value.
 */
struct http_reader_callbacks {
    int (*on_head)(void *ctx, const struct http_head *head); /* valid until the next message */
    int (*on_body)(void *ctx, struct slice piece);           /* len > 0 */
    int (*on_end)(void *ctx);                                /* of the message */
};

struct http_reader;

/* Borrows callbacks and ctx for its life. */
struct http_reader *http_reader_create(enum http_reader_kind kind, struct http_reader_limits limits,
                                       const struct http_reader_callbacks *callbacks, void *ctx);
void http_reader_destroy(struct http_reader *reader);

/* Another limit, from the next message on: between two of them. */
void http_reader_set_body_bytes_max(struct http_reader *reader, int64_t body_bytes_max);

/*
 * Reads bytes up to the end of the current message; consumed says how far it came. After on_end it
 * stops: bytes behind are the next message's, to be fed after http_reader_next(). Interim answers
 * (1xx) are skipped, a bounded number of them. -EBADMSG: refused, http_reader_fault() says why; or
 * what a callback returned. How the bytes were split makes no difference to any of it.
 */
MUST_CHECK int http_reader_feed(struct http_reader *reader, struct slice bytes, size_t *consumed);

/*
 * The peer ended its side. 0: a message whose end is the end of the connection is complete (on_end
 * was called) or there was none; -EPIPE: cut in the middle of a message.
 */
MUST_CHECK int http_reader_feed_end(struct http_reader *reader);

/* Makes ready for the next message on the same connection. */
void http_reader_next(struct http_reader *reader);

/* For answers, before the head arrives: the request was HEAD, so that no body follows. */
void http_reader_expect_no_body(struct http_reader *reader);

/* Frees the head once nobody looks at it any more; an open stream does not carry it along. */
void http_reader_forget_head(struct http_reader *reader);

/* A message has begun (its first byte was seen) and not ended. */
bool http_reader_is_inside(const struct http_reader *reader);

/* Of the current message's body: its length if that was given, else what its chunks have announced
 * so far; -1: neither. What a refusal for size names. */
int64_t http_reader_body_bytes(const struct http_reader *reader);

/* The reason of -EBADMSG. */
struct http_fault http_reader_fault(const struct http_reader *reader);

#endif
