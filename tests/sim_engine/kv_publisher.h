/* SPDX-License-Identifier: Apache-2.0 */

/*
 * kv_publisher: sends batches of KV events to whoever subscribes, and again to whoever asks, over
 * ZeroMQ as vLLM 0.32 does. It reads none of them. The sockets live on a thread of their own, so
 * that a replay of thousands of batches delays no step. All functions: loop thread.
 */
#ifndef TESTS_SIM_ENGINE_KV_PUBLISHER_H
#define TESTS_SIM_ENGINE_KV_PUBLISHER_H

#include <stdbool.h>
#include <stddef.h>

#include "backends/runtime/must_check.h"
#include "tests/sim_engine/kv_event_log.h"

struct kv_publisher;

struct kv_publisher_config {
    const char *events_endpoint; /* bound, in ZeroMQ's form; tcp://HOST:* takes a free port */
    const char *replay_endpoint; /* the same; "": none */
    const char *topic;           /* copied */
    size_t replay_batches_max;   /* that are kept to be replayed */
    bool hides_replay;           /* requests are read and never answered */
};

/* -errno: an endpoint cannot be bound. */
MUST_CHECK int kv_publisher_create(const struct kv_publisher_config *config,
                                   struct kv_publisher **publisher);

/* Where it is bound, "tcp://127.0.0.1:40123"; "" where it is not. */
const char *kv_publisher_events_endpoint(const struct kv_publisher *publisher);
const char *kv_publisher_replay_endpoint(const struct kv_publisher *publisher);

/* Copies batch, keeps it for replays and sends it to those who listen now, or only one of both. */
void kv_publisher_put(struct kv_publisher *publisher, struct kv_batch batch, bool is_sent,
                      bool is_kept);

/* Ends the thread; what nobody has received yet is lost, as when an engine ends. NULL is fine. */
void kv_publisher_destroy(struct kv_publisher *publisher);

#endif
