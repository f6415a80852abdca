/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/kv_publisher.h"

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>
#include <zmq.h>

/*
 * DESIGN
 *
 *   loop thread --outbox -> inbox (PAIR)--> thread: ring of batches --PUB--> subscribers
 *                                                        ^--ROUTER--> who asks for a replay
 *
 * One thread owns ring and sockets, so a replay and what is published meanwhile have one order and
 * nothing is locked. A message of the inbox is a head and a payload; a head alone ends the thread.
 * Payloads are ZeroMQ messages: the ring, the publication and all replays share their bytes.
 *
 *   published  topic | sequence, 8 bytes, big-endian | payload
 *   asked      identity | "" | sequence; anything else is passed over
 *   replayed   identity | "" | topic | sequence | payload, for each one kept from sequence on;
 *              then the end: identity | "" | "" | 2^64 - 1 | ""
 *
 * A start that the ring no longer has begins at its oldest, without a word. vLLM lets the ROUTER
 * drop what a peer is slow to take; its own loop hardly ever gets there, and we would at once,
 * being faster: here it has no limit.
 */

enum { PUBLISHED_COUNT_MAX = 100 * 1000, ENDPOINT_BYTES_MAX = 256 };

/* What the loop thread says of a batch. */
struct head {
    uint64_t sequence;
    bool is_sent;
    bool is_kept;
};

struct kept {
    uint64_t sequence;
    zmq_msg_t payload;
};

struct kv_publisher {
    uv_thread_t thread;
    void *context;
    void *outbox; /* of the loop thread; all other sockets belong to the thread */
    void *inbox;
    void *events;
    void *replay; /* NULL: none */
    char *topic;
    bool hides_replay;
    struct kept *ring;
    size_t ring_size;
    uint64_t kept_count; /* ever; the newest is at (kept_count - 1) % ring_size */
    char events_endpoint[ENDPOINT_BYTES_MAX];
    char replay_endpoint[ENDPOINT_BYTES_MAX];
};

/* What fails here is out of memory, or misused. */
static void must(int status)
{
    assert(status >= 0);
}

static void *open_socket(struct kv_publisher *publisher, int type, int high_water_mark)
{
    void *socket = zmq_socket(publisher->context, type);
    int linger = 0;

    assert(socket != NULL);
    must(zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger));
    must(zmq_setsockopt(socket, ZMQ_SNDHWM, &high_water_mark, sizeof high_water_mark));
    must(zmq_setsockopt(socket, ZMQ_RCVHWM, &high_water_mark, sizeof high_water_mark));
    return socket;
}

static int bind_at(void *socket, const char *endpoint, char bound[ENDPOINT_BYTES_MAX])
{
    size_t size = ENDPOINT_BYTES_MAX;

    if (zmq_bind(socket, endpoint) < 0)
        return -zmq_errno();
    return zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, bound, &size) < 0 ? -zmq_errno() : 0;
}

/* Waits where the socket is full: of the sockets here only the outbox may, as in vLLM. */
static void send_bytes(void *socket, const void *bytes, size_t size, int flags)
{
    int status;

    do
        status = zmq_send(socket, bytes, size, flags);
    while (status < 0 && zmq_errno() == EINTR);
    must(status);
}

static void send_sequence(void *socket, uint64_t sequence)
{
    uint64_t big = htobe64(sequence);

    send_bytes(socket, &big, sizeof big, ZMQ_SNDMORE);
}

/* Sends the same bytes; payload is still ours. */
static void send_payload(void *socket, zmq_msg_t *payload)
{
    zmq_msg_t copy;

    must(zmq_msg_init(&copy));
    must(zmq_msg_copy(&copy, payload));
    must(zmq_msg_send(&copy, socket, 0));
}

static void send_batch(struct kv_publisher *publisher, void *socket, uint64_t sequence,
                       zmq_msg_t *payload)
{
    send_bytes(socket, publisher->topic, strlen(publisher->topic), ZMQ_SNDMORE);
    send_sequence(socket, sequence);
    send_payload(socket, payload);
}

/* Takes payload over. */
static void keep(struct kv_publisher *publisher, uint64_t sequence, zmq_msg_t *payload)
{
    struct kept *kept = &publisher->ring[publisher->kept_count % publisher->ring_size];

    if (publisher->kept_count >= publisher->ring_size)
        must(zmq_msg_close(&kept->payload));
    must(zmq_msg_init(&kept->payload));
    must(zmq_msg_move(&kept->payload, payload));
    kept->sequence = sequence;
    publisher->kept_count++;
}

static void take_batch(struct kv_publisher *publisher, const struct head *head)
{
    zmq_msg_t payload;

    must(zmq_msg_init(&payload));
    must(zmq_msg_recv(&payload, publisher->inbox, 0));
    if (head->is_sent)
        send_batch(publisher, publisher->events, head->sequence, &payload);
    if (head->is_kept)
        keep(publisher, head->sequence, &payload);
    must(zmq_msg_close(&payload));
}

/* All that was put by now: who asks for a replay gets what was put before he asked. false: the last
 * of it was the end. */
static bool take_batches(struct kv_publisher *publisher)
{
    struct head head;

    while (zmq_recv(publisher->inbox, &head, sizeof head, ZMQ_DONTWAIT) >= 0) {
        int more = 0;
        size_t size = sizeof more;

        must(zmq_getsockopt(publisher->inbox, ZMQ_RCVMORE, &more, &size));
        if (more == 0)
            return false;
        take_batch(publisher, &head);
    }
    assert(zmq_errno() == EAGAIN || zmq_errno() == EINTR);
    return true;
}

static void send_address(struct kv_publisher *publisher, zmq_msg_t *identity)
{
    zmq_msg_t copy;

    must(zmq_msg_init(&copy));
    must(zmq_msg_copy(&copy, identity));
    must(zmq_msg_send(&copy, publisher->replay, ZMQ_SNDMORE));
    send_bytes(publisher->replay, "", 0, ZMQ_SNDMORE);
}

static void replay_from(struct kv_publisher *publisher, zmq_msg_t *identity, uint64_t sequence)
{
    uint64_t first = publisher->kept_count > publisher->ring_size
                         ? publisher->kept_count - publisher->ring_size
                         : 0;

    for (uint64_t i = first; i < publisher->kept_count; i++) {
        struct kept *kept = &publisher->ring[i % publisher->ring_size];

        if (kept->sequence < sequence)
            continue;
        send_address(publisher, identity);
        send_batch(publisher, publisher->replay, kept->sequence, &kept->payload);
    }
    send_address(publisher, identity);
    send_bytes(publisher->replay, "", 0, ZMQ_SNDMORE);
    send_sequence(publisher->replay, UINT64_MAX);
    send_bytes(publisher->replay, "", 0, 0);
}

/* Of what a peer sends all frames are taken, however many there are. */
static void answer_replay(struct kv_publisher *publisher)
{
    enum { FRAME_COUNT = 3 };
    zmq_msg_t frames[FRAME_COUNT], frame;
    size_t count = 0;
    uint64_t sequence;
    bool has_more = true;

    for (size_t i = 0; i < FRAME_COUNT; i++)
        must(zmq_msg_init(&frames[i]));
    while (has_more) {
        must(zmq_msg_init(&frame));
        must(zmq_msg_recv(&frame, publisher->replay, 0));
        has_more = zmq_msg_more(&frame);
        if (count < FRAME_COUNT)
            must(zmq_msg_move(&frames[count], &frame));
        count++;
        must(zmq_msg_close(&frame));
    }
    if (count == FRAME_COUNT && zmq_msg_size(&frames[1]) == 0 &&
        zmq_msg_size(&frames[2]) == sizeof sequence && !publisher->hides_replay) {
        memcpy(&sequence, zmq_msg_data(&frames[2]), sizeof sequence);
        replay_from(publisher, &frames[0], be64toh(sequence));
    }
    for (size_t i = 0; i < FRAME_COUNT; i++)
        must(zmq_msg_close(&frames[i]));
}

static void run(void *arg)
{
    struct kv_publisher *publisher = arg;
    zmq_pollitem_t items[] = {
        {.socket = publisher->inbox, .events = ZMQ_POLLIN},
        {.socket = publisher->replay, .events = ZMQ_POLLIN},
    };
    int count = publisher->replay != NULL ? 2 : 1;

    for (;;) {
        must(zmq_poll(items, count, -1));
        if (!take_batches(publisher))
            return;
        if (count == 2 && (items[1].revents & ZMQ_POLLIN) != 0)
            answer_replay(publisher);
    }
}

static void close_socket(void *socket)
{
    if (socket != NULL)
        must(zmq_close(socket));
}

/* Everything but the thread, which is not there. */
static void release(struct kv_publisher *publisher)
{
    size_t kept_count = publisher->kept_count < publisher->ring_size ? (size_t)publisher->kept_count
                                                                     : publisher->ring_size;

    for (size_t i = 0; i < kept_count; i++)
        must(zmq_msg_close(&publisher->ring[i].payload));
    close_socket(publisher->outbox);
    close_socket(publisher->inbox);
    close_socket(publisher->events);
    close_socket(publisher->replay);
    must(zmq_ctx_term(publisher->context));
    free(publisher->ring);
    free(publisher->topic);
    free(publisher);
}

static int open_all(struct kv_publisher *publisher, const struct kv_publisher_config *config)
{
    int status;

    publisher->outbox = open_socket(publisher, ZMQ_PAIR, PUBLISHED_COUNT_MAX);
    publisher->inbox = open_socket(publisher, ZMQ_PAIR, PUBLISHED_COUNT_MAX);
    publisher->events = open_socket(publisher, ZMQ_PUB, PUBLISHED_COUNT_MAX);
    must(zmq_bind(publisher->inbox, "inproc://inbox"));
    must(zmq_connect(publisher->outbox, "inproc://inbox"));
    status = bind_at(publisher->events, config->events_endpoint, publisher->events_endpoint);
    if (status < 0 || config->replay_endpoint[0] == '\0')
        return status;
    publisher->replay = open_socket(publisher, ZMQ_ROUTER, 0);
    return bind_at(publisher->replay, config->replay_endpoint, publisher->replay_endpoint);
}

/* The thread takes no signals: they are the loop's. */
static int start_thread(struct kv_publisher *publisher)
{
    sigset_t all, before;
    int status;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    status = uv_thread_create(&publisher->thread, run, publisher);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return status;
}

int kv_publisher_create(const struct kv_publisher_config *config, struct kv_publisher **publisher)
{
    struct kv_publisher *made = calloc(1, sizeof *made);
    int status;

    assert(made != NULL && config->replay_batches_max > 0);
    made->context = zmq_ctx_new();
    made->topic = strdup(config->topic);
    made->hides_replay = config->hides_replay;
    made->ring_size = config->replay_batches_max;
    made->ring = calloc(made->ring_size, sizeof *made->ring);
    assert(made->context != NULL && made->topic != NULL && made->ring != NULL);
    status = open_all(made, config);
    if (status == 0)
        status = start_thread(made);
    if (status < 0) {
        release(made);
        return status;
    }
    *publisher = made;
    return 0;
}

const char *kv_publisher_events_endpoint(const struct kv_publisher *publisher)
{
    return publisher->events_endpoint;
}

const char *kv_publisher_replay_endpoint(const struct kv_publisher *publisher)
{
    return publisher->replay_endpoint;
}

void kv_publisher_put(struct kv_publisher *publisher, struct kv_batch batch, bool is_sent,
                      bool is_kept)
{
    struct head head = {.sequence = batch.sequence, .is_sent = is_sent, .is_kept = is_kept};

    send_bytes(publisher->outbox, &head, sizeof head, ZMQ_SNDMORE);
    send_bytes(publisher->outbox, batch.payload.ptr, batch.payload.len, 0);
}

void kv_publisher_destroy(struct kv_publisher *publisher)
{
    struct head head = {.sequence = 0};

    if (publisher == NULL)
        return;
    send_bytes(publisher->outbox, &head, sizeof head, 0);
    must(uv_thread_join(&publisher->thread));
    release(publisher);
}
