/* SPDX-License-Identifier: Apache-2.0 */

/*
 * kv_event_source_parts: what the files of kv_event_source share: kv_event_source.c is what the
 * loop sees, and the queue between it and the thread; kv_event_source_thread.c is the thread.
 * Nobody else includes it.
 */
#ifndef BACKENDS_KVEVENTS_KV_EVENT_SOURCE_PARTS_H
#define BACKENDS_KVEVENTS_KV_EVENT_SOURCE_PARTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "backends/kvevents/kv_event_codec.h"
#include "backends/kvevents/kv_event_order.h"
#include "backends/kvevents/kv_event_sockets.h"
#include "backends/kvevents/kv_event_source.h"
#include "backends/runtime/list.h"

/* A message that was taken off its socket, in one piece of memory; or news of the connection. */
struct arrival {
    struct list_node in_list; /* held or queued */
    bool is_contact;
    enum kv_event_contact contact;
    size_t bytes; /* what it counts for */
    uint64_t sequence;
    bool is_broken; /* its payload is no batch */
    struct kv_event_notice notice;
    struct kv_event_batch batch; /* points into payload */
    char payload[];
};

struct kv_event_source {
    struct kv_event_source_config config; /* its strings are not kept */
    const struct kv_event_source_callbacks *callbacks;
    void *context;
    void (*on_closed)(void *context);
    uv_async_t signal;
    uv_thread_t thread;

    /* the thread's, while it runs */
    struct kv_event_sockets sockets;
    bool is_connected;
    uint64_t advanced_ms;   /* when the replay began, or last gave something new */
    uint64_t renew_at_ms;   /* 0: nothing was given up */
    uint64_t renew_wait_ms; /* before the next one */
    struct kv_event_order order;
    struct kv_event_notice notice;
    struct list held;

    /* under the lock */
    uv_mutex_t lock;
    struct list queued;
    size_t waiting_bytes; /* held and queued */
    struct kv_event_source_stats stats;
};

/* ---- kv_event_source.c: by either thread ---- */

/* Adds n to one of source->stats. */
void source_count(struct kv_event_source *source, uint64_t *counter, uint64_t n);

/* A copy of message, within the bound, with its batch opened; NULL: there is no room, counted. */
struct arrival *source_arrival_create(struct kv_event_source *source,
                                      const struct kv_event_message *message);
void source_arrival_destroy(struct kv_event_source *source, struct arrival *arrival);

/* Takes arrival to the loop. */
void source_enqueue(struct kv_event_source *source, struct arrival *arrival);

/* NULL: list is empty. */
struct arrival *source_first_of(struct list *list);
void source_drop_all(struct kv_event_source *source, struct list *list);

/* ---- kv_event_source_thread.c ---- */

/* The thread: serves the sockets until they are shut down. argument: the source. */
void source_listen(void *argument);

#endif
