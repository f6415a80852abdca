/* SPDX-License-Identifier: Apache-2.0 */

/*
 * kv_event_sockets: the ZeroMQ sockets of one kv_event_source: a SUB for what an engine publishes,
 * a DEALER for each replay, and a monitor that tells whether the engine is connected. What is in
 * the frames of a message it does not know. Alone it names ZeroMQ. One thread at a time, but for
 * kv_event_sockets_shut_down().
 */
#ifndef BACKENDS_KVEVENTS_KV_EVENT_SOCKETS_H
#define BACKENDS_KVEVENTS_KV_EVENT_SOCKETS_H

#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/must_check.h"
#include "backends/runtime/slice.h"

/* From within kv_event_sockets_serve() and _drain_live(). Frames live as long as the call. */
struct kv_event_sockets_callbacks {
    void (*on_live)(void *ctx, const struct slice *frames, size_t frame_count);
    void (*on_reply)(void *ctx, const struct slice *frames, size_t frame_count);
    void (*on_connected)(void *ctx);
    void (*on_disconnected)(void *ctx); /* also without having been connected */
};

struct kv_event_sockets {
    void *zmq; /* a context of its own */
    void *live;
    void *monitor;
    void *replay; /* while one runs */
    char *replay_endpoint;
    const struct kv_event_sockets_callbacks *callbacks;
    void *ctx;
};

/* Begins to connect; replay_endpoint may be NULL. -EINVAL: an endpoint or
 * topic is not one; -ENOMEM. Release it then too. */
MUST_CHECK int kv_event_sockets_open(struct kv_event_sockets *sockets, const char *endpoint,
                                     const char *topic, const char *replay_endpoint);

/* Before it is served: who hears what comes. callbacks are borrowed. */
void kv_event_sockets_listen(struct kv_event_sockets *sockets,
                             const struct kv_event_sockets_callbacks *callbacks, void *ctx);

/* Waits for what comes, at most wait_ms (-1: for ever), and hands out some of it. -ESHUTDOWN. */
MUST_CHECK int kv_event_sockets_serve(struct kv_event_sockets *sockets, long wait_ms);

/* Hands out all that was published and has come. */
void kv_event_sockets_drain_live(struct kv_event_sockets *sockets);

/* Asks for all from sequence from on; a request before it is over. What fails here falls silent. */
void kv_event_sockets_request(struct kv_event_sockets *sockets, uint64_t from);

/* What comes to the request from now on comes to nobody. */
void kv_event_sockets_end_request(struct kv_event_sockets *sockets);

/* By any thread: whoever serves is done. */
void kv_event_sockets_shut_down(struct kv_event_sockets *sockets);

/* When nobody serves any more. May be called twice. */
void kv_event_sockets_release(struct kv_event_sockets *sockets);

#endif
