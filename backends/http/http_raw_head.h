/* SPDX-License-Identifier: Apache-2.0 */

/*
 * http_raw_head: judges the bytes of a head, or of the trailers behind a chunked body, as they
 * come: every byte must be one that all readers of HTTP/1 understand alike. Says where the head
 * ends; what it means is for others. Pure; any thread.
 */
#ifndef BACKENDS_HTTP_HTTP_RAW_HEAD_H
#define BACKENDS_HTTP_HTTP_RAW_HEAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/http/http_message.h"
#include "backends/runtime/must_check.h"
#include "backends/runtime/slice.h"

enum http_raw_kind { HTTP_RAW_REQUEST, HTTP_RAW_ANSWER, HTTP_RAW_TRAILERS };

/* What the next byte belongs to. */
enum http_raw_state {
    RAW_EMPTY,       /* before a request's first line, where empty lines may come */
    RAW_EMPTY_LF,    /* behind the CR of one */
    RAW_METHOD,      /* of a request; at its end one blank */
    RAW_TARGET,      /* at its end one blank */
    RAW_VERSION,     /* "HTTP/1.1" */
    RAW_VERSION_END, /* a request's line ends here; in an answer a blank comes */
    RAW_STATUS,      /* three digits */
    RAW_STATUS_END,  /* a blank, or the end of the line */
    RAW_REASON,      /* up to the end of the line */
    RAW_LINE_LF,     /* behind the CR of a line */
    RAW_LINE_START,  /* of a header, or of the empty line */
    RAW_NAME,        /* up to the colon */
    RAW_VALUE,       /* up to the end of the line */
    RAW_END_LF,      /* behind the CR of the empty line */
    RAW_DONE,        /* the empty line was seen: what follows is not looked at */
};

struct http_raw_limits {
    size_t bytes_max;        /* all of it, line ends and empty lines included */
    size_t target_bytes_max; /* of a request */
};

struct http_raw_head {
    enum http_raw_kind kind;
    enum http_raw_state state;
    struct http_raw_limits limits;
    size_t len;            /* bytes so far */
    size_t target_len;     /* of a request */
    uint32_t header_count; /* so far; at most HTTP_HEADER_COUNT_MAX */
    uint8_t matched;       /* bytes of the version, or digits of the status */
    char major, minor;     /* digits of the version */
};

void http_raw_head_begin(struct http_raw_head *head, enum http_raw_kind kind,
                         struct http_raw_limits limits);

/*
 * Reads on, at most to the head's end; *used says how many of bytes belong to it. -EBADMSG: fault
 * says why. Which fault it is does not depend on how the bytes were split.
 */
MUST_CHECK int http_raw_head_feed(struct http_raw_head *head, struct slice bytes, size_t *used,
                                  struct http_fault *fault);

static inline bool http_raw_head_is_done(const struct http_raw_head *head)
{
    return head->state == RAW_DONE;
}

#endif
