/* SPDX-License-Identifier: Apache-2.0 */

/*
 * http_guard: what llhttp lets through and a router must not: ambiguous framing, doubtful targets
 * and header names. One pure function a rule, so that each has a test. Any thread.
 */
#ifndef BACKENDS_HTTP_HTTP_GUARD_H
#define BACKENDS_HTTP_HTTP_GUARD_H

#include "backends/http/http_message.h"
#include "backends/runtime/must_check.h"

/* How far the bytes of a head have come, before a parser makes them mean something. */
enum http_raw_state {
    RAW_HEAD_START,      /* before the first line; empty lines may come */
    RAW_HEAD_LINE,       /* inside a line */
    RAW_HEAD_LINE_START, /* behind CRLF, within the head */
    RAW_HEAD_CR,         /* behind a CR inside a line */
    RAW_HEAD_START_CR,   /* behind a CR before the first line */
    RAW_HEAD_END_CR,     /* behind a CR at a line's start */
    RAW_HEAD_DONE,       /* the empty line was seen: what follows is not looked at */
};

struct http_raw_head {
    enum http_raw_state state;
    size_t len; /* bytes so far, as they came, up to the empty line */
};

/*
 * Reads on to the head's end. -EBADMSG: a folded line, a bare CR or LF, or a NUL, which parsers
 * read in different ways.
 */
MUST_CHECK int http_guard_raw_head(struct http_raw_head *head, struct slice bytes,
                                   struct http_fault *fault);

/* 0, or -EBADMSG and why. head is complete but for what only the body shows. */
MUST_CHECK int http_guard_request(const struct http_head *head, struct http_fault *fault);
MUST_CHECK int http_guard_answer(const struct http_head *head, struct http_fault *fault);

#endif
