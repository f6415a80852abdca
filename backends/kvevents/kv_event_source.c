/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/kvevents/kv_event_source.h"

#include "backends/kvevents/kv_event_order.h"
#include "backends/runtime/clock.h"
#include "backends/runtime/list.h"

#include <zmq.h>

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

/*
 * DESIGN
 *
 *   SUB ----> judge (kv_event_order) --> queued --> uv_async --> on_batch, on the loop
 *    |          ^   \-> held, while a replay runs        |
 *    |  DEALER -/                                        \-> on_contact
 *    monitor: connected, disconnected ------/
 *
 * The thread judges and the loop only takes, so neither waits for the other but for the moment the
 * lock is held. A message that there is no room for is dropped before it is judged: the next one
 * then shows a hole, and what heals holes heals this. A notice waits for the next batch delivered.
 *
 * Each replay has a DEALER of its own: what an engine answers to a replay that was given up comes
 * to a socket that is gone, and can be taken for nothing else.
 *
 * An engine that dies closes its socket, and ZeroMQ says so within milliseconds. Before that is
 * acted upon all that came by the dead connection is taken, so that it cannot be mistaken for what
 * its successor says.
 *
 * A replay that was given up leaves a gap that no later one would be asked to fill. So after a
 * while everything is asked for once more, as if the connection were new: what the engine still
 * keeps of its messages says again what is true.
 *
 * The thread ends when its ZeroMQ context is shut down, which any thread may do; there is no other
 * word to it.
 */

enum { FRAME_COUNT_MAX = 4, SUB_MESSAGE_COUNT_MAX = 10000, LINGER_MS = 0, BURST = 64 };

/* A host that vanishes closes nothing: without a heartbeat its subscriber would listen for ever. */
enum { HEARTBEAT_MS = 5000 };

#define MONITOR_ENDPOINT "inproc://monitor" /* within a context of the source's own */

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
    char *replay_endpoint;
    const struct kv_event_source_callbacks *callbacks;
    void *context;
    void (*on_closed)(void *context);
    uv_async_t signal;
    uv_thread_t thread;
    void *zmq;

    /* the thread's */
    void *sub;
    void *monitor; /* of sub's connection */
    bool is_connected;
    void *dealer;           /* while a replay runs */
    uint64_t advanced_ms;   /* when the replay began, or last gave something new */
    uint64_t renew_at_ms;   /* 0: nothing was given up */
    uint64_t renew_wait_ms; /* before the next one */
    struct kv_event_order order;
    struct kv_event_notice notice;
    struct list held;

    uv_mutex_t lock;
    struct list queued;
    size_t waiting_bytes; /* held and queued */
    struct kv_event_source_stats stats;
};

static void count(struct kv_event_source *source, uint64_t *counter, uint64_t n)
{
    uv_mutex_lock(&source->lock);
    *counter += n;
    uv_mutex_unlock(&source->lock);
}

/* Memory for a message, within the bound; NULL: none. */
static struct arrival *arrival_create(struct kv_event_source *source, size_t payload_len)
{
    struct arrival *arrival = NULL;
    const size_t bytes = sizeof *arrival + payload_len;

    uv_mutex_lock(&source->lock);
    if (bytes <= source->config.queued_bytes_max - source->waiting_bytes)
        arrival = malloc(bytes);
    if (arrival != NULL)
        source->waiting_bytes += bytes;
    else
        source->stats.overflow_count++;
    uv_mutex_unlock(&source->lock);
    if (arrival == NULL)
        return NULL;
    list_node_init(&arrival->in_list);
    arrival->is_contact = false;
    arrival->bytes = bytes;
    return arrival;
}

static void arrival_destroy(struct kv_event_source *source, struct arrival *arrival)
{
    uv_mutex_lock(&source->lock);
    source->waiting_bytes -= arrival->bytes;
    uv_mutex_unlock(&source->lock);
    free(arrival);
}

static struct arrival *arrival_of(struct kv_event_source *source,
                                  const struct kv_event_message *message)
{
    struct arrival *arrival = arrival_create(source, message->payload.len);

    if (arrival == NULL)
        return NULL;
    if (message->payload.len > 0)
        memcpy(arrival->payload, message->payload.ptr, message->payload.len);
    arrival->sequence = message->sequence;
    arrival->is_broken =
        kv_event_batch_open(&arrival->batch, slice_of(arrival->payload, message->payload.len)) < 0;
    return arrival;
}

static void enqueue(struct kv_event_source *source, struct arrival *arrival)
{
    uv_mutex_lock(&source->lock);
    list_append(&source->queued, &arrival->in_list);
    source->stats.batch_count += !arrival->is_contact;
    uv_mutex_unlock(&source->lock);
    uv_async_send(&source->signal);
}

/* Never left out, whatever waits already: it is few bytes, and who does not hear it goes on to
 * believe what is over. */
static void tell(struct kv_event_source *source, enum kv_event_contact contact)
{
    struct arrival *arrival = calloc(1, sizeof *arrival);

    if (arrival == NULL)
        abort();
    list_node_init(&arrival->in_list);
    arrival->is_contact = true;
    arrival->contact = contact;
    enqueue(source, arrival);
}

static void lose(struct kv_event_source *source, uint64_t batch_count)
{
    source->notice.lost_count += batch_count;
    count(source, &source->stats.lost_count, batch_count);
}

static void deliver(struct kv_event_source *source, struct arrival *arrival)
{
    if (arrival->is_broken) {
        count(source, &source->stats.refused_count, 1);
        lose(source, 1);
        arrival_destroy(source, arrival);
        return;
    }
    arrival->notice = source->notice;
    source->notice = (struct kv_event_notice){false, 0};
    enqueue(source, arrival);
}

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
    const int linger_ms = LINGER_MS, message_count_max = SUB_MESSAGE_COUNT_MAX;
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

/* Asks for all from order->next on. What fails here falls silent, and is given up as such. */
static void request_replay(struct kv_event_source *source)
{
    uint8_t from[KV_EVENT_SEQUENCE_BYTES];

    kv_event_request_write(source->order.next, from);
    source->advanced_ms = clock_now_ms();
    count(source, &source->stats.replay_count, 1);
    source->dealer = open_socket(source->zmq, ZMQ_DEALER, source->replay_endpoint, NULL);
    if (source->dealer == NULL || zmq_send(source->dealer, "", 0, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0 ||
        zmq_send(source->dealer, from, sizeof from, ZMQ_DONTWAIT) < 0)
        close_socket(&source->dealer);
}

/* Judges until there is a verdict on it; true: it is held, and the caller's list keeps it. */
static bool judge_live(struct kv_event_source *source, struct arrival *arrival)
{
    for (;;) {
        const uint64_t next = source->order.next;

        switch (kv_event_order_live(&source->order, arrival->sequence, arrival->batch.at_s,
                                    clock_now_ms())) {
        case KV_EVENT_DELIVER:
            deliver(source, arrival);
            return false;
        case KV_EVENT_DUPLICATE:
            arrival_destroy(source, arrival);
            return false;
        case KV_EVENT_REPLAY:
            request_replay(source);
            return true;
        case KV_EVENT_HOLD:
            return true;
        case KV_EVENT_LOST:
            lose(source, arrival->sequence - next);
            break;
        case KV_EVENT_RESTARTED:
            source->notice = (struct kv_event_notice){true, 0};
            count(source, &source->stats.restart_count, 1);
            break;
        }
    }
}

static void judge_reply(struct kv_event_source *source, struct arrival *arrival)
{
    const uint64_t next = source->order.next;
    enum kv_event_verdict verdict =
        kv_event_order_reply(&source->order, arrival->sequence, arrival->batch.at_s);

    if (verdict == KV_EVENT_LOST) {
        lose(source, arrival->sequence - next);
        verdict = kv_event_order_reply(&source->order, arrival->sequence, arrival->batch.at_s);
    }
    if (verdict == KV_EVENT_DELIVER) {
        source->advanced_ms = clock_now_ms();
        deliver(source, arrival);
    } else {
        arrival_destroy(source, arrival);
    }
}

static struct arrival *first_of(struct list *list)
{
    return list->count > 0 ? container_of(list->head.next, struct arrival, in_list) : NULL;
}

static void drop_all(struct kv_event_source *source, struct list *list)
{
    struct arrival *arrival;

    while ((arrival = first_of(list)) != NULL) {
        list_remove(list, &arrival->in_list);
        arrival_destroy(source, arrival);
    }
}

/* Judges what was held, oldest first, until one has to be held again. */
static void judge_held(struct kv_event_source *source)
{
    struct arrival *arrival;
    bool is_held = false;

    while (!is_held && (arrival = first_of(&source->held)) != NULL) {
        list_remove(&source->held, &arrival->in_list);
        is_held = judge_live(source, arrival);
        if (is_held)
            list_prepend(&source->held, &arrival->in_list);
    }
}

static void end_replay(struct kv_event_source *source)
{
    close_socket(&source->dealer);
    kv_event_order_replay_end(&source->order, clock_now_ms());
    judge_held(source);
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

/* The engine said the end: what it has told by then, what was held included, is all. */
static void complete_replay(struct kv_event_source *source)
{
    source->renew_at_ms = 0;
    source->renew_wait_ms = source->config.renew_ms;
    end_replay(source);
    if (!source->order.is_replaying && !source->order.is_waiting)
        tell(source, KV_EVENT_CONTACT_WHOLE);
}

static void take_live(struct kv_event_source *source, const struct slice *frames,
                      size_t frame_count)
{
    struct kv_event_message message;
    struct arrival *arrival;

    if (kv_event_message_read(frames, frame_count, &message) < 0) {
        count(source, &source->stats.refused_count, 1);
        return;
    }
    arrival = arrival_of(source, &message);
    if (arrival != NULL && judge_live(source, arrival))
        list_append(&source->held, &arrival->in_list);
}

static void take_reply(struct kv_event_source *source, const struct slice *frames,
                       size_t frame_count)
{
    struct kv_event_message message;
    struct arrival *arrival;
    int status = kv_event_reply_read(frames, frame_count, &message);

    if (status < 0)
        count(source, &source->stats.refused_count, 1);
    else if (status == 1)
        complete_replay(source);
    else if ((arrival = arrival_of(source, &message)) != NULL)
        judge_reply(source, arrival);
}

/* At most BURST, so that neither socket waits long for the other. False: it is empty. */
static bool drain(struct kv_event_source *source, void *const *socket,
                  void (*take)(struct kv_event_source *source, const struct slice *frames,
                               size_t frame_count))
{
    zmq_msg_t parts[FRAME_COUNT_MAX];
    struct slice frames[FRAME_COUNT_MAX];
    size_t frame_count;

    for (int i = 0; i < BURST && *socket != NULL; i++) {
        if (receive(*socket, parts, frames, &frame_count) < 0)
            return false;
        take(source, frames, frame_count);
        close_parts(parts, frame_count);
    }
    return true;
}

/* ---- the connection ---- */

/* Of a connection that stands: all that the engine keeps is asked for. */
static void begin(struct kv_event_source *source)
{
    tell(source, KV_EVENT_CONTACT_MADE);
    if (kv_event_order_connect(&source->order))
        request_replay(source);
}

/* What was delivered is not to be believed any more, what waits is nobody's. */
static void forget(struct kv_event_source *source)
{
    close_socket(&source->dealer);
    drop_all(source, &source->held);
    kv_event_order_disconnect(&source->order);
    source->notice = (struct kv_event_notice){false, 0};
    source->renew_at_ms = 0;
    tell(source, KV_EVENT_CONTACT_LOST);
}

static void note_connected(struct kv_event_source *source)
{
    if (source->is_connected)
        return;
    source->is_connected = true;
    source->renew_wait_ms = source->config.renew_ms;
    count(source, &source->stats.made_count, 1);
    begin(source);
}

static void note_disconnected(struct kv_event_source *source)
{
    if (!source->is_connected) /* it never came to a handshake */
        return;
    while (drain(source, &source->sub, take_live))
        ;
    source->is_connected = false;
    count(source, &source->stats.broken_count, 1);
    forget(source);
}

static void renew(struct kv_event_source *source)
{
    source->renew_at_ms = 0;
    source->renew_wait_ms *= 2;
    forget(source);
    begin(source);
}

/* A message of the monitor: the event's number (2 bytes, of this machine) and a value; an address.
 */
static void take_monitored(struct kv_event_source *source, const struct slice *frames,
                           size_t frame_count)
{
    uint16_t event = 0;

    if (frame_count > 0 && frames[0].len >= sizeof event)
        memcpy(&event, frames[0].ptr, sizeof event);
    if (event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED)
        note_connected(source);
    else if (event == ZMQ_EVENT_DISCONNECTED)
        note_disconnected(source);
}

/* ---- the thread ---- */

static long left_ms(uint64_t due_ms)
{
    const uint64_t now_ms = clock_now_ms();

    return due_ms > now_ms ? (long)(due_ms - now_ms) : 0;
}

static long poll_ms(const struct kv_event_source *source)
{
    if (source->order.is_replaying)
        return left_ms(source->advanced_ms + source->config.replay_idle_ms);
    if (source->order.is_waiting)
        return left_ms(source->order.allowed_ms);
    return source->renew_at_ms != 0 ? left_ms(source->renew_at_ms) : -1;
}

static void give_up(struct kv_event_source *source)
{
    count(source, &source->stats.given_up_count, 1);
    if (source->renew_at_ms == 0 && source->renew_wait_ms > 0)
        source->renew_at_ms = clock_now_ms() + source->renew_wait_ms;
    end_replay(source);
}

static void act_on_time(struct kv_event_source *source)
{
    if (kv_event_order_is_due(&source->order, clock_now_ms()))
        judge_held(source);
    if (poll_ms(source) != 0)
        return;
    if (source->order.is_replaying)
        give_up(source);
    else if (source->renew_at_ms != 0)
        renew(source);
}

static void listen_until_shutdown(void *argument)
{
    struct kv_event_source *source = argument;
    int status = 0;

    while (status >= 0 || errno != ETERM) {
        zmq_pollitem_t items[] = {
            {source->sub, 0, ZMQ_POLLIN, 0},
            {source->monitor, 0, ZMQ_POLLIN, 0},
            {source->dealer, 0, ZMQ_POLLIN, 0},
        };

        status = zmq_poll(items, source->dealer != NULL ? 3 : 2, poll_ms(source));
        if (status < 0)
            continue; /* ETERM: the end; EINTR: nothing happened */
        drain(source, &source->monitor, take_monitored);
        drain(source, &source->dealer, take_reply);
        drain(source, &source->sub, take_live);
        act_on_time(source);
    }
    close_socket(&source->dealer);
    close_socket(&source->monitor);
    close_socket(&source->sub);
}

static void on_signal(uv_async_t *signal)
{
    struct kv_event_source *source = signal->data;
    struct arrival *arrival;

    for (;;) {
        uv_mutex_lock(&source->lock);
        arrival = first_of(&source->queued);
        if (arrival != NULL)
            list_remove(&source->queued, &arrival->in_list);
        uv_mutex_unlock(&source->lock);
        if (arrival == NULL)
            return;
        if (!arrival->is_contact)
            source->callbacks->on_batch(source->context, arrival->notice, &arrival->batch);
        else if (source->callbacks->on_contact != NULL)
            source->callbacks->on_contact(source->context, arrival->contact);
        arrival_destroy(source, arrival);
    }
}

static int watch(void *sub)
{
    return zmq_socket_monitor(sub, MONITOR_ENDPOINT,
                              ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED);
}

static int open_sockets(struct kv_event_source *source)
{
    const struct kv_event_source_config *config = &source->config;

    source->zmq = zmq_ctx_new();
    if (source->zmq == NULL)
        return -ENOMEM;
    source->sub = open_socket(source->zmq, ZMQ_SUB, config->endpoint, watch);
    if (source->sub == NULL ||
        zmq_setsockopt(source->sub, ZMQ_SUBSCRIBE, config->topic, strlen(config->topic)) < 0)
        return -EINVAL;
    source->monitor = open_socket(source->zmq, ZMQ_PAIR, MONITOR_ENDPOINT, NULL);
    if (source->monitor == NULL)
        return -ENOMEM;
    if (config->replay_endpoint == NULL)
        return 0;
    source->replay_endpoint = strdup(config->replay_endpoint);
    if (source->replay_endpoint == NULL)
        return -ENOMEM;
    source->dealer = open_socket(source->zmq, ZMQ_DEALER, source->replay_endpoint, NULL);
    if (source->dealer == NULL)
        return -EINVAL;
    close_socket(&source->dealer); /* it was to show that the endpoint is one */
    return 0;
}

static void free_source(struct kv_event_source *source)
{
    close_socket(&source->dealer);
    close_socket(&source->monitor);
    close_socket(&source->sub);
    if (source->zmq != NULL)
        zmq_ctx_term(source->zmq);
    uv_mutex_destroy(&source->lock);
    free(source->replay_endpoint);
    free(source);
}

static void on_signal_closed(uv_handle_t *signal)
{
    struct kv_event_source *source = signal->data;
    void (*on_closed)(void *context) = source->on_closed;
    void *context = source->context;

    free_source(source);
    if (on_closed != NULL)
        on_closed(context);
}

int kv_event_source_create(uv_loop_t *loop, struct kv_event_source_config config,
                           const struct kv_event_source_callbacks *callbacks, void *context,
                           struct kv_event_source **created)
{
    struct kv_event_source *source = calloc(1, sizeof *source);
    int status;

    *created = NULL;
    if (source == NULL)
        return -ENOMEM;
    if (uv_mutex_init(&source->lock) < 0) {
        free(source);
        return -ENOMEM;
    }
    source->config = config;
    source->callbacks = callbacks;
    source->context = context;
    list_init(&source->held);
    list_init(&source->queued);
    kv_event_order_init(&source->order, (struct kv_event_order_config){
                                            .has_replay = config.replay_endpoint != NULL,
                                            .cooldown_ms = config.replay_cooldown_ms,
                                        });
    status = open_sockets(source);
    if (status == 0)
        status = uv_async_init(loop, &source->signal, on_signal);
    if (status < 0) {
        free_source(source);
        return status;
    }
    source->signal.data = source;
    status = uv_thread_create(&source->thread, listen_until_shutdown, source);
    if (status < 0) {
        uv_close((uv_handle_t *)&source->signal, on_signal_closed);
        return status;
    }
    *created = source;
    return 0;
}

struct kv_event_source_stats kv_event_source_stats(struct kv_event_source *source)
{
    struct kv_event_source_stats stats;

    uv_mutex_lock(&source->lock);
    stats = source->stats;
    uv_mutex_unlock(&source->lock);
    return stats;
}

void kv_event_source_close(struct kv_event_source **closed, void (*on_closed)(void *context))
{
    struct kv_event_source *source = *closed;

    *closed = NULL;
    source->on_closed = on_closed;
    zmq_ctx_shutdown(source->zmq);
    uv_thread_join(&source->thread);
    drop_all(source, &source->held);
    drop_all(source, &source->queued);
    uv_close((uv_handle_t *)&source->signal, on_signal_closed);
}
