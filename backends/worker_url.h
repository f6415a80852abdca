/* SPDX-License-Identifier: Apache-2.0 */

/*
 * worker_url: what an operator writes for a worker, checked and taken apart, and the address behind
 * it. Parsing is pure; resolving blocks (DNS), so it is for boot.
 */
#ifndef BACKENDS_WORKER_URL_H
#define BACKENDS_WORKER_URL_H

#include <stdint.h>
#include <sys/socket.h>

#include "backends/runtime/must_check.h"
#include "backends/runtime/slice.h"
#include "backends/worker.h"

enum { WORKER_URL_WHY_BYTES = 192 };

struct worker_url {
    char host[WORKER_NAME_BYTES_MAX]; /* lower case, without brackets */
    char port[6];
    char name[WORKER_NAME_BYTES_MAX];      /* "http://host:port" */
    char authority[WORKER_NAME_BYTES_MAX]; /* "host:port" */
};

/* -EINVAL with a sentence in why that says what to write instead. */
MUST_CHECK int worker_url_parse(struct slice text, struct worker_url *url,
                                char why[WORKER_URL_WHY_BYTES]);

/* An IPv4 address where there is one: engines mostly listen on 0.0.0.0, which "localhost" as ::1
 * would miss. -EINVAL with a sentence in why. */
MUST_CHECK int worker_url_resolve(const struct worker_url *url, struct sockaddr_storage *address,
                                  char why[WORKER_URL_WHY_BYTES]);

#endif
