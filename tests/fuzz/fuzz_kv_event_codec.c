/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Any payload: what is given out lies in it, lists hold as many as they say, however they are taken
 * in portions, and a batch without its last byte is no batch.
 */
#include "backends/kvevents/kv_event_codec.h"

#include "tests/fuzz/fuzz_input.h"

#include <assert.h>

enum { PORTION = 7 };

static void check_inside(struct slice payload, struct slice part)
{
    assert(part.len == 0 ||
           (part.ptr >= payload.ptr && part.ptr + part.len <= payload.ptr + payload.len));
}

static void check_tokens(struct kv_event_list token_ids)
{
    struct kv_event_list other = token_ids;
    uint32_t portion[PORTION], token;
    size_t taken;

    while ((taken = kv_event_take_tokens(&token_ids, portion, PORTION)) > 0) {
        for (size_t i = 0; i < taken; i++)
            assert(kv_event_take_tokens(&other, &token, 1) == 1 && token == portion[i]);
    }
    assert(other.count == 0 && kv_event_take_tokens(&other, &token, 1) == 0);
}

static void check_event(struct slice payload, const struct kv_event *event)
{
    struct kv_event_list hashes = event->hashes, extra_keys = event->extra_keys;
    size_t hash_count = 0, extra_count = 0;
    struct slice encoded;
    uint64_t hash;

    while (kv_event_next_hash(&hashes, &hash))
        hash_count++;
    assert(hash_count == event->hashes.count);
    while (kv_event_next_extra_keys(&extra_keys, &encoded)) {
        check_inside(payload, encoded);
        extra_count++;
    }
    assert(extra_count == event->extra_keys.count);
    check_tokens(event->token_ids);
    assert(event->medium.len > 0);
    if (!slice_eq(event->medium, SLICE("gpu")))
        check_inside(payload, event->medium);
    check_inside(payload, event->lora_name);
    check_inside(payload, event->spec_kind);
    assert(event->group >= -1 && event->lora_id >= -1 && event->sliding_window >= -1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct slice payload = slice_of(data, size);
    struct kv_event_batch batch, cut;
    struct kv_event event;
    size_t event_count = 0, announced;

    if (kv_event_batch_open(&batch, payload) < 0)
        return 0;
    assert(kv_event_batch_open(&cut, (struct slice){payload.ptr, payload.len - 1}) < 0);
    announced = batch.events.count;
    while (kv_event_next(&batch, &event)) {
        check_event(payload, &event);
        event_count++;
    }
    assert(event_count + batch.skipped.unknown_event_count + batch.skipped.malformed_event_count ==
           announced);
    return 0;
}
