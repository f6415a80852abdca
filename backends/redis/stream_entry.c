/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/redis/stream_entry.h"

bool stream_entry_read(const struct redis_reply *reply, struct stream_entry *entry)
{
    const struct redis_reply *fields;

    *entry = (struct stream_entry){.has_bytes = false};
    if (redis_reply_count(reply) != 2)
        return false;
    entry->id = redis_reply_text(redis_reply_at(reply, 0));
    fields = redis_reply_at(reply, 1);
    for (size_t i = 0; i + 1 < redis_reply_count(fields) && !entry->has_bytes; i += 2) {
        entry->has_bytes = slice_eq(redis_reply_text(redis_reply_at(fields, i)), SLICE("b"));
        if (entry->has_bytes)
            entry->bytes = redis_reply_text(redis_reply_at(fields, i + 1));
    }
    return entry->id.len > 0;
}
