/* SPDX-License-Identifier: Apache-2.0 */

/* worker_by_url: a worker of a set, as a test says it: by its url, whose host is an address. */
#ifndef TESTS_SUPPORT_WORKER_BY_URL_H
#define TESTS_SUPPORT_WORKER_BY_URL_H

#include <assert.h>

#include "backends/worker_set.h"
#include "backends/worker_url.h"

/* What worker_set_add() says of it. */
static inline int add_worker_by_url(struct worker_set *set, const char *url, uint64_t now_ms,
                                    struct worker **worker)
{
    char why[WORKER_URL_WHY_BYTES] = "";
    struct worker_place place = {.rank = 0};
    struct worker_url parsed;
    int status = worker_url_parse(slice_of_string(url), &parsed, why);

    assert(status == 0);
    assert(worker_url_address(&parsed, &place.address));
    memcpy(place.name, parsed.name, sizeof place.name);
    memcpy(place.authority, parsed.authority, sizeof place.authority);
    return worker_set_add(set, &place, now_ms, worker);
}

#endif
