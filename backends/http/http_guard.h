/* SPDX-License-Identifier: Apache-2.0 */

/*
 * http_guard: what a head that is well-formed must still not say to a router: ambiguous framing,
 * doubtful targets, hosts and expectations. One pure function a rule, so that each has a test. Any
 * thread.
 */
#ifndef BACKENDS_HTTP_HTTP_GUARD_H
#define BACKENDS_HTTP_HTTP_GUARD_H

#include "backends/http/http_message.h"
#include "backends/runtime/must_check.h"

/*
 * 0, or -EBADMSG and why. Looked at are method, target, status, version and headers of head; the
 * rest of it may be unknown yet, since it follows from them only where they are sound.
 */
MUST_CHECK int http_guard_request(const struct http_head *head, struct http_fault *fault);
MUST_CHECK int http_guard_answer(const struct http_head *head, struct http_fault *fault);

/* The origin form of a target that http_guard_request() let through: "/v1?q" of "http://a/v1?q". */
struct slice http_guard_origin_form(struct slice target);

#endif
