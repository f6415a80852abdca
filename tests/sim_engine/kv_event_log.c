/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/kv_event_log.h"

#include <assert.h>
#include <endian.h>
#include <stdlib.h>
#include <string.h>

#include "backends/runtime/buf.h"
#include "tests/sim_engine/json_text.h"
#include "tests/sim_engine/msgpack_text.h"
#include "tests/sim_engine/prefix_cache.h"

/*
 * DESIGN
 *
 * An event is encoded when it is heard, so the ids of a step are copied once and nothing of a
 * sequence is kept. The batch's head needs the number of events and comes before them, so it is
 * written when the batch is taken: [at, events, rank].
 *
 *   BlockStored  block_hashes parent_block_hash token_ids block_size lora_id medium lora_name
 *                extra_keys group_idx kv_cache_spec_kind
 *   BlockRemoved block_hashes medium group_idx
 *   AllBlocksCleared
 *
 * Which fields are there, in which order, is what a real vLLM sent: see tests/fixtures. Maps name
 * their fields, arrays rely on the order; else both say the same.
 */

struct kv_event_log {
    struct kv_event_log_config config;
    struct buf events; /* of the batch that is open */
    size_t event_count;
    uint64_t next_sequence;
    struct buf payload; /* of the batch that was taken last */
};

static void begin_event(struct kv_event_log *log, struct slice type, size_t field_count)
{
    log->event_count++;
    if (log->config.dialect == KV_DIALECT_MAP) {
        msgpack_put_map(&log->events, 1 + field_count);
        msgpack_put_string(&log->events, SLICE("type"));
    } else {
        msgpack_put_array(&log->events, 1 + field_count);
    }
    msgpack_put_string(&log->events, type);
}

static void put_field_name(struct kv_event_log *log, struct slice name)
{
    if (log->config.dialect == KV_DIALECT_MAP)
        msgpack_put_string(&log->events, name);
}

static void put_hash(struct kv_event_log *log, uint64_t name)
{
    uint64_t words[4];

    if (log->config.hash_form == KV_HASH_INT) {
        msgpack_put_uint(&log->events, name);
        return;
    }
    for (size_t i = 0; i < array_count(words); i++)
        words[i] = htobe64(name * (array_count(words) - i)); /* the last one is name itself */
    msgpack_put_binary(&log->events, slice_of((const char *)words, sizeof words));
}

static void put_hashes(struct kv_event_log *log, const uint64_t *names, size_t count)
{
    put_field_name(log, SLICE("block_hashes"));
    msgpack_put_array(&log->events, count);
    for (size_t i = 0; i < count; i++)
        put_hash(log, names[i]);
}

static void put_medium(struct kv_event_log *log)
{
    put_field_name(log, SLICE("medium"));
    msgpack_put_string(&log->events, SLICE("GPU"));
}

static void put_group(struct kv_event_log *log)
{
    put_field_name(log, SLICE("group_idx"));
    msgpack_put_uint(&log->events, 0);
}

static void put_parent(struct kv_event_log *log, const struct cache_stored *stored)
{
    put_field_name(log, SLICE("parent_block_hash"));
    if (stored->first > 0)
        put_hash(log, stored->names[stored->first - 1]);
    else
        msgpack_put_nil(&log->events);
}

static void put_tokens(struct kv_event_log *log, const struct cache_stored *stored)
{
    size_t count = stored->count * log->config.block_size;
    const uint32_t *tokens = stored->tokens + stored->first * log->config.block_size;

    put_field_name(log, SLICE("token_ids"));
    msgpack_put_array(&log->events, count);
    for (size_t i = 0; i < count; i++)
        msgpack_put_uint(&log->events, tokens[i]);
    put_field_name(log, SLICE("block_size"));
    msgpack_put_uint(&log->events, log->config.block_size);
}

static void put_lora_id(struct kv_event_log *log, const struct cache_keys *keys)
{
    put_field_name(log, SLICE("lora_id"));
    if (keys->lora.len > 0)
        msgpack_put_uint(&log->events, keys->lora_id);
    else
        msgpack_put_nil(&log->events);
}

static void put_lora_name(struct kv_event_log *log, const struct cache_keys *keys)
{
    put_field_name(log, SLICE("lora_name"));
    if (keys->lora.len > 0)
        msgpack_put_string(&log->events, keys->lora);
    else
        msgpack_put_nil(&log->events);
}

/* One list a block: the LoRA's name in each, the salt in the first of the chain; nil where empty.
 */
static void put_extra_keys(struct kv_event_log *log, const struct cache_stored *stored)
{
    const struct cache_keys *keys = stored->keys;

    put_field_name(log, SLICE("extra_keys"));
    msgpack_put_array(&log->events, stored->count);
    for (size_t i = 0; i < stored->count; i++) {
        bool has_salt = keys->salt.len > 0 && stored->first + i == 0;
        size_t count = (keys->lora.len > 0) + (size_t)has_salt;

        if (count == 0)
            msgpack_put_nil(&log->events);
        else
            msgpack_put_array(&log->events, count);
        if (keys->lora.len > 0)
            msgpack_put_string(&log->events, keys->lora);
        if (has_salt)
            msgpack_put_string(&log->events, keys->salt);
    }
}

static void on_stored(void *ctx, const struct cache_stored *stored)
{
    struct kv_event_log *log = ctx;

    begin_event(log, SLICE("BlockStored"), 10);
    put_hashes(log, stored->names + stored->first, stored->count);
    put_parent(log, stored);
    put_tokens(log, stored);
    put_lora_id(log, stored->keys);
    put_medium(log);
    put_lora_name(log, stored->keys);
    put_extra_keys(log, stored);
    put_group(log);
    put_field_name(log, SLICE("kv_cache_spec_kind"));
    msgpack_put_string(&log->events, SLICE("full_attention"));
}

static void on_evicted(void *ctx, uint64_t name)
{
    struct kv_event_log *log = ctx;

    begin_event(log, SLICE("BlockRemoved"), 3);
    put_hashes(log, &name, 1);
    put_medium(log);
    put_group(log);
}

static void on_cleared(void *ctx)
{
    begin_event(ctx, SLICE("AllBlocksCleared"), 0);
}

static const struct prefix_cache_observer observer = {on_stored, on_evicted, on_cleared};

struct kv_event_log *kv_event_log_create(struct kv_event_log_config config,
                                         struct prefix_cache *cache)
{
    struct kv_event_log *log = calloc(1, sizeof *log);

    assert(log != NULL);
    log->config = config;
    buf_init(&log->events, SIZE_MAX);
    buf_init(&log->payload, SIZE_MAX);
    prefix_cache_observe(cache, &observer, log);
    return log;
}

bool kv_event_log_take(struct kv_event_log *log, double at_s, struct kv_batch *batch)
{
    if (log->event_count == 0)
        return false;
    buf_clear(&log->payload);
    msgpack_put_array(&log->payload, 3);
    msgpack_put_real(&log->payload, at_s);
    msgpack_put_array(&log->payload, log->event_count);
    text_put(&log->payload, buf_slice(&log->events));
    msgpack_put_uint(&log->payload, 0); /* data-parallel rank */
    buf_clear(&log->events);
    log->event_count = 0;
    *batch = (struct kv_batch){log->next_sequence++, buf_slice(&log->payload)};
    return true;
}

uint64_t kv_event_log_count(const struct kv_event_log *log)
{
    return log->next_sequence;
}

void kv_event_log_destroy(struct kv_event_log *log)
{
    if (log == NULL)
        return;
    buf_release(&log->events);
    buf_release(&log->payload);
    free(log);
}
