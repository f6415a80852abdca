/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/answer_family.h"

#include <inttypes.h>
#include <xxhash.h>

#include "tests/sim_engine/json_text.h"

static uint64_t number_of(const struct answer_head *head, uint32_t number)
{
    return XXH3_64bits_withSeed(head->id.ptr, head->id.len, number);
}

void answer_put_call_id(struct buf *buf, const struct answer_head *head, uint32_t choice)
{
    text_putf(buf, "\"chatcmpl-tool-%016" PRIx64 "\"", number_of(head, choice));
}

void answer_put_item_id(struct buf *buf, const struct answer_head *head, const char *prefix,
                        uint32_t number)
{
    text_putf(buf, "\"%s%016" PRIx64 "\"", prefix, number_of(head, UINT32_MAX - number));
}
