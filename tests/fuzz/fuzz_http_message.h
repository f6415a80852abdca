/* SPDX-License-Identifier: Apache-2.0 */

/* fuzz_http_message: reads messages one by one and keeps what they say, for the fuzzers that write
 * them anew and read them again. */
#ifndef TESTS_FUZZ_FUZZ_HTTP_MESSAGE_H
#define TESTS_FUZZ_FUZZ_HTTP_MESSAGE_H

#include <assert.h>
#include <errno.h>

#include "backends/http/http_reader.h"
#include "backends/http/http_writer.h"
#include "backends/runtime/buf.h"
#include "tests/fuzz/fuzz_input.h"

enum { MESSAGE_BYTES_MAX = 1 << 20 };

/* The last message that a reader gave. */
struct message {
    const struct http_head *head; /* the reader's, until its next message */
    struct buf body;
    bool has_head, has_ended;
    int head_count;
};

static int message_on_head(void *ctx, const struct http_head *head)
{
    struct message *message = ctx;

    message->head = head;
    message->has_head = true;
    message->head_count++;
    return 0;
}

static int message_on_body(void *ctx, struct slice piece)
{
    struct message *message = ctx;

    assert(message->has_head && !message->has_ended);
    return buf_append(&message->body, piece) < 0 ? -ENOMEM : 0;
}

static int message_on_end(void *ctx)
{
    struct message *message = ctx;

    assert(message->has_head && !message->has_ended);
    message->has_ended = true;
    return 0;
}

static const struct http_reader_callbacks message_callbacks = {message_on_head, message_on_body,
                                                               message_on_end};

static inline struct http_reader *message_reader(enum http_reader_kind kind,
                                                 struct message *message, size_t head_bytes_max)
{
    struct http_reader_limits limits = {.head_bytes_max = head_bytes_max,
                                        .target_bytes_max = 8192,
                                        .body_bytes_max = MESSAGE_BYTES_MAX};
    struct http_reader *reader = http_reader_create(kind, limits, &message_callbacks, message);

    assert(reader != NULL);
    *message = (struct message){0};
    buf_init(&message->body, MESSAGE_BYTES_MAX);
    return reader;
}

/* Makes ready for the next one. */
static inline void message_next(struct http_reader *reader, struct message *message)
{
    http_reader_next(reader);
    buf_clear(&message->body);
    message->has_head = message->has_ended = false;
}

static inline void message_release(struct http_reader *reader, struct message *message)
{
    http_reader_destroy(reader);
    buf_release(&message->body);
}

/* Writes cannot fail here but for want of memory. */
static inline void must(int status)
{
    assert(status == 0);
}

#endif
