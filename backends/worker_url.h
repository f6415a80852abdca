/* SPDX-License-Identifier: Apache-2.0 */

/*
 * worker_url: what an operator writes for a worker, checked and taken apart, and the address behind
 * it. Parsing is pure; resolving blocks (DNS), so it is for boot.
 */
#ifndef BACKENDS_WORKER_URL_H
#define BACKENDS_WORKER_URL_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "backends/runtime/must_check.h"
#include "backends/runtime/option.h"
#include "backends/runtime/slice.h"
#include "backends/worker.h"

enum { WORKER_URL_WHY_BYTES = OPTION_WHY_BYTES, WORKER_RANK_COUNT_MAX = 64 };

struct worker_url {
    bool is_dns;         /* dns://: a worker behind each address of the name, as they come and go */
    uint32_t rank_count; /* "#dp=N" behind the port: N ranks behind each port; 0: not said */
    char host[WORKER_NAME_BYTES_MAX]; /* lower case, without brackets */
    char port[6];
    char name[WORKER_NAME_BYTES_MAX];      /* "http://host:port", "dns://host:port" */
    char authority[WORKER_NAME_BYTES_MAX]; /* "host:port" */
};

/* "http://host:port" or "dns://host:port", both perhaps with "#dp=N". -EINVAL with a sentence in
 * why that says what to write instead. */
MUST_CHECK int worker_url_parse(struct slice text, struct worker_url *url,
                                char why[WORKER_URL_WHY_BYTES]);

/* The same for whom it is enough that it is one: the check of an option. */
MUST_CHECK int worker_url_check(struct slice text, char why[WORKER_URL_WHY_BYTES]);

/* An IPv4 address where there is one: engines mostly listen on 0.0.0.0, which "localhost" as ::1
 * would miss. -EINVAL with a sentence in why. */
MUST_CHECK int worker_url_resolve(const struct worker_url *url, struct sockaddr_storage *address,
                                  char why[WORKER_URL_WHY_BYTES]);

/* Whether host is an address, so that no name has to be resolved: then *address is it, with port.
 */
bool worker_url_address(const struct worker_url *url, struct sockaddr_storage *address);

/* The authority of an address: "10.0.0.1:8000", "[fd00::1]:8000". */
void worker_url_authority(const struct sockaddr_storage *address,
                          char authority[WORKER_NAME_BYTES_MAX]);

#endif
