/* SPDX-License-Identifier: Apache-2.0 */

/*
 * cors: which web pages may read our answers (the fetch standard's CORS protocol). Without an
 * origin in the option no page may, and no header is written. Pure; any thread.
 */
#ifndef ROUTER_CORS_H
#define ROUTER_CORS_H

#include "backends/http/http_message.h"
#include "backends/runtime/buf.h"
#include "backends/runtime/must_check.h"
#include "backends/runtime/option.h"

/* The headers of any answer to a request with head, which may be NULL: not known. */
MUST_CHECK int cors_write_headers(struct buf *buf, const struct option_list *origins,
                                  const struct http_head *head);

/* Those that answer a preflight besides: what the page may send. allow is the path's methods.
 * Nothing, where head is no preflight of an origin that may. */
MUST_CHECK int cors_write_preflight(struct buf *buf, const struct option_list *origins,
                                    const struct http_head *head, const char *allow);

/* Whether that header of a worker's answer speaks of CORS: the edge decides, not the worker. */
bool cors_is_header(struct slice name);

#endif
