/* SPDX-License-Identifier: Apache-2.0 */

/*
 * http_guard: what llhttp lets through and a router must not: ambiguous framing, doubtful targets
 * and header names. One pure function a rule, so that each has a test. Any thread.
 */
#ifndef BACKENDS_HTTP_HTTP_GUARD_H
#define BACKENDS_HTTP_HTTP_GUARD_H

#include "backends/http/http_message.h"
#include "backends/runtime/must_check.h"

/* 0, or -EBADMSG and why. head is complete but for what only the body shows. */
MUST_CHECK int http_guard_request(const struct http_head *head, struct http_fault *fault);
MUST_CHECK int http_guard_answer(const struct http_head *head, struct http_fault *fault);

#endif
