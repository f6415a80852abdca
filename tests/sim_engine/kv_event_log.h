/* SPDX-License-Identifier: Apache-2.0 */

/*
 * kv_event_log: what the engine says of its cache, as vLLM 0.32 does: it observes a prefix_cache
 * and gathers the events of a step into one batch, encoded and numbered. To whom batches go it does
 * not know. Pure: no clock, no socket; one thread at a time.
 */
#ifndef TESTS_SIM_ENGINE_KV_EVENT_LOG_H
#define TESTS_SIM_ENGINE_KV_EVENT_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/slice.h"

struct kv_event_log;
struct prefix_cache;

enum kv_dialect {
    KV_DIALECT_MAP,   /* events are maps of their type and fields: vLLM since June 2026 */
    KV_DIALECT_ARRAY, /* arrays of their tag and fields, by position: before */
};

enum kv_hash_form {
    KV_HASH_INT,   /* 64 bits: vLLM's default */
    KV_HASH_BYTES, /* 32 bytes, of which the last eight are those of KV_HASH_INT */
};

struct kv_event_log_config {
    enum kv_dialect dialect;
    enum kv_hash_form hash_form;
    uint32_t block_size;
};

struct kv_batch {
    uint64_t sequence; /* 0 for the first one, then one more each */
    struct slice payload;
};

/* Listens to cache from now on; at most one log per cache, which lives longer. */
struct kv_event_log *kv_event_log_create(struct kv_event_log_config config,
                                         struct prefix_cache *cache);

/* Closes the batch of what was heard since the last one: false where that is nothing. payload is
 * valid until the next call for log. at_s: Unix time. */
bool kv_event_log_take(struct kv_event_log *log, double at_s, struct kv_batch *batch);

/* Batches that were taken: the sequence of the next one. */
uint64_t kv_event_log_count(const struct kv_event_log *log);

/* NULL is fine. */
void kv_event_log_destroy(struct kv_event_log *log);

#endif
