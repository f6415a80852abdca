/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/kvevents/kv_event_sockets.h"

#include "backends/kvevents/kv_event_codec.h"

#include <zmq.h>

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/*
 * DESIGN
 *
 * Each replay has a DEALER of its own: what an engine answers to a replay that was given up comes
 * to a socket that is gone, and can be taken for nothing else.
 *
 * An engine that dies closes its socket, and ZeroMQ says so within milliseconds, to the monitor:
 * which is therefore served first.
 *
 * Who serves is ended by the context's being shut down, which any thread may do; there is no other
 * word to it.
 */

enum { FRAME_COUNT_MAX = 4, MESSAGE_COUNT_MAX = 10000, LINGER_MS = 0, BURST = 64 };

/* A host that vanishes closes nothing: without a heartbeat its subscriber would listen for ever. */
enum { HEARTBEAT_MS = 5000 };

#define MONITOR_ENDPOINT "inproc://monitor" /* within a context of one's own */

static void close_socket(void **socket)
{
    if (*socket != NULL)
        zmq_close(*socket);
    *socket = NULL;
}

/* prepare, which may be NULL, comes before the socket connects. */
static void *open_socket(void *zmq, int type, const char *endpoint, int (*prepare)(void *socket))
{
    void *socket = zmq_socket(zmq, type);
    const int64_t message_bytes_max = KV_EVENT_PAYLOAD_BYTES_MAX;
    const int linger_ms = LINGER_MS, message_count_max = MESSAGE_COUNT_MAX;
    const int heartbeat_ms = HEARTBEAT_MS;

    if (socket == NULL)
        return NULL;
    if (zmq_setsockopt(socket, ZMQ_LINGER, &linger_ms, sizeof linger_ms) < 0 ||
        zmq_setsockopt(socket, ZMQ_RCVHWM, &message_count_max, sizeof message_count_max) < 0 ||
        zmq_setsockopt(socket, ZMQ_HEARTBEAT_IVL, &heartbeat_ms, sizeof heartbeat_ms) < 0 ||
        zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &message_bytes_max, sizeof message_bytes_max) < 0 ||
        (prepare != NULL && prepare(socket) < 0) || zmq_connect(socket, endpoint) < 0)
        close_socket(&socket);
    return socket;
}

static int watch(void *sub)
{
    return zmq_socket_monitor(sub, MONITOR_ENDPOINT,
                              ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED);
}

static void close_parts(zmq_msg_t *parts, size_t frame_count)
{
    for (size_t i = 0; i < frame_count && i < FRAME_COUNT_MAX; i++)
        zmq_msg_close(&parts[i]);
}

/* Receives all frames of a message; the first FRAME_COUNT_MAX are kept. -EAGAIN: there is none. */
static int receive(void *socket, zmq_msg_t *parts, struct slice *frames, size_t *frame_count)
{
    int has_more = 1;

    for (*frame_count = 0; has_more; (*frame_count)++) {
        zmq_msg_t rest, *part = *frame_count < FRAME_COUNT_MAX ? &parts[*frame_count] : &rest;

        zmq_msg_init(part);
        if (zmq_msg_recv(part, socket, ZMQ_DONTWAIT) < 0) {
            zmq_msg_close(part); /* a message comes whole: only a shutdown ends it in its midst */
            close_parts(parts, *frame_count);
            return -EAGAIN;
        }
        has_more = zmq_msg_more(part);
        if (part == &rest)
            zmq_msg_close(part);
        else
            frames[*frame_count] = slice_of(zmq_msg_data(part), zmq_msg_size(part));
    }
    return 0;
}

typedef void take_fn(void *ctx, const struct slice *frames, size_t frame_count);

/* At most BURST, so that no socket waits long for another. False: it is empty. */
static bool drain(void *const *socket, take_fn *take, void *ctx)
{
    zmq_msg_t parts[FRAME_COUNT_MAX];
    struct slice frames[FRAME_COUNT_MAX];
    size_t frame_count;

    for (int i = 0; i < BURST && *socket != NULL; i++) { /* take may close it, or open another */
        if (receive(*socket, parts, frames, &frame_count) < 0)
            return false;
        take(ctx, frames, frame_count);
        close_parts(parts, frame_count);
    }
    return true;
}

/* The event's number (2 bytes, of this machine) and a value; an address. */
static void take_monitored(void *ctx, const struct slice *frames, size_t frame_count)
{
    struct kv_event_sockets *sockets = ctx;
    uint16_t event = 0;

    if (frame_count > 0 && frames[0].len >= sizeof event)
        memcpy(&event, frames[0].ptr, sizeof event);
    if (event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED)
        sockets->callbacks->on_connected(sockets->ctx);
    else if (event == ZMQ_EVENT_DISCONNECTED)
        sockets->callbacks->on_disconnected(sockets->ctx);
}

int kv_event_sockets_open(struct kv_event_sockets *sockets, const char *endpoint, const char *topic,
                          const char *replay_endpoint)
{
    *sockets = (struct kv_event_sockets){.zmq = zmq_ctx_new()};
    if (sockets->zmq == NULL)
        return -ENOMEM;
    sockets->live = open_socket(sockets->zmq, ZMQ_SUB, endpoint, watch);
    if (sockets->live == NULL ||
        zmq_setsockopt(sockets->live, ZMQ_SUBSCRIBE, topic, strlen(topic)) < 0)
        return -EINVAL;
    sockets->monitor = open_socket(sockets->zmq, ZMQ_PAIR, MONITOR_ENDPOINT, NULL);
    if (sockets->monitor == NULL)
        return -ENOMEM;
    if (replay_endpoint == NULL)
        return 0;
    sockets->replay_endpoint = strdup(replay_endpoint);
    if (sockets->replay_endpoint == NULL)
        return -ENOMEM;
    sockets->replay = open_socket(sockets->zmq, ZMQ_DEALER, sockets->replay_endpoint, NULL);
    if (sockets->replay == NULL)
        return -EINVAL;
    close_socket(&sockets->replay); /* it was to show that the endpoint is one */
    return 0;
}

void kv_event_sockets_listen(struct kv_event_sockets *sockets,
                             const struct kv_event_sockets_callbacks *callbacks, void *ctx)
{
    sockets->callbacks = callbacks;
    sockets->ctx = ctx;
}

int kv_event_sockets_serve(struct kv_event_sockets *sockets, long wait_ms)
{
    zmq_pollitem_t items[] = {
        {sockets->live, 0, ZMQ_POLLIN, 0},
        {sockets->monitor, 0, ZMQ_POLLIN, 0},
        {sockets->replay, 0, ZMQ_POLLIN, 0},
    };

    if (zmq_poll(items, sockets->replay != NULL ? 3 : 2, wait_ms) < 0)
        return errno == ETERM ? -ESHUTDOWN : 0; /* EINTR: nothing happened */
    drain(&sockets->monitor, take_monitored, sockets);
    drain(&sockets->replay, sockets->callbacks->on_reply, sockets->ctx);
    drain(&sockets->live, sockets->callbacks->on_live, sockets->ctx);
    return 0;
}

void kv_event_sockets_drain_live(struct kv_event_sockets *sockets)
{
    while (drain(&sockets->live, sockets->callbacks->on_live, sockets->ctx))
        ;
}

void kv_event_sockets_request(struct kv_event_sockets *sockets, uint64_t from)
{
    uint8_t frame[KV_EVENT_SEQUENCE_BYTES];

    kv_event_request_write(from, frame);
    close_socket(&sockets->replay);
    sockets->replay = open_socket(sockets->zmq, ZMQ_DEALER, sockets->replay_endpoint, NULL);
    if (sockets->replay == NULL ||
        zmq_send(sockets->replay, "", 0, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0 ||
        zmq_send(sockets->replay, frame, sizeof frame, ZMQ_DONTWAIT) < 0)
        close_socket(&sockets->replay);
}

void kv_event_sockets_end_request(struct kv_event_sockets *sockets)
{
    close_socket(&sockets->replay);
}

void kv_event_sockets_shut_down(struct kv_event_sockets *sockets)
{
    zmq_ctx_shutdown(sockets->zmq);
}

void kv_event_sockets_release(struct kv_event_sockets *sockets)
{
    close_socket(&sockets->replay);
    close_socket(&sockets->monitor);
    close_socket(&sockets->live);
    if (sockets->zmq != NULL)
        zmq_ctx_term(sockets->zmq);
    sockets->zmq = NULL;
    free(sockets->replay_endpoint);
    sockets->replay_endpoint = NULL;
}
