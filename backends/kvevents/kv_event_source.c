/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/kvevents/kv_event_source.h"

#include "backends/kvevents/kv_event_source_parts.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/*
 * DESIGN
 *
 *   SUB ----> judge (kv_event_order) --> queued --> uv_async --> on_batch, on the loop
 *    |          ^   \-> held, while a replay runs        |
 *    |  DEALER -/                                        \-> on_contact
 *    monitor: connected, disconnected ------/
 *
 * Neither the thread nor the loop waits for the other but for the moment the lock is held. What
 * waits for either is bounded in bytes: held and queued count together.
 */

/* ---- the queue ---- */

void source_count(struct kv_event_source *source, uint64_t *counter, uint64_t n)
{
    uv_mutex_lock(&source->lock);
    *counter += n;
    uv_mutex_unlock(&source->lock);
}

/* Memory for a message, within the bound; NULL: there is none, counted. */
static struct arrival *arrival_reserve(struct kv_event_source *source, size_t payload_len)
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

void source_arrival_destroy(struct kv_event_source *source, struct arrival *arrival)
{
    uv_mutex_lock(&source->lock);
    source->waiting_bytes -= arrival->bytes;
    uv_mutex_unlock(&source->lock);
    free(arrival);
}

struct arrival *source_arrival_create(struct kv_event_source *source,
                                      const struct kv_event_message *message)
{
    struct arrival *arrival = arrival_reserve(source, message->payload.len);

    if (arrival == NULL)
        return NULL;
    if (message->payload.len > 0)
        memcpy(arrival->payload, message->payload.ptr, message->payload.len);
    arrival->sequence = message->sequence;
    arrival->is_broken =
        kv_event_batch_open(&arrival->batch, slice_of(arrival->payload, message->payload.len)) < 0;
    return arrival;
}

void source_enqueue(struct kv_event_source *source, struct arrival *arrival)
{
    uv_mutex_lock(&source->lock);
    list_append(&source->queued, &arrival->in_list);
    if (!arrival->is_contact) {
        source->stats.batch_count++;
        source->stats.sequence_end = arrival->sequence + 1;
    } else if (arrival->contact == KV_EVENT_CONTACT_LOST) {
        source->stats.sequence_end = 0;
    }
    uv_mutex_unlock(&source->lock);
    uv_async_send(&source->signal);
}

struct arrival *source_first_of(struct list *list)
{
    return list->count > 0 ? container_of(list->head.next, struct arrival, in_list) : NULL;
}

void source_drop_all(struct kv_event_source *source, struct list *list)
{
    struct arrival *arrival;

    while ((arrival = source_first_of(list)) != NULL) {
        list_remove(list, &arrival->in_list);
        source_arrival_destroy(source, arrival);
    }
}

/* ---- the loop ---- */

static void on_signal(uv_async_t *signal)
{
    struct kv_event_source *source = signal->data;
    struct arrival *arrival;

    for (;;) {
        uv_mutex_lock(&source->lock);
        arrival = source_first_of(&source->queued);
        if (arrival != NULL)
            list_remove(&source->queued, &arrival->in_list);
        uv_mutex_unlock(&source->lock);
        if (arrival == NULL)
            return;
        if (!arrival->is_contact)
            source->callbacks->on_batch(source->context, arrival->notice, &arrival->batch);
        else if (source->callbacks->on_contact != NULL)
            source->callbacks->on_contact(source->context, arrival->contact);
        source_arrival_destroy(source, arrival);
    }
}

static void free_source(struct kv_event_source *source)
{
    kv_event_sockets_release(&source->sockets);
    uv_mutex_destroy(&source->lock);
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
    status = kv_event_sockets_open(&source->sockets, config.endpoint, config.topic,
                                   config.replay_endpoint);
    if (status == 0)
        status = uv_async_init(loop, &source->signal, on_signal);
    if (status < 0) {
        free_source(source);
        return status;
    }
    source->signal.data = source;
    status = uv_thread_create(&source->thread, source_listen, source);
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
    kv_event_sockets_shut_down(&source->sockets);
    uv_thread_join(&source->thread);
    kv_event_sockets_release(&source->sockets);
    source_drop_all(source, &source->held);
    source_drop_all(source, &source->queued);
    uv_close((uv_handle_t *)&source->signal, on_signal_closed);
}
