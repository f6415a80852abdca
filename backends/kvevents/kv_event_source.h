/* SPDX-License-Identifier: Apache-2.0 */

/*
 * kv_event_source: listens to one engine's KV events over ZeroMQ (a SUB socket for what it
 * publishes, a DEALER for replays, each connecting to where the engine binds) and hands its batches
 * to an event loop: in order, with every hole and every restart of the engine said. What events
 * mean it does not know. Sockets live on a thread of their own that never waits for the loop,
 * because an engine drops without a word what its subscriber is slow to take. All functions: loop
 * thread.
 */
#ifndef BACKENDS_KVEVENTS_KV_EVENT_SOURCE_H
#define BACKENDS_KVEVENTS_KV_EVENT_SOURCE_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "backends/kvevents/kv_event_codec.h"
#include "backends/runtime/must_check.h"

struct kv_event_source;

struct kv_event_source_config {
    const char *endpoint;        /* tcp://host:port or ipc://path */
    const char *replay_endpoint; /* NULL: the engine has none, so every hole is lost */
    const char *topic;           /* prefix of the topics to hear; "" is all */
    uint32_t replay_idle_ms;     /* a replay that says nothing new for so long is given up */
    uint32_t replay_cooldown_ms; /* see kv_event_order.h */
    uint32_t renew_ms; /* behind one that was given up all is asked for anew, as at a connection: so
                        * long after the first, twice as long after each further; 0: never */
    size_t queued_bytes_max; /* of messages that wait, for a replay or for the loop */
};

/* What is to be known before a delivered batch. */
struct kv_event_notice {
    bool is_restarted;   /* another engine process, whose cache was empty before its first batch */
    uint64_t lost_count; /* batches before this one that nobody will ever see */
};

/* What happens to the connection, in order with the batches. */
enum kv_event_contact {
    KV_EVENT_CONTACT_MADE,  /* it stands; what the engine holds follows, if there is a replay */
    KV_EVENT_CONTACT_WHOLE, /* a replay has ended: all that the engine can tell was delivered */
    KV_EVENT_CONTACT_LOST, /* it broke, with the engine or before: believe nothing of it any more */
};

/* On the loop. The batch is the callee's to iterate over, and gone when it returns. */
struct kv_event_source_callbacks {
    void (*on_batch)(void *context, struct kv_event_notice notice, struct kv_event_batch *batch);
    void (*on_contact)(void *context,
                       enum kv_event_contact contact); /* NULL: nobody wants to know */
};

struct kv_event_source_stats {
    uint64_t batch_count;    /* delivered */
    uint64_t restart_count;  /* of the engine */
    uint64_t lost_count;     /* batches */
    uint64_t replay_count;   /* requested */
    uint64_t given_up_count; /* replays that said nothing new */
    uint64_t refused_count;  /* messages of a wrong form, batches that are none */
    uint64_t overflow_count; /* messages dropped above queued_bytes_max; a hole follows */
    uint64_t made_count;     /* connections made */
    uint64_t broken_count;   /* of them, lost again */
    uint64_t sequence_end; /* behind the newest batch delivered of what is connected; 0: none was */
};

/* Starts to listen; the engine need not be there yet. Callbacks, borrowed, come from the loop from
 * then on. -EINVAL: an endpoint or topic is not one. -ENOMEM, -EAGAIN: no memory, no thread. */
MUST_CHECK int kv_event_source_create(uv_loop_t *loop, struct kv_event_source_config config,
                                      const struct kv_event_source_callbacks *callbacks,
                                      void *context, struct kv_event_source **source);

struct kv_event_source_stats kv_event_source_stats(struct kv_event_source *source);

/* Ends the thread (which is at once) and NULLs *source. No callback comes again but on_closed,
 * which may be NULL, once, by the loop. Not from within a callback. */
void kv_event_source_close(struct kv_event_source **source, void (*on_closed)(void *context));

#endif
