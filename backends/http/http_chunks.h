/* SPDX-License-Identifier: Apache-2.0 */

/*
 * http_chunks: takes the frames off a chunked body (RFC 9112, 7.1), strictly: no blanks around a
 * size, no bare CR or LF; extensions and trailers are bounded and dropped. Pure; any thread.
 */
#ifndef BACKENDS_HTTP_HTTP_CHUNKS_H
#define BACKENDS_HTTP_HTTP_CHUNKS_H

#include <stdbool.h>
#include <stdint.h>

#include "backends/http/http_raw_head.h"

enum {
    HTTP_CHUNK_DIGIT_COUNT_MAX = 13,           /* of a size: below 2^52; leading zeros count */
    HTTP_CHUNK_EXTENSION_BYTES_MAX = 4 * 1024, /* all extensions of one message together */
};

/* What the next byte belongs to. */
enum http_chunks_state {
    CHUNKS_SIZE,
    CHUNKS_EXTENSION,
    CHUNKS_SIZE_LF,
    CHUNKS_DATA,
    CHUNKS_DATA_CR,
    CHUNKS_DATA_LF,
    CHUNKS_TRAILERS,
    CHUNKS_ENDED,
};

struct http_chunks {
    enum http_chunks_state state;
    uint32_t digit_count; /* of the size at hand */
    uint64_t left;        /* bytes of the chunk at hand; while its size comes: the size so far */
    uint64_t body_bytes;  /* of all chunks that have begun */
    uint64_t body_bytes_max;
    size_t extension_bytes;
    struct http_raw_head trailers;
};

void http_chunks_begin(struct http_chunks *chunks, uint64_t body_bytes_max,
                       struct http_raw_limits trailer_limits);

/*
 * Drops frames from the start of *bytes, then takes what follows of a chunk. 1: *piece is that,
 * len > 0. 0: *bytes is used up, or the body is complete and *bytes is what follows it. -EBADMSG:
 * fault says why; a body over the limit is refused (413) as soon as a chunk's size says so.
 */
MUST_CHECK int http_chunks_next(struct http_chunks *chunks, struct slice *bytes,
                                struct slice *piece, struct http_fault *fault);

static inline bool http_chunks_is_done(const struct http_chunks *chunks)
{
    return chunks->state == CHUNKS_ENDED;
}

#endif
