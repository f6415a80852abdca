/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/http/http_chunks.h"

#include <assert.h>
#include <errno.h>

/*
 * DESIGN
 *
 *   SIZE --> [EXTENSION] --> SIZE_LF --> DATA --> DATA_CR --> DATA_LF --> SIZE ...
 *                                   \
 *                                    +--(size 0)--> TRAILERS --> ENDED
 *
 * Ours rather than the parser's, because parsers are lenient here, each in its own way, and their
 * leniences are the ones that smugglers use: a blank behind the size, a bare LF behind an
 * extension, a line end that is assumed where there is none. Data is never looked at.
 */
static const struct http_fault fault_frame = {
    400, "invalid_chunk",
    "The frames of the chunked body are malformed: a size is hexadecimal digits and CRLF, and CRLF "
    "follows each chunk."};
static const struct http_fault fault_extension = {
    400, "invalid_chunk", "The chunk extensions of this message exceed 4 KiB."};
static const struct http_fault fault_body_size = {
    413, "request_too_large", "The request body is larger than this router accepts."};

static int hex_value(char digit)
{
    if (digit >= '0' && digit <= '9')
        return digit - '0';
    digit |= 0x20; /* to lower case */
    return digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

static const struct http_fault *step_size(struct http_chunks *chunks, struct slice *bytes)
{
    uint64_t size = chunks->left;
    size_t at = 0;
    int value;

    while (at < bytes->len && (value = hex_value(bytes->ptr[at])) >= 0) {
        if (chunks->digit_count + ++at > HTTP_CHUNK_DIGIT_COUNT_MAX)
            return &fault_frame;
        size = size * 16 + (uint64_t)value;
    }
    chunks->left = size;
    chunks->digit_count += (uint32_t)at;
    if (at < bytes->len) {
        if (chunks->digit_count == 0 || (bytes->ptr[at] != '\r' && bytes->ptr[at] != ';'))
            return &fault_frame;
        chunks->state = bytes->ptr[at++] == ';' ? CHUNKS_EXTENSION : CHUNKS_SIZE_LF;
    }
    *bytes = slice_skip(*bytes, at);
    return NULL;
}

/* Dropped, but what no line may hold is not let through here either. */
static const struct http_fault *step_extension(struct http_chunks *chunks, struct slice *bytes)
{
    size_t at;

    for (at = 0; at < bytes->len && bytes->ptr[at] != '\r'; at++) {
        unsigned char byte = (unsigned char)bytes->ptr[at];

        if ((byte < 0x20 && byte != '\t') || byte == 0x7f)
            return &fault_frame;
        if (chunks->extension_bytes++ == HTTP_CHUNK_EXTENSION_BYTES_MAX)
            return &fault_extension;
    }
    if (at < bytes->len) {
        chunks->state = CHUNKS_SIZE_LF;
        at++;
    }
    *bytes = slice_skip(*bytes, at);
    return NULL;
}

static const struct http_fault *end_size(struct http_chunks *chunks)
{
    chunks->digit_count = 0;
    if (chunks->left == 0) {
        chunks->state = CHUNKS_TRAILERS;
        return NULL;
    }
    chunks->body_bytes += chunks->left;
    chunks->state = CHUNKS_DATA;
    return chunks->body_bytes > chunks->body_bytes_max ? &fault_body_size : NULL;
}

/* One byte that can only be what it is. */
static const struct http_fault *expect(char wanted, struct slice *bytes)
{
    if (bytes->ptr[0] != wanted)
        return &fault_frame;
    *bytes = slice_skip(*bytes, 1);
    return NULL;
}

static const struct http_fault *step_trailers(struct http_chunks *chunks, struct slice *bytes,
                                              struct http_fault *storage)
{
    size_t used;

    if (http_raw_head_feed(&chunks->trailers, *bytes, &used, storage) < 0)
        return storage;
    *bytes = slice_skip(*bytes, used);
    if (http_raw_head_is_done(&chunks->trailers))
        chunks->state = CHUNKS_ENDED;
    return NULL;
}

/* Whatever is not data; fault is storage for those of the trailers. */
static const struct http_fault *step_frame(struct http_chunks *chunks, struct slice *bytes,
                                           struct http_fault *fault)
{
    const struct http_fault *found;

    switch (chunks->state) {
    case CHUNKS_SIZE:
        return step_size(chunks, bytes);
    case CHUNKS_EXTENSION:
        return step_extension(chunks, bytes);
    case CHUNKS_SIZE_LF:
        found = expect('\n', bytes);
        return found != NULL ? found : end_size(chunks);
    case CHUNKS_DATA_CR:
        chunks->state = CHUNKS_DATA_LF;
        return expect('\r', bytes);
    case CHUNKS_DATA_LF:
        chunks->state = CHUNKS_SIZE;
        return expect('\n', bytes);
    case CHUNKS_TRAILERS:
        return step_trailers(chunks, bytes, fault);
    case CHUNKS_DATA:
    case CHUNKS_ENDED:
        break;
    }
    assert(!"data is no frame, and behind the end there is none");
    return NULL;
}

void http_chunks_begin(struct http_chunks *chunks, uint64_t body_bytes_max,
                       struct http_raw_limits trailer_limits)
{
    *chunks = (struct http_chunks){.state = CHUNKS_SIZE, .body_bytes_max = body_bytes_max};
    http_raw_head_begin(&chunks->trailers, HTTP_RAW_TRAILERS, trailer_limits);
}

int http_chunks_next(struct http_chunks *chunks, struct slice *bytes, struct slice *piece,
                     struct http_fault *fault)
{
    while (bytes->len > 0 && chunks->state != CHUNKS_DATA && chunks->state != CHUNKS_ENDED) {
        const struct http_fault *found = step_frame(chunks, bytes, fault);

        if (found != NULL) {
            *fault = *found;
            return -EBADMSG;
        }
    }
    if (bytes->len == 0 || chunks->state == CHUNKS_ENDED)
        return 0;
    *piece = slice_of(bytes->ptr, bytes->len < chunks->left ? bytes->len : (size_t)chunks->left);
    *bytes = slice_skip(*bytes, piece->len);
    chunks->left -= piece->len;
    if (chunks->left == 0)
        chunks->state = CHUNKS_DATA_CR;
    return 1;
}
