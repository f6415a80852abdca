/* SPDX-License-Identifier: Apache-2.0 */

/*
 * stream_entry: an entry of any of the map's streams, as XREAD, XRANGE and XREVRANGE give it:
 * [id, [field, value, ...]], of which the field "b" alone has a meaning. Pure. What it gives lives
 * as long as the reply.
 */
#ifndef BACKENDS_REDIS_STREAM_ENTRY_H
#define BACKENDS_REDIS_STREAM_ENTRY_H

#include <stdbool.h>

#include "backends/redis/redis_link.h"
#include "backends/runtime/must_check.h"
#include "backends/runtime/slice.h"

struct stream_entry {
    struct slice id;
    struct slice bytes; /* of "b" */
    bool has_bytes;     /* it has that field */
};

/* False: reply is no entry. */
MUST_CHECK bool stream_entry_read(const struct redis_reply *reply, struct stream_entry *entry);

#endif
